import re
from datetime import UTC, datetime

import pytest
from msgspec import structs

from nodeagent.health.evaluate import evaluate
from nodeagent.health.findings import Action, Moment
from nodeagent.health.readings import Answer, GpuReading, NodeReading, Silence, XidEvent, XidSource
from nodeagent.health.state import HealthState
from nodeagent.health.table import ROWS
from nodeagent.health.xids import default_table
from nodeagent.plan.observed import Access, DeviceDaemon, Gpu, HealthLimits, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.users import Pod, Usage, User
from nodeagent.structs import replace
from nodeagent.views.claims import Claim, ClaimPhase
from nodeagent.views.headline import headline, troubles
from nodeagent.views.health_remedies import HealthRemedies
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.shapes import Cluster, Headline, RunsAs
from nodeagent.views.shapes import HeadlineSeverity as Severity
from nodeagent.views.status_report import status_json
from tests.views.example_node import (
    BLOCKED,
    DAEMON,
    FIRST,
    IN_SYNC,
    OBSERVED,
    REJECTED,
    SECOND,
    SHARED,
)

OK, INFO, WARNING, ERROR = Severity


def health(*gpus: GpuReading, xid: int = 0, answer: Answer | None = None) -> HealthState:
    """What the checks make of one reading, and of an XID of the first GPU."""
    both = (GpuReading(FIRST, 0), GpuReading(SECOND, 1))
    xids = (XidEvent(xid, 9.0, XidSource.NVML, gpu=FIRST),) if xid else ()
    reading = NodeReading(Moment(10.0, 1e9), "boot", gpus=gpus or both, answer=answer, xids=xids)
    return evaluate(HealthState(), reading, default_table()).state


LOST = replace(OBSERVED.gpus[1], access=Access.LOST, access_reason="GPU_IS_LOST")
SILENT = replace(OBSERVED.gpus[1], access=Access.UNKNOWN, access_reason="a call hangs")
SICK = health(GpuReading(FIRST, 0, memory_unrepairable=True))
DEGRADED = health(GpuReading(FIRST, 0, inforom_corrupt=True))
AWAY = Cluster(
    server="https://10.0.0.1",
    reachable=False,
    registered=False,
    problem=Problem(code=Code.CLUSTER, message="the API server is away", remedy="wait"),
)
FAILED = Problem(code=Code.STEP_FAILED, message="a step failed", remedy="mend it", gpu=FIRST)
CLIENT = Problem(code=Code.MPS_CLIENT, message="a client has no share")
STRANGE = replace(OBSERVED.gpus[1], usage=Usage(known=False, reason="the kubelet is away"))
BACKOFF = replace(DAEMON, state="Backoff", why="it ended")
DRAINED = replace(DAEMON, state="Down", why="drained on request")
HELD = "claim ml/trainer was allocated what is held already"
WAITS = Claim(
    namespace="ml",
    name="trainer",
    phase=ClaimPhase.WAITING,
    pods=[],
    devices=[],
    refusal=Problem(code="ClaimRefused", message=HELD, remedy="wait for its pods"),
    problems=[],
)

# From the worst to the best: whatever comes later is outweighed by what comes earlier.
KINDS: tuple[tuple[Severity, str, dict[str, object]], ...] = (
    (ERROR, "FallenOffBus", {"health": health(xid=79)}),
    (ERROR, "GpuLost", {"observed": ObservedNode((OBSERVED.gpus[0], LOST))}),
    (ERROR, "Driver", {"driver_error": "it is not loaded"}),
    (ERROR, "MemoryUnrepairable", {"health": SICK}),
    (ERROR, "StepFailed", {"phase": Phase.FAILED, "problems": (FAILED,)}),
    (
        ERROR,
        "UnknownProfile",
        {"phase": Phase.REJECTED, "refusal": REJECTED.refusal, "problems": REJECTED.problems},
    ),
    (WARNING, "GpuUnknown", {"observed": ObservedNode((OBSERVED.gpus[0], SILENT))}),
    (WARNING, "InUse", {"phase": Phase.BLOCKED, "problems": BLOCKED.problems}),
    (WARNING, "Cluster", {"cluster": AWAY}),
    (WARNING, "PlanMissing", {"note": "the plan is gone", "digest": IN_SYNC.digest}),
    (WARNING, "Reader", {"observed": ObservedNode((OBSERVED.gpus[0], STRANGE))}),
    (WARNING, "InforomCorrupt", {"health": DEGRADED}),
    (WARNING, "MpsClient", {"problems": (CLIENT,)}),
    (WARNING, "Mps", {"mps": (BACKOFF,)}),
    (WARNING, "Mps", {"mps": (DRAINED,)}),
    (WARNING, "ClaimRefused", {"claims": (WAITS,)}),
    (INFO, "Working", {"phase": Phase.WORKING}),
    (INFO, "XidApplication", {"health": health(xid=13)}),
    (INFO, "NoPlan", {"phase": Phase.NO_PLAN, "digest": ""}),
    (INFO, "HealthNotReadYet", {"health": health()}),
    (OK, "InSync", {}),
)


