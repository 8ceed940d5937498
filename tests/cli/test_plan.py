"""`nodeagent plan`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
import yaml

from nodeagent.plan.numbers import NumberedGpu
from nodeagent.reconcile.plan_update import KeptPlan, PlanText, last_good_plan

if TYPE_CHECKING:
    from tests.cli.conftest import Program

SPLIT = "{devices: [0, 1], mig: {3g.40gb: 1, 1g.10gb: 4}}"
WHOLE = "{devices: [0, 1], mig: {7g.80gb: 1}}"


def test_steps_and_pictures_are_shown_and_nothing_is_touched(h100: Program) -> None:
    """The page has numbered steps with reasons; the node is as before; the code is 0."""
    shown = h100.on("plan", "-f", h100.plan(SPLIT))
    assert shown.code == 0
    assert "GPUs 0-1" in shown.out
    assert "before" in shown.out
    assert " 2. create 3g.40gb at 4  (" in shown.out
    assert "12 steps on 2 GPUs. Nothing was touched." in shown.out
    assert "mig: disabled" in h100.on("export").out


def test_json_is_the_contracts(h100: Program) -> None:
    """Verdict, digest, source, and per GPU before, after and steps."""
    report = h100.on("plan", "-o", "json", "-f", h100.plan(SPLIT)).json
    assert report["verdict"] == "applicable"
    assert report["digest"].startswith("sha256:")
    assert report["source"] == "file"
    first = report["gpus"][0]
    assert [step["kind"] for step in first["steps"]] == ["setMigMode"] + ["createInstance"] * 5
    assert first["before"] == []
    assert {device["profile"] for device in first["after"]} == {"3g.40gb", "1g.10gb"}
    assert report["problems"] == []


def test_a_refused_document_has_its_digest(h100: Program) -> None:
    """Also one that could not be read: so its author knows which one is meant."""
    path = h100.file("version: v9\n")
    report = h100.on("plan", "-o", "json", "-f", path).json
    assert report["verdict"] == "invalid"
    assert report["digest"] == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def test_yaml_is_the_same_data(h100: Program) -> None:
    """`-o yaml` differs from `-o json` in form only."""
    path = h100.plan(SPLIT)
    as_yaml = yaml.safe_load(h100.on("plan", "-o", "yaml", "-f", path).out)
    assert as_yaml == h100.on("plan", "-o", "json", "-f", path).json


def test_in_sync_is_code_0(h100: Program) -> None:
    """Nothing to do is success."""
    path = h100.plan("{devices: [0], mig: disabled}")
    shown = h100.on("plan", "-f", path)
    assert (shown.code, shown.err) == (0, "")
    assert "The plan is in sync: nothing to do." in shown.out


def test_blocked_by_a_process_is_code_3_and_names_it(h100: Program) -> None:
    """The blocker's pid and command are in the page and in the JSON."""
    h100.on("apply", "-f", h100.plan(SPLIT))
    h100.on("simulate", "occupy", "0:4", "--command", "train")
    path = h100.plan(WHOLE)
    shown = h100.on("plan", "-f", path)
    assert shown.code == 3
    assert "(train)" in shown.out
    assert "1 GPU could be changed" in shown.out
    report = h100.on("plan", "-o", "json", "-f", path).json
    assert report["verdict"] == "blocked"
    assert [problem["code"] for problem in report["problems"]] == ["InUse"]
    assert report["gpus"][0]["before"][4]["inUse"]


@pytest.mark.parametrize(
    ("gpus", "word"),
    [
        ("{devices: [0], mig: {4g.40gb: 2}}", "4g.40gb"),
        ("{devices: [0], mig: [{profile: 3g.40gb, start: 1}]}", "start"),
    ],
)
def test_what_can_never_fit_is_refused_with_the_reason(gpus: str, word: str, h100: Program) -> None:
    """An impossible layout names what does not fit, on standard error, in two lines."""
    shown = h100.on("plan", "-f", h100.plan(gpus))
    assert shown.code in {1, 2}
    assert shown.out == ""
    assert word in shown.err
    assert len(shown.err.splitlines()) <= 2


def test_does_not_fit_is_code_1(h100: Program) -> None:
    """The card cannot do it: 1, not 2, since the document itself is fine."""
    path = h100.plan("{devices: [0], mig: {4g.40gb: 2}}")
    assert h100.on("plan", "-f", path).code == 1
    assert h100.on("plan", "-o", "json", "-f", path).json["verdict"] == "unsatisfiable"


