"""The plan: what its keys mean, from text to the planner's `PlanDocument`.

All of it that needs no hardware is checked here; its JSON Schema, for editors and for checks before
a plan reaches a node, is made of the same rules.
"""

from nodeagent.documents import grammar
from nodeagent.documents.bounded_yaml import Tree
from nodeagent.documents.mps import MPS, MPS_OF_GPUS
from nodeagent.documents.terms import (
    DEVICE,
    MAX_INSTANCES,
    PROFILE,
    PROFILE_PATTERN,
    check_profile,
    check_total,
    hint_devices,
    layout_of_counts,
)
from nodeagent.plan import desired
from nodeagent.plan.names import ProfileName
from nodeagent.plan.problems import Code
from nodeagent.structs import replace
from nodeagent.text import did_you_mean, quote

MAX_START = 63  # memory slices; cards have at most 12


def read_plan(tree: Tree, digest: str) -> desired.PlanDocument:
    """The plan in `tree`; raises DocumentError with every fault."""
    return replace(grammar.read_with(PLAN, tree.value, tree.findings()), digest=digest)


# --- mig --------------------------------------------------------------------------------------


def _instance(place: grammar.DocumentValue, given: grammar.Given) -> desired.InstanceEntry:
    name = ProfileName.parse(given["profile"])
    start, count = given["start"], given["count"]
    if start is not None and count * name.compute > name.slices:
        raise place.refused(
            "countAtStart",
            count=count,
            profile=given["profile"],
            start=start,
            slices=name.slices,
            below=("count",),
        )
    return desired.InstanceEntry(
        profile=given["profile"],
        count=count,
        path=place.path_below(),
        start=start,
        mps=given["mps"],
    )


_COUNT = grammar.whole(1, MAX_INSTANCES)

_INSTANCE = grammar.form(
    grammar.Key(
        "profile", PROFILE, "a profile such as 3g.40gb, 1g.10gb+me or 1c.3g.40gb", required=True
    ),
    grammar.Key("count", _COUNT, "how many instances", default=1),
    grammar.Key(
        "start", grammar.whole(0, MAX_START), "first memory slice; without it, any that is free"
    ),
    grammar.Key("mps", MPS, "MPS on each of these instances"),
    build=_instance,
)


def _mode(place: grammar.DocumentValue, mode: str) -> desired.MigEntry:
    path = place.path_below()
    return desired.MigDisabled(path) if mode == "disabled" else desired.MigEnabled(path)


def _instances(
    place: grammar.DocumentValue, instances: list[desired.InstanceEntry]
) -> desired.MigLayout:
    check_total(place, sum(instance.count for instance in instances))
    return desired.MigLayout(tuple(instances), place.path_below())


def _hint_mig(value: object) -> str:
    """What to write where `mig` has none of its forms."""
    if isinstance(value, bool):  # YAML's off and on
        return f"write mig: {'enabled' if value else 'disabled'}"
    if not isinstance(value, str) or value in ("disabled", "enabled"):
        return ""
    try:
        ProfileName.parse(value)
    except ValueError:
        return did_you_mean(value, ("disabled", "enabled"))
    return f"write {{{value}: 1}}"


_MIG = grammar.by_kind(
    {
        str: grammar.then(grammar.word("disabled", "enabled"), _mode),
        dict: grammar.then(
            grammar.map_of(_COUNT, check_profile, key_pattern=PROFILE_PATTERN), layout_of_counts
        ),
        list: grammar.then(grammar.list_of(_INSTANCE), _instances),
    },
    "disabled, enabled, a map of profile: count, or a list of instances",
    _hint_mig,
)


# --- entries ----------------------------------------------------------------------------------


def _each_once(
    place: grammar.DocumentValue, devices: list[desired.DeviceSelector]
) -> list[desired.DeviceSelector]:
    seen: dict[int | str, desired.DeviceSelector] = {}
    for position, device in enumerate(devices):
        first = seen.setdefault(device.device, device)
        if first is not device:
            raise place.below(position).refused(
                "again", code=Code.DUPLICATE_DEVICE, found=_named(device), first=_named(first)
            )
    return devices


def _named(device: desired.DeviceSelector) -> str:
    """Name a device as it was written: an index without quotes."""
    return device.text if isinstance(device.device, int) else quote(device.text)


_DEVICES = grammar.by_kind(
    {str: grammar.word("all"), list: grammar.then(grammar.list_of(DEVICE, least=1), _each_once)},
    "all, or a list of indices, UUIDs and PCI addresses",
    hint_devices,
)


TIME_SLICE = grammar.word("default", "short", "medium", "long")


