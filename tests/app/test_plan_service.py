import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.app.cluster_service import ClusterService
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
from tests.simulated_cluster.agent import kubeconfig


@asynccontextmanager
async def following(
    rig: Rig, settings: Path, *, then: Callable[[], object] = lambda: None, in_cluster: bool = False
) -> AsyncIterator[PlanService]:
    """The plan part of an agent with this settings file, offering to the rig's reconciler; `then`
    is what happens between its reading and its watch.
    """
    file = SettingsFile(settings, lambda: load_settings(settings, {}, {}))
    found = file.load()
    shared = Shared(
        found,
        Paths(found, None),
        in_cluster,
        rig.events,
        rig.control,
        rig.node_states,
        rig.heartbeats,
        LastObservation(),
    )
    cluster = ClusterService(shared) if in_cluster else None
    part = PlanService(shared, file, rig.plan, cluster)
    then()
    task = asyncio.create_task(part.run())
    try:
        yield part
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def in_sync(folder: Path) -> AsyncIterator[Rig]:
    """A node that is as the plan file a.yaml says, which the settings name."""
    (folder / "a.yaml").write_bytes(plan_text("{1g.10gb: 7}"))
    settings = write(folder, f"plan: {{file: {folder}/a.yaml}}\n")
    with simulated("h100-80gb:1"):
        async with running(Rig(folder)) as rig, following(rig, settings):
            await rig.settle(Phase.IN_SYNC)
            yield rig


def write(folder: Path, text: str) -> Path:
    new = folder / "settings.new"
    new.write_text(text)
    return new.replace(folder / "settings.yaml")


async def test_another_source_takes_its_place_without_a_restart(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_bytes(plan_text("{3g.40gb: 2}"))
    async with in_sync(tmp_path) as rig:
        write(tmp_path, f"plan: {{file: {tmp_path}/b.yaml}}\n")
        await rig.until(lambda: len(rig.gpu().instances) == 2)
        await rig.settle(Phase.IN_SYNC)
        assert rig.reported(EventType.PLAN_SOURCE) == [EventType.PLAN_SOURCE]
        await rig.rest()
        rounds = rig.state.rounds
        (tmp_path / "a.yaml").write_bytes(plan_text("{7g.80gb: 1}"))
        await asyncio.sleep(0.3)
        assert rig.state.rounds == rounds
        assert rig.heartbeats.overdue() == ()


async def test_a_change_just_after_the_reading_counts(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_bytes(plan_text("{3g.40gb: 2}"))
    settings = write(tmp_path, f"plan: {{file: {tmp_path}/a.yaml}}\n")
    with simulated("h100-80gb:1"):
        async with (
            running(Rig(tmp_path)) as rig,
            following(
                rig, settings, then=lambda: write(tmp_path, f"plan: {{file: {tmp_path}/b.yaml}}\n")
            ),
        ):
            await rig.until(lambda: bool(rig.state.observed.gpus and rig.gpu().instances))


async def test_a_source_without_a_plan_changes_nothing(tmp_path: Path) -> None:
    async with in_sync(tmp_path) as rig:
        write(tmp_path, f"plan: {{file: {tmp_path}/none.yaml}}\n")
        await rig.until(lambda: "last good plan stays" in rig.state.note)
        assert len(rig.gpu().instances) == 7
        assert rig.state.phase is Phase.IN_SYNC


async def test_settings_that_cannot_be_used_change_nothing(tmp_path: Path) -> None:
    async with in_sync(tmp_path) as rig:
        write(tmp_path, "plan: {source: nos}\n")
        await rig.until(lambda: len(rig.reported(EventType.SETTINGS_KEPT)) == 1)
        write(tmp_path, "plan: [")
        await rig.until(lambda: len(rig.reported(EventType.SETTINGS_KEPT)) == 2)
        (tmp_path / "a.yaml").write_bytes(plan_text("{3g.40gb: 2}"))
        await rig.until(lambda: len(rig.gpu().instances) == 2)


async def test_a_source_whose_settings_cannot_be_used_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(plan_text("{1g.10gb: 7}"))
    (tmp_path / "kubeconfig").write_text(kubeconfig("http://127.0.0.1:1"))
    cluster = f"kubernetes: {{kubeconfig: {tmp_path}/kubeconfig, nos_config_map: x}}\n"
    settings = write(tmp_path, f"plan: {{source: file, file: {tmp_path}/a.yaml}}\n{cluster}")
    with simulated("h100-80gb:1"):
        async with running(Rig(tmp_path)) as rig, following(rig, settings, in_cluster=True):
            await rig.settle(Phase.IN_SYNC)
            write(tmp_path, f"plan: {{source: nos, file: {tmp_path}/a.yaml}}\n{cluster}")
            await rig.until(lambda: bool(rig.reported(EventType.SETTINGS_KEPT)))
            [event] = [e for e in rig.events.events if e.type is EventType.SETTINGS_KEPT]
            assert 'kubernetes.nos_config_map is "x"' in event.message
            mended = cluster.replace("nos_config_map: x", "nos_config_map: a/b")
            write(tmp_path, f"plan: {{source: nos, file: {tmp_path}/a.yaml}}\n{mended}")
            await rig.until(
                lambda: any("need a restart" in event.message for event in rig.events.events)
            )
            (tmp_path / "a.yaml").write_bytes(plan_text("{3g.40gb: 2}"))
            await rig.until(lambda: len(rig.gpu().instances) == 2)


def test_the_source_that_counts() -> None:
    assert source_of(PlanSettings(), in_cluster=True) == "annotation"
    assert source_of(PlanSettings(), in_cluster=False) == "file"
    assert source_of(PlanSettings(source="file"), in_cluster=True) == "file"
    with pytest.raises(UsageError, match="no cluster"):
        source_of(PlanSettings(source="mig-config"), in_cluster=False)