def test_another_drivers_spelling_is_shown(h100: Program) -> None:
    """A profile that this driver calls differently is taken, and said."""
    path = h100.plan("{devices: [0], mig: {1c.3g.39gb: 1, 3g.39gb: 1}}")
    assert "3g.39gb is what this card's driver calls 3g.40gb" in h100.on("plan", "-f", path).out
    [gpu] = h100.on("plan", "-o", "json", "-f", path).json["gpus"]
    assert gpu["respelled"] == {"3g.39gb": "3g.40gb"}


def test_no_mig_is_code_1(program: Program) -> None:
    """A card without MIG cannot be split."""
    program.node("t4:1")
    assert program.on("plan", "-f", program.plan("{devices: [0], mig: {1g.5gb: 1}}")).code == 1


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("version: v2\ngpus: []\n", "v1"),
        ("version: v1\ngpus: [{devices: [0], mig: {1g.10bg: 1}}]\n", "1g.10gb"),
        ("version: v1\ngpus: [{devices: [7], mig: {1g.10gb: 1}}]\n", "7"),
        ("version: v1\ngpus: [{devices: [0], mig: {1g.6gb: 1}}]\n", "1g.6gb"),
        ("version: v1\nversion: v1\ngpus: []\n", "version"),
        ("version: v1\ngpus: [{devices: [0, 0], mig: {}}]\n", "devices"),
        ("version: v1\ngpus: [{devices: [0], mig: {1g.10gb: two}}]\n", "two"),
        ("version: v1\ngpus: []\nkarma: good\n", "karma"),
        ("[", ""),
        ("", "empty"),
        ("\x00\x01", ""),
        ("a" * (1 << 20), ""),
    ],
)
def test_bad_documents_are_code_2_in_two_lines(text: str, word: str, h100: Program) -> None:
    """What is wrong and where, plainly; as JSON the verdict is invalid; nothing is touched."""
    path = h100.file(text)
    shown = h100.on("plan", "-f", path)
    assert (shown.code, shown.out) == (2, "")
    assert word in shown.err
    assert shown.err.startswith("nodeagent: ")
    assert len(shown.err.splitlines()) <= 2
    refused = h100.on("plan", "-f", path, "-o", "json")
    assert refused.code == 2
    assert refused.json["verdict"] == "invalid"
    assert refused.json["gpus"] == []
    assert refused.json["problems"][0]["message"]


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_files_that_cannot_be_read_are_code_2(name: str, h100: Program) -> None:
    """A missing file or a directory is said in a sentence."""
    shown = h100.on("plan", "-f", h100.directory / name)
    assert shown.code == 2
    assert "cannot be read" in shown.err


def test_a_document_must_be_named(h100: Program) -> None:
    """Without `-f` and without the variable there is nothing to plan."""
    shown = h100.on("plan")
    assert shown.code == 2
    assert "-f FILE" in shown.err


def test_a_state_file_must_exist_unless_boards_are_named(program: Program) -> None:
    """A misspelt state file is not silently made."""
    shown = program.on("plan", "-f", program.plan(SPLIT))
    assert shown.code == 2
    assert "--simulate" in shown.err
    assert not program.state.exists()


def test_an_unknown_board_is_code_2(program: Program) -> None:
    """With the nearest name there is."""
    shown = program("plan", "--simulate", "h100-80g:1", "-f", program.plan(SPLIT))
    assert shown.code == 2
    assert "h100-80gb" in shown.err


MIG_PARTED = """
version: v1
mig-configs:
  all-1g: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}]
  all-off: [{devices: all, mig-enabled: false}]
"""


def test_a_mig_parted_file_works_with_a_name(h100: Program) -> None:
    """`-c` picks the configuration; an unknown name lists those there are."""
    path = h100.file(MIG_PARTED)
    assert h100.on("plan", "-f", path, "-c", "all-off").code == 0
    assert len(h100.on("plan", "-f", path, "-c", "all-1g", "-o", "json").json["gpus"]) == 2
    unknown = h100.on("plan", "-f", path, "-c", "al-1g")
    assert unknown.code == 2
    assert "all-1g" in unknown.err


def test_several_configurations_need_a_name_and_one_does_not(h100: Program) -> None:
    """As with nvidia-mig-parted: the only one is meant when none is named."""
    assert h100.on("plan", "-f", h100.file(MIG_PARTED)).code == 2
    only = h100.file(MIG_PARTED.rsplit("\n", 2)[0] + "\n")
    assert h100.on("plan", "-f", only, "-o", "json").json["verdict"] == "applicable"


