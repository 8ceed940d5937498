"""Days on which something was once wrong, each made as short as it can be."""

from tests.campaign.episode import (
    BadPlan,
    Damage,
    EndFaults,
    Episode,
    Fault,
    Foreign,
    FullDisk,
    Hang,
    Kill,
    Leave,
    Occupy,
    Plan,
    Reboot,
    Signal,
    Step,
)

_SHARED, _DIVIDED = Plan(({},), (0,)), Plan(({"3g.40gb": 2},))
_IMPOSSIBLE = "version: v1\ngpus:\n- {devices: all, mig: {7g.80gb: 2, 7g.40gb: 2}}\n"
_FAILING = Fault("nvmlDeviceGet*", "UNKNOWN", 1000)

KEPT: tuple[Episode, ...] = (
    # Under a daemon the run directory is deleted, and no agent is there to notice: the next one
    # knew nothing of that daemon, which was in the way of every other for ever.
    Episode(
        seed=0,
        boards="h100-80gb:1",
        strict=True,
        steps=(
            Step(_SHARED, 40.0),
            Step(_FAILING, 0.0),
            Step(Damage("run", "deleteAll", 0), 0.0),
            Step(Kill(0, 0.0), 0.0),
            Step(EndFaults(), 10.0),
        ),
    ),
    # The plan wants no daemon by then, and it was left to itself.
    Episode(
        seed=0,
        boards="h100-80gb:1",
        strict=True,
        steps=(
            Step(_SHARED, 40.0),
            Step(Damage("run", "deleteAll", 0), 0.0),
            Step(_DIVIDED, 0.0),
            Step(Kill(0, 0.0), 0.0),
        ),
    ),
    # The state directory is deleted, and its disk full when the agent starts: that must not end the
    # agent, which keeps nothing then for its next life.
    Episode(
        seed=153,
        boards="h100-80gb:1",
        strict=True,
        steps=(
            Step(_DIVIDED, 10.0),
            Step(Damage("state", "deleteAll", 0), 0.0),
            Step(FullDisk(0, "state"), 0.0),
            Step(Kill(0, 0.0), 0.0),
            Step(Plan(({},)), 45.0),
        ),
    ),
    # A process came as its instance was being destroyed, with the pid of one that had left: the
    # judge took it for the first one, which the agent could have seen.
    Episode(
        seed=440,
        boards="h100-80gb:1",
        strict=True,
        steps=(
            Step(Plan(({"3g.40gb": 2},)), 0.5),
            Step(Occupy(10, "nvmlComputeInstanceDestroy", 5), 0.0),
            Step(Plan(({"2g.20gb": 3},)), 0.0),
            Step(Occupy(3), 0.0),
            Step(Leave(5), 0.5),
            Step(Plan(({},)), 0.5),
            Step(Fault("nvmlGpuInstanceCreateComputeInstance*", "UNKNOWN", 1000, 1), 0.0),
            Step(Plan(({"1g.10gb": 1, "2g.20gb": 3},)), 0.5),
        ),
    ),
    # A call hung beyond its deadline and took effect later: the agent said that another program had
    # changed the layout.
    Episode(
        seed=39,
        boards="h100-80gb:1",
        strict=False,
        steps=(
            Step(Hang("nvmlDeviceCreateGpuInstance*", 0), 0.0),
            Step(Plan(({"3g.40gb": 2},)), 45.0),
        ),
    ),
    # Processes were listed at the moment of each round of samples, which passed a GPU over then:
    # for a minute it had no metrics.
    Episode(
        seed=40023,
        boards="h100-80gb:2",
        strict=True,
        steps=(
            Step(Plan(({"7g.80gb": 1}, {"2g.20gb": 1, "3g.40gb": 1})), 45.0),
            Step(Plan(({"1g.10gb": 7}, {})), 0.5),
            Step(Plan(({"1g.10gb": 2}, {"1g.10gb": 3, "4g.40gb": 1})), 0.5),
            Step(Plan(({"1g.10gb": 1, "2g.20gb": 3}, {"3g.40gb": 2})), 0.0),
            Step(Kill(2, 0.0, "nvmlGpuInstanceDestroy"), 0.0),
        ),
    ),
    # The wait for events hung, and what the agent had changed meanwhile was said to be another's.
    Episode(
        seed=50084,
        boards="h100-80gb:1",
        strict=False,
        steps=(
            Step(Hang("nvmlEventSetWait*", 0), 0.0),
            Step(Plan(({"1g.10gb": 3, "4g.40gb": 1},)), 0.0),
            Step(Leave(5), 10.0),
        ),
    ),
    # NVML said that it is down and was not, and could not be started then: GPUs went on to answer,
    # and the driver was said to hang for ever.
    Episode(
        seed=60044,
        boards="h100-80gb:2",
        strict=True,
        steps=(
            Step(Occupy(5), 0.1),
            Step(Fault("*", "UNINITIALIZED", 1000), 2.0),
            Step(Leave(1), 0.1),
            Step(Plan(({"1g.10gb": 2}, {"3g.40gb": 2})), 45.0),
        ),
    ),
    # A daemon was frozen and replaced; the judge took it for well, as the agent had said that all
    # is as planned before it could notice.
    Episode(
        seed=836,
        boards="h100-80gb:2",
        strict=True,
        steps=(Step(Plan(({}, {}), (0, 1)), 0.02), Step(Signal("SIGSTOP", 1), 0.0)),
    ),
    # A plan that a GPU cannot have was accepted, and the last good one's daemon ended, when the GPU
    # was hung in another call and could not be looked at.
    Episode(
        seed=31165,
        boards="h200:1",
        strict=True,
        steps=(
            Step(Plan(({"7g.141gb": 1},), (0,)), 0.5),
            Step(BadPlan(_IMPOSSIBLE), 0.0),
            Step(Reboot(), 0.0),
            Step(Hang("nvmlDeviceGetMigDeviceHandleByIndex", 1), 10.0),
        ),
    ),
    # MIG mode was being set on an idle GPU in a call that hung, and a process came meanwhile: the
    # judge thought that the agent could have seen it.
    Episode(
        seed=4061,
        boards="h100-80gb:1",
        strict=False,
        steps=(
            Step(Damage("run", "delete", 2), 0.0),
            Step(Plan(({"1g.10gb": 7},)), 0.0),
            Step(Hang("*", 10), 0.5),
            Step(Occupy(4), 0.0),
            Step(Foreign(0, create=True, number=7), 5.0),
            Step(EndFaults(), 0.0),
        ),
    ),
)
