"""Days on which something was once wrong, each made as short as it can be."""

from __future__ import annotations

from tests.campaign.episode import Damage, EndFaults, Episode, Fault, FullDisk, Kill, Plan, Step

_SHARED, _DIVIDED = Plan(({},), (0,)), Plan(({"3g.40gb": 2},))
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
)
