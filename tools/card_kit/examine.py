"""Examine the agent on this machine's GPUs: `python -m tools.card_kit.examine FOLDER`.

Writes `report.json` and what it was made from into the folder, and prints a line for each part. A
part that fails says why, and the others go on. It takes under six minutes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil

from nodeagent.metrics.catalogue import catalogue
from tools.card_kit.compare import compared

_HERE = Path(__file__).parent
_LISTEN = "127.0.0.1:19470"
_WATCHED = 45.0  # seconds that the agent is watched for its cost
_LOADED = 12.0  # seconds of each load
_LIMIT_MIB = 2048  # of an MPS client

Json = dict[str, Any]


class Examination:
    """One run, with everything it writes below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        counters = (f"{f.name}, {f.type}, {f.help.replace(',', ';')}" for f in catalogue().fields)
        (folder / "counters.csv").write_text("\n".join(counters), encoding="utf-8")

    # --- the program ----------------------------------------------------------------------------

    def program(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One command of the program, to its end."""
        command = [sys.executable, "-m", "nodeagent", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    @contextmanager
    def agent(
        self, *, recorded: str = "", plan: str = "version: v1\ngpus: []\n", **sample: float
    ) -> Iterator[int]:
        """The agent, from its first answer until the block ends; its pid."""
        settings = {
            "node_name": "card",
            "api": {"listen": _LISTEN},
            "run": {"dir": str(self.folder / "run")},
            "state": {"dir": str(self.folder / "state")},
            "cdi": {"dir": str(self.folder / "cdi")},
            "plan": {"source": "file", "file": str(self.folder / "plan.yaml")},
            "mps": {
                "compute_mode": "leave",
                "launch": "child",
                "shm": "host",
                "path": os.environ["PATH"],
                "library_path": os.environ.get("LD_LIBRARY_PATH"),
            },
            "sample": sample or {"interval": 5},
            "reset": "never",
        }
        if recorded or sample:
            settings["metrics"] = {"counters": str(self.folder / "counters.csv")}
        (self.folder / "plan.yaml").write_text(plan, encoding="utf-8")
        (self.folder / "settings.yaml").write_text(json.dumps(settings), encoding="utf-8")
        program = (
            ["tools.card_kit.recorder", str(self.folder / recorded)] if recorded else ["nodeagent"]
        )
        command = [
            sys.executable,
            "-m",
            *program,
            "run",
            "--settings",
            str(self.folder / "settings.yaml"),
        ]
        with (self.folder / f"{recorded or 'agent'}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait(lambda: bool(_answer("/v1/status")), 60, "the agent to answer")
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()

    # --- parts ----------------------------------------------------------------------------------

    def calls(self) -> Json:
        """Every NVML call of the commands that only look, and of an agent with every field."""
        found: Json = {}
        for words in (("profiles",), ("check",), ("export",)):
            target = self.folder / f"calls-{words[0]}.json"
            command = [
                sys.executable,
                "-m",
                "tools.card_kit.recorder",
                str(target),
                *words,
                "-o",
                "json",
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            (self.folder / f"{words[0]}.json").write_text(
                done.stdout or done.stderr, encoding="utf-8"
            )
            found[words[0]] = {"exit": done.returncode, "functions": len(_json(target))}
        with self.agent(recorded="calls-run.json", interval=1, slow_interval=5):
            time.sleep(15)
            (self.folder / "status.json").write_text(_answer("/v1/status"), encoding="utf-8")
        found["run"] = {"functions": len(_json(self.folder / "calls-run.json"))}
        return found

    def cost(self) -> Json:
        """Memory and processor time of an agent with the default fields, scraped each 15 s."""
        with self.agent() as pid:
            process = psutil.Process(pid)
            before, began = sum(process.cpu_times()[:2]), time.monotonic()
            while time.monotonic() < began + _WATCHED:
                time.sleep(15)
                _answer("/metrics")
            used = sum(process.cpu_times()[:2]) - before
            return {
                "residentMiB": round(process.memory_info().rss / (1 << 20), 1),
                "cpuPercent": round(100 * used / (time.monotonic() - began), 2),
                "problems": json.loads(_answer("/v1/status")).get("problems"),
            }

    def metrics(self) -> Json:
        """Field by field beside nvidia-smi, idle; then the profiling fields under known loads."""
        with self.agent(interval=1, slow_interval=2):
            time.sleep(6)
            text = _answer("/metrics")
            xml = subprocess.run(
                [shutil.which("nvidia-smi") or "nvidia-smi", "-q", "-x"],
                capture_output=True,
                text=True,
                check=True,
                timeout=60,
            ).stdout
            (self.folder / "metrics.txt").write_text(text, encoding="utf-8")
            (self.folder / "nvidia-smi.xml").write_text(xml, encoding="utf-8")
            pairs = compared(text, xml)
            loads = {what: self._load(what) for what in ("spin", "copy")}
            heard = json.loads(_answer("/v1/status"))
        return {
            "series": len(re.findall(r"^\w+\{", text, re.MULTILINE)),
            "agree": sum(1 for pair in pairs if pair["agree"]),
            "differ": [pair for pair in pairs if pair["agree"] is False],
            "onlyOne": [pair["metric"] for pair in pairs if pair["agree"] is None],
            "profiling": {"idle": _profiling(text), **loads},
            "problems": heard["problems"],  # also where events of the driver are not heard
            "findings": [gpu.get("health") for gpu in heard["gpus"]],
        }

    def _load(self, what: str) -> Json:
        command = [sys.executable, str(_HERE / "load.py"), what, str(_LOADED)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
            time.sleep(_LOADED - 3)
            seen = _profiling(_answer("/metrics"))
            said = load.communicate(timeout=60)[0]
        return {"load": json.loads(said or "{}"), **seen}

    def mps(self) -> Json:
        """A daemon of the agent's own, a client within its limit and one beyond it."""
        if not shutil.which("nvidia-cuda-mps-control"):
            return {"skipped": "nvidia-cuda-mps-control is not on PATH"}
        with self.agent():
            gpus = json.loads(_answer("/v1/status"))["gpus"]
        outside = (g["uuid"] for g in gpus if g.get("mig", {}).get("current") != "enabled")
        uuid = next(outside, None)
        if uuid is None:
            return {"skipped": "every GPU is in MIG mode"}
        plan = {
            "version": "v1",
            "gpus": [
                {
                    "devices": [uuid],
                    "mps": {
                        "user": str(os.getuid()),
                        "clients": {"memory": f"{_LIMIT_MIB}Mi", "threads": 25},
                    },
                }
            ],
        }
        with self.agent(plan=json.dumps(plan)):
            _wait(lambda: '"Ready"' in _answer("/v1/mps"), 60, "the daemon to be Ready")
            lines = (self.folder / f"run/mps/{uuid}/env/clients-0.env").read_text(encoding="utf-8")
            env = os.environ | dict(
                line.split("=", 1) for line in lines.splitlines() if "=" in line
            )
            command = [sys.executable, str(_HERE / "load.py"), "hold"]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": env}
            with subprocess.Popen([*command, str(_LIMIT_MIB // 2)], **pipes) as inside:  # type: ignore[call-overload]  # keywords from a dict
                said = json.loads(inside.stdout.readline() or "{}")
                time.sleep(6)
                listed = json.loads(_answer("/v1/mps"))
                beyond = subprocess.run(
                    [*command, str(_LIMIT_MIB * 2)],
                    input="",
                    capture_output=True,
                    text=True,
                    env=env,
                    timeout=60,
                    check=False,
                )
            found = {"within": said, "beyond": json.loads(beyond.stdout or "{}"), "listed": listed}
            self.program("mps", "drain", uuid, "--settings", str(self.folder / "settings.yaml"))
        return found

    def tests(self) -> Json:
        """The tests that look at a real driver and change nothing."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "nvml",
            "tests/gpu",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
        (self.folder / "tests.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
        return {"exit": done.returncode, "last": (done.stdout.strip().splitlines() or [""])[-1]}


def _answer(path: str) -> str:
    """What the agent answers; "" while it does not."""
    try:
        with urlopen(f"http://{_LISTEN}{path}", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def _profiling(metrics: str) -> Json:
    found = re.findall(r"^DCGM_FI_PROF_(\w+)\{[^}]*\} (\S+)$", metrics, re.MULTILINE)
    return {name: float(value) for name, value in found}


def _wait(so: Callable[[], bool], seconds: float, what: str) -> None:
    until = time.monotonic() + seconds
    while not so():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.2)


def _json(path: Path) -> Json:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def main() -> int:
    """Examine part by part; 0 where every part came to its end."""
    examination, failed = Examination(Path(sys.argv[1]).absolute()), 0
    report: Json = {}
    for part in (
        examination.calls,
        examination.cost,
        examination.metrics,
        examination.mps,
        examination.tests,
    ):
        began = time.monotonic()
        try:
            report[part.__name__] = part()
        except Exception as error:  # noqa: BLE001 - one part must not cost the others
            failed += 1
            report[part.__name__] = {"failed": f"{type(error).__name__}: {error}"}
        line = json.dumps(report[part.__name__])
        print(f"{part.__name__} ({time.monotonic() - began:.0f} s): {line[:300]}", flush=True)
        (examination.folder / "report.json").write_text(
            json.dumps(report, indent=1), encoding="utf-8"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
