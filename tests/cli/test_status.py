import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.agent_server import STATUS, answering, meeting
from tests.cli.conftest import Program
from tests.machine_load import stretched


def test_one_gpu_is_drawn_in_full(program: Program) -> None:
    read = {"smClock": 345, "clockReasons": ["gpu_idle", "power_cap"], "xids": {"31": 2}}
    first = {**STATUS["gpus"][0], **read, "eccUncorrected": 0}
    answer = {**STATUS, "gpus": [first, STATUS["gpus"][1]], "message": "GPU 1 has none of it"}
    with answering(json.dumps(answer).encode()) as (where, handler):
        shown = program("status", "--gpu", "0", "--listen", where)
        found = program("status", "--gpu", "gpu-0", "--listen", where, "-o", "json").json
    assert (shown.code, shown.err) == (0, "")
    assert (
        shown.out
        == """\
node gpu-node-0  Blocked
plan sha256:0123456789ab from file, seen 2026-01-02T03:04:05.678Z

! Something is in use.
  End it.

GPU 0  NVIDIA H100 80GB HBM3
  GPU-0  00000000:1A:00.0
  SM clock 345 MHz, 0 uncorrected ECC errors, slowed by power_cap, 2 x XID 31
          0       1       2       3       4       5       6       7
          ┌───────┬───────────────────────┬───────────────────────────────┐
  now     │1g.10gb│                       │3g.40gb                        │
          │half   │                       │in use                         │
          │made   │                       │                               │
          └───────┴───────────────────────┴───────────────────────────────┘
  3g.40gb at 4: pid 4711 (train) of pod ml/job-1, 2 GiB used
  3g.40gb at 4: MIG-0, 2 GiB of 40 GiB
  1g.10gb at 0: half made
  room for 3 x 1g.10gb or 1 x 2g.20gb
"""
    )
    assert handler.paths[-1] == "/v1/status?gpu=GPU-0"
    assert found == {**answer, "gpus": [first]}


EVENTS = [
    {
        "id": 1, "time": "2026-01-02T03:00:00.000Z", "type": "StepDone", "severity": "info",
        "routine": True, "message": "step done: create 3g.40gb at 4",
        "reason": "the plan asks for it here", "gpu": "GPU-0",
    },
    {
        "id": 9, "time": "2026-01-02T03:04:05.678Z", "type": "MpsEnded", "severity": "warning",
        "message": "it ended by itself " + "and again " * 9, "count": 3,
        "since": "2026-01-02T03:01:00.000Z",
    },
]  # fmt: skip


def test_the_last_hour_is_explained(program: Program) -> None:
    with answering(json.dumps(STATUS).encode()) as (where, handler):
        handler.events = json.dumps(EVENTS).encode()
        words = ("status", "--listen", where)
        shown = program(*words)
        found = program("events", "--listen", where)
        one = program("events", "--listen", where, "--gpu", "0")
        full = program(*words, "--gpu", "0").out
        assert program("events", "--listen", where, "-o", "json").json == {"events": EVENTS}
        handler.events = b"<html>"
        assert program(*words).out.endswith("2g.20gb\n")
        assert program("events", "--listen", where).code == 1
    step = "03:00:00Z  StepDone  GPU 0: step done: create 3g.40gb at 4"
    assert (shown.code, shown.err) == (0, "")
    title, ended = shown.out.splitlines()[-2:]
    assert title == "last hour: 2 events; nodeagent events shows all of them"
    assert ended.startswith("03:04:05Z  MpsEnded  it ended by itself and again")
    assert ended.endswith("again  (3 times since 03:01:00Z)")
    assert found.out.startswith("node gpu-node-0: 2 events in the last hour\n" + step)
    assert found.out.split()[-5:] == ["again", "(3", "times", "since", "03:01:00Z)"]
    whole = f"{step} (why: the plan asks for it here)\n"
    assert one.out == f"node gpu-node-0: 1 event in the last hour\n{whole}"
    assert full.endswith(f"\nlast hour\n{whole}")