def node(values: dict[str, object]) -> NodeState:
    return replace(IN_SYNC, **values)  # type: ignore[arg-type]  # any of the state's own fields


def of(state: NodeState, runs_as: RunsAs = "pod") -> Headline:
    return headline(replace(state, runs_as=runs_as))


def test_every_kind() -> None:
    for severity, code, values in KINDS:
        found = of(node(values))
        assert (found.severity, found.code) == (severity, code), code
        assert found.text.endswith("."), code
        assert found.text[0].isupper() or found.text[0].isdigit(), code
        assert found.remedy == "" or found.remedy.endswith("."), code


def test_troubles_are_all_that_needs_a_hand_each_said_once() -> None:
    """The headline is the first of them; what a claim has beside its refusal, and why less is
    offered to claims, come last and make no headline.
    """
    silence = Problem(code=Code.DRIVER, message="the module is not loaded", remedy="load it")
    claim = replace(WAITS, refusal=None, problems=[replace(CLIENT, message="a device is sick")])
    less = replace(CLIENT, message="MIG mode of GPU 0 is off", remedy="reset it")
    worse = node(
        {
            "driver_error": silence.message,
            "problems": (silence, FAILED, replace(CLIENT, path="gpus[0].mps")),
            "observed": ObservedNode((OBSERVED.gpus[0], SILENT)),
            "health": SICK,
            "claims": (claim,),
            "less_offered": (less,),
        }
    )
    found = troubles(worse, HealthRemedies("gpu-node-0", "pod", worse.observed))
    first, sick, *others = found
    assert (first.severity, first.text, first.remedy) == (
        of(worse).severity,
        of(worse).text,
        "load it.",
    )
    assert sick.code == "MemoryUnrepairable"
    assert sick.evidence
    assert [(one.text, one.path) for one in others] == [
        ("A step failed.", ""),
        ("A client has no share.", "gpus[0].mps"),
        ("Claim ml/trainer: a device is sick.", ""),
        ("Less is offered to claims: MIG mode of GPU 0 is off.", ""),
    ]
    for severity, _, values in KINDS:
        one = node(values)
        listed = troubles(one, HealthRemedies("gpu-node-0", "pod", one.observed))
        assert bool(listed) is (severity in (WARNING, ERROR))
        assert len({trouble.text for trouble in listed}) == len(listed)
    only = node({"claims": (claim,), "less_offered": (less,)})
    assert of(only).severity is OK
    both = troubles(only, HealthRemedies("gpu-node-0", "pod", only.observed))
    assert [one.severity for one in both] == [WARNING, INFO]


def test_a_gpu_that_is_gone_is_one_trouble() -> None:
    """By the finding that knows why, not once more by the driver's silence and by the plan."""
    lost = replace(OBSERVED.gpus[0], access=Access.LOST)
    vanished = Problem(code=Code.GPU_LOST, message="GPU 0 does not answer", gpu=FIRST)
    values = {"observed": ObservedNode((lost, OBSERVED.gpus[1])), "problems": (vanished,)}
    reset = GpuReading(FIRST, 0, answer=Answer(Silence.RESET_REQUIRED, 0.0, "it needs a reset"))
    for known, code in (
        ({"health": health(xid=79)}, "FallenOffBus"),
        ({"health": health(reset)}, "GpuResetRequired"),
        ({}, "GpuLost"),
    ):
        state = node({**values, **known})
        found = troubles(state, HealthRemedies("gpu-node-0", "pod", state.observed))
        assert [one.code for one in found if one.gpu == FIRST] == [code]
        report = status_json(state)
        assert report
        assert len(report["gpus"][0]["health"]["findings"]) == 1
    other = node({**values, "problems": (replace(vanished, gpu=SECOND),)})
    found = troubles(other, HealthRemedies("gpu-node-0", "pod", other.observed))
    assert {one.gpu for one in found} == {FIRST, SECOND}


