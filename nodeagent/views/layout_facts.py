"""What schedulers read of a Node: how its GPUs are split and what still fits (the annotation
nodeagent.io/layout and a few labels), and where they are (nodeagent.io/topology).

A GPU that does not answer offers nothing. What is not known is absent.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from nodeagent.plan.layouts import Card, creatable, free_slots
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.users import as_used
from nodeagent.views.shapes import Json, MpsDaemon, as_json
from nodeagent.views.status_report import nvlink_shape
from nodeagent.views.text import MODE_WORD, compact_json, fitting, shortened

LAYOUT: Final = "nodeagent.io/layout"
TOPOLOGY: Final = "nodeagent.io/topology"
VERSION: Final = "v1"
MAX_BYTES: Final = 32 << 10  # bytes
FREE_SLOTS_LABEL: Final = "nodeagent.io/free-slots"
CREATABLE_LABEL: Final = "nodeagent.io/creatable."  # then a profile

_ENVELOPE = 128  # bytes kept for what is around the list of GPUs
_MAX_PRODUCT = 100  # characters
_MAX_NAME = 63  # characters of a label's name, behind the prefix


def layout(observed: ObservedNode, daemons: Sequence[MpsDaemon] = ()) -> str:
    """Every GPU with its MIG mode, slots, instances, what could be made, and MPS shares."""
    return _text(_gpu(as_used(gpu), daemons) for gpu in observed.gpus)


def _text(entries: Iterable[Json]) -> str:
    """The text of an annotation, with as many of the GPUs as fit, the first ones."""
    gpus, left_out, _ = fitting(entries, MAX_BYTES - _ENVELOPE)
    more = {"more": {"gpus": left_out}} if left_out else {}
    return compact_json({"version": VERSION, "gpus": gpus, **more})


def layout_labels(observed: ObservedNode) -> Mapping[str, str]:
    """What the node's GPUs together have free: memory slices, and of each profile how many could
    be made (each profile taken alone). None of it on a node without MIG.
    """
    divided = [gpu for gpu in observed.gpus if gpu.answers and gpu.in_mig_mode]
    if not divided:
        return {}
    counts: Counter[str] = Counter()
    for gpu in divided:
        counts.update(creatable(gpu))
    named = {f"{CREATABLE_LABEL}{_label_name(name)}": str(n) for name, n in counts.items()}
    free = sum(len(free_slots(gpu)) for gpu in divided)
    return {FREE_SLOTS_LABEL: str(free), **dict(sorted(named.items()))}


def label_changes(existing: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """The labels to set on a Node that has the `existing` ones; None removes each of ours that is
    not wanted any more. With nothing wanted, all of ours go.
    """
    ours = (key for key in existing if key == FREE_SLOTS_LABEL or key.startswith(CREATABLE_LABEL))
    return {**dict.fromkeys(ours), **wanted}


def _label_name(profile: str) -> str:
    """A profile as the name of a label may have it: `1g.10gb.me` for 1g.10gb+me, as device
    plugins name their resources.
    """
    most = _MAX_NAME - len(CREATABLE_LABEL.partition("/")[2])
    return re.sub(r"[^A-Za-z0-9._-]", ".", profile)[:most].rstrip("._-")


# --- one GPU --------------------------------------------------------------------------------------


def _gpu(gpu: Gpu, daemons: Sequence[MpsDaemon]) -> Json:
    report: Json = {"uuid": gpu.uuid} if gpu.uuid else {}
    report["index"] = gpu.index
    if not gpu.answers:
        return {**report, "access": gpu.access.value}
    if gpu.mig is not None:
        report["mig"] = MODE_WORD[gpu.mig.current]
        report["slots"] = {"total": Card.of(gpu).slots, "free": list(free_slots(gpu))}
    if gpu.in_mig_mode:
        report["creatable"] = creatable(gpu)
        report["instances"] = _instances(gpu)
    devices = {device.uuid for device in gpu.devices()}
    shares = _shares(daemon for daemon in daemons if daemon.device in devices)
    if shares:
        report["mps"] = shares
    return report


def _instances(gpu: Gpu) -> Json:
    """Count instances by profile, and those that are in use or may be."""
    total: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for _, device in gpu.mig_devices():
        total[device.profile] += 1
        used[device.profile] += device.usage.in_use
    return {name: {"total": total[name], "used": used[name]} for name in sorted(total)}


def _shares(daemons: Iterable[MpsDaemon]) -> Json:
    """Count by share how many clients there can be, on all devices of the GPU whose daemon is
    ready, and how many there are; a share for any number of clients has no total.
    """
    found: dict[str, Json] = {}
    for daemon in daemons:
        if not daemon.is_ready:
            continue
        clients = Counter(client.share for client in daemon.clients)
        for name, share in (daemon.shares or {}).items():
            entry = found.setdefault(name, {"total": 0, "used": 0})
            entry["used"] += clients[name]
            if share.count is None:
                entry.pop("total", None)
            elif "total" in entry:
                entry["total"] += share.count
    return dict(sorted(found.items()))


# --- where the GPUs are ---------------------------------------------------------------------------


def topology(observed: ObservedNode) -> str:
    """Every GPU with UUID, index, address, product, bytes of memory, NUMA node and NVLinks.

    Nothing in it changes while the agent splits GPUs.
    """
    return _text(map(_place, observed.gpus))


def _place(gpu: Gpu) -> Json:
    known = {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "pciBusId": gpu.pci_bus_id,
        "product": shortened(gpu.name, most=_MAX_PRODUCT, command=""),
        "memory": gpu.memory or None,
        "numaNode": gpu.numa_node,
        "nvlink": as_json(links) if (links := nvlink_shape(gpu)) else None,
    }
    return {key: value for key, value in known.items() if value not in ("", None)}
