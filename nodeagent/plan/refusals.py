"""Why a plan is refused, in the words of the person who wrote it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from nodeagent.plan.desired import DesiredGpu, WantedInstance
from nodeagent.plan.layouts import Card, free_slots
from nodeagent.plan.names import device_name
from nodeagent.plan.observed import Access, ComputeInstance, Gpu, GpuInstance, Usage
from nodeagent.plan.plan import Policy
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.search import Target, best_layout


@dataclass(frozen=True, slots=True)
class Blocker:
    """A device in use that the plan would have to take away."""

    instance: GpuInstance
    device: ComputeInstance

    def __str__(self) -> str:
        return f"{self.device.profile} at slice {self.instance.placement.start}"


def vanished(uuid: str, wanted: DesiredGpu) -> Problem:
    """A GPU that was resolved and is not there any more."""
    return Problem(
        Code.GPU_LOST,
        f"the GPU {uuid} that {wanted.path} names is gone",
        "check dmesg and nvidia-smi; a reboot may bring it back",
        gpu=uuid,
        path=wanted.path,
    )


def inaccessible(gpu: Gpu, wanted: DesiredGpu) -> Problem:
    """The driver does not answer for the GPU, so nothing is done to it."""
    lost = gpu.access is Access.LOST
    return Problem(
        Code.GPU_LOST if lost else Code.GPU_UNKNOWN,
        f"{gpu.title} does not answer: {gpu.access_reason or 'no reason is known'}",
        "nothing is done to it until it answers again",
        gpu=gpu.uuid,
        path=wanted.path,
    )


def not_mig_capable(gpu: Gpu, path: str) -> Problem:
    """MIG is asked of a card that has none."""
    return Problem(
        Code.NOT_MIG_CAPABLE,
        f"{gpu.title} has no MIG",
        "name only GPUs with MIG (nodeagent profiles shows them), or select by model",
        gpu=gpu.uuid,
        path=path,
    )


def mode_in_use(gpu: Gpu, path: str, *, enable: bool) -> Problem:
    """A mode change needs the whole GPU idle."""
    word = "on" if enable else "off"
    if not gpu.usage.known:
        who = str(gpu.usage)
    else:
        users = [str(gpu.usage)] if gpu.usage.processes else []
        users += [
            f"{c.usage} on {c.profile} at slice {i.placement.start}"
            for i in gpu.instances
            for c in i.compute
            if c.usage.in_use
        ]
        who = "; ".join(users)
    return Problem(
        Code.IN_USE,
        f"MIG mode of {gpu.title} cannot be switched {word} while it is in use: {who}",
        "end what uses it, or wait for its end",
        gpu=gpu.uuid,
        path=path,
    )


def gpu_held(gpu: Gpu, path: str) -> Problem:
    """A client from before, outside any instance, keeps the driver from creating."""
    return Problem(
        Code.IN_USE,
        f"no GPU instance can be created on {gpu.title} while it is held outside any: {gpu.usage}",
        "end what holds it, or wait for its end",
        gpu=gpu.uuid,
        path=path,
    )


def without_eviction(problem: Problem) -> Problem:
    """The entry has `whenInUse: evict`, which takes a cluster; elsewhere it waits."""
    if problem.code is not Code.IN_USE:
        return problem
    remedy = f"in a cluster the agent has its pods evicted; else {problem.remedy}"
    return replace(problem, remedy=remedy)


def reset_required(gpu: Gpu, path: str, policy: Policy, *, enable: bool) -> Problem:
    """The mode is set or to be set, and becomes current only at a reset.

    Where the plan does not set it (instances would be destroyed for nothing), the remedy does.
    """
    word = "on" if enable else "off"
    first = (
        f"run `nvidia-smi -i {gpu.pci_bus_id} -mig 0`, then " if _keeps_mode(gpu, enable) else ""
    )
    reset = f"`nvidia-smi --gpu-reset -i {gpu.pci_bus_id}`"
    if gpu.passthrough:
        remedy = "reboot the virtual machine: the GPU cannot be reset from inside it"
    elif policy.reset_when_idle:
        remedy = f"{first or 'run '}{reset}, or reboot"
    else:
        remedy = (
            f"while the GPU is idle, {first or 'run '}{reset} or reboot; or allow it with the "
            "setting `reset: whenIdle`"
        )
    return Problem(
        Code.RESET_REQUIRED,
        f"MIG mode of {gpu.title} goes {word} only at a GPU reset",
        remedy,
        gpu=gpu.uuid,
        path=path,
    )


def _keeps_mode(gpu: Gpu, enable: bool) -> bool:
    """Whether a reset would leave the mode as it is, since the plan does not set it."""
    return not enable and bool(gpu.instances) and gpu.mig is not None and gpu.mig.pending


def mode_cannot_return(gpu: Gpu, path: str) -> Problem:
    """Switching MIG off here could not be taken back."""
    return Problem(
        Code.MODE_CANNOT_RETURN,
        f"MIG mode of {gpu.title} is not switched off: in this virtual machine the GPU cannot be "
        "reset, so it could not be switched on again",
        "switch it off from the hypervisor's side, or leave the GPU out of the plan",
        gpu=gpu.uuid,
        path=path,
    )


def not_offered(gpu: Gpu, wanted: Sequence[WantedInstance]) -> Problem:
    """The layout names a profile that the card does not list (any more)."""
    offered = ", ".join(p.name for p in gpu.profiles) or "none"
    return Problem(
        Code.UNKNOWN_PROFILE,
        f"{gpu.title} has no profile {wanted[0].profile}",
        f"it offers: {offered}",
        gpu=gpu.uuid,
        path=wanted[0].path,
    )


def does_not_fit(gpu: Gpu, wanted: Sequence[WantedInstance], path: str) -> Problem:
    """Not on this card, not even an empty one. Names the first device that is too much."""
    card = Card.of(gpu)
    order = {name: n for n, name in enumerate(card.profiles)}
    fixed_first = sorted(wanted, key=lambda w: (w.start is None, order[w.profile], -w.slices))
    fitting: list[WantedInstance] = []
    too_much = fixed_first[-1]
    for instance in fixed_first:
        if best_layout(card, [*fitting, instance], ()) is None:
            too_much = instance
            break
        fitting.append(instance)

    def name(one: WantedInstance) -> str:
        return device_name(one.profile, card.profiles[one.profile].profile.slices, one.slices)

    rest = _counted(map(name, fitting)) or "nothing else"
    where = f" at slice {too_much.start}" if too_much.start is not None else ""
    return Problem(
        Code.DOES_NOT_FIT,
        f"{_counted(map(name, wanted))} cannot be on {gpu.title} together: "
        f"beside {rest} there is no room for {name(too_much)}{where}",
        _alternative(card, too_much, wanted),
        gpu=gpu.uuid,
        path=too_much.path or path,
    )


def _alternative(card: Card, instance: WantedInstance, wanted: Sequence[WantedInstance]) -> str:
    profile = card.profiles[instance.profile].profile
    if not profile.placements:
        return f"the driver reports no placement for a {profile.name}"
    whole = sum(1 for w in wanted if w.profile == profile.name and w.slices == profile.slices)
    if whole > profile.max_count:
        return f"the card has at most {profile.max_count} {profile.name}, wherever they lie"
    starts = ", ".join(str(p.start) for p in sorted(profile.placements))
    return (
        f"a {profile.name} takes {profile.placements[0].size} of {card.slots} memory slices and "
        f"can start at {starts}; take fewer or smaller instances"
    )


def _counted(names: Iterable[str]) -> str:
    counts = Counter(names)
    return " + ".join(f"{n}x {name}" if n > 1 else name for name, n in counts.items())


def in_the_way(
    gpu: Gpu,
    wanted: Sequence[WantedInstance],
    target: Target,
    blockers: Sequence[Blocker],
    path: str,
) -> tuple[Problem, ...]:
    """One problem for each device in use that would have to go."""
    missing = [p.division.profile for p in target.placed if p.existing is None]
    purpose = f"to make room for {_counted(missing)}" if missing else "since the plan has no such"
    path = next((w.path for w in wanted if w.profile in missing), "") or path
    slots = ", ".join(map(str, free_slots(gpu))) or "none"
    return tuple(
        Problem(
            Code.IN_USE,
            f"{blocker} of {gpu.title} would have to go {purpose} "
            f"(free memory slices: {slots}), "
            f"but is in use by {_users(gpu, blocker)}",
            "end what uses it, or wait for its end",
            gpu=gpu.uuid,
            path=path,
        )
        for blocker in blockers
    )


def _users(gpu: Gpu, blocker: Blocker) -> str:
    if blocker.device.usage.in_use:
        return str(blocker.device.usage)
    return f"{gpu.usage}, of which it is not known which instance they use"


def daemon_in_use(gpu: Gpu, device: str, users: Usage, *, why: str, path: str) -> Problem:
    """A daemon that would have to stop has users, or it is not known whether it has any."""
    return Problem(
        Code.IN_USE,
        f"the MPS daemon of {device} would have to be stopped ({why}), but the device is in use "
        f"by {users}",
        "end what uses it, or wait for its end",
        gpu=gpu.uuid,
        path=path,
    )


def held_outside_mps(gpu: Gpu, device: str, users: Usage, path: str) -> Problem:
    """The device is in use without MPS, whose server could not open it beside those users."""
    return Problem(
        Code.IN_USE,
        f"{device} cannot be given to MPS alone (compute mode EXCLUSIVE_PROCESS) while it is in "
        f"use outside MPS by {users}",
        "end what uses it, wait for its end, or leave compute modes alone (setting "
        "mps.computeMode: leave)",
        gpu=gpu.uuid,
        path=path,
    )


def unhealthy_gpu(gpu: Gpu, path: str) -> Problem:
    """The whole GPU is unhealthy, so nothing is done to it."""
    return _unhealthy(gpu, f"nothing is changed on {gpu.title}", path)


def unhealthy_slices(gpu: Gpu, path: str) -> Problem:
    """The layout would need unhealthy memory slices."""
    bits = gpu.health_limits.slices
    slices = ", ".join(str(n) for n in range(bits.bit_length()) if bits >> n & 1)
    what = f"the plan needs unhealthy memory slices of {gpu.title} (unhealthy: {slices})"
    return _unhealthy(gpu, what, path)


def _unhealthy(gpu: Gpu, what: str, path: str) -> Problem:
    limits = gpu.health_limits
    message = f"{what}: {limits.why}" if limits.why else what
    return Problem(Code.GPU_UNHEALTHY, message, limits.remedy, gpu=gpu.uuid, path=path)
