"""What is reported of health: JSON, the condition, events and metrics."""

from collections.abc import Iterable
from typing import Any

import pytest

from nodeagent.health.evaluate import Evaluation
from nodeagent.health.findings import Finding
from nodeagent.health.readings import (
    Answer,
    InstanceReading,
    LinkReading,
    RemappedRows,
    Silence,
    XidSource,
)
from nodeagent.health.reporting import HealthEvent, condition, events, of_gpu
from nodeagent.health.state import HealthState
from nodeagent.health.xids import default_table
from nodeagent.metrics.node_metrics import health_samples
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.users import Pod
from nodeagent.structs import replace
from nodeagent.views.health_remedies import HealthRemedies
from nodeagent.views.shapes import Json, as_json
from nodeagent.views.status_report import health_shape
from tests.health.rig import GPU, RIGHT, Node, gpu

REMEDIES = HealthRemedies("gpu-node-0", runs_as="pod", observed=ObservedNode())


def health_json(findings: Iterable[Finding]) -> Json:
    return as_json(health_shape(findings, REMEDIES, 3))


def news(evaluation: Evaluation) -> tuple[HealthEvent, ...]:
    return events(evaluation, default_table(), REMEDIES.of_finding)


def samples(node: Node, metric: str) -> dict[tuple[str, ...], float]:
    """The values of a metric of the agent's own, by labels."""
    return {s.labels: s.value for s in health_samples(node.state) if s.metric == metric}


def _sick_slice() -> Node:
    node = Node()
    node.read(gpu(instances=(InstanceReading(2, RIGHT, 0),)))
    node.xid(
        95, source=XidSource.KERNEL_LOG, instance=2, pid=7, process="python", message="Uncont."
    )
    found = replace(node.one("xidReset"), pods=(Pod("ml", "train", "main"),))
    node.state = replace(node.state, findings=(found,))
    return node


def test_a_finding_as_json() -> None:
    node = _sick_slice()
    assert health_json(of_gpu(node.state, GPU)) == {
        "status": "unhealthy",
        "findings": [
            {
                "check": "xid",
                "cause": "xidReset",
                "severity": "unhealthy",
                "message": "reported an error that needs a GPU reset",
                "evidence": "XID 95 (Uncontained memory error), pid 7 (python): Uncont.",
                "suggestedAction": "reset GPU",
                "advice": "Reset GPU 3: `kubectl drain gpu-node-0 --ignore-daemonsets "
                "--delete-emptydir-data && kubectl label node gpu-node-0 nodeagent.io/off=`, then "
                "run `nvidia-smi --gpu-reset -i 3` on the node, then `kubectl label node "
                "gpu-node-0 nodeagent.io/off- && kubectl uncordon gpu-node-0`; or reboot the node.",
                "since": "2023-11-14T22:30:02.000Z",
                "lastSeen": "2023-11-14T22:30:02.000Z",
                "count": 1,
                "xid": 95,
                "gi": 2,
                "start": 4,
                "size": 4,
                "pid": 7,
                "pods": [{"namespace": "ml", "name": "train", "container": "main"}],
            }
        ],
    }


def test_nothing_found() -> None:
    assert health_json(()) == {"status": "healthy", "findings": []}
    assert of_gpu(_sick_slice().state, "GPU-other") == ()


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ((), ("True", "Healthy", "all checks are good")),
        (
            ({"ecc_uncorrected": 1},),
            ("False", "EccUncorrected", "GPU 0 has uncorrected memory errors (reset GPU)"),
        ),
        (
            ({"ecc_uncorrected": 1, "recovery_action": 1},),
            (
                "False",
                "SeveralCauses",
                (
                    "GPU 0 has uncorrected memory errors (reset GPU); "
                    "GPU 0 needs a recovery, says the driver (reset GPU)"
                ),
            ),
        ),
        (
            ({"answer": Answer(Silence.HANGS)},),
            ("Unknown", "GpuHangs", "GPU 0 does not answer: a driver call hangs (none)"),
        ),
        (
            ({"inforom_corrupt": True},),
            ("True", "Degraded", "GPU 0 has a corrupt InfoROM (inspect hardware)"),
        ),
    ],
)
def test_the_condition(
    node: Node, readings: tuple[dict[str, Any], ...], expected: tuple[str, ...]
) -> None:
    """False while something is unhealthy, Unknown while the driver does not say, else True."""
    node.read(gpu())
    for values in readings:
        node.read(gpu(**values))
    reported = condition(node.state)
    assert (reported.status, reported.reason, reported.message) == expected


def test_the_condition_before_the_first_reading() -> None:
    assert condition(HealthState()).status == "Unknown"


def test_the_condition_changes_with_causes_only(node: Node) -> None:
    """More of the same writes nothing to the Node."""
    node.read(gpu(ecc_uncorrected=1))
    before = condition(node.state)
    node.read(gpu(ecc_uncorrected=99), after=60.0)
    assert condition(node.state) == before


def test_the_condition_is_bounded(node: Node) -> None:
    for number in range(30):
        node.read(gpu(uuid=f"GPU-{number}", index=number, recovery_action=2))
        node.read(gpu(uuid=f"GPU-{number}", index=number, ecc_uncorrected=1))
    message = condition(node.state).message
    assert len(message) <= 1024
    assert message.endswith("more")


