"""The adapter's calls across a real C border: a small libnvidia-ml.so.1, built from c_library/.

The simulator takes ctypes objects; here pointers, structure layouts and symbols have to be right
for a C compiler. Everything runs in processes of its own, so that a crash is a failed test.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCE = HERE / "c_library" / "nvml.c"
GPU = "GPU-c0ffee00-1111-2222-3333-444444444444"  # as in nvml.c
PLAN = "version: v1\ngpus:\n- devices: all\n  mig: {3g.40gb: 1, 1g.20gb: 1, 1g.10gb: 2}\n"

Python = Callable[..., subprocess.CompletedProcess[str]]


def build(folder: Path, *options: str) -> Path:
    """The stand-in's folder, for LD_LIBRARY_PATH."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc)")
    strict = ["-std=c99", "-Wall", "-Wextra", "-Werror"]
    library = ["-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"]
    built = subprocess.run(
        [compiler, *strict, *library, *options, "-o", folder / "libnvidia-ml.so.1", SOURCE],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def minimal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that only counts and names its GPU, and lacks all other functions."""
    return build(tmp_path_factory.mktemp("minimal"), "-DMINIMAL")


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Run Python on a library, with nothing of this process' settings; returns what it said."""

    def run(library: Path, *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "LD_LIBRARY_PATH": f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":"),
            "PATH": "/nonexistent",  # no nvidia-smi of this machine
            "PYTHONPATH": str(ROOT),
            "NODEAGENT_RUN_DIR": str(tmp_path / "run"),
            "NODEAGENT_STATE_DIR": str(tmp_path / "state"),
        }
        return subprocess.run(
            [sys.executable, *words],
            env=environment | more,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def contract(python: Python, tmp_path: Path) -> Callable[[Path], Counter[tuple[str, str]]]:
    """Run the contract's tests on a library; returns how many of each case ended how."""

    def run(library: Path) -> Counter[tuple[str, str]]:
        report = tmp_path / "report.xml"
        tests = HERE / "test_driver_contract.py"
        options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        done = python(library, "-m", "pytest", *options, tests, NODEAGENT_TEST_GPUS=GPU)
        assert done.returncode == 0, done.stdout + done.stderr
        return Counter(map(_case_and_end, ET.parse(report).iter("testcase")))

    return run


def _case_and_end(test: ET.Element) -> tuple[str, str]:
    """The parameter of a test, and `passed` or why it was skipped; none failed."""
    skipped = test.find("skipped")
    case = test.attrib["name"].partition("[")[2].rstrip("]")
    return case, "passed" if skipped is None else skipped.attrib["message"]


@pytest.mark.full
@pytest.mark.skipif(
    Path("/proc/driver/nvidia-caps/mig-minors").exists(),
    reason="this machine has capability files of real instances, which the stand-in's have not",
)
def test_the_contract_holds_across_c(
    contract: Callable[[Path], Counter[tuple[str, str]]], whole: Path
) -> None:
    ends = contract(whole)
    assert {end for _, end in ends} == {"passed"}
    assert ends["library", "passed"] > 0
    assert ends["gpu", "passed"] > 0
    assert ends["library", "passed"] + ends["gpu", "passed"] == ends["simulator", "passed"]


@pytest.mark.full
def test_a_library_that_lacks_most_functions_leaves_gaps(
    contract: Callable[[Path], Counter[tuple[str, str]]], minimal: Path
) -> None:
    """Looking works with what there is; a GPU that reports nothing of MIG counts as having none."""
    ends = contract(minimal)
    assert ends["library", "passed"] > 0
    skipped = sorted((case, end) for case, end in ends if end != "passed")
    assert [case for case, _ in skipped] == ["gpu", "gpu"]
    assert "has no MIG" in skipped[0][1]
    assert "does not tell its compute mode" in skipped[1][1]


# --- the program ----------------------------------------------------------------------------------


def _answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert not done.stderr
    return json.loads(done.stdout)


def test_check_finds_the_card(python: Python, whole: Path) -> None:
    """Driver and GPU are in order; at most the right to change it may be missing."""
    done = python(whole, "-m", "nodeagent", "check", "-o", "json")
    levels = {found["check"]: found["level"] for found in _answer(done)["findings"]}
    assert (levels["driver"], levels["gpu 0"]) == ("ok", "ok")
    errors = {check for check, level in levels.items() if level == "error"}
    assert errors == (set() if os.geteuid() == 0 else {"permission"})
    assert done.returncode == (1 if errors else 0)


def test_check_judges_programs_by_the_path_of_the_agent(
    python: Python, whole: Path, tmp_path: Path
) -> None:
    """Which on a host is that of services, and in a pod that of all in it."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho {GPU}, Enabled\n")
    smi.chmod(0o757)
    pod = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "NODEAGENT_KUBERNETES_KUBECONFIG": "/none"}
    words = ("-m", "nodeagent", "check", "-o", "json")
    for where, judged in (({}, False), (pod, True)):
        found = _answer(python(whole, *words, PATH=str(tmp_path), **where))["findings"]
        said = {one["check"]: one["message"] for one in found}
        assert (f"`chmod go-w {smi}`" in said.get("programs", "")) is judged
    smi.chmod(0o755)
    found = _answer(python(whole, *words, PATH=str(tmp_path), **pod))["findings"]
    assert "persistence mode" in [one["check"] for one in found]


def test_profiles_are_those_of_the_simulated_card(python: Python, whole: Path) -> None:
    words = ("-m", "nodeagent", "profiles", "-o", "json")
    (found,) = _answer(python(whole, *words))["gpus"]
    (simulated,) = _answer(python(whole, *words, "--simulate", "h100-80gb:1"))["gpus"]
    assert len(found["profiles"]) == 7
    assert found["profiles"] == simulated["profiles"]
    assert found["uuid"] == GPU


def test_plan_and_apply_make_the_layout(python: Python, whole: Path, tmp_path: Path) -> None:
    """From MIG off to four instances, which apply says were read back."""
    document = tmp_path / "plan.yaml"
    document.write_text(PLAN)
    planned = python(whole, "-m", "nodeagent", "plan", "-f", document, "-o", "json")
    assert planned.returncode == 0, planned.stderr
    assert _answer(planned)["verdict"] == "applicable"
    words = ("-m", "nodeagent", "apply", "-f", document)
    applied = python(whole, *words)
    assert applied.returncode == 0, applied.stderr
    assert "read back" in applied.stdout
    reported = _answer(python(whole, *words, "-o", "json"))  # from MIG off again: a new process
    assert reported["verdictAfter"] == "inSync"
    (gpu,) = reported["gpus"]
    assert sorted(i["profile"] for i in gpu["after"]) == [
        "1g.10gb",
        "1g.10gb",
        "1g.20gb",
        "3g.40gb",
    ]
    assert len({i["uuid"] for i in gpu["after"]}) == 4


LOOK = """
import asyncio
from nodeagent.gpu.driver import Driver
async def look():
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        for user in (await driver.observe()).gpus[0].usage.processes:
            print(user.pid, user.memory)
asyncio.run(look())
"""


def test_a_process_is_seen_and_left_alone(python: Python, whole: Path, tmp_path: Path) -> None:
    document = tmp_path / "plan.yaml"
    document.write_text(PLAN)
    pid = str(os.getpid())
    seen = python(whole, "-c", LOOK, STAND_IN_USER=pid)
    assert seen.stdout == f"{pid} {5 << 30}\n", seen.stderr
    done = python(whole, "-m", "nodeagent", "apply", "-f", document, STAND_IN_USER=pid)
    assert done.returncode == 3, done.stdout + done.stderr
    assert pid in done.stdout


MODES = """
import asyncio, os
from nodeagent.gpu.driver import Driver
async def look():
    async with Driver(observe_deadline=30, step_deadline=30) as driver:
        gpu = (await driver.observe()).gpus[0]
        print(gpu.compute_mode, dict(await driver.mps_memory(gpu.uuid)))
asyncio.run(look())
"""


def test_mps_clients_and_the_compute_mode_are_seen(python: Python, whole: Path) -> None:
    """As C wrote them: an enumeration, and more bytes than 32 bits hold."""
    pid = str(os.getpid())
    seen = python(whole, "-c", MODES, STAND_IN_CLIENT=pid)
    assert seen.stdout == f"default {{{pid}: {5 << 30}}}\n", seen.stderr


WRONG: dict[str, tuple[str, int, str]] = {
    "a version": (
        "print(lib.nvmlDeviceGetGpuInstanceProfileInfoV(gpu, 0, byref(old))); sys.exit(5)",
        5,
        "25\n",
    ),
    "nowhere to write": (
        "lib.nvmlDeviceGetMinorNumber(gpu, None)",
        -signal.SIGABRT,
        "nvmlDeviceGetMinorNumber: minor is NULL",
    ),
    "a handle cut to an int": (
        "lib.nvmlDeviceGetMinorNumber(gpu.value & 0x7FFFFFFF, byref(c_uint()))",
        -signal.SIGABRT,
        "nvmlDeviceGetMinorNumber: this is no handle of a device",
    ),
}
PREPARE = """
import resource, sys
from ctypes import CDLL, byref, c_uint, c_void_p
import pynvml
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
lib, gpu = CDLL("libnvidia-ml.so.1"), c_void_p()
assert (lib.nvmlInit_v2(), lib.nvmlDeviceGetHandleByIndex_v2(0, byref(gpu))) == (0, 0)
old = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
old.version += 1 << 24
"""


@pytest.mark.parametrize("what", WRONG)
def test_the_stand_in_is_strict(python: Python, whole: Path, what: str) -> None:
    """A mistake in a call does not go unnoticed, or the tests above would prove little."""
    code, status, said = WRONG[what]
    done = python(whole, "-c", PREPARE + code)
    assert done.returncode == status, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