def test_a_gpu_that_hangs_is_one_trouble() -> None:
    hangs = Answer(Silence.HANGS, 0.0, "a call hangs")
    silent = Problem(code=Code.GPU_UNKNOWN, message="GPU 0 (H100) does not answer: ", gpu=FIRST)
    less = replace(silent, message="the driver does not answer for GPU 0")
    values = {"problems": (silent,), "less_offered": (less,)}
    state = node({**values, "health": health(GpuReading(FIRST, 0, answer=hangs))})
    found = troubles(state, HealthRemedies("gpu-node-0", "pod", state.observed))
    assert [(one.severity, one.code) for one in found] == [(ERROR, "GpuHangs")]


def test_gpus_without_uuids_and_claims_without_gpus_are_told_apart() -> None:
    gpus = tuple(Gpu(index, "", access=Access.LOST) for index in (0, 1))
    lost = [Problem(code=Code.GPU_LOST, message=f"GPU {index} is lost: off") for index in (0, 1)]
    kept = Problem(code=Code.GPU_UNKNOWN, message="its GPU is not listed")
    claims = [replace(WAITS, name=name, refusal=None, problems=[kept]) for name in ("one", "two")]
    state = node({"observed": ObservedNode(gpus), "problems": lost, "claims": claims})
    found = troubles(state, HealthRemedies("gpu-node-0", "pod", state.observed))
    assert [one.text.split(":")[0] for one in found] == [
        "GPU 0 is lost.",
        "GPU 1 is lost.",
        "Claim ml/one",
        "Claim ml/two",
    ]


def test_a_node_for_claims_needs_no_plan() -> None:
    found = of(node({"phase": Phase.NO_PLAN, "digest": "", "note": "none", "claims": ()}))
    assert (found.severity, found.code) == (OK, "NoPlan")
    assert found.text == "No plan: the GPUs are for claims, and its 2 GPUs are healthy."


def test_the_worst_counts() -> None:
    for worse in range(len(KINDS)):
        _, code, values = KINDS[worse]
        for _, _, others in KINDS[worse + 1 :]:
            both = {**others, **values}
            if "problems" in values and "problems" in others:
                both["problems"] = (*others["problems"], *values["problems"])  # type: ignore[misc]
                if code != "UnknownProfile" and "refusal" in others:
                    both["refusal"] = others["refusal"]
            if values.get("health") is None or others.get("health") is None:
                assert of(node(both)).code == code


def test_remedies_are_commands_of_this_node() -> None:
    fallen = node({"health": health(xid=79)})
    assert of(fallen) == Headline(
        ERROR,
        "GPU 0 fell off the bus (XID 79).",
        "Drain and reboot the node: `kubectl drain gpu-node-0 --ignore-daemonsets "
        "--delete-emptydir-data`, then `systemctl reboot` on the node, then `kubectl uncordon "
        "gpu-node-0`. If it recurs, check seating and power.",
        FIRST,
        "FallenOffBus",
    )
    assert "kubectl" not in of(fallen, "").remedy
    reset = of(node({"health": health(GpuReading(SECOND, 1, recovery_action=1))}))
    assert reset.remedy == (
        "Reset GPU 1: `kubectl drain gpu-node-0 --ignore-daemonsets --delete-emptydir-data && "
        "kubectl label node gpu-node-0 nodeagent.io/off=`, then run `nvidia-smi --gpu-reset -i 1` "
        "on the node, then `kubectl label node gpu-node-0 nodeagent.io/off- && kubectl uncordon "
        "gpu-node-0`; or reboot the node."
    )
    service = of(node({"health": health(GpuReading(SECOND, 1, recovery_action=1))}), "service")
    assert service.remedy == (
        "Reset GPU 1: `kubectl drain gpu-node-0 --ignore-daemonsets --delete-emptydir-data`, then "
        "`systemctl stop nodeagent`, `nvidia-smi --gpu-reset -i 1` and `systemctl start nodeagent` "
        "on the node, then `kubectl uncordon gpu-node-0`; or reboot the node."
    )


