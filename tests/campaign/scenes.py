"""What a random day is made of: scenes, one after another. Some are of one action; in others
several meet at the moment that decides.
"""

from collections.abc import Callable

from nodeagent.structs import replace
from tests.campaign import episode as act
from tests.campaign.layouts import ANY, BAD_PLANS, LONG, Day

Steps = tuple[act.Step, ...]

_CODES = (
    *("UNKNOWN", "TIMEOUT", "GPU_IS_LOST", "MEMORY", "OPERATING_SYSTEM", "UNINITIALIZED"),
    *("DRIVER_NOT_LOADED", "RESET_REQUIRED", "NO_PERMISSION", "INVALID_ARGUMENT"),
)
_PASSING = ("UNKNOWN", "MEMORY", "OPERATING_SYSTEM", "NO_PERMISSION")  # the GPU answers still
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
    *(act.WORKING, act.WORKING, act.WORKING),
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
_KNOBS = (  # of the stand-ins; the last four are a tenant's or another program's doing
    *("hang", "deaf", "busy", "start_error", "slow_start", "ignore_settings", "die"),
    *("forget_limits", "forget_limits", "lose_pipes", "lose_logs"),
)
_IGNORED = (
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
    "nvmlDeviceSetMigMode",
    "nvmlDeviceSetComputeMode",
)


def _then(day: Day, action: act.Action) -> Steps:
    return (act.Step(action, day.rng.choice(ANY)),)


def _one(action: Callable[[Day], act.Action]) -> Callable[[Day], Steps]:
    return lambda day: _then(day, action(day))


def _change(day: Day) -> Steps:
    return (day.change(),)


def _occupy(day: Day) -> Steps:
    device = day.rng.randrange(16)
    if day.rng.random() < 0.5:
        return _then(day, act.Occupy(device))
    comes = act.Occupy(device, day.rng.choice(_MOMENTS), day.rng.choice((0, 0, 1, 2, 5)))
    return (act.Step(comes, 0.0), day.change())


def _unseen(day: Day) -> Steps:
    """There is a process on a device that the next plan may take away, and it cannot be listed."""
    fails = act.Fault("nvmlDeviceGetComputeRunningProcesses*", day.rng.choice(_PASSING), 1000)
    comes = act.Occupy(day.rng.randrange(16))
    settled = (act.Step(act.EndFaults(), 0.0), day.change((10.0,)))
    return (*settled, act.Step(comes, 0.0), act.Step(fails, 0.0), day.change((2.0, 10.0)))


def failure(day: Day) -> Steps:
    """Of the steps from one plan to the next, one fails, once or for long."""
    rng = day.rng
    times, skip = rng.choice((1, 1, 1000)), rng.choice((0, 0, 1))
    fails = act.Fault(rng.choice(_CHANGES), rng.choice(_PASSING), times, skip)
    settled = (act.Step(act.EndFaults(), 0.0), day.change((10.0,)))
    return (*settled, act.Step(fails, 0.0), day.change((2.0,)))


def no_driver(day: Day) -> Steps:
    """The driver cannot be started when an agent comes, once or for long."""
    code, times = day.rng.choice(("UNKNOWN", "DRIVER_NOT_LOADED")), day.rng.choice((1, 3, 1000))
    fails = act.Step(act.Fault("nvmlInit*", code, times), 0.0)
    return (fails, act.Step(day.rng.choice((act.Kill(0), act.Restart())), 20.0))


def _fault(day: Day) -> Steps:
    rng = day.rng
    times = rng.choice((1, 1, 1, 2, 5, 1000))
    if rng.random() < 0.4:
        skip = rng.choice((0, 1, 10, 100, 400))
        return _then(day, act.Fault(rng.choice(_READS), rng.choice(_CODES), times, skip))
    code = rng.choice((*_CODES, "IN_USE", "INSUFFICIENT_RESOURCES", "NOT_SUPPORTED"))
    skip = rng.choice((0, 0, 1, 2, 5))
    fault = act.Fault(rng.choice(_CHANGES), code, times, skip, rng.random() < 0.3)
    return (act.Step(fault, 0.0), day.change((0.5, 2.0, 10.0)))


def _hang(day: Day) -> Steps:
    return _then(
        day, act.Hang(day.rng.choice((*_CHANGES, *_READS)), day.rng.choice((0, 1, 10, 100)))
    )


def _ignore(day: Day) -> Steps:
    return (act.Step(act.Ignore(day.rng.choice(_IGNORED)), 0.0), day.change(LONG))


def _lose(day: Day) -> Steps:
    lost = act.Lose(day.gpu(), day.rng.choice(("GPU_IS_LOST", "RESET_REQUIRED")))
    if day.gpus == 1:
        return _then(day, lost)
    return (
        act.Step(act.EndFaults(), 10.0),
        act.Step(lost, 2.0),
        day.change(LONG),
    )  # the other one is well


