"""Days on which something was once wrong, each made as short as it can be."""

from tests.campaign import episode

_SHARED, _DIVIDED = episode.Plan(({},), (0,)), episode.Plan(({"3g.40gb": 2},))
_IMPOSSIBLE = "version: v1\ngpus:\n- {devices: all, mig: {7g.80gb: 2, 7g.40gb: 2}}\n"
_FAILING = episode.Fault("nvmlDeviceGet*", "UNKNOWN", 1000)


def _day(
    seed: int, *steps: episode.Step, boards: str = "h100-80gb:1", strict: bool = True
) -> episode.Episode:
    return episode.Episode(seed=seed, boards=boards, strict=strict, steps=steps)


KEPT: tuple[episode.Episode, ...] = (
    # Under a daemon the run directory is deleted, and no agent is there to notice: the next one
    # knew nothing of that daemon, which was in the way of every other for ever.
    _day(
        0,
        episode.Step(_SHARED, 40.0),
        episode.Step(_FAILING, 0.0),
        episode.Step(episode.Damage("run", "deleteAll", 0), 0.0),
        episode.Step(episode.Kill(0, 0.0), 0.0),
        episode.Step(episode.EndFaults(), 10.0),
    ),
    # The plan wants no daemon by then, and it was left to itself.
    _day(
        0,
        episode.Step(_SHARED, 40.0),
        episode.Step(episode.Damage("run", "deleteAll", 0), 0.0),
        episode.Step(_DIVIDED, 0.0),
        episode.Step(episode.Kill(0, 0.0), 0.0),
    ),
    # The state directory is deleted, and its disk full when the agent starts: that must not end the
    # agent, which keeps nothing then for its next life.
    _day(
        153,
        episode.Step(_DIVIDED, 10.0),
        episode.Step(episode.Damage("state", "deleteAll", 0), 0.0),
        episode.Step(episode.FullDisk(0, "state"), 0.0),
        episode.Step(episode.Kill(0, 0.0), 0.0),
        episode.Step(episode.Plan(({},)), 45.0),
    ),
    # A call hung beyond its deadline and took effect later: the agent said that another program had
    # changed the layout.
    _day(
        39,
        episode.Step(episode.Hang("nvmlDeviceCreateGpuInstance*", 0), 0.0),
        episode.Step(episode.Plan(({"3g.40gb": 2},)), 45.0),
        strict=False,
    ),
    # Processes were listed at the moment of each round of samples, which passed a GPU over then:
    # for a minute it had no metrics.
    _day(
        40023,
        episode.Step(episode.Plan(({"7g.80gb": 1}, {"2g.20gb": 1, "3g.40gb": 1})), 45.0),
        episode.Step(episode.Plan(({"1g.10gb": 7}, {})), 0.5),
        episode.Step(episode.Plan(({"1g.10gb": 2}, {"1g.10gb": 3, "4g.40gb": 1})), 0.5),
        episode.Step(episode.Plan(({"1g.10gb": 1, "2g.20gb": 3}, {"3g.40gb": 2})), 0.0),
        episode.Step(episode.Kill(2, 0.0, "nvmlGpuInstanceDestroy"), 0.0),
        boards="h100-80gb:2",
    ),
    # The wait for events hung, and what the agent had changed meanwhile was said to be another's.
    _day(
        50084,
        episode.Step(episode.Hang("nvmlEventSetWait*", 0), 0.0),
        episode.Step(episode.Plan(({"1g.10gb": 3, "4g.40gb": 1},)), 0.0),
        episode.Step(episode.Leave(5), 10.0),
        strict=False,
    ),
    # NVML said that it is down and was not, and could not be started then: GPUs went on to answer,
    # and the driver was said to hang for ever.
    _day(
        60044,
        episode.Step(episode.Occupy(5), 0.1),
        episode.Step(episode.Fault("*", "UNINITIALIZED", 1000), 2.0),
        episode.Step(episode.Leave(1), 0.1),
        episode.Step(episode.Plan(({"1g.10gb": 2}, {"3g.40gb": 2})), 45.0),
        boards="h100-80gb:2",
    ),
    # A plan that a GPU cannot have was accepted, and the last good one's daemon ended, when the GPU
    # was hung in another call and could not be looked at.
    _day(
        31165,
        episode.Step(episode.Plan(({"7g.141gb": 1},), (0,)), 0.5),
        episode.Step(episode.BadPlan(_IMPOSSIBLE), 0.0),
        episode.Step(episode.Reboot(), 0.0),
        episode.Step(episode.Hang("nvmlDeviceGetMigDeviceHandleByIndex", 1), 10.0),
        boards="h200:1",
    ),
)
