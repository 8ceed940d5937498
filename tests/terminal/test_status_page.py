from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from nodeagent.mps.lifecycle.model import DaemonPhase
from nodeagent.plan.plan import StepResult
from nodeagent.structs import replace
from nodeagent.terminal.gpu_page import gpu_page
from nodeagent.terminal.page import Line, Tone, in_one_row, line, plain_text, toned, wrapped
from nodeagent.terminal.status_page import status_page
from nodeagent.views.claims import ClaimPhase
from nodeagent.views.node_state import NodeState, Phase, Reading
from nodeagent.views.shapes import HeadlineSeverity
from nodeagent.views.status_report import status_json
from nodeagent.views.status_shapes import Status
from tests.rig import Rig, on_node
from tests.views import example_node


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"reachable": True}, "reachable"),
        ({"reachable": True, "since": "1h"}, "reachable since 1h"),
        ({"reachable": False}, "not reached yet"),
        (
            {"reachable": False, "since": "1h", "problem": {"message": "no"}},
            "not reachable since 1h",
        ),
    ],
)
def test_the_cluster_is_shown(cluster: dict[str, Any], words: str) -> None:
    status: dict[str, Any] = {"node": "gpu-7", "phase": "InSync", "gpus": []}
    alone = plain_text(status_page(status, 100, 40))
    status["cluster"] = {"server": "https://api:6443", **cluster}
    shown = plain_text(status_page(status, 100, 40))
    assert shown == f"{alone}cluster https://api:6443  {words}\n"


def test_a_configuration_is_named() -> None:
    status = {"phase": "InSync", "digest": "sha256:0123456789abcdef", "source": "mig-config"}
    shown = plain_text(status_page({**status, "configuration": "all-balanced"}, 100, 40))
    assert "plan sha256:0123456789ab (all-balanced) from mig-config" in shown


def _tone(rows: tuple[Line, ...], text: str) -> Tone:
    (found,) = (span.tone for row in rows for span in row if span.text == text)
    return found


@pytest.mark.parametrize(
    ("severity", "tone", "phase"),
    [
        ("ok", Tone.GOOD, Tone.GOOD),
        ("info", Tone.NEW, Tone.GOOD),
        ("warning", Tone.WARNING, Tone.PLAIN),
        ("error", Tone.BAD, Tone.PLAIN),
    ],
)
def test_the_headline_comes_first(severity: str, tone: Tone, phase: Tone) -> None:
    headline = {"severity": severity, "text": "GPU 1 is lost.", "remedy": "Reboot it."}
    status = {"node": "gpu-7", "phase": "InSync", "headline": headline}
    rows = status_page(status, 100, 40)
    assert plain_text(rows[:2]) == "GPU 1 is lost.\n  Reboot it.\n"
    assert _tone(rows, "GPU 1 is lost.") is tone
    assert _tone(rows, "InSync") is phase


IN_USE = {
    "severity": "warning",
    "text": "It is in use by pid 4711.",
    "remedy": "End it.",
    "gpu": "GPU-0",
    "code": "InUse",
}


def test_one_command_explains_all_that_is_wrong() -> None:
    codes = ("InUse", "XidReset", "NotOffered", "XidReset")
    found = [{"severity": "error", "text": f"so {n}", "code": code} for n, code in enumerate(codes)]
    rows = status_page({"headline": IN_USE, "troubles": found}, 100, 40)
    assert plain_text(rows[-1:]) == "more: nodeagent explain InUse XidReset NotOffered\n"
    well = {"headline": {"severity": "ok", "text": "so", "code": "InSync"}}
    assert "explain" not in plain_text(status_page(well, 100, 40))


def test_what_the_headline_says_is_not_said_again() -> None:
    first = {**IN_USE, "path": "gpus[0].mig", "evidence": "it holds 3 GiB"}
    other = {
        "severity": "error",
        "text": "The disk is full.",
        "evidence": "0 bytes are free",
        "remedy": "Make room.",
    }
    status = {
        "node": "gpu-7",
        "phase": "Blocked",
        "message": "it is in use by pid 4711 (and 1 more)",
        "headline": IN_USE,
        "troubles": [first, other, {"text": "No log.", "remedy": "Make room."}, {"text": "No."}],
    }
    rows = status_page(status, 100, 40)
    assert plain_text(rows) == (
        "It is in use by pid 4711.\n  End it.\n  it holds 3 GiB\n  in the plan: gpus[0].mig\n"
        "node gpu-7  Blocked\nno plan\n\n! The disk is full: 0 bytes are free\n  Make room.\n"
        "! No log.\n  do as above\n! No.\nmore: nodeagent explain InUse\n"
    )
    assert _tone(rows, "! The disk is full: 0 bytes are free") is Tone.BAD


