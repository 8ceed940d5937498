"""From settings to the parts that run MPS: where things are, and how daemons are started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.cli.simulated_node import simulated_places
from nodeagent.mps.launch.child import can_mount_own_shm
from nodeagent.mps.lifecycle.model import Report, Subject
from nodeagent.mps.programs import Programs
from nodeagent.mps.requests import NotReady
from nodeagent.mps.setup import (
    MpsPlaces,
    has_private_shm,
    launch_of,
    make_fleet,
    places_of,
)
from nodeagent.settings import load_settings
from nodeagent.structs import replace
from tests.mps.fleet_rig import GPU, IS_ROOT, POLICY, until, wanted

POD = "KUBERNETES_SERVICE_HOST"


def test_a_simulated_node_keeps_to_itself(tmp_path: Path) -> None:
    """Nothing of it lies where the real one's things are, and its programs are the stand-ins."""
    places = simulated_places(load_settings(None, {}, {}), tmp_path)
    assert {places.run_dir, places.cdi_dir} == {tmp_path / "run", tmp_path / "cdi"}
    assert places.memory == tmp_path / "earlier-modes.json"
    assert places.programs.path.startswith(f"{tmp_path}/bin:")
    assert places.simulated


@pytest.mark.parametrize("room", [True, False])
def test_a_run_dir_too_deep_for_sockets(tmp_path: Path, room: bool) -> None:
    """A given run.dir is taken on a simulated node, unless sockets would have no room there."""
    given = "/tmp/na-given" if room else f"/tmp/{'deep' * 10}"
    settings = load_settings(None, {"NODEAGENT_RUN_DIR": given}, {})
    assert simulated_places(settings, tmp_path).run_dir == Path(given if room else tmp_path / "run")


def test_relative_directories_become_absolute() -> None:
    """Daemons have another working directory."""
    settings = load_settings(None, {"NODEAGENT_RUN_DIR": "run"}, {})
    assert places_of(settings).run_dir == Path.cwd() / "run"


@pytest.mark.parametrize("launch", ["child", "systemd", "hostSystemd"])
def test_a_way_to_start_that_is_set_is_taken(launch: str) -> None:
    """Whatever the machine is like."""
    settings = load_settings(None, {"NODEAGENT_MPS_LAUNCH": launch}, {}).mps
    assert launch_of(settings, simulated=False) == launch


def test_the_way_to_start_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is set: children on simulated nodes and in pods, and each device's own /dev/shm
    in pods alone.
    """
    settings = load_settings(None, {}, {}).mps
    monkeypatch.delenv(POD, raising=False)
    assert launch_of(settings, simulated=True) == "child"
    assert not has_private_shm(settings, simulated=False)
    monkeypatch.setenv(POD, "10.0.0.1")
    assert launch_of(settings, simulated=False) == "child"
    assert has_private_shm(settings, simulated=False) == can_mount_own_shm()


async def test_servers_for_all_users_that_could_not_be_tried(
    open_folder: Path, programs: Programs
) -> None:
    """Said as what is not known, not as a lack of the driver; and tried again."""
    reports: list[Report] = []

    def failures() -> list[str]:
        return [report.message for report in reports if report.subject is Subject.START_FAILED]

    fleet = make_fleet(
        replace(POLICY, answer_deadline=0.3, launch="child", shm="host", most_failures=2),
        MpsPlaces(
            run_dir=open_folder / "run",
            cdi_dir=open_folder / "cdi",
            memory=open_folder / "memory.json",
            programs=programs,  # they never make a socket
        ),
        check=lambda _: (),
        report=lambda _, report: reports.append(report),
        changed=lambda: None,
    )
    ours = wanted(uid=os.geteuid())
    async with fleet:
        with pytest.raises(NotReady):
            await fleet.start(GPU, replace(ours, account=replace(ours.account, any_user=True)))
        await until(lambda: len(failures()) >= 2)
    why = "it did not answer within 0.3 s" if IS_ROOT else "only root can find out"
    for message in failures():
        assert "whether MPS here has a server for all users is not known" in message
        assert why in message
        assert "branch 555" not in message
