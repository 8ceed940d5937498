"""A random day for each seed."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.campaign.episode import (
    Action,
    BadPlan,
    Damage,
    EndFaults,
    Episode,
    Fault,
    Foreign,
    FullDisk,
    Hang,
    JumpClock,
    Kill,
    Leave,
    Lose,
    Occupy,
    Plan,
    Reboot,
    Recover,
    Restart,
    Signal,
    Step,
    Xid,
)

BOARDS = {
    "h100-80gb:1": ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "h100-80gb:2": ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "h200:1": ("1g.18gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
}
# How many there are of each of the five, in layouts that every card of seven slices can have.
LAYOUTS = (
    (7, 0, 0, 0, 0),
    (2, 0, 0, 0, 0),
    (0, 3, 0, 0, 0),
    (1, 3, 0, 0, 0),
    (0, 0, 2, 0, 0),
    (1, 0, 1, 0, 0),
    (3, 0, 0, 1, 0),
    (0, 0, 1, 1, 0),
    (0, 1, 1, 0, 0),
    (0, 0, 0, 0, 1),
)
BAD_PLANS = (
    "version: v1\ngpus:\n- {devices: all, mig: {9g.90gb: 1}}\n",
    "version: v1\ngpus:\n- {devices: all, mig: {7g.80gb: 2, 7g.40gb: 2}}\n",
    "version: v1\ngpus:\n- {devices: [12], mig: disabled}\n",
    "version: v1\ngpus: [\n",
    "",
    "version: v9\n",
)


def episode(seed: int) -> Episode:
    """The day with this number, ever the same."""
    rng = random.Random(seed)
    boards = rng.choice(list(BOARDS))
    gpus = int(boards[-1])
    plan, more = (_shared_plan, _WITH_MPS) if rng.random() < _SHARING else (_plan, ())
    makers, weights = zip((plan, 20), *_MAKERS, *more, strict=True)
    actions: list[Action] = [plan(rng, boards, gpus)]
    for _ in range(rng.randint(4, 14)):
        make = rng.choices(makers, weights)[0]
        actions.append(make(rng, boards, gpus))
        if _comes_in_between(actions[-1]):  # of what the agent sees and what it does
            actions.append(plan(rng, boards, gpus))
    steps = tuple(
        Step(action, 0.0 if _comes_in_between(action) else _seconds(rng)) for action in actions
    )
    return Episode(seed, boards, rng.random() < 0.5, steps)


# --- how each is made -----------------------------------------------------------------------------

_CODES = (
    *("UNKNOWN", "TIMEOUT", "GPU_IS_LOST", "MEMORY", "OPERATING_SYSTEM", "UNINITIALIZED"),
    *("DRIVER_NOT_LOADED", "RESET_REQUIRED", "NO_PERMISSION", "INVALID_ARGUMENT"),
)
_CHANGES = (
    "nvmlDeviceCreateGpuInstance*",
    "nvmlGpuInstanceCreateComputeInstance*",
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
    "nvmlDeviceSetMigMode",
)
_MOMENTS = (
    "nvmlDeviceGetComputeRunningProcesses*",
    "nvmlDeviceGetComputeRunningProcesses*",
    "nvmlDeviceGetGpuInstances",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
    "nvmlDeviceSetMigMode",
)
_READS = (
    "*",
    "nvmlDeviceGet*",
    "nvmlGpuInstanceGet*",
    "nvmlDeviceGetComputeRunningProcesses*",
    "nvmlDeviceGetGraphicsRunningProcesses*",
    "nvmlDeviceGetGpuInstances",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetHandleByIndex*",
    "nvmlDeviceGetCount*",
    "nvmlDeviceGetUUID",
    "nvmlInit*",
    "nvmlEventSetWait*",
)


def _seconds(rng: random.Random) -> float:
    """Often too few for the agent to come to rest."""
    return rng.choice((0.0, 0.02, 0.1, 0.5, 2.0, 10.0, 40.0, 70.0))


def _layout(rng: random.Random, boards: str) -> dict[str, int]:
    if rng.random() < 0.1:
        return {}
    counts = zip(BOARDS[boards], rng.choice(LAYOUTS), strict=True)
    return {profile: count for profile, count in counts if count}


def _plan(rng: random.Random, boards: str, gpus: int) -> Plan:
    return Plan(tuple(_layout(rng, boards) for _ in range(gpus)))


def _shared_plan(rng: random.Random, boards: str, gpus: int) -> Plan:
    """On cards without instances or with a few, since each daemon is a process."""
    few: list[dict[str, int]] = [{}, {BOARDS[boards][2]: 2}, {BOARDS[boards][4]: 1}]
    layouts = tuple(rng.choice(few) for _ in range(gpus))
    return Plan(layouts, tuple(gpu for gpu in range(gpus) if rng.random() < 0.6))


def _signal(rng: random.Random, boards: str, gpus: int) -> Signal:
    return Signal(rng.choice(("SIGKILL", "SIGKILL", "SIGTERM", "SIGSTOP")), rng.randrange(4))


def _bad_plan(rng: random.Random, boards: str, gpus: int) -> BadPlan:
    return BadPlan(rng.choice((*BAD_PLANS, None)))


def _occupy(rng: random.Random, boards: str, gpus: int) -> Occupy:
    before = rng.choice(("", rng.choice(_MOMENTS)))
    return Occupy(rng.randrange(16), before, rng.choice((0, 0, 1, 2, 5)) if before else 0)


def _comes_in_between(action: Action) -> bool:
    return isinstance(action, Occupy) and bool(action.before)


def _leave(rng: random.Random, boards: str, gpus: int) -> Leave:
    return Leave(rng.randrange(8))


def _fault(rng: random.Random, boards: str, gpus: int) -> Fault:
    times = rng.choice((1, 1, 2, 5, 1000))
    if rng.random() < 0.6:
        code = rng.choice((*_CODES, "IN_USE", "INSUFFICIENT_RESOURCES", "NOT_SUPPORTED"))
        skip = rng.choice((0, 0, 1, 2, 5))
        return Fault(rng.choice(_CHANGES), code, times, skip, rng.random() < 0.3)
    return Fault(rng.choice(_READS), rng.choice(_CODES), times, rng.choice((0, 1, 10, 100, 400)))


def _hang(rng: random.Random, boards: str, gpus: int) -> Hang:
    return Hang(rng.choice((*_CHANGES, *_READS)), rng.choice((0, 1, 10, 100)))


def _end_faults(rng: random.Random, boards: str, gpus: int) -> EndFaults:
    return EndFaults()


def _lose(rng: random.Random, boards: str, gpus: int) -> Lose:
    return Lose(rng.randrange(gpus), rng.choice(("GPU_IS_LOST", "RESET_REQUIRED")))


def _recover(rng: random.Random, boards: str, gpus: int) -> Recover:
    return Recover(rng.randrange(gpus))


def _xid(rng: random.Random, boards: str, gpus: int) -> Xid:
    return Xid(rng.randrange(gpus), rng.choice((13, 31, 43, 45, 63, 94)))


def _foreign(rng: random.Random, boards: str, gpus: int) -> Foreign:
    return Foreign(rng.randrange(gpus), rng.random() < 0.5, rng.randrange(8))


def _kill(rng: random.Random, boards: str, gpus: int) -> Kill:
    return Kill(rng.choice((0, rng.randint(1, 60))), rng.choice((0.0, 1.0, 30.0)))


def _restart(rng: random.Random, boards: str, gpus: int) -> Restart:
    return Restart()


def _reboot(rng: random.Random, boards: str, gpus: int) -> Reboot:
    return Reboot()


def _jump_clock(rng: random.Random, boards: str, gpus: int) -> JumpClock:
    return JumpClock(rng.choice((-86400.0, -60.0, 60.0, 86400.0)))


def _damage(rng: random.Random, boards: str, gpus: int) -> Damage:
    directory = rng.choice(("run", "state"))
    return Damage(directory, rng.choice(("delete", "cut", "flip", "deleteAll")), rng.randrange(8))


def _full_disk(rng: random.Random, boards: str, gpus: int) -> FullDisk:
    return FullDisk(rng.choice((0, rng.randint(1, 20))))


_Makers = tuple[tuple[Callable[[random.Random, str, int], Action], int], ...]
_MAKERS: _Makers = (
    (_bad_plan, 4),
    (_occupy, 16),
    (_leave, 10),
    (_fault, 14),
    (_hang, 4),
    (_end_faults, 6),
    (_lose, 2),
    (_recover, 2),
    (_xid, 2),
    (_foreign, 6),
    (_kill, 8),
    (_restart, 2),
    (_reboot, 1),
    (_jump_clock, 2),
    (_damage, 5),
    (_full_disk, 2),
)

_SHARING = 0.1  # of all days are with MPS, which takes many times as long
_WITH_MPS: _Makers = ((_signal, 14), (_damage, 6))
