"""Files of nvidia-mig-parted (`version: v1`, `mig-configs:`), with its grammar and meaning.

Differences from mig-parted v0.15.0, all of them refusals of what it accepts and then silently
does not do: a device filter that is malformed or of another vendor, an index below 0, a profile
name that no card can have, a count that no GPU can hold, a key that is there twice, a bare null
where a value belongs.
"""

from nodeagent.documents import grammar, terms
from nodeagent.documents.bounded_yaml import Tree
from nodeagent.errors import DocumentError
from nodeagent.plan import desired
from nodeagent.plan.problems import Code, Problem
from nodeagent.text import did_you_mean, listed, quote

Configurations = dict[str, list[desired.PlanEntry]]

_MIG_CONFIGS = "mig-configs"


def read_configuration(tree: Tree, digest: str, name: str | None) -> desired.PlanDocument:
    """One configuration of the file; raises DocumentError with every fault of the whole file.

    The only configuration needs no name. Later entries win, as in mig-parted, which divides such
    a GPU once for each entry.
    """
    configurations = grammar.read_with(_FILE, tree.value, tree.findings())
    return desired.PlanDocument(entries=tuple(_selected(configurations, name)), digest=digest)


def _selected(configurations: Configurations, name: str | None) -> list[desired.PlanEntry]:
    if name is None:
        if len(configurations) == 1:
            return next(iter(configurations.values()))
        count, names = len(configurations), listed(configurations)
        problem = Problem.of(
            Code.UNKNOWN_CONFIGURATION, "noneNamed", path=_MIG_CONFIGS, count=count, names=names
        )
    elif name in configurations:
        return configurations[name]
    else:
        near = did_you_mean(name, configurations) or f"it has {listed(configurations)}"
        problem = Problem.of(
            Code.UNKNOWN_CONFIGURATION, "notInFile", path=_MIG_CONFIGS, name=quote(name), near=near
        )
    raise DocumentError([problem])


# --- values -----------------------------------------------------------------------------------


def _filter(place: grammar.DocumentValue) -> desired.PciFilter:
    if not isinstance(place.value, str):
        raise place.unexpected("a filter such as 0x233010DE, in quotes")
    try:
        return terms.read_pci_filter(place.value)
    except ValueError as error:
        raise place.refuse(f"found {quote(place.value)}: {error}") from error


_FILTER_LIST = grammar.list_of(grammar.Rule(_filter, {}))


def _filters(place: grammar.DocumentValue) -> tuple[desired.PciFilter, ...]:
    """The filters; without any, for which mig-parted has three spellings, every GPU matches."""
    if place.value in (None, "", []):
        return ()
    if isinstance(place.value, list):
        return tuple(_FILTER_LIST.read(place))
    return (_filter(place),)


def _index(place: grammar.DocumentValue) -> desired.DeviceSelector:
    if type(place.value) is not int:
        raise place.unexpected("the index of a GPU")
    return terms.DEVICE.read(place)


def _layout(place: grammar.DocumentValue) -> desired.MigLayout | None:
    """The wanted profiles; a null counts as left out, a count of 0 or null as no instance."""
    if place.value is None:
        return None
    counts = _COUNTS.read(place)
    if counts and not any(counts.values()):
        raise place.refuse("all counts are 0", remedy="write {} for MIG without instances")
    return terms.layout_of_counts(place, counts)


def _count(place: grammar.DocumentValue) -> int:
    return 0 if place.value is None else _WHOLE.read(place)


_WHOLE = grammar.whole(0, terms.MAX_INSTANCES)
_COUNTS = grammar.map_of(grammar.Rule(_count, {}), terms.check_profile)
_DEVICES = grammar.by_kind(
    {str: grammar.word("all"), list: grammar.list_of(grammar.Rule(_index, {}))},
    "all, or a list of indices",
    lambda value: f"write [{value}]" if type(value) is int else "",
)


# --- the file ---------------------------------------------------------------------------------


def _entry(place: grammar.DocumentValue, given: grammar.Given) -> desired.PlanEntry:
    return desired.PlanEntry(
        path=place.path_below(),
        devices=_devices(given["devices"]),
        devices_path=place.path_below("devices"),
        pci_filters=given["device-filter"],
        mig=_mig(place, given["mig-devices"], enabled=given["mig-enabled"]),
    )


def _devices(
    found: str | list[desired.DeviceSelector],
) -> tuple[desired.DeviceSelector, ...] | None:
    """An index that is there twice selects its GPU once, as in mig-parted."""
    if isinstance(found, str):
        return None
    first: dict[int | str, desired.DeviceSelector] = {}
    for selector in found:
        first.setdefault(selector.device, selector)
    return tuple(first.values())


def _mig(
    place: grammar.DocumentValue, layout: desired.MigLayout | None, *, enabled: bool
) -> desired.MigLayout | desired.MigDisabled:
    if enabled and layout is None:
        raise place.refused("noMigDevices")
    if layout is not None and layout.instances and not enabled:
        raise place.refused("profilesWithoutMig", below=("mig-devices",))
    return (
        layout
        if enabled and layout is not None
        else desired.MigDisabled(place.path_below("mig-enabled"))
    )


_ENTRY = grammar.form(
    grammar.Key(
        "device-filter", grammar.Rule(_filters, {}), "PCI ids such as 0x233010DE", default=()
    ),
    grammar.Key("devices", _DEVICES, "all, or a list of indices", required=True),
    grammar.Key("mig-enabled", grammar.flag(), "true or false", required=True),
    grammar.Key("mig-devices", grammar.Rule(_layout, {}), "a map of profile: count"),
    build=_entry,
)


_FILE: grammar.Rule[Configurations] = grammar.form(
    grammar.Key("version", grammar.word("v1"), "v1", required=True),
    grammar.Key(
        "mig-configs",
        grammar.map_of(grammar.list_of(_ENTRY, least=1), least=1),
        "a map of configurations, each a list of entries",
        required=True,
    ),
    build=lambda _, given: given["mig-configs"],
)
