import grp
import os
import pwd
from pathlib import Path

import pytest

from nodeagent.cli.simulated_node import simulated_places
from nodeagent.mps import setup
from nodeagent.mps.context import START_TIMEOUT
from nodeagent.mps.launch.child import can_mount_own_shm
from nodeagent.mps.lifecycle.model import Report, ReportSubject
from nodeagent.mps.programs import Programs
from nodeagent.mps.requests import NotReady
from nodeagent.plan import desired
from nodeagent.plan.shares import Account
from nodeagent.settings import MpsSettings, load_settings
from nodeagent.structs import replace
from tests.machine_load import until
from tests.mps.fleet_rig import GPU, IS_ROOT, POLICY, wanted

# --- setup ----------------------------------------------------------------------------------------


POD = "KUBERNETES_SERVICE_HOST"


@pytest.mark.parametrize("room", [True, False])
def test_a_run_dir_too_deep_for_sockets(tmp_path: Path, room: bool) -> None:
    """A given run.dir is taken on a simulated node, unless sockets would have no room there."""
    given = "/tmp/na-given" if room else f"/tmp/{'deep' * 10}"
    settings = load_settings(None, {"NODEAGENT_RUN_DIR": given}, {})
    assert simulated_places(settings, tmp_path).run_dir == Path(given if room else tmp_path / "run")


@pytest.mark.parametrize("launch", ["child", "systemd", "hostSystemd"])
def test_a_way_to_start_that_is_set_is_taken(launch: str) -> None:
    settings = load_settings(None, {"NODEAGENT_MPS_LAUNCH": launch}, {}).mps
    assert setup.launch_of(settings, simulated=False) == launch


@pytest.mark.parametrize(("shm", "private"), [("device", True), ("host", False)])
def test_a_shm_that_is_set_is_taken(shm: str, private: bool) -> None:
    settings = load_settings(None, {"NODEAGENT_MPS_SHM": shm}, {}).mps
    assert setup.has_private_shm(settings, simulated=False) is private


def test_the_way_to_start_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(None, {}, {}).mps
    monkeypatch.delenv(POD, raising=False)
    assert setup.launch_of(settings, simulated=True) == "child"
    booted = Path("/run/systemd/system").is_dir()
    assert setup.launch_of(settings, simulated=False) == ("systemd" if booted else "child")
    assert not setup.has_private_shm(settings, simulated=False)
    monkeypatch.setenv(POD, "10.0.0.1")
    assert setup.launch_of(settings, simulated=False) == "child"
    assert setup.has_private_shm(settings, simulated=False) == can_mount_own_shm()


async def test_servers_for_all_users_that_could_not_be_tried(
    short: Path, programs: Programs
) -> None:
    """Said as what is not known, not as a lack of the driver; and tried again."""
    reports: list[Report] = []

    def failures() -> list[str]:
        return [
            report.message for report in reports if report.subject is ReportSubject.START_FAILED
        ]

    fleet = setup.make_fleet(
        replace(POLICY, answer_deadline=0.3, launch="child", shm="host", most_failures=2),
        setup.MpsPlaces(
            run_dir=short / "run",
            cdi_dir=short / "cdi",
            memory=short / "memory.json",
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


# --- accounts -------------------------------------------------------------------------------------


UNKNOWN_UID, LARGEST_ID = 3_999_999_999, 4_294_967_294


def document(*users: str | None) -> desired.PlanDocument:
    """A plan that names these: the first for a GPU, the others for instances."""
    first, *others = users or (None,)
    layout = desired.MigLayout(
        tuple(
            desired.InstanceEntry(
                "1g.10gb", 1, "", mps=desired.MpsEntry("", desired.Replicas(1, ""), user=user)
            )
            for user in others
        ),
        "",
    )
    entries = (
        desired.PlanEntry(
            "gpus[0]", None, "", mps=desired.MpsEntry("", desired.Replicas(1, ""), user=first)
        ),
        desired.PlanEntry("gpus[1]", None, "", mig=layout),
        desired.PlanEntry("gpus[2]", None, ""),
    )
    return desired.PlanDocument(entries, "sha256:0")


def test_a_uid_without_an_entry() -> None:
    for uid in (UNKNOWN_UID, LARGEST_ID):
        found = setup.accounts_for(document(str(uid)), "1000")
        assert found[str(uid)] == Account(uid, uid)
        assert "1000" in found


def test_a_uid_with_an_entry() -> None:
    entry = next(entry for entry in pwd.getpwall() if entry.pw_uid != entry.pw_gid)
    with_group = f"{entry.pw_uid}:{UNKNOWN_UID}"
    assert setup.accounts_for(document(), with_group)[with_group] == Account(
        entry.pw_uid, UNKNOWN_UID
    )
    found = setup.accounts_for(document(), str(entry.pw_uid))[str(entry.pw_uid)]
    groups = {g.gr_gid for g in grp.getgrall() if entry.pw_name in g.gr_mem}
    assert (found.uid, found.gid) == (entry.pw_uid, entry.pw_gid)
    assert set(found.groups) == groups - {entry.pw_gid}
    assert list(found.groups) == sorted(found.groups)


@pytest.mark.parametrize("where", [0, 1])
def test_names(where: int) -> None:
    me = pwd.getpwuid(os.geteuid())
    users: list[str | None] = [None, None]
    users[where] = me.pw_name
    found = setup.accounts_for(document(*users), "1000")[me.pw_name]
    assert (found.uid, found.gid, found.any_user) == (me.pw_uid, me.pw_gid, False)


@pytest.mark.parametrize(
    "user",
    [
        *("no-such-user", "a\0b", "", "a\nb", "../x", "-1", "4294967295", "1:4294967296", "any"),
        *("1:", "\u0663"),
    ],
)
def test_who_is_unknown(user: str) -> None:
    assert user not in setup.accounts_for(document(user), "1000")


# --- longest step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("patient", ["quit_deadline", "kill_deadline", "answer_deadline", "grace"])
def test_no_patience_is_cut_short(patient: str) -> None:
    settings = MpsSettings(**{patient: 1000.0})  # type: ignore[arg-type]  # all of these are durations
    assert setup.longest_step(settings) > 1000.0
    assert setup.longest_step(MpsSettings()) >= START_TIMEOUT