GPUS = 8
BLOCKED = {"time": "2026-01-02T03:04:05.678Z", "type": "Blocked", "message": "in use by " * 30}
CLAIM = {"namespace": "team", "phase": "Ready", "pods": [], "problems": []}


def _status(state: NodeState, *, claims: int = 0) -> dict[str, Any]:
    """As the agent gives it, with what its sampler and other services add."""
    gpus = state.observed.gpus
    read: dict[tuple[str, int | None], Reading] = {
        (gpu.uuid, None): Reading(37.0, 64, 412.3, 5 << 30) for gpu in gpus
    }
    found = status_json(replace(state, readings=read))
    assert found is not None
    held = [
        {**CLAIM, "name": f"c{n}", "devices": [{"gpu": gpus[n].uuid, "device": "gpu"}]}
        for n in range(claims)
    ]
    daemons = [{"device": gpu.uuid, "gpu": gpu.index, "state": "Ready"} for gpu in gpus[:claims]]
    return {**found, "claims": held, "mps": daemons}


def _fitting(status: dict[str, Any], width: int, height: int) -> list[str]:
    """The rows of the page, which are not too many, with a row for each GPU."""
    page = status_page(status, width, height, [BLOCKED] * 500)
    rows = plain_text(wrapped(page, width)).splitlines()
    assert len(rows) <= height, "\n".join(rows)
    assert max(map(len, rows)) <= width
    shown = [row for row in rows if row[4:6] == " │"]
    assert [int(row[:3]) for row in shown] == list(range(GPUS)), "\n".join(rows)
    assert "nodeagent status --gpu N" in " ".join(" ".join(rows).split())  # what is left out
    return rows


async def test_eight_gpus_with_56_slices_fit_on_a_screen(tmp_path: Path) -> None:
    async with on_node(Rig(tmp_path), f"h100-80gb:{GPUS}") as (rig, node):
        await rig.reach("{1g.10gb: 7}")
        idle = _status(rig.state)
        for gpu in rig.state.observed.gpus:
            for number, (_, device) in enumerate(gpu.mig_devices()):
                node.occupy(device.uuid, command=f"train-{gpu.index}-{number}")
        await rig.round()
        busy = _status(rig.state, claims=GPUS)
        await rig.reach("{3g.40gb: 2}", Phase.BLOCKED)
        blocked = _status(rig.state)
        node.lose(GPUS - 1)
        await rig.round()
        lost = _status(rig.state, claims=3)
    for status in (idle, busy, blocked, lost):
        for size in ((100, 40), (80, 40), (120, 60), (80, 24), (80, 16)):
            _fitting(status, *size)
    seen = "\n".join(_fitting(idle, 100, 40))
    assert "GPUs 0-7  8 x NVIDIA H100 80GB HBM3" in seen
    assert seen.count("│1g ·") == 56
    assert " 37%  5.0/79.6   64C   412W" in seen
    seen = "\n".join(_fitting(busy, 100, 40))
    assert seen.count("│1g █") == 56
    assert "1 Ready       1" in seen
    assert "GPU 7  used by train-7-0, train-7-1" in seen
    for status, at_most in ((idle, 29), (busy, 40)):  # printed on a terminal of 30 rows
        printed = plain_text(wrapped(status_page(status, 100, 40, [BLOCKED] * 9, over=11), 100))
        assert printed.count("\n") <= at_most
        assert ("last hour" in printed) is (at_most < 30)
    rows = _fitting(blocked, 100, 40)
    assert "train-0-" in rows[0] + rows[1]  # the worst comes first
    assert any(row.startswith("! gpus[0].mig") for row in rows)
    assert any(" more: nodeagent status --problems" in row for row in rows)
    assert any(row.startswith("GPU 0  used by") for row in rows)
    assert any(row.startswith("last hour: 500 events; ") for row in rows)
    assert any(row.startswith("  7! │") and "?" in row for row in _fitting(lost, 100, 40))


