import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.agent_home import GIB, USER, Home

PLAN = f"""\
version: v1
gpus:
  - devices: [0]
    mps:
      user: {USER}
      shares:
        small: {{count: 4, memory: 8Gi, threads: 15}}
        large: {{count: 1, memory: 40Gi, threads: 40}}
  - devices: [1]
    mig: {{3g.40gb: 1, 1g.10gb: 4}}
    mps: {{replicas: 2, user: {USER}}}
"""


def started(home: Home, plan: str = PLAN, count: int = 6) -> list[dict[str, Any]]:
    home.plan.write_text(plan)
    home.start()
    return home.all_ready(count)


@pytest.mark.timeout(240)
def test_a_plan_with_shares_and_a_client_of_each(home: Home) -> None:
    daemons = started(home)
    whole = next(d for d in daemons if d["device"].startswith("GPU-"))
    assert {d["user"] for d in daemons} == {USER}
    for daemon in daemons:
        status = Path(f"/proc/{daemon['pid']}/status").read_text()
        assert f"\nUid:\t{USER}\t{USER}\t" in status
    assert whole["shares"] == {
        "small": {"count": 4, "memory": 8 * GIB, "threads": 15},
        "large": {"count": 1, "memory": 40 * GIB, "threads": 40},
    }
    device = whole["device"]
    with home.client(device, "small-0") as small, home.client(device, "large-0") as large:
        assert (small.terms["limit"], small.terms["percentage"]) == (8 * GIB, 15.0)
        assert (large.terms["limit"], large.terms["percentage"]) == (40 * GIB, 40.0)
        small.allocate(GIB)

        def shown(daemons: list[dict[str, Any]]) -> dict[int, Any]:
            clients = [c for d in daemons for c in d["clients"]]
            found = {c["pid"]: c for c in clients if c.get("share")}
            known = len(found) == 2 and "used" in found[small.pid].get("memory", {})
            return found if known else {}

        home.until(lambda: shown(home.daemons()))
        clients = shown(home.ask("mps", "clients")["daemons"])
        assert clients[small.pid]["share"] == "small"
        assert clients[small.pid]["memory"] == {"used": GIB, "limit": 8 * GIB}
        assert clients[small.pid]["threads"] == 15
        assert clients[large.pid]["share"] == "large"
        assert clients[large.pid]["memory"]["limit"] == 40 * GIB
    assert home.run("assert", "-f", str(home.plan), "--state", str(home.state)).returncode == 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "ends",
    [[signal.SIGKILL], pytest.param([signal.SIGTERM, signal.SIGKILL], marks=pytest.mark.full)],
)
def test_the_agent_goes_and_its_daemons_stay(home: Home, ends: list[signal.Signals]) -> None:
    daemons = started(home)
    pids = {d["device"]: d["pid"] for d in daemons}
    device = next(d["device"] for d in daemons if d["device"].startswith("GPU-"))
    with home.client(device, "small-0") as client:
        for number in ends:
            home.stop(number)
            client.allocate(GIB)
            home.start()
            assert {d["device"]: d["pid"] for d in home.all_ready()} == pids
            assert all(d["restarts"] == 0 for d in home.daemons())
        client.allocate(GIB)


@pytest.mark.timeout(240)
def test_a_client_holds_its_device_until_it_goes(home: Home) -> None:
    daemons = started(home)
    others = {d["pid"] for d in daemons if d["device"].startswith("GPU-")}
    device = next(d["device"] for d in daemons if d["device"].startswith("MIG-"))
    with home.client(device, "replica-0", index=device) as client:
        home.until(lambda: [c for d in home.daemons() for c in d["clients"]])
        home.plan.write_text(PLAN.replace("{3g.40gb: 1, 1g.10gb: 4}", "disabled"))
        status = home.until(lambda: (s := home.status()) and s["phase"] == "Blocked" and s)
        assert any(str(client.pid) in p["message"] for p in status["problems"])
        assert device in {d["device"] for d in home.daemons()}
    home.until(lambda: (s := home.status()) and s["phase"] == "InSync")
    left = home.all_ready(2)
    assert others <= {d["pid"] for d in left}
    assert all(d["device"].startswith("GPU-") for d in left)
    assert not Path(f"/proc/{next(d['pid'] for d in daemons if d['device'] == device)}").exists()


# --- commands -------------------------------------------------------------------------------------


ONE = f"""\
version: v1
gpus:
  - devices: [0]
    mps: {{user: {USER}, shares: {{small: {{count: 1, memory: 8Gi, threads: 15}}}}}}
"""
STRICT = f"""\
version: v1
gpus:
  - devices: [0]
    mps:
      user: {USER}
      enforce: terminate
      shares:
        small: {{count: 3, memory: 8Gi, threads: 15}}
        large: {{memory: 40Gi, threads: 40}}
"""
TWO = f"""\
version: v1
gpus:
  - devices: [0]
    mps: {{user: {USER}, shares: {{small: {{count: 2, memory: 8Gi, threads: 15}}}}}}
  - devices: [1]
    mig: {{3g.40gb: 1}}
    mps: {{user: {USER}, replicas: 2}}
"""


def _status(home: Home, phase: str) -> dict[str, Any]:
    return dict(home.until(lambda: (s := home.status()) and s["phase"] == phase and s))


@contextlib.contextmanager
def _counted(home: Home, device: str, slot: str) -> Iterator[int]:
    """A client of a slot, once the agent knows of it; its pid."""
    with home.client(device, slot) as client:
        home.until(lambda: [c for d in home.daemons() for c in d["clients"]])
        yield client.pid


