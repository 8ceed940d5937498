import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.app.use_service import use_file
from nodeagent.use.records import KeptRecords, Records, Use
from tests.acceptance.metrics_rig import Series, parsed
from tests.agent_environment import asked
from tests.app.agent_process import agent, write_plan
from tests.machine_load import wait_until

HELD = "nodeagent_held_slice_seconds_total"
USED = "nodeagent_used_slice_seconds_total"
IDLE = "nodeagent_held_idle_seconds"


def _command(folder: Path, *words: str) -> None:
    simulated = ("--simulate", "h100-80gb:1", "--state", f"{folder}/node.json")
    command = [sys.executable, "-m", "nodeagent", *words, *simulated]
    subprocess.run(command, check=True, capture_output=True)


def _scraped(folder: Path) -> dict[Series, float]:
    try:
        return parsed(asked(folder, "/metrics")[1])
    except OSError:
        return {}


def until_scraped(
    folder: Path, condition: Callable[[dict[Series, float]], bool]
) -> dict[Series, float]:
    def found() -> dict[Series, float] | None:
        series = _scraped(folder)
        return series if condition(series) else None

    series = wait_until(found, said=lambda: _scraped(folder).keys())
    assert series is not None
    return series


def _of(series: dict[Series, float], name: str) -> dict[frozenset[tuple[str, str]], float]:
    return {labels: value for (metric, labels), value in series.items() if metric == name}


def _recorded(folder: Path) -> tuple[Use, KeptRecords]:
    """What is in the file of the agent that has ended."""
    kept = use_file(folder / "state/use.json").read()
    assert kept is not None
    (use,) = Records(14, kept, kept.saved).uses()
    return use, kept


def test_processes_without_a_pod_are_accounted_for(tmp_path: Path) -> None:
    write_plan(tmp_path, "{3g.40gb: 2}")
    _command(tmp_path, "apply", "-f", f"{tmp_path}/plan.yaml")
    holders = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        for start, holder in zip((0, 4), holders, strict=True):
            place = f"0:{start}"
            pid = str(holder.pid)
            _command(tmp_path, "simulate", "occupy", place, "--pid", pid, "--follow")
        _command(tmp_path, "simulate", "load", "0:4", "0.5")
        with agent(tmp_path, NODEAGENT_SAMPLE_INTERVAL="0.1") as process:
            series = until_scraped(
                tmp_path,
                lambda s: any(v > 0 for v in _of(s, USED).values()) and len(_of(s, IDLE)) == 2,
            )
            ((labels, held),) = _of(series, HELD).items()
            ((whose, value),) = labels
            assert whose in ("container", "unit", "user")
            assert whose != "user" or value == str(os.geteuid())
            used = _of(series, USED)[labels]
            assert 0 < used < held
            assert all(labels <= idle for idle in _of(series, IDLE))
            until_scraped(tmp_path, lambda s: _of(s, HELD)[labels] > held)
            process.end()
        before, kept = _recorded(tmp_path)
        assert before.used
        assert before.held > before.used
        assert (before.grant.device, before.grant.memory) == ("3g.40gb", 42412802048)
        with agent(tmp_path, NODEAGENT_SAMPLE_INTERVAL="0.1") as process:
            until_scraped(tmp_path, lambda s: any(v > 0 for v in _of(s, USED).values()))
            process.end()
        # What an earlier agent recorded counts on, with the time between; the metrics begin anew.
        after, later = _recorded(tmp_path)
        passed = later.seen - kept.seen
        assert after.held - before.held == pytest.approx(2 * passed)
        [(device, idle)] = kept.idle.items()
        assert later.idle == {device: pytest.approx(idle + passed)}
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()
