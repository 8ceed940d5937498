import pytest

from tests.cli.conftest import Program


@pytest.fixture
def split(h100: Program) -> Program:
    assert h100.on("apply", "-f", h100.plan("{devices: [0], mig: {3g.40gb: 2}}")).code == 0
    return h100


@pytest.mark.parametrize(
    "words",
    [
        ("occupy", "0", "--pid", "4194305", "--follow"),
        ("fault", "nvmlInit*", "UNKNOWN", "--gpu", "9"),
        ("fault", "nvmlInit*", "UNKNOWN", "--clear"),
        ("sensor", "0", "temperature.gpu"),
        ("sensor", "0", "temperature.gpu", "1", "--clear"),
    ],
)
def test_what_the_node_does_not_have_is_code_2(words: tuple[str, ...], split: Program) -> None:
    before = split.state.read_bytes()
    refused = split.on("simulate", *words)
    assert refused.code == 2, refused
    assert len(refused.err.splitlines()) <= 2
    assert split.state.read_bytes() == before


def test_a_broken_state_file_is_code_1(split: Program) -> None:
    split.state.write_text("{}")
    refused = split.on("simulate", "reboot")
    assert refused.code == 1
    assert "not the state of a simulated node" in refused.err
    assert split.state.read_text() == "{}"