def test_applied_without_an_agent_exported_and_adopted(home: Home) -> None:
    home.plan.write_text(TWO)
    node = ("--state", str(home.state))
    plan = ("-f", str(home.plan))
    applied = home.run("apply", *plan, "--simulate", "h100-80gb:2", *node)
    assert applied.returncode == 0, applied.stderr
    exported = home.folder / "exported.yaml"
    exported.write_text(home.run("export", *node).stdout)
    for document in (home.plan, exported):
        assert home.run("assert", "-f", str(document), *node).returncode == 0
    parted = home.run("export", "--format", "mig-parted", *node).stdout
    assert "# GPU 0 has MPS, which a mig-parted file cannot express" in parted

    records = sorted((home.folder / "run/mps").iterdir())
    home.start()
    daemons = home.all_ready(2)
    assert sorted(d["device"] for d in daemons) == [record.name for record in records]
    assert all(d["restarts"] == 0 for d in daemons)
    events = [e["message"] for e in home.events() if e["type"] == "MpsStarted"]
    assert events == []


@pytest.mark.full
def test_restart_and_drain_respect_clients(home: Home) -> None:
    [daemon] = started(home, ONE, 1)
    with _counted(home, daemon["device"], "small-0") as pid:
        restarted = home.run("mps", "restart", "0")
        assert (restarted.returncode, str(pid) in restarted.stderr) == (3, True)
        drained = home.run("mps", "drain", "0", "--timeout", "0.5")
        assert (drained.returncode, str(pid) in drained.stderr) == (3, True)
        assert home.daemons()[0]["pid"] == daemon["pid"]
    assert home.run("mps", "drain", "0", "--timeout", "20").returncode == 0
    assert home.daemons()[0]["state"] == "Down"
    asserted = home.run("assert", "-f", str(home.plan), "--state", str(home.state))
    assert asserted.returncode == 1
    assert f"nodeagent mps restart {daemon['device']}" in asserted.stdout
    assert home.run("mps", "restart", "0").returncode == 0
    assert home.all_ready(1)[0]["pid"] != daemon["pid"]
    nowhere = home.run("mps", "restart", "5")
    assert (nowhere.returncode, "no device '5'" in nowhere.stderr) == (2, True)


def test_a_stray_client_is_ended_and_the_others_stay(home: Home) -> None:
    [daemon] = started(home, STRICT, 1)
    node = ("--state", str(home.state))
    with home.client(daemon["device"], "small-0") as client:
        stray = home.run("simulate", "client", "--device", "0", "--seconds", "20", *node)
        assert stray.returncode == 1
        assert "810 (it was terminated)" in stray.stderr
        client.allocate(GIB)
        events = home.until(lambda: [e for e in home.events() if "to be ended" in e["message"]])
        assert "has no share of the plan" in events[0]["message"]
        assert events[0]["message"].startswith("GPU 0: MPS client ")


@pytest.mark.full
def test_failed_and_back(home: Home) -> None:
    home.settings["NODEAGENT_MPS_MOST_FAILURES"] = "2"
    started(home, ONE, 1)
    node = ("--device", "0", "--state", str(home.state))

    def fail() -> None:
        home.run("simulate", "mps", "start_error", "Cannot do it today", *node)
        home.run("simulate", "mps", "die", *node)
        status = _status(home, "Failed")
        [problem] = status["problems"]
        assert "does not stay up: failed 2 times in a row" in problem["message"]
        assert "Cannot do it today" in problem["message"]
        assert "nodeagent mps restart" in problem["remedy"]
        assert "Cannot do it today" in home.run("mps", "status").stdout
        home.run("simulate", "mps", "--clear", *node)

    fail()
    assert home.run("mps", "restart", "0").returncode == 0
    _status(home, "InSync")
    fail()
    home.plan.write_text(ONE.replace("8Gi", "9Gi"))
    assert home.all_ready(1)[0]["shares"]["small"]["memory"] == 9 * GIB


def test_a_daemon_that_cannot_start_is_not_applied(home: Home) -> None:
    home.plan.write_text("version: v1\ngpus: [{devices: [1], mig: {3g.40gb: 1}}]\n")
    home.start()
    home.until(lambda: home.status().get("phase") == "InSync")
    home.run("simulate", "mps", "start_error", "Cannot do it today", "--state", str(home.state))
    home.plan.write_text(ONE)
    home.until(lambda: any(e["type"] == "MpsEnded" for e in home.events()))
    events = home.until(
        lambda: [e for e in home.events() if e["type"] in ("Applied", "Failed")][1:]
    )
    assert [event["type"] for event in events] == ["Failed"]
    assert "MPS" in events[0]["message"]
    assert "GPU 0" in events[0]["message"]


@pytest.mark.full
def test_what_a_device_was_before_comes_back(home: Home) -> None:
    started(home, ONE, 1)
    assert _gpu(home)["computeMode"] == "exclusiveProcess"
    home.stop(signal.SIGKILL)
    home.plan.write_text("version: v1\ngpus: [{devices: [0], timeSlice: long}]\n")
    home.start()
    home.until(lambda: _gpu(home).get("timeSlice") == "long")
    assert _gpu(home)["computeMode"] == "default"
    assert home.daemons() == []
    assert "timeSlice: long" in home.run("export", "--state", str(home.state)).stdout
    home.stop(signal.SIGKILL)
    home.plan.write_text("version: v1\ngpus: [{devices: [0], mig: disabled}]\n")
    home.start()
    _status(home, "InSync")
    assert "timeSlice" not in home.run("export", "--state", str(home.state)).stdout


def _gpu(home: Home) -> dict[str, Any]:
    status = home.status()
    return dict(status["gpus"][0]) if status and status["gpus"] else {}