@pytest.mark.parametrize(
    ("severities", "code"), [([], 0), (["warning"], 1), (["warning", "error"], 2)]
)
def test_problems_are_all_shown_and_the_code_says_how_the_node_is(
    severities: list[str], code: int, program: Program
) -> None:
    troubles = [
        {"severity": severity, "text": f"Trouble {n}.", "remedy": f"Mend {n}.", "code": "InUse"}
        for severity in severities
        for n in range(60)
    ]
    headline = {"severity": "ok", "text": "All is well."}
    answer = {**STATUS, "troubles": troubles, "headline": headline}
    with answering(json.dumps(answer).encode()) as (where, _):
        words = ("status", "--problems", "--listen", where)
        shown = program(*words, "--exit-code")
        assert program(*words).code == 0
        assert program(*words, "-o", "json").json["troubles"] == troubles
        assert program(*words, "--watch").code == 2
    assert (shown.code, shown.err) == (code, "")
    assert shown.out.count("! Trouble ") == shown.out.count("  Mend ") == len(troubles)
    last = "more: nodeagent explain InUse" if troubles else headline["text"]
    assert shown.out.splitlines()[-1] == last


def test_no_agent_is_code_3_for_who_asks_for_it(program: Program) -> None:
    nobody = ("status", "--listen", "127.0.0.1:1")
    assert (program(*nobody).code, program(*nobody, "--exit-code").code) == (1, 3)
    with answering(b"<html>") as (where, _):
        other = program("status", "--listen", where, "--exit-code")
    assert (other.code, len(other.err.splitlines())) == (3, 1)


def test_a_gpu_that_is_not_there_is_code_2(program: Program) -> None:
    with answering(json.dumps(STATUS).encode()) as (where, _):
        failed = program("status", "--gpu", "8", "--listen", where)
    assert (failed.code, failed.out) == (2, "")
    assert failed.err == 'nodeagent: this node has no GPU "8"\n  its GPUs: 0, 1\n'


def test_a_gpu_that_does_not_answer_is_drawn_as_it_was(program: Program) -> None:
    first = dict(STATUS["gpus"][0], health={"status": "unhealthy", "findings": []})
    del first["free"]
    with answering(json.dumps({**STATUS, "gpus": [first]}).encode()) as (where, _):
        shown = program("status", "--listen", where).out
        full = program("status", "--listen", where, "--gpu", "0").out
    assert f"  0! │1g.10gb?│{' ' * 26}│3g.40gb {'?' * 27}│" in shown
    assert "train" not in shown + full
    assert "  was     │1g.10gb│" in full
    assert "now" not in full
    assert "! unhealthy" in full