def test_events_of_a_finding(node: Node) -> None:
    node.read(gpu())
    sick = gpu(ecc_uncorrected=1)
    (begun,) = news(node.read(sick))
    assert (begun.reason, begun.gpu) == ("GpuUnhealthy", GPU)
    assert begun.message == (
        "GPU 0 has uncorrected memory errors: 1 uncorrected errors since the last reset. "
        "Reset GPU 0: `kubectl drain gpu-node-0 --ignore-daemonsets --delete-emptydir-data && "
        "kubectl label node gpu-node-0 nodeagent.io/off=`, then run `nvidia-smi --gpu-reset -i 0` "
        "on the node, then `kubectl label node gpu-node-0 nodeagent.io/off- && "
        "kubectl uncordon gpu-node-0`; or reboot the node."
    )
    assert news(node.read(sick)) == ()
    (ended,) = news(node.read(gpu(ecc_uncorrected=0)))
    assert ended.reason == "GpuRecovered"
    assert ended.message == "GPU 0 has uncorrected memory errors: over, its cause is gone"


def test_an_xid_without_a_finding_is_reported(node: Node) -> None:
    """What is only counted has an event, too; one that both sources report has one."""
    node.read(gpu())
    (event,) = news(node.xid(43))
    assert event.reason == "Xid"
    assert event.message == "GPU 0: XID 43 (GPU stopped processing)"
    assert news(node.xid(43, source=XidSource.KERNEL_LOG)) == ()


def test_the_metrics() -> None:
    """Checks that were read have a figure, others none; XIDs have a counter and a time."""
    node = _sick_slice()
    node.xid(43)
    node.read(gpu(temperature=50, slowdown_temperature=90))
    assert samples(node, "nodeagent_gpu_health") == {
        ("xid", "0", GPU): 0.0,
        ("ecc", "0", GPU): 1.0,
        ("temperature", "0", GPU): 1.0,
    }
    assert samples(node, "nodeagent_gpu_xid_events_total") == {("0", GPU): 2.0}
    assert samples(node, "nodeagent_gpu_xid_total") == {
        ("43", "0", GPU, ""): 1.0,
        ("95", "0", GPU, "2"): 1.0,
    }
    assert samples(node, "nodeagent_gpu_xid_last_timestamp_seconds").keys() == {
        ("43", "0", GPU, ""),
        ("95", "0", GPU, "2"),
    }
    ((_, finding),) = [(s.value, s.labels) for s in health_samples(node.state) if len(s.labels) > 5]
    place = ("0", GPU, "2", "")
    assert finding == (*place, "xid", "xidReset", "95", "unhealthy", "reset GPU")


def test_the_first_xid_is_an_increase(node: Node) -> None:
    """A GPU that had none has a counter all the same, so that the first one makes it grow."""
    node.read(gpu())
    assert samples(node, "nodeagent_gpu_xid_events_total") == {("0", GPU): 0.0}
    node.xid(79)
    assert samples(node, "nodeagent_gpu_xid_events_total") == {("0", GPU): 1.0}


def test_a_check_that_cannot_be_read_any_more_has_no_figure(node: Node) -> None:
    """As remapped rows with MIG instances, and links; what was found of it stays."""
    rows, link = RemappedRows(0, 1, pending=False, failed=False), LinkReading(0, up=True)
    node.read(gpu(complete=True, rows=rows, nvlinks=(link,)))
    known = {("rowRemap", "0", GPU): 1.0, ("nvlink", "0", GPU): 1.0}
    assert samples(node, "nodeagent_gpu_health") == known
    node.read(gpu())  # only what changes fast was asked
    assert samples(node, "nodeagent_gpu_health") == known
    node.read(gpu(complete=True, mig=True))
    assert samples(node, "nodeagent_gpu_health") == {}
    node.read(gpu(complete=True, rows=replace(rows, failed=True)))
    node.read(gpu(complete=True, mig=True))
    assert samples(node, "nodeagent_gpu_health") == {("rowRemap", "0", GPU): 0.0}


@pytest.mark.parametrize("action", [0, 1])
@pytest.mark.parametrize("silence", Silence)
def test_a_gpu_that_does_not_answer_has_no_figures(
    node: Node, silence: Silence, action: int
) -> None:
    """But for whether it answers, where that is known, and what was found of it before."""
    well = gpu(answer=Answer(), complete=True, temperature=50, slowdown_temperature=90,
               ecc_uncorrected=1, held_by_heat=0, recovery_action=action)  # fmt: skip
    for _ in range(8):
        node.read(well, after=50.0)
    checks = {check for check, *_ in samples(node, "nodeagent_gpu_health")}
    assert checks == {"gpuAccess", "temperature", "ecc", "thermal", "recoveryAction"}
    node.read(gpu(answer=Answer(silence, node.now)))
    found = {check: n for (check, *_), n in samples(node, "nodeagent_gpu_health").items()}
    assert found.pop("gpuAccess", None) in (0.0, None)
    assert found == ({"ecc": 0.0, "recoveryAction": 0.0} if action else {"ecc": 0.5})
    node.read(well)
    assert {check for check, *_ in samples(node, "nodeagent_gpu_health")} >= {"temperature"}
