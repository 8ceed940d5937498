"""The node as it is, as a document that asks for just that: a plan, or a mig-parted file.

A GPU instance without compute instances is no device, and neither format can ask for one: it is
left out of the document and named in a comment. So is a GPU that does not answer.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import yaml

from nodeagent.documents.bounded_yaml import plain_scalar
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, ObservedNode
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

_Data = dict[str, Any]
_K = TypeVar("_K")
_V = TypeVar("_V")

_MAX_WIDTH = 1000  # columns: no line is broken


# --- plans ------------------------------------------------------------------------------------


def plan_document(observed: ObservedNode) -> str:
    """A plan in YAML for all GPUs that have MIG or are shared: each MIG device at its place."""
    return _document(plan_data(observed), export_notes(observed))


def plan_data(observed: ObservedNode) -> _Data:
    """The plan of `plan_document` as data. GPUs that are split and shared alike have one entry."""
    alike = _grouped(((_content(gpu), _served(gpu)), gpu.index) for gpu in _answering(observed))
    entries = [{"devices": indices, **content} for (content, _), indices in alike if content]
    return {"version": "v1", "gpus": entries}


def _served(gpu: Gpu) -> tuple[str, ...]:
    """All GPUs of a daemon for several."""
    return gpu.mps.runs.devices if gpu.mps else ()


def _content(gpu: Gpu) -> _Data:
    """How the GPU is split and shared; empty when it has no MIG and is not shared."""
    if gpu.in_mig_mode:
        return {"mig": _layout(gpu)}
    mig = {} if gpu.mig is None else {"mig": "disabled"}
    return {**mig, **_shared(gpu)}


def _layout(gpu: Gpu) -> list[_Data]:
    """Each MIG device by profile and start; equal parts of one GPU instance are counted."""
    devices = (
        ((device.profile, instance.placement.start, _device_mps(gpu, instance, device)), device)
        for instance in sorted(gpu.instances, key=lambda i: i.placement.start)
        for device in sorted(instance.compute, key=lambda c: c.profile)
    )
    return [
        {
            "profile": profile,
            "start": start,
            **({"count": len(equal)} if len(equal) > 1 else {}),
            **mps,
        }
        for (profile, start, mps), equal in _grouped(devices)
    ]


def _shared(gpu: Gpu) -> _Data:
    """Sharing of a GPU outside MIG mode: `mps` or `timeSlice`, or nothing."""
    if gpu.mps is not None:
        return _mps(gpu.mps.runs, gpu.memory)
    if gpu.time_slice is None or gpu.compute_mode not in (None, ComputeMode.DEFAULT):
        return {}  # timeSlice would also set the compute mode
    if gpu.time_slice is TimeSlice.DEFAULT and gpu.earlier_time_slice is None:
        return {}
    return {"timeSlice": gpu.time_slice.value}


def _device_mps(gpu: Gpu, instance: GpuInstance, device: ComputeInstance) -> _Data:
    if device.mps is None:
        return {}
    profile = gpu.profile(instance.profile)
    total = device.memory.total if device.memory else 0
    return _mps(device.mps.runs, profile.memory if profile else total)


def _mps(runs: WantedMps, memory: int) -> _Data:
    """Nothing where it is for shares that claims have."""
    return {} if runs.sharing.of_claims else {"mps": mps_data(runs, memory)}


def mps_data(wanted: WantedMps, memory: int) -> _Data:
    """The plan's `mps` that leads to `wanted` on a device with `memory` bytes.

    Equal replicas are written as a share with limits, so that the document asks for the same limits
    on a device with other memory.
    """
    shares = wanted.sharing.shares
    data: _Data = {"user": _user(wanted.account)}
    uncounted = next((s for s in shares if s.count is None), None)
    if uncounted is not None:
        data["clients"] = _limits(uncounted)
    else:
        data["shares"] = {s.name: {"count": s.count, **_limits(s)} for s in shares}
    if wanted.sharing.enforce != "report":
        data["enforce"] = wanted.sharing.enforce
    total = sum((s.count or 0) * (s.memory or 0) * MIB for s in shares)
    # Rounded to the precision of a percentage here, since binary fractions do not add up.
    threads = round(sum((s.count or 0) * (s.threads or 0) for s in shares), 2)
    if total > memory or threads > ALL_THREADS:
        data["oversubscribe"] = True
    if wanted.devices:
        data["together"] = True
    return data


def _limits(share: Share) -> _Data:
    limits: _Data = {}
    if share.memory is not None:
        limits["memory"] = written_bytes(share.memory * MIB)
    if share.threads is not None:
        limits["threads"] = int(share.threads) if share.threads.is_integer() else share.threads
    return limits


def _user(account: Account) -> int | str:
    """Exactly this account: its groups are looked up for a uid alone, and not for uid:gid."""
    if account.any_user:
        return ANY_USER
    return account.uid if account.groups else f"{account.uid}:{account.gid}"


# --- mig-parted files -------------------------------------------------------------------------


def mig_parted_document(observed: ObservedNode, label: str = "current") -> str:
    """A mig-parted file in YAML; the format has no places, MPS or time slices."""
    return _document(mig_parted_data(observed, label), export_notes(observed, mig_parted=True))


def mig_parted_data(observed: ObservedNode, label: str = "current") -> _Data:
    """The file of `mig_parted_document` as data.

    By mig-parted's rules: GPUs with equal mode and counts share an entry; `devices` is `all`
    when these are all GPUs of their kinds; `device-filter` names the kinds when the node has
    several and the document more than one entry; GPUs without MIG are `mig-enabled: false`.
    """
    known = _answering(observed)
    alike = _grouped(((gpu.in_mig_mode, _counts(gpu)), gpu) for gpu in known)
    several = len(alike) > 1 and len({_kind(gpu) for gpu in known}) > 1
    entries: list[_Data] = []
    for (enabled, counts), gpus in alike:
        kinds = sorted({_kind(gpu) for gpu in gpus})
        entry: _Data = {}
        if several:
            entry["device-filter"] = kinds[0] if len(kinds) == 1 else kinds
        of_same_kinds = sum(_kind(gpu) in kinds for gpu in known)
        all_of_them = len(known) == len(observed.gpus) and len(gpus) == of_same_kinds
        entry["devices"] = "all" if all_of_them else [gpu.index for gpu in gpus]
        entries.append({**entry, "mig-enabled": enabled, "mig-devices": counts})
    # The format wants an entry: without a GPU that answers, one that matches nothing.
    nothing = {"devices": [], "mig-enabled": False, "mig-devices": {}}
    return {"version": "v1", "mig-configs": {label: entries or [nothing]}}


def _kind(gpu: Gpu) -> str:
    """The device filter that all cards of this type pass, whatever their PCI sub-system ids."""
    return f"0x{gpu.pci_device_id:08X}"


def _counts(gpu: Gpu) -> dict[str, int]:
    if not gpu.in_mig_mode:
        return {}
    devices = Counter(device.profile for _, device in gpu.mig_devices())
    return dict(sorted(devices.items()))


# --- notes ------------------------------------------------------------------------------------


def export_notes(observed: ObservedNode, *, mig_parted: bool = False) -> list[str]:
    """What a plan, or a mig-parted file, cannot say about the node, a sentence each."""
    notes = [note for gpu in observed.gpus for note in _notes(gpu)]
    if mig_parted:
        notes += [note for gpu in _answering(observed) for note in _sharing_notes(gpu)]
    return notes


def _notes(gpu: Gpu) -> Iterator[str]:
    name = f"GPU {gpu.index}"
    if not gpu.answers:
        yield f"{name} does not answer and is left out: {gpu.access_reason}"
        return
    if any(one.mps.runs.sharing.of_claims for one in gpu.devices() if one.mps):
        yield f"{name} has MPS for shares that claims have, which are not the plan's"
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
                "has no compute instance, so it is left out"
            )


def _sharing_notes(gpu: Gpu) -> Iterator[str]:
    end = "which a mig-parted file cannot express; --format plan has it"
    content = _content(gpu)
    layout = content.get("mig")
    items = layout if isinstance(layout, list) else []
    places = [f"{item['profile']} at {item['start']}" for item in items if "mps" in item]
    if "mps" in content:
        yield f"GPU {gpu.index} has MPS, {end}"
    if places:
        yield f"GPU {gpu.index} has MPS on {', '.join(places)}, {end}"
    if "timeSlice" in content:
        yield f"GPU {gpu.index} has the time slice {content['timeSlice']}, {end}"


def _answering(observed: ObservedNode) -> list[Gpu]:
    return [gpu for gpu in observed.gpus if gpu.answers]


def _grouped(pairs: Iterable[tuple[_K, _V]]) -> list[tuple[_K, list[_V]]]:
    """The values of equal keys (which need no hash) together, in the order of the first ones."""
    groups: list[tuple[_K, list[_V]]] = []
    for key, value in pairs:
        same = next((values for known, values in groups if known == key), None)
        if same is None:
            groups.append((key, [value]))
        else:
            same.append(value)
    return groups


# --- YAML -------------------------------------------------------------------------------------


class _Dumper(yaml.CSafeDumper):
    """Writes each value out, since documents are read without aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    """Text in quotes where `bounded_yaml` would read it as something else."""
    try:
        style = None if plain_scalar(text) == text else '"'
    except ValueError:
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _text)


def _document(data: _Data, notes: Iterable[str]) -> str:
    """The data, with the notes as comments above it; maps and lists of scalars on one line each."""
    comments = "".join(f"# {' '.join(note.split())}\n" for note in notes)
    options: _Data = {"sort_keys": False, "allow_unicode": True, "width": _MAX_WIDTH}
    return comments + str(yaml.dump(data, Dumper=_Dumper, default_flow_style=None, **options))