def _kill(day: Day) -> Steps:
    rng = day.rng
    down = rng.choice((0.0, 1.0, 30.0))
    if rng.random() < 0.4:
        return _then(day, act.Kill(rng.choice((0, rng.randint(1, 60))), down))
    moment = "nvmlDeviceSetComputeMode" if day.has_mps else rng.choice(_CHANGES)
    return (day.change((0.0,)), act.Step(act.Kill(rng.choice((1, 2, 2, 2, 3)), down, moment), 10.0))


def _adoption(day: Day) -> Steps:
    """An agent comes while daemons run that nothing is wrong with."""
    ends = day.rng.choice((act.Kill(0), act.Restart()))
    return (day.change((10.0,)), act.Step(ends, 2.0), act.Step(act.Leave(0), 10.0))


def _given_back(day: Day) -> Steps:
    """Devices are shared, the agent is killed as it changes the first mode, then none is shared."""
    alone = act.Plan(day.few())
    shared = replace(alone, mps=tuple(range(day.gpus)))
    killed = act.Kill(2, 1.0, "nvmlDeviceSetComputeMode")
    settled = (act.Step(act.EndFaults(), 0.0), act.Step(alone, 10.0))
    return (*settled, act.Step(shared, 0.0), act.Step(killed, 10.0), act.Step(alone, 65.0))


def _other_release(day: Day) -> Steps:
    """Some of the files are of a later release than the next agent, or were cut off."""
    how, files = day.rng.choice(("newer", "cut")), day.rng.sample(range(8), 3)
    written = tuple(act.Step(act.Damage("state", how, number), 0.0) for number in files)
    return (day.change((10.0,)), *written, act.Step(act.Kill(0), day.rng.choice(ANY)))


def _bad_plan(day: Day) -> Steps:
    bad = act.BadPlan(day.rng.choice((*BAD_PLANS, None)))
    if day.rng.random() < 0.5:
        return _then(day, bad)
    return (day.change((10.0,)), act.Step(bad, 2.0), act.Step(act.Reboot(), 10.0))


def _damage(day: Day) -> Steps:
    how = day.rng.choice(("delete", "cut", "flip", "deleteAll"))
    return _then(day, act.Damage(day.rng.choice(("run", "state")), how, day.rng.randrange(8)))


def _damage_run(day: Day) -> Steps:
    how = day.rng.choice(("delete", "cut", "flip", "deleteAll"))
    return _then(day, act.Damage("run", how, day.rng.randrange(8)))


def _full_disk(day: Day) -> Steps:
    writes, where = day.rng.choice((0, day.rng.randint(1, 20))), day.rng.choice(("", "state"))
    return _then(day, act.FullDisk(writes, where, day.rng.random() < 0.4))


def _signal(day: Day) -> Steps:
    name = day.rng.choice(("SIGKILL", "SIGKILL", "SIGTERM", "SIGSTOP"))
    return _then(day, act.Signal(name, day.rng.randrange(4)))


def _misbehave(day: Day) -> Steps:
    number = day.rng.choice((None, day.rng.randrange(4)))
    wrong = act.Misbehave(day.rng.choice(_KNOBS), number)
    if day.rng.random() < 0.5:
        return _then(day, wrong)
    return (act.Step(wrong, 0.0), day.change((2.0, 10.0)))


Scenes = tuple[tuple[Callable[[Day], Steps], int], ...]
SCENES: Scenes = (
    (_change, 16),
    (_bad_plan, 4),
    (_occupy, 16),
    (_unseen, 4),
    (_one(lambda day: act.Leave(day.rng.randrange(8))), 8),
    (_fault, 10),
    (failure, 8),
    (_hang, 4),
    (_ignore, 3),
    (_one(lambda _: act.EndFaults()), 6),
    (_lose, 4),
    (_one(lambda day: act.Recover(day.gpu())), 2),
    (_one(lambda day: act.Xid(day.gpu(), day.rng.choice((13, 31, 43, 45, 63, 94)))), 2),
    (_one(lambda day: act.Foreign(day.gpu(), day.rng.random() < 0.5, day.rng.randrange(8))), 6),
    (_kill, 8),
    (_one(lambda _: act.Restart()), 2),
    (_one(lambda day: act.Pause(day.rng.choice((0.5, 5.0, 60.0)))), 1),
    (_other_release, 1),
    (_one(lambda _: act.Reboot()), 1),
    (_one(lambda day: act.JumpClock(day.rng.choice((-86400.0, -60.0, 60.0, 86400.0)))), 2),
    (_damage, 5),
    (_full_disk, 2),
)

WITH_MPS: Scenes = (
    (_signal, 14),
    (_misbehave, 12),
    (_damage_run, 6),
    (_kill, 10),
    (_adoption, 8),
    (_given_back, 8),
)
