"""Files of nvidia-mig-parted (`version: v1`, `mig-configs:`), with its grammar and meaning.

Differences from mig-parted v0.15.0, all of them refusals of what it accepts and then silently
does not do: a device filter that is malformed or of another vendor, an index below 0, a profile
name that no card can have, a count that no GPU can hold, a key that is there twice, a bare null
where a value belongs.
"""

from nodeagent.documents.bounded_yaml import Tree
from nodeagent.documents.grammar import (
    DocumentValue,
    Given,
    Key,
    Rule,
    by_kind,
    flag,
    form,
    list_of,
    map_of,
    read_with,
    whole,
    word,
)
from nodeagent.documents.terms import (
    DEVICE,
    MAX_INSTANCES,
    check_profile,
    layout_of_counts,
    read_pci_filter,
)
from nodeagent.errors import DocumentError
from nodeagent.plan.desired import (
    DeviceSelector,
    MigDisabled,
    MigLayout,
    PciFilter,
    PlanDocument,
    PlanEntry,
)
from nodeagent.plan.problems import Code, Problem
from nodeagent.text import did_you_mean, listed, quote

Configurations = dict[str, list[PlanEntry]]

_MIG_CONFIGS = "mig-configs"


def read_configuration(tree: Tree, digest: str, name: str | None) -> PlanDocument:
    """One configuration of the file; raises DocumentError with every fault of the whole file.

    The only configuration needs no name. Later entries win, as in mig-parted, which divides such
    a GPU once for each entry.
    """
    configurations = read_with(_FILE, tree.value, tree.findings())
    return PlanDocument(entries=tuple(_selected(configurations, name)), digest=digest)


def _selected(configurations: Configurations, name: str | None) -> list[PlanEntry]:
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


def _filter(place: DocumentValue) -> PciFilter:
    if not isinstance(place.value, str):
        raise place.unexpected("a filter such as 0x233010DE, in quotes")
    try:
        return read_pci_filter(place.value)
    except ValueError as error:
        raise place.refuse(f"found {quote(place.value)}: {error}") from error


_FILTER_LIST = list_of(Rule(_filter, {}))


def _filters(place: DocumentValue) -> tuple[PciFilter, ...]:
    """The filters; without any, for which mig-parted has three spellings, every GPU matches."""
    if place.value in (None, "", []):
        return ()
    if isinstance(place.value, list):
        return tuple(_FILTER_LIST.read(place))
    return (_filter(place),)


def _index(place: DocumentValue) -> DeviceSelector:
    if type(place.value) is not int:
        raise place.unexpected("the index of a GPU")
    return DEVICE.read(place)


def _layout(place: DocumentValue) -> MigLayout | None:
    """The wanted profiles; a null counts as left out, a count of 0 or null as no instance."""
    if place.value is None:
        return None
    counts = _COUNTS.read(place)
    if counts and not any(counts.values()):
        raise place.refuse("all counts are 0", remedy="write {} for MIG without instances")
    return layout_of_counts(place, counts)


def _count(place: DocumentValue) -> int:
    return 0 if place.value is None else _WHOLE.read(place)


_WHOLE = whole(0, MAX_INSTANCES)
_COUNTS = map_of(Rule(_count, {}), check_profile)
_DEVICES = by_kind(
    {str: word("all"), list: list_of(Rule(_index, {}))},
    "all, or a list of indices",
    lambda value: f"write [{value}]" if type(value) is int else "",
)


# --- the file ---------------------------------------------------------------------------------


def _entry(place: DocumentValue, given: Given) -> PlanEntry:
    return PlanEntry(
        path=place.path_below(),
        devices=_devices(given["devices"]),
        devices_path=place.path_below("devices"),
        pci_filters=given["device-filter"],
        mig=_mig(place, given["mig-devices"], enabled=given["mig-enabled"]),
    )


def _devices(found: str | list[DeviceSelector]) -> tuple[DeviceSelector, ...] | None:
    """An index that is there twice selects its GPU once, as in mig-parted."""
    if isinstance(found, str):
        return None
    first: dict[int | str, DeviceSelector] = {}
    for selector in found:
        first.setdefault(selector.device, selector)
    return tuple(first.values())


def _mig(
    place: DocumentValue, layout: MigLayout | None, *, enabled: bool
) -> MigLayout | MigDisabled:
    if enabled and layout is None:
        raise place.refused("noMigDevices")
    if layout is not None and layout.instances and not enabled:
        raise place.refused("profilesWithoutMig", below=("mig-devices",))
    return (
        layout if enabled and layout is not None else MigDisabled(place.path_below("mig-enabled"))
    )


_ENTRY = form(
    Key("device-filter", Rule(_filters, {}), "PCI ids such as 0x233010DE", default=()),
    Key("devices", _DEVICES, "all, or a list of indices", required=True),
    Key("mig-enabled", flag(), "true or false", required=True),
    Key("mig-devices", Rule(_layout, {}), "a map of profile: count"),
    build=_entry,
)


_FILE: Rule[Configurations] = form(
    Key("version", word("v1"), "v1", required=True),
    Key(
        "mig-configs",
        map_of(list_of(_ENTRY, least=1), least=1),
        "a map of configurations, each a list of entries",
        required=True,
    ),
    build=lambda _, given: given["mig-configs"],
)
