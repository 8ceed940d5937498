from pathlib import Path

import pytest

from nodeagent.health.findings import Severity
from nodeagent.health.readings import Answer, GpuEvent, GpuEventKind, Silence
from nodeagent.plan.steps import ResetGpu, SetMigMode
from nodeagent.structs import replace
from tests.app.health_rig import RIGHT, Rig
from tests.health.rig import GPU, gpu


@pytest.fixture
async def rig(tmp_path: Path) -> Rig:
    made = Rig(tmp_path)
    await made.part.load()
    made.see()
    return made


# --- findings -------------------------------------------------------------------------------------


async def test_a_finding_is_reported_with_the_pods_it_hit(rig: Rig) -> None:
    rig.xid(95, instance=2)
    (finding,) = rig.part.state.findings
    assert (finding.severity, finding.place.placement) == (Severity.UNHEALTHY, RIGHT)
    assert [str(pod) for pod in finding.pods] == ["ml/train-0"]
    assert rig.changes == 1
    (event,) = rig.events.events
    assert (event.type, event.gpu) == ("GpuUnhealthy", GPU)
    said = "GPU 0 reported an error that needs a GPU reset"
    assert event.message.startswith(f"{said} in slices 4-7: XID 95")
    assert event.message.endswith(" It hit ml/train-0.")
    rig.take(resets=frozenset({GPU}))
    assert rig.causes() == []
    assert rig.changes == 2
    assert rig.reported()[-1] == (
        "GpuRecovered",
        f"{said} (XID 95) in slices 4-7: over, the GPU was reset",
    )


async def test_a_storm_of_xids_is_counted_and_reported_once_a_minute(rig: Rig) -> None:
    for _ in range(50):
        rig.xid(43)
    assert rig.part.state.xids[0].count == 50
    assert [kind for kind, _ in rig.reported()] == ["Xid"]
    rig.uptime += 60.0
    rig.xid(43)
    assert [kind for kind, _ in rig.reported()] == ["Xid", "Xid"]


# --- what the agent itself does -------------------------------------------------------------------


async def test_a_reset_by_the_agent_ends_what_it_mends(rig: Rig) -> None:
    rig.xid(95)
    step = ResetGpu(GPU, "for MIG")
    rig.part.begin_step(step)
    rig.part.end_step(step, done=False)
    assert rig.causes() == ["xidReset"]
    rig.part.end_step(step, done=True)
    assert rig.causes() == []


async def test_only_a_foreign_change_of_mig_is_news(rig: Rig) -> None:
    """NVML reports the agent's own as well, a moment late; another GPU's are foreign."""

    def change(at: float, uuid: str = GPU) -> None:
        event = GpuEvent(GpuEventKind.FOREIGN_MIG_CHANGE, uuid, at)
        rig.take(gpu(), after=0.0, events=(event,))

    step = SetMigMode(GPU, True, "the plan asks for it")
    rig.part.begin_step(step)
    rig.uptime += 1.0
    change(rig.uptime - 0.5)
    rig.part.end_step(step, done=True)
    rig.part.begin_step(step)
    change(rig.uptime - 0.5)  # of the step before, while the next is taken
    rig.part.end_step(step, done=True)
    rig.uptime += 1.0
    change(rig.uptime)
    assert rig.causes() == []
    change(rig.uptime, "GPU-other")
    rig.uptime += 10.0
    change(rig.uptime)
    assert rig.causes() == ["migChanged", "migChanged"]


async def test_a_change_that_comes_after_its_step_failed_is_no_news(rig: Rig) -> None:
    """Its call may be in the driver until the GPU is observed again; until then nothing else is."""
    step = SetMigMode(GPU, True, "the plan asks for it")
    rig.part.begin_step(step)
    rig.part.end_step(step, done=False)
    event = GpuEvent(GpuEventKind.FOREIGN_MIG_CHANGE, GPU, rig.uptime + 100.0)
    rig.take(gpu(), after=100.0, events=(event,))
    assert rig.causes() == []
    rig.see()
    event = replace(event, at=rig.uptime + 10.0)
    rig.take(gpu(), after=10.0, events=(event,))
    assert rig.causes() == ["migChanged"]


async def test_a_change_that_is_heard_late_is_no_news(rig: Rig) -> None:
    """While the wait for events hung the agent was at work; NVML does not say when it was."""
    step, began = SetMigMode(GPU, True, "the plan asks for it"), rig.uptime
    rig.part.begin_step(step)
    rig.part.end_step(step, done=True)
    event = GpuEvent(GpuEventKind.FOREIGN_MIG_CHANGE, GPU, began + 60.0, since=began)
    rig.take(gpu(), after=60.0, events=(event,))
    assert rig.causes() == []
    rig.take(gpu(), after=60.0, events=(replace(event, at=began + 120.0, since=began + 60.0),))
    assert rig.causes() == ["migChanged"]


# --- fences ---------------------------------------------------------------------------------------


async def test_a_gpu_that_is_bound_while_no_event_is_heard(rig: Rig) -> None:
    rig.take(gpu(answer=Answer(Silence.UNBOUND, rig.uptime, "taken off")))
    assert rig.part.held == {GPU}
    rig.uptime += 301.0
    assert rig.part.held == frozenset()
    rig.take(gpu(answer=Answer()))
    assert rig.causes() == []