def test_mig_parteds_variables_are_understood(
    h100: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File and name come from the environment; the name does not concern a plan."""
    monkeypatch.setenv("MIG_PARTED_CONFIG_FILE", str(h100.file(MIG_PARTED, "parted.yaml")))
    monkeypatch.setenv("MIG_PARTED_SELECTED_CONFIG", "all-off")
    assert h100.on("plan", "-o", "json").json["verdict"] == "inSync"
    assert h100.on("plan", "-o", "json", "-f", h100.plan(WHOLE)).json["verdict"] == "applicable"


def test_the_setting_names_the_configuration_of_its_own_file(
    h100: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One name for the agent and for commands by hand; a file elsewhere has its own."""
    its_file, other = h100.file(MIG_PARTED, "parted.yaml"), h100.file(MIG_PARTED, "other.yaml")
    monkeypatch.setenv("NODEAGENT_PLAN_FILE", str(its_file))
    monkeypatch.setenv("NODEAGENT_PLAN_NAME", "all-off")
    assert h100.on("plan", "-f", its_file, "-o", "json").json["verdict"] == "inSync"
    assert h100.on("plan", "-f", other).code == 2
    monkeypatch.setenv("MIG_PARTED_SELECTED_CONFIG", "all-1g")
    assert h100.on("plan", "-f", its_file, "-o", "json").json["verdict"] == "applicable"


def test_assert_shows_the_plan_by_the_same_settings(
    a100: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In JSON: also what a blocked GPU comes to, where that takes a reset."""
    monkeypatch.setenv("NODEAGENT_RESET", "whenIdle")
    a100.on("simulate", "occupy", "0", "--pid", "4711")
    path = a100.plan("{devices: [0], mig: enabled}")
    shown = a100.on("plan", "-f", path, "-o", "json").json
    assert shown["gpus"][0]["onceFree"]["steps"][1]["kind"] == "resetGpu"
    assert a100.on("assert", "-f", path, "-o", "json").json == shown


def test_a_reset_is_planned_only_where_it_is_allowed(a100: Program) -> None:
    """On Ampere the plan ends at the mode change, unless `--reset whenIdle`."""
    path = a100.plan("{devices: [0], mig: {1g.5gb: 7}}")
    kept = a100.on("plan", "-f", path, "-o", "json").json
    assert [step["kind"] for step in kept["gpus"][0]["steps"]] == ["setMigMode"]
    assert [problem["code"] for problem in kept["problems"]] == ["ResetRequired"]
    allowed = a100.on("plan", "-f", path, "--reset", "whenIdle", "-o", "json").json
    kinds = [step["kind"] for step in allowed["gpus"][0]["steps"]]
    assert kinds == ["setMigMode", "resetGpu"] + ["createInstance"] * 7


def test_a_lost_gpu_does_not_hide_the_others(h100: Program) -> None:
    """The other GPU's steps are shown; the code says that not all is well."""
    h100.on("simulate", "fault", "--lost", "0")
    shown = h100.on("plan", "-f", h100.plan(WHOLE))
    assert shown.code == 1
    assert "GPU 1" in shown.out
    assert "create 7g.80gb" in shown.out


def test_the_plan_that_the_agent_accepted_means_the_same_gpus(h100: Program) -> None:
    """One fell off the bus and the two behind it moved up: what is restored at the next boot, or
    asked by hand, is what the agent's plan means. Another text means the GPUs as they are now.
    """
    there = [gpu["uuid"] for gpu in h100.on("profiles", "-o", "json").json["gpus"]]
    path = h100.plan("{devices: [0], mig: {1g.10gb: 7}}, {devices: [2], mig: {7g.80gb: 1}}")
    numbers = tuple(NumberedGpu(n, uuid, "") for n, uuid in enumerate(["GPU-gone", *there]))
    kept = last_good_plan(h100.state.with_name(f"{h100.state.name}.last-good-plan"))
    kept.save(KeptPlan(PlanText(path.read_bytes()), numbers))

    planned = h100.on("plan", "-o", "json", "-f", path).json
    assert [gpu["uuid"] for gpu in planned["gpus"]] == there[1:]
    [problem] = planned["problems"]
    assert (problem["code"], problem["gpu"]) == ("GpuLost", "GPU-gone")
    assert h100.on("apply", "-f", path).code != 0
    after = h100.on("export", "-o", "json").json["gpus"]
    assert [entry["mig"] for entry in after] == ["disabled", [{"profile": "7g.80gb", "start": 0}]]
    assert h100.on("assert", "-f", path).code == 1

    path = h100.plan("{devices: [0], mig: {1g.10gb: 7}}")
    assert h100.on("apply", "-f", path).code == 0