def test_mps_ends_before_a_reset() -> None:
    """Its server outlives the agent and has the GPU open. In a cluster the node is rebooted."""
    first, second = OBSERVED.gpus
    shared = replace(second, usage=Usage(), mps=DeviceDaemon(SHARED, "Ready"))
    sick = health(GpuReading(SECOND, 1, recovery_action=1))
    reset = node({"observed": ObservedNode((first, shared)), "health": sick})
    assert of(reset, "").remedy == (
        "Reset GPU 1: end its users, then `nodeagent mps drain 1`, `systemctl stop nodeagent`, "
        "`nvidia-smi --gpu-reset -i 1`, `systemctl start nodeagent`, `nodeagent mps restart 1`."
    )
    assert of(reset).remedy.startswith("Drain and reboot the node: `kubectl drain gpu-node-0 ")


def test_a_daemon_that_a_sick_gpu_keeps_from_clients_is_mended_with_it() -> None:
    sick = HealthLimits(whole=True, why="it is sick", remedy="Reset it.")
    seen = ObservedNode(tuple(replace(gpu, health_limits=sick) for gpu in OBSERVED.gpus))
    daemon = replace(DAEMON, trouble="takes no new clients: it is sick")
    assert of(node({"observed": seen, "mps": (daemon,)})).remedy == "Reset it."
    assert "log" in of(node({"mps": (daemon,)})).remedy
    assert "mps restart" in of(node({"mps": (BACKOFF,)})).remedy  # it has no log yet


def test_outside_a_cluster_the_users_of_gpus_are_ended_first() -> None:
    first, second = OBSERVED.gpus
    users = Usage((User(4711, "train"),))
    seen = ObservedNode((first, replace(second, usage=users, mps=None)))
    values: dict[str, object] = {"observed": seen}
    reset = node({**values, "health": health(GpuReading(SECOND, 1, recovery_action=1))})
    assert "end its users (`kill 4711`), then" in of(reset, "").remedy
    reboot = of(node({**values, "health": health(xid=79)}), "").remedy
    assert "4711`), then `systemctl reboot`" in reboot
    assert "kill" not in of(reset).remedy  # pids would have the Node written again and again


def test_a_driver_that_hangs_says_what_to_do() -> None:
    silence = Problem(
        code=Code.DRIVER, message="the module is not loaded", remedy="modprobe nvidia"
    )
    away = node({"driver_error": silence.message, "problems": (silence,)})
    assert of(away).text == "The driver does not answer: the module is not loaded."
    assert of(away).remedy == "modprobe nvidia."
    fault = Problem(
        code=Code.STEP_FAILED,
        message="a fault in the agent itself: MemoryError: ",
        remedy="report it",
    )
    assert "driver" not in of(node({"driver_error": fault.message, "problems": (fault,)})).text
    unloaded = health(answer=Answer(Silence.NOT_LOADED))
    away = node({"driver_error": "it is not loaded", "health": unloaded})
    assert of(away).remedy.startswith("Load it: `modprobe nvidia`.")
    assert len(troubles(away, HealthRemedies("gpu-node-0", "pod", away.observed))) == 1
    hangs = node({"health": health(answer=Answer(Silence.FAILS, reason="no answer"))})
    assert (of(hangs).severity, of(hangs).text) == (WARNING, "The driver does not answer.")


def test_a_silent_gpu_of_the_plan_is_an_error() -> None:
    silent: dict[str, object] = {"observed": ObservedNode((OBSERVED.gpus[0], SILENT))}
    problem = Problem(
        code=Code.GPU_UNKNOWN, message="GPU 1 does not answer", remedy="wait", gpu=SECOND
    )
    assert of(node(silent)).severity is WARNING
    assert of(node({**silent, "problems": (problem,)})).severity is ERROR


def test_users_that_are_not_known() -> None:
    found = of(node({"observed": ObservedNode((OBSERVED.gpus[0], STRANGE))}))
    assert found.text == "The users of GPU 1 are not known: the kubelet is away."
    assert found.gpu == SECOND


