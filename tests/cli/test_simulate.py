from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Program


def _in_use(program: Program) -> list[bool]:
    report = program.on("plan", "-o", "json", "-f", program.plan("{devices: [0], mig: enabled}"))
    return [device["inUse"] for device in report.json["gpus"][0]["before"]]


@pytest.fixture
def split(h100: Program) -> Program:
    assert h100.on("apply", "-f", h100.plan("{devices: [0], mig: {3g.40gb: 2}}")).code == 0
    return h100


def test_occupy_and_release_by_slice(split: Program) -> None:
    put = split.on("simulate", "occupy", "0:5", "--pid", "4711", "--command", "train")
    assert put.code == 0
    assert "pid 4711 (train)" in put.out
    assert _in_use(split) == [False, True]
    gone = split.on("simulate", "release", "0:4", "-o", "json")
    assert gone.json == {"released": 1}
    assert _in_use(split) == [False, False]


@pytest.mark.parametrize(
    "words",
    [
        ("occupy", "0", "--pid", "4194305", "--follow"),
        ("fault", "nvmlInit*", "UNKNOWN", "--gpu", "9"),
        ("fault", "nvmlInit*", "UNKNOWN", "--clear"),
        ("load", "1", "1.5"),
        ("xid", "0", "0"),
        ("sensor", "0", "temperature.gpu"),
        ("sensor", "0", "temperature.gpu", "warm"),
        ("sensor", "0", "temperature.gpu", "1", "--clear"),
    ],
)
def test_what_the_node_does_not_have_is_code_2(words: tuple[str, ...], split: Program) -> None:
    before = split.state.read_bytes()
    refused = split.on("simulate", *words)
    assert refused.code == 2, refused
    assert len(refused.err.splitlines()) <= 2
    assert split.state.read_bytes() == before


@pytest.mark.parametrize(
    "words", [("occupy", "0"), ("reboot",), ("release",), ("fault", "--clear")]
)
def test_a_state_file_is_needed(words: tuple[str, ...], program: Program) -> None:
    refused = program("simulate", *words, "--simulate", "t4:1")
    assert refused.code == 2
    assert "--state" in refused.err
    missing = program.on("simulate", *words)
    assert missing.code == 2
    assert "does not exist" in missing.err


def test_a_broken_state_file_is_code_1(split: Program) -> None:
    split.state.write_text("{}")
    refused = split.on("simulate", "reboot")
    assert refused.code == 1
    assert "not the state of a simulated node" in refused.err
    assert split.state.read_text() == "{}"


def _activity(program: Program, gpu: int) -> dict[str, object]:
    stored: dict[str, object] = json.loads(program.state.read_text())["gpus"][gpu]["activity"]
    return stored


def test_a_load_and_its_end(split: Program) -> None:
    assert split.on("simulate", "load", "0:4", "0.5").out == "0:4 is busy for 50% of the time\n"
    assert split.on("simulate", "load", "1", "1").code == 0
    assert list(_activity(split, 0)["loads"].values()) == [0.5]  # type: ignore[attr-defined] # JSON
    assert split.on("simulate", "load", "1", "0", "-o", "json").json == {"device": "1", "share": 0}
    assert list(_activity(split, 1)["loads"].values()) == [0]  # type: ignore[attr-defined] # JSON


def test_an_xid_of_an_instance_and_of_a_gpu(split: Program) -> None:
    assert split.on("simulate", "xid", "0:4", "95").out == "0:4 reported XID 95\n"
    assert split.on("simulate", "xid", "1", "79").code == 0
    first, second = json.loads(split.state.read_text())["events"][-2:]
    none = 0xFFFFFFFF
    assert (first[1:4], second[1:4]) == ([0, 8, 95], [1, 8, 79])
    assert first[4] != none
    assert second[4:] == [none, none]


def test_a_sensor_reports_what_it_was_set_to(split: Program) -> None:
    assert split.on("simulate", "sensor", "1", "temperature.gpu", "91").code == 0
    assert split.on("simulate", "sensor", "0:4", "gpm.2", "12.5").code == 0
    assert _activity(split, 1)["figures"] == {"temperature.gpu": 91}
    assert split.on("simulate", "sensor", "1", "temperature.gpu", "--clear").code == 0
    assert not json.loads(split.state.read_text())["gpus"][1].get("activity", {}).get("figures")
    names = split("simulate", "sensor", "-o", "json").json["sensors"]
    assert {"temperature.gpu", "recovery", "gpm.METRIC"} <= set(names)
