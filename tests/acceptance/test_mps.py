"""MPS as a user has it: the agent as a process, daemons of the stand-in, clients with shares."""

from __future__ import annotations

import signal
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


def started(home: Home) -> list[dict[str, Any]]:
    """The daemons of the plan, once all are Ready."""
    home.plan.write_text(PLAN)
    home.start()
    return home.all_ready()


@pytest.mark.timeout(240)
def test_a_plan_with_shares_and_a_client_of_each(home: Home) -> None:
    """Two shares on one GPU and MPS on every instance of another: daemons under the plan's user,
    limits in force, and a client started with each share shows that share's own limits.
    """
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
    [
        [signal.SIGKILL],
        pytest.param([signal.SIGTERM, signal.SIGKILL], marks=pytest.mark.full),
    ],
)
def test_the_agent_goes_and_its_daemons_stay(home: Home, ends: list[signal.Signals]) -> None:
    """Killed, stopped, and replaced: the same daemons serve the same client, and the next agent
    takes them over as they are.
    """
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
    """A plan that takes MPS away waits for the client and names it; when that is gone, the daemon
    goes, the layout is recut, and no other daemon was disturbed.
    """
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
