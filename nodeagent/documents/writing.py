"""The node as it is, as a document that asks for just that: a plan, or a mig-parted file.

A GPU instance without compute instances is no device, and neither format can ask for one: it is
left out of the document and named in a comment. So is a GPU that does not answer.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from nodeagent.documents.bounded_yaml import plain_scalar
from nodeagent.plan.observed import Access, ComputeInstance, Gpu, GpuInstance, ObservedNode
from nodeagent.plan.shares import (
    ALL_THREADS,
    ANY_USER,
    MIB,
    Account,
    ComputeMode,
    Share,
    TimeSlice,
    WantedMps,
    written_bytes,
)

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")


def plan_document(observed: ObservedNode) -> str:
    """A plan in YAML: every MIG device at its place, and MPS and time slices, for all GPUs that
    have MIG or are shared.
    """
    lines = [*_comments(export_notes(observed)), "version: v1"]
    entries = plan_data(observed)["gpus"]
    lines += ["gpus:"] if entries else ["gpus: []"]
    for entry in entries:
        lines.append(f"  - devices: {_flow(entry['devices'])}")
        lines += [f"    {line}" for line in _mig_lines(entry)]
        lines += [f"    {key}: {_flow(entry[key])}" for key in ("mps", "timeSlice") if key in entry]
    return "\n".join(lines) + "\n"


def _mig_lines(entry: dict[str, Any]) -> list[str]:
    match entry.get("mig"):
        case None:
            return []
        case str() as word:
            return [f"mig: {word}"]
        case []:
            return ["mig: []  # MIG mode on, no instances"]
        case items:
            return ["mig:", *(f"  - {_flow(item)}" for item in items)]


def mig_parted_document(observed: ObservedNode, label: str = "current") -> str:
    """A mig-parted file in YAML, as `nvidia-mig-parted export` writes it; it knows no places, and
    nothing of MPS and time slices.
    """
    notes = export_notes(observed, mig_parted=True)
    lines = [*_comments(notes), "version: v1", "mig-configs:"]
    [(label, entries)] = mig_parted_data(observed, label)["mig-configs"].items()
    lines.append(f"  {_scalar(label)}:")
    for entry in entries:
        first, *rest = (f"{key}: {_flow(value)}" for key, value in entry.items())
        if entry["mig-devices"]:
            rest[-1] = "mig-devices:"
            rest += [f"  {_scalar(name)}: {n}" for name, n in entry["mig-devices"].items()]
        lines += [f"  - {first}", *(f"    {line}" for line in rest)]
    return "\n".join(lines) + "\n"


def plan_data(observed: ObservedNode) -> dict[str, Any]:
    """The plan of `plan_document` as data. GPUs with the same picture share an entry."""
    pictures: list[tuple[list[int], dict[str, Any]]] = []
    for gpu in _answering(observed):
        picture = _picture(gpu)
        if not picture:
            continue
        same = next((indices for indices, known in pictures if known == picture), None)
        if same is None:
            pictures.append(([gpu.index], picture))
        else:
            same.append(gpu.index)
    return {
        "version": "v1",
        "gpus": [{"devices": indices, **picture} for indices, picture in pictures],
    }


def _picture(gpu: Gpu) -> dict[str, Any]:
    """How the GPU is split and shared; empty when it has no MIG and is not shared."""
    if gpu.mig is None:
        return shared_data(gpu)
    if gpu.mig.current:
        return {"mig": _layout(gpu)}
    return {"mig": "disabled", **shared_data(gpu)}


def mig_parted_data(observed: ObservedNode, label: str = "current") -> dict[str, Any]:
    """The file of `mig_parted_document` as data.

    By mig-parted's rules: GPUs with equal mode and counts share an entry; `devices` is `all`
    when these are all GPUs of their kinds; `device-filter` names the kinds when the node has
    several and the document more than one entry; GPUs without MIG are `mig-enabled: false`.
    """
    known = _answering(observed)
    merged: list[tuple[bool, dict[str, int], list[Gpu]]] = []
    for gpu in known:
        enabled = gpu.mig is not None and gpu.mig.current
        counts = _counts(gpu) if enabled else {}
        same = next((g for e, c, g in merged if (e, c) == (enabled, counts)), None)
        if same is None:
            merged.append((enabled, counts, [gpu]))
        else:
            same.append(gpu)
    all_known = len(known) == len(observed.gpus)
    several = len(merged) > 1 and len({_kind(gpu) for gpu in known}) > 1
    entries: list[dict[str, Any]] = []
    for enabled, counts, gpus in merged:
        kinds = sorted({_kind(gpu) for gpu in gpus})
        entry: dict[str, Any] = {}
        if several:
            entry["device-filter"] = kinds[0] if len(kinds) == 1 else kinds
        whole = all_known and len(gpus) == sum(_kind(gpu) in kinds for gpu in known)
        entry["devices"] = "all" if whole else [gpu.index for gpu in gpus]
        entries.append({**entry, "mig-enabled": enabled, "mig-devices": counts})
    # The format wants an entry; this one matches nothing, which is what there is.
    nothing = {"devices": [], "mig-enabled": False, "mig-devices": {}}
    return {"version": "v1", "mig-configs": {label: entries or [nothing]}}


def export_notes(observed: ObservedNode, *, mig_parted: bool = False) -> list[str]:
    """What a plan, or a mig-parted file, cannot say about the node, a sentence each."""
    notes = [note for gpu in observed.gpus for note in _notes(gpu)]
    if mig_parted:
        notes += [note for gpu in _answering(observed) for note in _sharing_notes(gpu)]
    return notes


def _notes(gpu: Gpu) -> Iterator[str]:
    name = f"GPU {gpu.index}"
    if gpu.access is not Access.OK:
        yield f"{name} does not answer and is left out: {gpu.access_reason}"
        return
    if gpu.mig is None:
        yield f"{name} ({gpu.name}) has no MIG"
        return
    if gpu.mig.current != gpu.mig.pending:
        word = "on" if gpu.mig.pending else "off"
        yield f"{name}: MIG mode will be {word} after a GPU reset"
    for instance in gpu.instances:
        if not instance.compute:
            yield (
                f"{name}: GPU instance {instance.id} ({instance.profile} at {instance.placement}) "
                "has no compute instance, so it is no device and is left out"
            )


def _sharing_notes(gpu: Gpu) -> Iterator[str]:
    end = "which a mig-parted file cannot say and leaves out; --format plan has it"
    picture = _picture(gpu)
    layout = picture.get("mig")
    items = layout if isinstance(layout, list) else []
    places = [f"{item['profile']} at {item['start']}" for item in items if "mps" in item]
    if "mps" in picture:
        yield f"GPU {gpu.index} has MPS, {end}"
    if places:
        yield f"GPU {gpu.index} has MPS on {', '.join(places)}, {end}"
    if "timeSlice" in picture:
        yield f"GPU {gpu.index} has the time slice {picture['timeSlice']}, {end}"


def _answering(observed: ObservedNode) -> list[Gpu]:
    return [gpu for gpu in observed.gpus if gpu.access is Access.OK]


def _kind(gpu: Gpu) -> str:
    """The device filter that all cards of this type pass; sub-systems do not matter."""
    return f"0x{gpu.pci_device_id:08X}"


def _counts(gpu: Gpu) -> dict[str, int]:
    devices = Counter(device.profile for instance in gpu.instances for device in instance.compute)
    return dict(sorted(devices.items()))


def _layout(gpu: Gpu) -> list[dict[str, Any]]:
    """The long form: each profile with its start, equal ones (parts of one instance) counted."""
    items: list[tuple[dict[str, Any], int]] = []
    for instance in sorted(gpu.instances, key=lambda i: i.placement.start):
        for device in sorted(instance.compute, key=lambda c: c.profile):
            item = {"profile": device.profile, "start": instance.placement.start}
            item |= device_data(gpu, instance, device)
            same = next((n for n, (known, _) in enumerate(items) if known == item), None)
            if same is None:
                items.append((item, 1))
            else:
                items[same] = (item, items[same][1] + 1)
    return [_counted(item, count) for item, count in items]


def _counted(item: dict[str, Any], count: int) -> dict[str, Any]:
    """The count stands before what is longer."""
    if count == 1:
        return item
    mps = {key: item[key] for key in ("mps",) if key in item}
    return {"profile": item["profile"], "start": item["start"], "count": count, **mps}


# --- YAML -------------------------------------------------------------------------------------


def _flow(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            items = (f"{_scalar(str(key))}: {_flow(item)}" for key, item in value.items())
            return "{" + ", ".join(items) + "}"
        case list():
            return "[" + ", ".join(map(_flow, value)) + "]"
        case str():
            return _scalar(value)
    return str(value)


def _scalar(text: str) -> str:
    """Text as a YAML scalar, in quotes where it could be read as something else."""
    try:
        plain = _PLAIN.fullmatch(text) is not None and plain_scalar(text) == text
    except ValueError:
        plain = False
    return text if plain else json.dumps(text, ensure_ascii=False)


def _comments(notes: Iterable[str]) -> list[str]:
    return [f"# {' '.join(note.split())}" for note in notes]


# --- MPS and time slices ----------------------------------------------------------------------

_Data = dict[str, Any]


def shared_data(gpu: Gpu) -> _Data:
    """Of a GPU outside MIG mode: `mps` or `timeSlice`, or nothing."""
    if gpu.mps is not None:
        return {"mps": mps_data(gpu.mps.runs, gpu.memory)}
    if gpu.time_slice is None or gpu.compute_mode not in (None, ComputeMode.DEFAULT):
        return {}  # timeSlice would also set the compute mode
    if gpu.time_slice is TimeSlice.DEFAULT and gpu.earlier_time_slice is None:
        return {}
    return {"timeSlice": gpu.time_slice.value}


def device_data(gpu: Gpu, instance: GpuInstance, device: ComputeInstance) -> _Data:
    """Of a MIG device: `mps`, or nothing."""
    if device.mps is None:
        return {}
    profile = gpu.profile(instance.profile)
    total = device.memory.total if device.memory else 0
    return {"mps": mps_data(device.mps.runs, profile.memory if profile else total)}


def mps_data(wanted: WantedMps, memory: int) -> _Data:
    """The plan's `mps` that leads to `wanted` on a device with `memory` bytes.

    Equal replicas are written as the share that they are: where the memory differs, the document
    still asks for the same.
    """
    sharing = wanted.sharing
    data: _Data = {"user": _user(wanted.account)}
    endless = next((s for s in sharing.shares if s.count is None), None)
    if endless is not None:
        data["clients"] = _limits(endless)
    else:
        data["shares"] = {s.name: {"count": s.count, **_limits(s)} for s in sharing.shares}
    if sharing.enforce != "report":
        data["enforce"] = sharing.enforce
    if _is_oversubscribed(sharing.shares, memory):
        data["oversubscribe"] = True
    return data


def _limits(share: Share) -> _Data:
    limits: _Data = {}
    if share.memory is not None:
        limits["memory"] = written_bytes(share.memory * MIB)
    if share.threads is not None:
        limits["threads"] = int(share.threads) if share.threads.is_integer() else share.threads
    return limits


def _is_oversubscribed(shares: tuple[Share, ...], memory: int) -> bool:
    total = sum((s.count or 0) * (s.memory or 0) * MIB for s in shares)
    # Rounded to the precision of a percentage here, since binary fractions do not add up.
    threads = round(sum((s.count or 0) * (s.threads or 0) for s in shares), 2)
    return total > memory or threads > ALL_THREADS


def _user(account: Account) -> int | str:
    """Exactly this account: groups come with a user that is looked up, never with uid:gid."""
    if account.any_user:
        return ANY_USER
    return account.uid if account.groups else f"{account.uid}:{account.gid}"
