import asyncio
import json
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest

from nodeagent.gpu.kernel import boot_id
from nodeagent.simulation import SimulatedNode, simulated
from nodeagent.simulation.state_file import directory_beside
from tests.claims.machine import Home, laid_out, pool_of
from tests.cli.conftest import Program
from tests.machine_load import stretched, wait_until

SPLIT = "{devices: [0, 1], mig: {3g.40gb: 1, 1g.10gb: 4}}"
WHOLE = "{devices: [0, 1], mig: {7g.80gb: 1}}"


def test_steps_that_cannot_be_read_back_are_done_and_not_confirmed(h100: Program) -> None:
    h100.on("apply", "-f", h100.plan("{devices: [0], mig: enabled}"))
    with SimulatedNode(state=h100.state) as node:
        node.inject("nvmlDeviceGetGpuInstances", error="UNKNOWN", times=None, gpu=0, skip=7)
    ended = h100.on("apply", "-f", h100.plan("{devices: [0], mig: {1g.10gb: 7}}"))
    assert ended.code == 1
    assert ended.out.count("! ") == 1
    assert ended.out.splitlines()[-1].startswith(
        "Not confirmed: 7 steps done, but GPU 0 could not be read back"
    )


def test_what_claims_have_stays(program: Program) -> None:
    home = Home(program.directory / "home")
    home.boot_id, home.records_dir = boot_id(), directory_beside(program.state) / "claims"

    async def prepare(pool: str) -> None:
        async with home.core() as (claims, _):
            await claims.prepare(*home.claim(0, (pool, "mig-1g-10gb-2")))

    with simulated("h100-80gb:1", state=program.state) as node:
        asyncio.run(prepare(pool_of(node)))
    done = program.on("apply", "-f", program.plan("{devices: [0], mig: {7g.80gb: 1}}"))
    assert done.code == 3
    assert "team/trainer-0" in done.out
    path = program.plan("{devices: [0], mig: {3g.40gb: 1}}")
    assert [program.on(word, "-f", path).code for word in ("apply", "assert")] == [0, 0]
    with simulated(state=program.state) as node:
        assert laid_out(node) == [(2, 1), (4, 4)]


@pytest.mark.parametrize(
    ("gpus", "code"),
    [
        ("{devices: [0], mig: {4g.40gb: 2}}", 1),
        ("{devices: [0], mig: {2g.21bg: 2}}", 2),
        ("{devices: [9], mig: {1g.10gb: 1}}", 2),
    ],
)
def test_a_refused_document_touches_nothing(gpus: str, code: int, h100: Program) -> None:
    refused = h100.on("apply", "-f", h100.plan(f"{WHOLE}, {gpus}"))
    assert (refused.code, refused.out) == (code, "")
    assert "mig: disabled" in h100.on("export").out


def test_a_reset_needs_no_state_file(program: Program) -> None:
    path = program.plan("{devices: [0], mig: {1g.5gb: 7}}")
    words = ("apply", "--simulate", "a100-40gb:1", "-f", path, "--reset", "whenIdle")
    assert program(*words).code == 0


def _after(delay: float, act: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(delay, act)
    timer.start()
    return timer


def test_wait_is_for_all_who_may_leave(h100: Program) -> None:
    h100.on("apply", "-f", h100.plan(SPLIT))
    h100.on("simulate", "occupy", "0:4")
    h100.on("simulate", "fault", "--lost", "1")
    release = _after(0.3, h100.release)
    done = h100.on("apply", "-f", h100.plan(WHOLE), "--wait", "60")
    release.join()
    assert done.code == 1
    assert "GPU 0  done     create 7g.80gb" in done.out


def test_a_user_who_comes_during_the_steps_is_waited_for(h100: Program) -> None:
    h100.on("apply", "-f", h100.plan("{devices: [0], mig: {1g.10gb: 7}}"))
    whole = h100.plan("{devices: [0], mig: {7g.80gb: 1}}")
    h100.on("simulate", "fault", "nvmlComputeInstanceDestroy", "--hang", "--count", "1")
    words = ("apply", "-f", whole, "--wait", "60", "--state", h100.state)
    with h100.process(*words, **_PIPES) as process:
        assert process.stdout is not None
        wait_until(lambda: not json.loads(h100.state.read_text())["faults"][0]["times"])
        assert h100.on("simulate", "occupy", "0:5", "--command", "train").code == 0
        h100.on("simulate", "fault", "--clear")
        lines = [""]
        while "restore" not in lines[-1] and "failed" not in lines[-1]:
            lines.append(process.stdout.readline())
        h100.release()
        out, err = process.communicate(timeout=stretched(30))
    assert (process.returncode, err) == (0, ""), "".join(lines) + out
    assert any("failed   destroy 1g.10gb at 5" in said for said in lines)


_PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_step_finish(number: signal.Signals, h100: Program) -> None:
    path = h100.plan("{devices: [0], mig: {1g.10gb: 7}}")
    function = "nvmlDeviceCreateGpuInstanceWithPlacement"
    h100.on("simulate", "fault", function, "--latency", "0.4")
    with h100.process("apply", "-f", path, "--state", h100.state, **_PIPES) as process:
        assert process.stdout is not None
        while "create" not in process.stdout.readline():
            pass
        process.send_signal(number)
        out, err = process.communicate(timeout=stretched(30))
    assert process.returncode == 1
    assert err == ""
    assert "Stopped: " in out
    assert "skipped  create 1g.10gb" in out
    h100.on("simulate", "fault", "--clear")
    layout = h100.on("export", "-o", "json").json["gpus"][0]["mig"]
    assert 0 < len(layout) < 7
    assert h100.on("apply", "-f", path).code == 0
    assert h100.on("assert", "-f", path).code == 0


def test_a_closed_pipe_does_not_stop_the_work(h100: Program) -> None:
    path = h100.plan(SPLIT)
    with h100.process("apply", "-f", path, "--state", h100.state, **_PIPES) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.wait(timeout=stretched(30))
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert process.returncode == 0
    assert h100.on("assert", "-f", path).code == 0


def test_gpus_that_never_answered_are_distinguished(h100: Program) -> None:
    for gpu in ("0", "1"):
        h100.on("simulate", "fault", "--lost", gpu)
    plan = h100.plan("{devices: all, mig: {7g.80gb: 1}}")
    ended = h100.on("apply", "-o", "json", "-f", plan)
    assert ended.code == 1
    assert [gpu["index"] for gpu in ended.json["gpus"]] == [0, 1]
    shown = h100.on("apply", "-f", plan).out
    assert "GPU 0 " in shown
    assert "GPU 1 " in shown


def test_a_dry_run_is_a_plan(h100: Program) -> None:
    document = h100.plan("{devices: [0], mig: {3g.40gb: 1}}")
    before = h100.on("export").out
    for words in (("-f", document), ("-f", document, "-o", "json"), ("-f", h100.file("x", "bad"))):
        assert h100.on("apply", "--dry-run", *words) == h100.on("plan", *words)
    assert h100.on("export").out == before