@pytest.mark.parametrize("code", ["GpuLost", "GpuUnknown"])
def test_that_a_gpu_is_gone_is_not_said_again_by_the_plan(code: str) -> None:
    lost = {"code": code, "message": "GPU 1 does not answer"}
    status = {"phase": "Failed", "message": f"{lost['message']} (and 1 more)", "problems": [lost]}
    assert "not answer" not in plain_text(status_page(status, 100, 40))
    assert "not answer" in plain_text(status_page({**status, "problems": []}, 100, 40))


@pytest.mark.parametrize("users", [1, 3])
def test_a_gpu_without_mig_has_its_memory_and_users(users: int) -> None:
    gpu = {
        "index": 0,
        "uuid": "GPU-0",
        "name": "Tesla T4",
        "memory": {"used": 3 << 30, "total": 15 << 30},
        "free": {},
        "users": [{"pid": 4711 + n, "command": f"serve-{n}"} for n in range(users)],
    }
    page = plain_text(status_page({"phase": "NoPlan", "gpus": [gpu]}, 80, 40))
    who = "serve-0" if users == 1 else "3 users"
    assert f"  0  │no MIG on this card: {who} ██" in page
    assert "│  3.0/15.0\n" in page
    assert f"GPU 0  GPU: pid {4710 + users} (serve-{users - 1})\n" in page


def test_what_python_runs_tells_its_processes_apart() -> None:
    user = {"pid": 4711, "command": "python3", "script": "train.py", "user": 1000}
    gpu = {"index": 0, "uuid": "GPU-0", "free": {}, "users": [user]}
    page = plain_text(status_page({"phase": "NoPlan", "gpus": [gpu]}, 80, 40))
    assert "  0  │no MIG on this card: train.py ██" in page
    assert "\nGPU 0  GPU: pid 4711 (python3 train.py) of user 1000\n" in page


@pytest.mark.parametrize(
    ("size", "words"), [(75497472, "72 MiB"), (1 << 30, "1 GiB"), (42756737434, "39.82 GiB")]
)
def test_memory_is_written_for_people(size: int, words: str) -> None:
    user = {"pid": 1, "command": "x", "memory": {"used": size}}
    gpu = {"index": 0, "uuid": "GPU-0", "free": {}, "users": [user]}
    page = plain_text(status_page({"gpus": [gpu]}, 100, 40))
    assert f"pid 1 (x), {words} used" in page


def _of_another_version(value: Any, promised: set[str]) -> Any:
    """The JSON with what every release has, and with keys that this one does not know."""
    if isinstance(value, dict) and not promised.isdisjoint(value):  # no map by names
        kept = {k: _of_another_version(v, promised) for k, v in value.items() if k in promised}
        return {**kept, "later": [{}]}
    return [_of_another_version(one, promised) for one in value] if type(value) is list else value


def test_an_agent_of_another_version_is_shown() -> None:
    blocked = example_node.BLOCKED
    definitions = json.schema(Status)["$defs"].values()
    promised = {key for one in definitions for key in one.get("required", ())}
    promised |= {"free", "uuid"}  # whose absence says something
    status = _of_another_version(status_json(blocked), promised) | {"phase": "Dreaming"}
    page = plain_text(status_page(status, 100, 40))
    assert f"node {blocked.node}  Dreaming\n" in page
    assert "│3g.40gb █" in page
    first, second = (gpu_page({**status, "gpus": [gpu]}, 80) for gpu in status["gpus"])
    assert "in use" in plain_text(first)
    assert "pid" in plain_text(second)


def test_a_row_ends_at_the_edge() -> None:
    assert [plain_text([in_one_row(line("ab", "cd"), n)]) for n in (4, 3, 2)] == [
        "abcd\n",
        "ab…\n",
        "a…\n",
    ]


def test_every_state_has_a_tone() -> None:
    words = (*Phase, *ClaimPhase, *DaemonPhase, *HeadlineSeverity, *StepResult)
    assert [word for word in words if toned(word).tone is Tone.PLAIN] == [Phase.NO_PLAN]
