import pytest

from nodeagent.plan.numbers import NumberedGpu
from nodeagent.reconcile.plan_update import KeptPlan, PlanText, last_good_plan
from tests.cli.conftest import Program

SPLIT = "{devices: [0, 1], mig: {3g.40gb: 1, 1g.10gb: 4}}"
WHOLE = "{devices: [0, 1], mig: {7g.80gb: 1}}"


def test_another_drivers_spelling_is_shown(h100: Program) -> None:
    path = h100.plan("{devices: [0], mig: {1c.3g.39gb: 1, 3g.39gb: 1}}")
    assert "3g.39gb is what this card's driver calls 3g.40gb" in h100.on("plan", "-f", path).out
    [gpu] = h100.on("plan", "-o", "json", "-f", path).json["gpus"]
    assert gpu["respelled"] == {"3g.39gb": "3g.40gb"}


@pytest.mark.parametrize(("text", "word"), [("", "empty"), ("\x00\x01", ""), ("a" * (1 << 20), "")])
def test_bad_documents_are_code_2_in_two_lines(text: str, word: str, h100: Program) -> None:
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


MIG_PARTED = """
version: v1
mig-configs:
  all-1g: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}]
  all-off: [{devices: all, mig-enabled: false}]
"""


def test_a_configuration_is_of_its_own_file(h100: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    its_file, other = h100.file(MIG_PARTED, "parted.yaml"), h100.file(MIG_PARTED, "other.yaml")
    monkeypatch.setenv("NODEAGENT_PLAN_FILE", str(its_file))
    monkeypatch.setenv("NODEAGENT_PLAN_NAME", "all-off")
    assert h100.on("plan", "-f", its_file, "-o", "json").json["verdict"] == "inSync"
    assert h100.on("plan", "-f", other).code == 2
    monkeypatch.setenv("MIG_PARTED_SELECTED_CONFIG", "all-1g")
    assert h100.on("plan", "-f", its_file, "-o", "json").json["verdict"] == "applicable"


def test_a_reset_stops_the_agent_as_it_runs(a100: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pod, where the kubelet names the API server, by the label that takes the pod away."""
    path = a100.plan("{devices: [0], mig: enabled}")
    monkeypatch.setenv("NODE_NAME", "gpu-7")
    for host, stop in ("", "systemctl stop "), ("10.0.0.1", "kubectl label node gpu-7 "):
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        [problem] = a100.on("plan", "-f", path, "-o", "json").json["problems"]
        assert f"`{stop}" in problem["remedy"]
        assert ("systemctl" in problem["remedy"]) is not bool(host)


def test_assert_plans_by_the_same_settings(a100: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEAGENT_RESET", "whenIdle")
    a100.on("simulate", "occupy", "0", "--pid", "4711")
    path = a100.plan("{devices: [0], mig: enabled}")
    shown = a100.on("plan", "-f", path, "-o", "json").json
    assert shown["gpus"][0]["onceFree"]["steps"][1]["kind"] == "resetGpu"
    assert a100.on("assert", "-f", path, "-o", "json").json == shown


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


@pytest.mark.parametrize("form", ["plan", "mig-parted"])
def test_an_export_describes_the_node(form: str, h100: Program) -> None:
    h100.on("apply", "-f", h100.plan("{devices: [0], mig: {3g.40gb: 1, 1g.10gb: 2}}"))
    exported = h100.on("export", "--format", form)
    assert exported.code == 0
    path = h100.file(exported.out, "exported.yaml")
    assert h100.on("assert", "-f", path).code == 0
    fresh = ("--simulate", "h100-80gb:2", "-f", path)
    assert h100("apply", *fresh).code == 0