def refuse_two_ways(place: grammar.DocumentValue, given: grammar.Given) -> None:
    """Refuse mps beside timeSlice."""
    if given["mps"] and given["timeSlice"]:
        raise place.refused("mpsAndTimeSlice", below=("timeSlice",), of_key=True)


_SAYS = ("mig", "mps", "timeSlice", "share")  # one of them at least


def _check_share(place: grammar.DocumentValue, given: grammar.Given) -> None:
    """Refuse a way in which claims share the GPU beside what leaves none of it to share."""
    share = given["share"]
    if share in (None, "off"):
        return
    beside = "mps" if given["mps"] else ""
    if given["timeSlice"] and share != "time":
        beside = "timeSlice"
    if beside:
        raise place.refused("shareBeside", share=share, other=beside, below=("share",), of_key=True)


def _shared_beside(key: str, *but: str) -> grammar.JsonSchema:
    """What `_check_share` refuses: share without these words beside the key."""
    properties = {"share": {"not": {"enum": list(but)}}}
    return {"required": ["share", key], "properties": properties}


def _entry(place: grammar.DocumentValue, given: grammar.Given) -> desired.PlanEntry:
    refuse_two_ways(place, given)
    if not any(given[key] for key in _SAYS):
        raise place.refused("emptyEntry")
    _check_share(place, given)
    devices = given["devices"]
    return desired.PlanEntry(
        path=place.path_below(),
        devices=None if devices == "all" else tuple(devices),
        devices_path=place.path_below("devices"),
        model=given["model"],
        mig=given["mig"],
        mps=given["mps"],
        time_slice=given["timeSlice"],
        when_in_use=desired.WhenInUse(given["whenInUse"]),
        dra=given["dra"],
        share=given["share"],
    )


_ENTRY = grammar.form(
    grammar.Key(
        "devices", _DEVICES, "all, or a list of indices, UUIDs, PCI addresses", required=True
    ),
    grammar.Key(
        "model",
        grammar.text(r"[^\n]{1,128}", "a glob on the product name, such as *H100*"),
        "glob on the product name, in addition to devices",
    ),
    grammar.Key(
        "mig",
        _MIG,
        "disabled: MIG mode off; enabled: MIG mode on, instances left as they are; a map of "
        "profile: count, or a list of instances: MIG mode on with exactly these",
    ),
    grammar.Key(
        "mps", MPS_OF_GPUS, "MPS on the GPU; beside a MIG layout, on each instance without mps"
    ),
    grammar.Key("timeSlice", TIME_SLICE, "how long a process runs before the next one's turn"),
    grammar.Key(
        "whenInUse",
        grammar.word("wait", "evict"),
        "what to do about users of what must go: wait for them, or evict their pods",
        default="wait",
    ),
    grammar.Key(
        "dra",
        grammar.flag(),
        "whether MIG devices are made for claims (DRA) where the entry leaves room",
        default=True,
    ),
    grammar.Key(
        "share",
        grammar.shared_by(),
        "how claims share the GPU, or its MIG devices: off; memory: so much memory and threads as "
        "each requests, held to it by MPS; a number: one of so many equal parts; time: by turns. "
        "Without it as the settings dra.share and dra.share_mig say",
    ),
    build=_entry,
    constraints={
        "anyOf": [{"required": [key]} for key in _SAYS],
        "not": {
            "anyOf": [
                {"required": ["mps", "timeSlice"]},
                _shared_beside("mps", "off"),
                _shared_beside("timeSlice", "off", "time"),
            ]
        },
    },
)


# --- the document -----------------------------------------------------------------------------


PLAN = grammar.form(
    grammar.Key("version", grammar.word("v1"), "v1", required=True),
    grammar.Key(
        "gpus",
        grammar.list_of(_ENTRY),
        "a list of entries, read in order; GPUs that none of them names are not touched",
        required=True,
    ),
    grammar.Key(
        "devicePluginConfig",
        grammar.text(
            r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
            "a name of at most 63 letters, digits, - _ and . that can be a label's value",
        ),
        "the configuration that NVIDIA's device plugin should use on this node",
    ),
    build=lambda _, given: desired.PlanDocument(
        entries=tuple(given["gpus"]), digest="", device_plugin_config=given["devicePluginConfig"]
    ),
)


def plan_schema() -> grammar.JsonSchema:
    """The plan's JSON Schema (draft 2020-12), from the very rules that read plans.

    It holds what a schema can express: not the sums of counts, not the same device under two
    names, and not whether a quantity is a whole number of bytes.
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:nodeagent:schema:plan:v1",
        "title": "nodeagent plan",
        "description": "What each GPU of a node should be.",
        **PLAN.schema,
    }