def test_a_claim_that_waits_is_named() -> None:
    assert of(node({"claims": (WAITS,)})).text == f"Claim{HELD.removeprefix('claim')}."
    assert WAITS.refusal
    bare = structs.replace(WAITS.refusal, message="the disk is full")
    waits = structs.replace(WAITS, refusal=bare)
    assert of(node({"claims": (waits,)})).text == "Claim ml/trainer: the disk is full."


def test_an_address_at_its_beginning_keeps_its_spelling() -> None:
    """A URL with a capital would be none."""
    message = "https://10.0.0.1 does not answer: Connection refused"
    away = replace(AWAY, problem=Problem(code=Code.CLUSTER, message=message))
    assert of(node({"cluster": away})).text == f"{message}."


def test_before_the_first_look() -> None:
    fresh = NodeState("gpu-node-0", "annotation")
    assert (of(fresh).severity, of(fresh).code) == (INFO, "NotObservedYet")
    none = node({"observed": ObservedNode(), "mps": ()})
    assert of(none).code == "NoGpus"


def test_nothing_in_it_grows_with_time() -> None:
    """So that the Node is not written again while the matter is the same."""
    later = {"observed_at": datetime(2031, 1, 1, tzinfo=UTC), "rounds": 99}
    for _, _, values in KINDS:
        assert of(node({**values, **later})) == of(node(values))


def test_gpus_that_no_check_has_read_yet() -> None:
    assert of(node({"health": health()})).text == "The health of GPUs 0 and 1 was not read yet."
    half = health(GpuReading(FIRST, 0, memory_unrepairable=False), GpuReading(SECOND, 1))
    assert of(node({"health": half})).text == "The health of GPU 1 was not read yet."


TENANTS = (Pod("ml", "train-0", "main"), Pod("ml", "train-0", "side"))


@pytest.mark.parametrize("runs_as", ["pod", "service", ""])
def test_every_finding_has_a_command(runs_as: RunsAs) -> None:
    remedies = HealthRemedies("gpu-node-0", runs_as, OBSERVED)
    for row in ROWS:
        for action in {row.action, Action.RESET_GPU, Action.REBOOT, Action.INSPECT_HARDWARE}:
            found = remedies.of(row.cause, action, 1)
            assert re.search(r"`[^`]+`", found), (row.cause, action)
            assert not re.search(r"[{}]|NUMBER|ADDRESS|None", found), (row.cause, action)
            assert ("kubectl" in found) <= bool(runs_as), (row.cause, action)
            assert ("systemctl stop" in found) <= (runs_as != "pod"), (row.cause, action)


def test_an_application_is_restarted_by_its_pods() -> None:
    remedies = HealthRemedies("gpu-node-0", "pod", OBSERVED)
    found = remedies.of("xidApplication", Action.RESTART_APPLICATION, 0, TENANTS)
    assert found == (
        "Restart the application: `kubectl delete pod -n ml train-0`. The GPU is healthy."
    )
    unknown = remedies.of("xidApplication", Action.RESTART_APPLICATION, 0)
    assert unknown.endswith("The GPU is healthy. See `dmesg | grep -i xid`.")


def test_a_gpu_that_is_inspected_gets_no_new_pods() -> None:
    remedies = HealthRemedies("gpu-node-0", "pod", OBSERVED)
    inspect = Action.INSPECT_HARDWARE
    assert remedies.of("memoryUnrepairable", inspect, 1) == (
        "Keep new pods away: `kubectl cordon gpu-node-0`. Run the vendor's field diagnostic. If it "
        "confirms the fault, have the card replaced. See `nvidia-smi -q -i 1`."
    )
    assert "cordon" not in remedies.of("throttledByHeat", inspect, 1)


def test_a_gpu_is_bound_to_the_driver_by_its_address() -> None:
    remedies = HealthRemedies("gpu-node-0", "pod", OBSERVED)
    address = OBSERVED.gpus[1].pci_bus_id[4:].lower()
    found = remedies.of("gpuUnbound", Action.NONE, 1)
    assert f"`echo {address} > /sys/bus/pci/drivers/nvidia/bind`" in found
