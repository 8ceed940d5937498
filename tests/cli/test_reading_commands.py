"""`assert`, `export`, `profiles` and `schema`: the commands that only look."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema
import pytest
import yaml

from nodeagent.documents.reading import read_document

if TYPE_CHECKING:
    from tests.cli.conftest import Program

SPLIT = "{devices: [0, 1], mig: {3g.40gb: 1, 1g.10gb: 4}}"


# --- assert -------------------------------------------------------------------------------------


def test_assert_says_yes_in_one_line(h100: Program) -> None:
    """A match is one line and code 0."""
    path = h100.plan("{devices: [0], mig: disabled}")
    said = h100.on("assert", "-f", path)
    assert (said.code, said.err) == (0, "")
    assert said.out == "The node is as the document says (1 GPU).\n"


def test_assert_says_what_differs(h100: Program) -> None:
    """What there is and what there should be, alike GPUs once; code 1; nothing is touched."""
    path = h100.plan(SPLIT)
    said = h100.on("assert", "-f", path)
    assert said.code == 1
    first, *rest = said.out.splitlines()
    assert first == "The node is not as the document says: 2 GPUs of 2 differ."
    assert rest == [
        "  GPUs 0-1: has MIG off; should have 1g.10gb at 0, 1, 2, 3; 3g.40gb at 4",
    ]
    assert h100.on("assert", "-f", path).code == 1


def test_assert_says_what_mode_is_missing(h100: Program) -> None:
    """MIG without instances is not the same as no MIG."""
    shown = h100.on("assert", "-f", h100.plan("{devices: all, mig: enabled}"))
    assert "has MIG off; should have MIG on, no instances" in shown.out


def test_assert_claims_nothing_of_a_gpu_that_does_not_answer(h100: Program) -> None:
    """Not being able to ask is not the same as having no MIG."""
    h100.on("simulate", "fault", "--lost", "0")
    shown = h100.on("assert", "-f", h100.plan("{devices: all, mig: enabled}"))
    assert shown.code == 1
    assert "no MIG" not in shown.out
    assert "does not answer" in shown.out


def test_assert_ignores_the_order_of_what_matches(h100: Program) -> None:
    """A node that was made by another spelling of the same plan matches."""
    h100.on("apply", "-f", h100.plan(SPLIT))
    other = "{devices: all, mig: {1g.10gb: 4, 3g.39gb: 1}}"
    assert h100.on("assert", "-f", h100.plan(other)).code == 0


def test_assert_of_a_blocked_node_is_code_1(h100: Program) -> None:
    """It asks what is so, not what could be done: in use or not, it does not match."""
    h100.on("apply", "-f", h100.plan(SPLIT))
    h100.on("simulate", "occupy", "0:4")
    said = h100.on("assert", "-f", h100.plan("{devices: [0], mig: {7g.80gb: 1}}"))
    assert said.code == 1


def test_assert_of_a_bad_document_is_code_2(h100: Program) -> None:
    """Also where the document is fine but the node lacks what it names."""
    assert h100.on("assert", "-f", h100.file("gpus: 1")).code == 2
    said = h100.on("assert", "-f", h100.plan("{devices: [5], mig: disabled}"))
    assert (said.code, said.out) == (2, "")


def test_assert_of_the_impossible_is_code_1(h100: Program) -> None:
    """What can never be is not so now."""
    assert h100.on("assert", "-f", h100.plan("{devices: [0], mig: {4g.40gb: 2}}")).code == 1


def test_assert_as_json(h100: Program) -> None:
    """The plan's JSON, so that scripts see what differs."""
    said = h100.on("assert", "-o", "json", "-f", h100.plan(SPLIT))
    assert said.code == 1
    assert said.json["verdict"] == "applicable"


# --- export -------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["plan", "mig-parted"])
def test_an_export_describes_the_node(form: str, h100: Program) -> None:
    """What was exported asserts, and a new node becomes the same by applying it."""
    h100.on("apply", "-f", h100.plan("{devices: [0], mig: {3g.40gb: 1, 1g.10gb: 2}}"))
    exported = h100.on("export", "--format", form)
    assert exported.code == 0
    path = h100.file(exported.out, "exported.yaml")
    assert h100.on("assert", "-f", path).code == 0
    fresh = ("--simulate", "h100-80gb:2", "-f", path)
    assert h100("apply", *fresh).code == 0


@pytest.mark.parametrize("form", ["plan", "mig-parted"])
def test_an_export_as_json_is_the_same_document(form: str, h100: Program) -> None:
    """JSON and YAML hold the same, and both are read."""
    as_json = h100.on("export", "--format", form, "-o", "json")
    assert as_json.json == yaml.safe_load(h100.on("export", "--format", form).out)
    assert read_document(as_json.out).entries


def test_a_gpu_that_is_left_out_is_code_1(h100: Program) -> None:
    """The document would not be the node, so a script must notice."""
    h100.on("simulate", "fault", "--lost", "1")
    exported = h100.on("export")
    assert exported.code == 1
    assert "GPU 1" in exported.err
    assert "devices: [0]" in exported.out


