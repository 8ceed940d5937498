"""Words for what is observed and done; text cut to a size, in one line or as JSON."""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, assert_never

from nodeagent.plan import steps
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, users_of
from nodeagent.plan.users import User
from nodeagent.text import alike

MODE_WORD = {True: "enabled", False: "disabled"}  # of MIG


def gpu_words(gpu: Gpu) -> str:
    """`GPU 3`; callers add the UUID where an index is not enough."""
    return f"GPU {gpu.index}"


def step_words(step: steps.Step) -> str:
    """A step as a command: `create 3g.40gb at 4`."""
    match step:
        case steps.SetMigMode(enabled=enabled):
            return "enable MIG mode" if enabled else "disable MIG mode"
        case steps.ResetGpu():
            return "reset the GPU"
        case steps.DestroyGpuInstance() | steps.DestroyComputeInstance():
            return f"destroy {step.profile} at {step.placement.start}"
        case steps.CreateGpuInstance() | steps.CreateComputeInstance():
            return f"create {step.profile} at {step.placement.start}"
        case steps.StopMps():
            return f"stop MPS{_on(step)}"
        case steps.StartMps(runs=runs):
            return f"{'change the limits of' if runs else 'start'} MPS{_on(step)}"
        case steps.SetComputeMode(mode=mode):
            return f"set compute mode {mode.value}{_on(step)}"
        case steps.SetTimeSlice(time_slice=time_slice):
            return f"set the time slice to {time_slice.value}"
        case _:
            assert_never(step)


def _on(step: steps.StopMps | steps.StartMps | steps.SetComputeMode) -> str:
    """Name the device, where there are several, or how many a daemon serves."""
    if isinstance(step, steps.StartMps) and step.wanted.devices:
        return f" for {len(step.wanted.devices)} GPUs"
    return f" on {step.profile} at {step.placement.start}" if step.placement else ""


def layout_words(gpu: Gpu) -> str:
    """A GPU's layout in one line: `1g.10gb at 0, 1; 3g.40gb with MPS at 4`."""
    words = _mig_words(gpu)
    if gpu.mps is not None:
        words += ", with MPS"
    if gpu.earlier_time_slice is not None and gpu.time_slice is not None:  # the agent set it
        words += f", time slice {gpu.time_slice.value}"
    return words


def _mig_words(gpu: Gpu) -> str:
    if not gpu.answers:
        return "a layout that is not known"
    if gpu.mig is None:
        return "no MIG"
    if gpu.mig.current != gpu.mig.pending:
        return f"MIG {'on' if gpu.mig.current else 'off'}, waiting for a GPU reset to change"
    if not gpu.mig.current:
        return "MIG off"
    ordered = sorted(gpu.instances, key=lambda i: i.placement)
    starts = alike((_instance_words(one), one.placement.start) for one in ordered)
    words = (f"{what} at {', '.join(map(str, where))}" for what, where in starts.items())
    return "; ".join(words) or "no instances"


def _instance_words(instance: GpuInstance) -> str:
    if not instance.compute:
        return f"half-made {instance.profile}"
    return "+".join(
        f"{device.profile} with MPS" if device.mps else device.profile
        for device in instance.compute
    )


def user_words(gpu: Gpu, instance: int | None = None) -> str:
    """Who uses the GPU, or only the GPU instance of this id, by name; empty when it is idle."""
    return ", ".join(dict.fromkeys(map(str, users(gpu, instance))))


def users(gpu: Gpu, instance: int | None = None) -> tuple[User, ...]:
    """Everyone known to use the GPU, or only the GPU instance of this id; each pid once."""
    used: list[Gpu | ComputeInstance] = [gpu] if instance is None else []
    used += [device for its, device in gpu.mig_devices() if instance is None or its.id == instance]
    found: dict[int | User, User] = {}
    for place in used:
        for user in users_of(place):
            found.setdefault(user.pid or user, user)  # a user without a pid stands for itself
    return tuple(found.values())


def time_json(moment: datetime) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_CUT = "…"
_ALL = "nodeagent status --problems"


def one_line(text: str) -> str:
    """The text in one line: control characters and line ends become spaces."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(text.split())


def shortened(text: str, *, most: int, command: str = _ALL) -> str:
    """Cut text to one line of at most `most` characters; an ellipsis marks the cut, and `command`
    shows all of it. A command is left out whole: half of it could be pasted.
    """
    line = one_line(text)
    if len(line) <= most:
        return line
    mark = f"{_CUT}; in full: {command}" if command else _CUT
    kept = line[: most - len(mark)]
    return (kept.rpartition("`")[0] if kept.count("`") % 2 else kept) + mark


def compact_json(value: object) -> str:
    """JSON without spaces; equal values in equal order give equal text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def json_size(value: object) -> int:
    """Bytes of the compact JSON."""
    return len(compact_json(value).encode())


def fitting(entries: Iterable[Any], room: int) -> tuple[list[Any], int, int]:
    """The first of the entries that fit a JSON list of so many bytes, how many are left out, and
    how many bytes the list takes.
    """
    kept: list[Any] = []
    left_out, size = 0, len("[]")
    for entry in entries:
        needed = json_size(entry) + (1 if kept else 0)
        if left_out or size + needed > room:
            left_out += 1
            continue
        kept.append(entry)
        size += needed
    return kept, left_out, size
