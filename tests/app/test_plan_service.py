import asyncio
from pathlib import Path

import pytest

from nodeagent.app.paths import Paths
from nodeagent.app.plan_service import PlanService, SettingsFile
from nodeagent.app.shared import Shared, source_of
from nodeagent.errors import UsageError
from nodeagent.reconcile.event_log import EventType
from nodeagent.reconcile.node_controller import LastObservation
from nodeagent.settings import PlanSettings, load_settings
from nodeagent.simulation import simulated
from nodeagent.views.node_state import Phase
from tests.rig import Rig, plan_text, running


def write(folder: Path, text: str) -> Path:
    new = folder / "settings.new"
    new.write_text(text)
    return new.replace(folder / "settings.yaml")


async def reported(rig: Rig, times: int) -> None:
    await rig.until(lambda: len(rig.reported(EventType.SETTINGS_KEPT)) == times)


async def test_changed_settings_are_reported_and_not_in_force(tmp_path: Path) -> None:
    """Each change since they were read, whether they can be used or not."""
    plan, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    plan.write_bytes(plan_text("{1g.10gb: 7}"))
    other.write_bytes(plan_text("{7g.80gb: 1}"))
    mine = f"plan: {{file: {plan}}}\n"
    settings = write(tmp_path, mine)
    file = SettingsFile(settings, lambda: load_settings(settings, {}, {}))
    found = file.load()
    with simulated("h100-80gb:1"):
        async with running(Rig(tmp_path)) as rig, asyncio.TaskGroup() as tasks:
            control, states, heartbeats = rig.control, rig.node_states, rig.heartbeats
            paths, last = Paths(found, None), LastObservation()
            shared = Shared(found, paths, False, rig.events, control, states, heartbeats, last)
            service = PlanService(shared, file, rig.plan, None)
            write(tmp_path, f"plan: {{file: {other}}}\n")
            task = tasks.create_task(service.run())
            await rig.settle(Phase.IN_SYNC)
            for count, text in enumerate(("plan: {source: nosy}\n", "plan: [", mine), 1):
                await reported(rig, count)
                write(tmp_path, text)
            plan.write_bytes(plan_text("{3g.40gb: 2}"))
            await rig.until(lambda: len(rig.gpu().instances) == 2)
            await reported(rig, 3)
            assert any("restart nodeagent" in event.message for event in rig.events.events)
            assert rig.heartbeats.overdue() == ()
            task.cancel()


def test_the_source_that_counts() -> None:
    assert source_of(PlanSettings(), in_cluster=True) == "annotation"
    assert source_of(PlanSettings(), in_cluster=False) == "file"
    assert source_of(PlanSettings(source="file"), in_cluster=True) == "file"
    with pytest.raises(UsageError, match="no cluster"):
        source_of(PlanSettings(source="mig-config"), in_cluster=False)