def test_an_export_has_the_time_slice(h100: Program) -> None:
    """What `apply` set is in it without an agent too, and leads back to itself."""
    plan = h100.file("version: v1\ngpus: [{devices: [1], timeSlice: long}]\n", "slices.yaml")
    assert h100.on("apply", "-f", str(plan)).code == 0
    exported = h100.on("export")
    assert "timeSlice: long" in exported.out
    assert h100.on("assert", "-f", str(h100.file(exported.out, "exported.yaml"))).code == 0


def test_an_export_of_an_unknown_form_is_code_2(h100: Program) -> None:
    """Only the two forms there are."""
    assert h100.on("export", "--format", "dra").code == 2


# --- profiles -----------------------------------------------------------------------------------


def test_profiles_lists_what_fits(program: Program) -> None:
    """One table for GPUs alike; ids and placements are the driver's."""
    program.node("h100-80gb:2,t4:1")
    shown = program.on("profiles")
    assert shown.code == 0
    assert "GPUs 0-1  2 x NVIDIA H100 80GB HBM3" in shown.out
    assert "no MIG on this card" in shown.out
    row = next(row.split() for row in shown.out.splitlines() if "3g.40gb" in row)
    assert row[:4] == ["3g.40gb", "9", "39.5", "GiB"]
    assert row[-1] == "{0,4}:4"


def test_profiles_count_what_still_fits(h100: Program) -> None:
    """After the large one is there, only what lies beside it can be created."""
    h100.on("apply", "-f", h100.plan("{devices: [0], mig: {4g.40gb: 1}}"))
    first, second = h100.on("profiles", "-o", "json").json["gpus"]
    more = {p["profile"]: p["creatable"] for p in first["profiles"]}
    assert (more["1g.10gb"], more["3g.40gb"], more["7g.80gb"]) == (3, 1, 0)
    assert {p["creatable"] for p in second["profiles"]} == {0}  # MIG is off there
    assert first["profiles"][0]["memory"] > 9 << 30


def test_profiles_of_a_lost_gpu_is_code_1(h100: Program) -> None:
    """The others are listed nevertheless."""
    h100.on("simulate", "fault", "--lost", "0")
    shown = h100.on("profiles")
    assert shown.code == 1
    assert "lost" in shown.out
    assert "3g.40gb" in shown.out
    lost = h100.on("profiles", "-o", "json").json["gpus"][0]
    assert set(lost) == {"index", "profiles", "problem"}  # what is not known is absent


def test_profiles_with_bad_options_is_code_2(program: Program) -> None:
    """Both names of boards and the state file's boards must agree."""
    program.node("t4:1")
    assert program.on("profiles", "--simulate", "t4:2").code == 2


# --- schema -------------------------------------------------------------------------------------


def test_the_plans_schema_accepts_plans(program: Program) -> None:
    """It is a JSON Schema, takes a plan and refuses a misspelt key."""
    schema = program("schema").json
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(f"version: v1\ngpus: [{SPLIT}]"), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"version": "v1", "gpu": []}, schema)


def test_the_settings_schema(program: Program) -> None:
    """It names the settings; YAML is the same data."""
    schema = program("schema", "settings").json
    assert "drift" in schema["properties"]
    assert yaml.safe_load(program("schema", "settings", "-o", "yaml").out) == schema


def test_a_schema_of_something_else_is_code_2(program: Program) -> None:
    """There are two."""
    assert program("schema", "status").code == 2


def test_each_schema_has_a_name_of_its_own(program: Program) -> None:
    """By which an editor or a registry of schemas tells them apart."""
    names = {kind: program("schema", kind).json["$id"] for kind in ("plan", "settings")}
    assert names == {
        "plan": "urn:nodeagent:schema:plan:v1",
        "settings": "urn:nodeagent:schema:settings",
    }


# --- without a driver ---------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["plan", "apply", "assert", "export", "profiles"])
def test_a_driver_that_is_not_loaded_is_one_plain_sentence(command: str, h100: Program) -> None:
    """Code 1, what is wrong and what to do, no traceback, nothing on standard output."""
    h100.on("simulate", "fault", "nvmlInit*", "DRIVER_NOT_LOADED")
    document = ["-f", str(h100.plan(SPLIT))] if command in {"plan", "apply", "assert"} else []
    failed = h100.on(command, *document)
    assert (failed.code, failed.out) == (1, "")
    assert "driver is not loaded" in failed.err
    assert len(failed.err.splitlines()) == 2


def test_json_output_is_json_alone(h100: Program) -> None:
    """Every command that answers in JSON writes one document and nothing else."""
    path = h100.plan(SPLIT)
    for words in (
        ("plan", "-f", path),
        ("apply", "-f", path),
        ("assert", "-f", path),
        ("export",),
        ("profiles",),
        ("check",),
        ("simulate", "boards"),
        ("simulate", "occupy", "0:4"),
        ("simulate", "release"),
        ("simulate", "fault", "nvmlInit*", "UNKNOWN"),
        ("simulate", "fault", "--clear"),
        ("simulate", "reboot"),
    ):
        assert isinstance(json.loads(h100.on(*words, "-o", "json").out), dict), words