def test_nothing_that_a_terminal_acts_on_gets_through(program: Program) -> None:
    """Names come from other users' programs; what is no character at all stays itself, too."""
    bad = ["\x9b2J", "\x7f", "a\u202eb", "\u2028", "\U000e0001", "\udc80"]
    answer = {**STATUS, "bad": bad, "good": "ä€"}
    with answering(json.dumps(answer).encode()) as (where, _):
        words = ("status", "--listen", where, "-o")
        shown = [program(*words, name).out for name in ("json", "yaml")]
        watch = (*words, "json", "--watch")
        with program.process(*watch, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            followed = process.stdout.readline()
            process.send_signal(signal.SIGINT)
    for text in (*shown, followed):
        assert all(row.isprintable() for row in text.split("\n"))
    assert json.loads(shown[0]) == json.loads(followed) == answer
    assert yaml.load(shown[1], Loader=yaml.SafeLoader) == answer
    assert "ä€" in shown[0]


def test_a_run_directory_is_asked_alone(program: Program, short: Path) -> None:
    with answering(json.dumps(STATUS).encode()) as (where, handler):
        settings = program.file(f"api: {{listen: '{where}'}}", "s.yaml")
        words = ("--settings", settings, "--run-dir", short)
        for name in ("status", "claims", "events"):
            failed = program(name, *words)
            assert (failed.code, failed.out) == (1, "")
            assert f"no agent answers at {short}/agent.sock (No such" in failed.err
        assert handler.paths == []
        with answering(json.dumps(STATUS).encode(), path=short / "agent.sock"):
            assert program("status", *words).code == 0
        assert handler.paths == []


def test_settings_say_where_the_agent_is(program: Program) -> None:
    with answering(json.dumps(STATUS).encode()) as (where, _):
        settings = program.file(f"api: {{listen: '{where}'}}\nrun: {{dir: /nowhere}}", "s.yaml")
        assert program("status", "--settings", settings).code == 0


def test_an_agent_that_ends_in_its_answer_is_no_other_program(program: Program) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"
    with meeting(lambda connection: connection.sendall(answer)) as where:
        failed = program("status", "--listen", where)
    assert "(its answer ended in the middle)" in failed.err
    assert "start one" in failed.err


@pytest.mark.parametrize(
    ("answer", "status"),
    [(b"<html>", 200), (b"[]", 200), (b"{}", 503), (b"\xff", 200)]
    + [(json.dumps(STATUS).encode()[:-1] + b', "x": %s}' % x, 200) for x in (b"NaN", b"1e999")],
)
def test_what_is_no_agent_is_code_1(answer: bytes, status: int, program: Program) -> None:
    with answering(answer, status=status) as (where, _):
        failed = program("status", "--listen", where)
    assert (failed.code, failed.out) == (1, "")
    assert len(failed.err.splitlines()) == 1


def test_a_port_that_does_not_speak_http_is_no_agent(program: Program) -> None:
    alert = bytes.fromhex("15030300020232")
    with meeting(lambda connection: connection.sendall(alert)) as where:
        failed = program("status", "--listen", where)
    assert "is not nodeagent: it does not answer in HTTP" in failed.err


def test_an_answer_without_an_end_fills_no_memory(program: Program) -> None:
    """While no agent runs, any user of the machine can listen at its address."""
    sent = 0

    def answer(connection: socket.socket) -> None:
        nonlocal sent
        with contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while sent < 64 << 20:
                connection.sendall(b"[" * (1 << 20))
                sent += 1 << 20

    with meeting(answer) as where:
        failed = program("status", "--listen", where)
    assert (failed.code, "not nodeagent" in failed.err) == (1, True)
    assert sent < 64 << 20


def test_no_answer_acts_on_the_terminal(program: Program) -> None:
    title = "\x1b]0;title\x07\x9b31m"
    status = {**STATUS, "node": title, "headline": {"severity": "ok", "text": title}}
    for answer, code in ((status, 200), ({"error": title, "remedy": title}, 500)):
        with answering(json.dumps(answer).encode(), status=code) as (where, _):
            shown = program("status", "--listen", where)
        assert "?]0;title??31m" in shown.out + shown.err
        assert not {"\x1b", "\x07", "\x9b"} & {*shown.out, *shown.err}


def test_watch_prints_every_change_once(program: Program) -> None:
    first, *others = STATUS["gpus"]
    sampled = [{**first, "utilization": 50.0, "power": 412.3}, *others]
    with answering(json.dumps(STATUS).encode()) as (where, handler):
        words = ("status", "--watch", "-o", "json", "--listen", where)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with program.process(*words, **pipes) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert json.loads(process.stdout.readline())["phase"] == "Blocked"
            later = {**STATUS, "observedAt": "later", "gpus": sampled}
            handler.answer = json.dumps(later).encode()
            threading.Event().wait(1.5)
            handler.answer = json.dumps({**STATUS, "phase": "InSync"}).encode()
            assert json.loads(process.stdout.readline())["phase"] == "InSync"
            process.stdout.close()  # the reader has seen enough
            handler.answer = json.dumps({**STATUS, "phase": "Failed"}).encode()
            assert process.wait(timeout=stretched(30)) == 0
            assert process.stderr.read() == ""


def test_a_watched_gpu_may_be_unknown_for_a_while(program: Program) -> None:
    with answering(json.dumps(STATUS).encode()) as (where, handler):
        words = ("status", "--watch", "--gpu", "1", "-o", "json", "--listen", where)
        with program.process(*words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for gpus, phase in ((STATUS["gpus"], "Blocked"), ([], "unknown")) * 2:
                handler.answer = json.dumps({**STATUS, "gpus": gpus}).encode()
                assert json.loads(process.stdout.readline())["phase"] == phase
            process.kill()


def test_a_pipe_gets_everything_and_a_terminal_what_fits(program: Program) -> None:
    troubles = [{"severity": "warning", "text": f"Trouble {n} {'and ' * 40}on."} for n in range(60)]
    devices = [
        {"uuid": f"MIG-{n}", "profile": "1g.10gb+me", "start": n, "size": 1, "inUse": True}
        | {"users": [{"pid": 100 + n, "command": f"train-{n}"}]}
        for n in range(7)
    ]
    gpus = [{**STATUS["gpus"][0], "index": n, "instances": devices} for n in range(8)]
    events = [{**EVENTS[1], "message": "again " * 60 + "at last"}]
    with answering(json.dumps({**STATUS, "troubles": troubles, "gpus": gpus}).encode()) as (
        where,
        handler,
    ):
        handler.events = json.dumps(events).encode()
        words = ("status", "--listen", where)
        with program.process(*words, stdout=subprocess.PIPE, text=True) as process:
            piped = process.communicate(timeout=stretched(30))[0].splitlines()
        ours, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
        with program.process(*words, stdout=theirs, env=environment):
            os.close(theirs)
            shown = _all_of(ours).decode().splitlines()
    assert [row for row in piped if row.startswith("! Trouble ") and row.endswith("on.")][59:]
    assert sum("(train-" in row for row in piped) == 7  # alike on all GPUs
    assert sum(row.count("│1g.10gb+me") for row in piped) == 56
    assert piped[-1].endswith("at last (3 times since 03:01:00Z)")
    assert not any("…" in row or "left out" in row for row in piped)
    assert len(shown) <= 40
    assert any(" more: nodeagent status --problems" in row for row in shown)


def _all_of(terminal: int) -> bytes:
    """What is written to the terminal until the last program there ends."""
    shown = b""
    with contextlib.suppress(OSError):  # so a terminal ends
        while more := os.read(terminal, 4096):
            shown += more
    os.close(terminal)
    return shown


def test_what_ails_a_gpu_is_shown(program: Program) -> None:
    findings = [
        {
            "message": "has uncorrected errors",
            "evidence": "3 so far",
            "suggestedAction": "reset GPU",
            "advice": "Drain the GPU.",
            "start": 4,
            "size": 4,
        },
        {"evidence": "XID 78", "suggestedAction": "none", "advice": "", "start": 2, "size": 1},
    ]
    sick = dict(STATUS["gpus"][1], health={"status": "unhealthy", "findings": findings})
    with answering(json.dumps({**STATUS, "gpus": [sick]}).encode()) as (where, _):
        full = program("status", "--listen", where, "--gpu", "1").out
    assert (
        """\
  ! unhealthy
    has uncorrected errors in slices 4-7: 3 so far
      Drain the GPU.
    in slice 2: XID 78
"""
        in full
    )


def test_what_a_healthy_gpu_reported_is_shown(program: Program) -> None:
    findings = [{"evidence": "XID 31", "suggestedAction": "restart application"}]
    well = dict(STATUS["gpus"][1], free={}, health={"status": "healthy", "findings": findings})
    with answering(json.dumps({**STATUS, "gpus": [well]}).encode()) as (where, _):
        shown = program("status", "--listen", where).out
        full = program("status", "--listen", where, "--gpu", "1").out
    assert "\nGPU 1  healthy, though: XID 31 (restart application)\n" in shown
    assert "! GPU" not in shown
    assert "  healthy, though:\n    XID 31\n      restart application\n" in full


CLAIM: dict[str, Any] = {
    "namespace": "team", "name": "trainer", "uid": "0b8f6a3e-1c2d-4e5f-8a9b-0c1d2e3f4a5b",
    "phase": "Releasing", "pods": [{"namespace": "team", "name": "trainer-0", "container": ""}],
    "devices": [
        {
            "request": "gpu", "pool": "gpu-node-0/gpu-0", "device": "mig-3g-40gb-4", "gpu": "GPU-0",
            "index": 0, "profile": "3g.40gb", "start": 4, "size": 4, "gi": 2, "ci": 0,
            "uuid": "MIG-0",
        }
    ],
    "refusal": {
        "code": "InUse", "message": "claim team/trainer is used by pid 4711", "remedy": "end it",
    },
    "problems": [],
}  # fmt: skip
SERVED = {**STATUS, "claims": [CLAIM]}


def test_programs_get_what_the_agent_says(program: Program) -> None:
    answer = {**SERVED, "claims": [{**CLAIM, "later": 1}], "lessOffered": []}
    with answering(json.dumps(answer).encode()) as (where, _):
        found = program("claims", "--listen", where, "-o", "json").json
    assert found == {key: answer[key] for key in ("node", "observedAt", "claims", "lessOffered")}


def test_the_status_page_has_claims_at_their_devices(program: Program) -> None:
    waiting = {"namespace": "team", "name": "next", "phase": "Waiting", "pods": [], "devices": []}
    answer = {**STATUS, "claims": [CLAIM, waiting]}
    with answering(json.dumps(answer).encode()) as (where, _):
        shown = program("status", "--listen", where).out
    assert (
        "\nGPU 0  3g.40gb at 4: claim team/trainer Releasing, pod trainer-0: "
        "claim team/trainer is used by pid 4711\nclaim team/next Waiting\n"
    ) in shown
