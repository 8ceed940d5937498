import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.simulation import SimulatedNode, Switches
from tests.simulation import calls


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "node.json"


def _smi(state: Path | None, *arguments: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    if state is not None:
        environment["NODEAGENT_SIMULATED_STATE"] = str(state)
    done = subprocess.run(
        [sys.executable, "-m", "nodeagent.simulation.nvidia_smi", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_a_gpu_in_use_is_not_reset(state: Path) -> None:
    with SimulatedNode("a30", state=state) as node:
        node.cards[0].set_mig_mode(enabled=True)
        node.occupy(0)
    code, output = _smi(state, "--gpu-reset", "-i", "0")
    assert code == 255
    assert "In use by another client" in output
    with SimulatedNode(state=state) as node:
        assert not node.cards[0].state.mig


@pytest.mark.parametrize("strict", [True, False])
def test_a_process_with_nvml_open_is_in_the_way(state: Path, strict: bool) -> None:
    switches = Switches(reset_needs_nvml_closed=strict)
    with calls.node_with("a30", state=state, switches=switches, mig=False):
        assert _smi(state, "--gpu-reset", "-i", "0")[0] == (255 if strict else 0)
    assert _smi(state, "--gpu-reset", "-i", "0")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [((), 2), (("-i", "0"), 2), (("--gpu-reset", "--force"), 2), (("-r", "-i", "5"), 6)],
)
def test_what_it_does_not_do(state: Path, arguments: tuple[str, ...], code: int) -> None:
    SimulatedNode("a30", state=state).close()
    assert _smi(state, *arguments)[0] == code


def test_a_lost_gpu_and_a_guest_cannot_be_reset(state: Path) -> None:
    with SimulatedNode("a30", state=state, switches=Switches(passthrough=True)) as node:
        assert _smi(state, "-r")[0] == 3
        node.lose(0)
        assert _smi(state, "-r")[0] == 15


def test_without_a_node(state: Path) -> None:
    assert _smi(None, "-r")[0] == 9
    assert _smi(state, "-r")[0] == 9
    with SimulatedNode("a30", state=state) as node:
        node.unload_driver()
    assert _smi(state, "-r")[0] == 9


# --- compute-policy -------------------------------------------------------------------------------


def test_time_slices_are_set_and_listed(state: Path) -> None:
    """In the words and columns of nvidia-smi 550.163.01."""
    SimulatedNode("h100-80gb:11", state=state).close()
    code, output = _smi(state, "compute-policy", "-i", "10", "--set-timeslice=3")
    assert (code, output) == (0, "Successfully set timeslice policy with value Long for GPU 10\n")
    code, output = _smi(state, "compute-policy", "--id", "0,10", "--list")
    assert code == 0
    assert output == (
        "+-------------------------------------+\n"
        "| GPU compute policies:               |\n"
        "| GPU     Name           Value        |\n"
        "|=====================================|\n"
        "|   0   Timeslice       Default       |\n"
        "+-------------------------------------+\n"
        "|  10   Timeslice       Long          |\n"
        "+-------------------------------------+\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("-h",), 0, "Set timeslice config for a GPU"),
        (("-i", "0"), 2, "Usage: nvidia-smi compute-policy"),
        (("--set-timeslice=4",), 2, "Usage"),
        (("--set-timeslice", "long"), 2, "Usage"),
        (("-i", "1/13/0", "-l"), 6, "Failed to find any matching device(s)"),
    ],
)
def test_policy_usage(state: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    SimulatedNode("a30", state=state).close()
    found, output = _smi(state, "compute-policy", *arguments)
    assert found == code
    assert said in output
