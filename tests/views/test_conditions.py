import re
from datetime import timedelta

import pytest

from nodeagent.health.evaluate import evaluate
from nodeagent.health.findings import Moment
from nodeagent.health.readings import Answer, GpuReading, NodeReading, Silence
from nodeagent.health.reporting import Condition
from nodeagent.health.state import HealthState
from nodeagent.health.xids import default_table
from nodeagent.plan.observed import Access, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import replace
from nodeagent.views.conditions import HEALTHY, PARTITIONS_READY
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.shapes import Refused
from tests.views.example_node import (
    AT,
    BLOCKED,
    DIGEST,
    FIRST,
    IN_SYNC,
    OBSERVED,
    REJECTED,
    SECOND,
    conditions_of,
)

FRESH = NodeState("gpu-node-0", "annotation")
LOST = replace(OBSERVED.gpus[0], access=Access.LOST, access_reason="it fell off the bus")
SILENT = replace(OBSERVED.gpus[1], access=Access.UNKNOWN, access_reason="a call hangs")


def ready(state: NodeState) -> Condition:
    return conditions_of(state)[PARTITIONS_READY]


def healthy(state: NodeState) -> Condition:
    return conditions_of(state)[HEALTHY]


# --- GPUPartitionsReady ---------------------------------------------------------------------------


def test_in_sync_names_the_plan() -> None:
    assert ready(IN_SYNC) == Condition("True", "InSync", f"the node is as plan {DIGEST} says")
    named = replace(IN_SYNC, configuration="all-1g.10gb")
    assert ready(named).message == f"the node is as plan {DIGEST} (all-1g.10gb) says"
    kept = replace(IN_SYNC, note="the annotation is gone; the last good plan stays in force")
    assert ready(kept).message.endswith(" says; " + kept.note)


def test_a_rejected_plan() -> None:
    assert f"; plan {DIGEST} stays in force; see nodeagent explain " in ready(REJECTED).message
    unread = replace(REJECTED, digest="", refusal=Refused(digest="", problems=REJECTED.problems))
    assert ready(unread).message.startswith('the plan is refused: gpus[0].mig["8g.40gb"]: ')


@pytest.mark.parametrize("phase", sorted(set(Phase) - {Phase.IN_SYNC, Phase.NO_PLAN}))
def test_every_other_phase_is_the_reason(phase: Phase) -> None:
    condition = ready(replace(BLOCKED, phase=phase))
    assert (condition.status, condition.reason) == ("False", phase.value)
    pointer = "" if phase is Phase.WORKING else "; see nodeagent explain InUse"
    assert condition.message == BLOCKED.problems[0].message + pointer


def test_work_names_the_plan() -> None:
    working = replace(IN_SYNC, phase=Phase.WORKING)
    assert ready(working).message == f"working on plan {DIGEST}"
    assert ready(replace(working, digest="")).message == "working"


def test_without_a_plan_a_node_may_be_for_claims() -> None:
    state = replace(IN_SYNC, phase=Phase.NO_PLAN, digest="", note="none", claims=())
    assert ready(state) == Condition("True", "NoPlan", "no plan: the GPUs are for claims")


def test_before_the_first_look_nothing_is_known() -> None:
    unknown = Condition("Unknown", "NotObservedYet", "the GPUs were not read yet")
    assert dict(conditions_of(FRESH)) == {PARTITIONS_READY: unknown, HEALTHY: unknown}


def test_a_refusal_before_the_first_look_says_nothing_of_health() -> None:
    state = replace(REJECTED, observed=ObservedNode(), observed_at=None)
    assert ready(state).reason == "Rejected"
    assert healthy(state).reason == "NotObservedYet"


def test_a_driver_that_does_not_answer() -> None:
    state = replace(IN_SYNC, phase=Phase.FAILED, driver_error="it is not loaded")
    for condition in conditions_of(state).values():
        assert (condition.status, condition.reason) == ("Unknown", "DriverUnavailable")
        assert condition.message == (
            "the driver does not answer: it is not loaded; see nodeagent explain DriverUnavailable"
        )


# --- GPUHealthy -----------------------------------------------------------------------------------


def test_gpus_that_answer_are_healthy() -> None:
    assert healthy(IN_SYNC) == Condition("True", "Healthy", "the driver answers for every GPU (2)")
    none = replace(IN_SYNC, observed=ObservedNode())
    assert healthy(none) == Condition("True", "NoGpus", "the node has no GPUs")


def test_a_lost_gpu_is_named() -> None:
    condition = healthy(replace(IN_SYNC, observed=ObservedNode((LOST, SILENT))))
    assert (condition.status, condition.reason) == ("False", "GpuLost")
    assert condition.message.startswith(f"GPU 0 ({FIRST}) is lost: it fell off the bus; GPU 1 (")


def test_a_lost_gpu_is_told_once() -> None:
    words = "GPU 0 (H100) is lost: it fell off the bus"
    problem = Problem(code=Code.GPU_LOST, message=words, gpu=FIRST)
    failed = replace(
        IN_SYNC,
        phase=Phase.FAILED,
        problems=(problem,),
        observed=ObservedNode((LOST, OBSERVED.gpus[1])),
    )
    assert ready(failed).message == f"{words}; see nodeagent explain GpuLost"
    other = replace(failed, problems=(replace(problem, gpu=SECOND),))
    assert ready(other).message.startswith(f"GPU 0 is lost; {words}")


def test_a_silent_gpu_is_not_called_sick() -> None:
    condition = healthy(replace(IN_SYNC, observed=ObservedNode((OBSERVED.gpus[0], SILENT))))
    assert (condition.status, condition.reason) == ("Unknown", "GpuUnknown")
    assert condition.message.endswith(
        " does not answer: a call hangs; see nodeagent explain GpuUnknown"
    )


def test_what_the_checks_found_counts() -> None:
    sick = _judged(GpuReading(FIRST, 0, memory_unrepairable=True))
    assert healthy(replace(IN_SYNC, health=sick)) == Condition(
        "False",
        "MemoryUnrepairable",
        "GPU 0 has memory that cannot be repaired (inspect hardware); "
        "see nodeagent explain MemoryUnrepairable",
    )
    well = _judged(
        GpuReading(FIRST, 0, memory_unrepairable=False),
        GpuReading(SECOND, 1, memory_unrepairable=False),
    )
    assert healthy(replace(IN_SYNC, health=well)) == Condition(
        "True", "Healthy", "all checks are good"
    )


def test_a_gpu_that_no_check_has_read_yet_is_not_called_healthy() -> None:
    fresh = _judged(GpuReading(FIRST, 0), GpuReading(SECOND, 1))
    assert healthy(replace(IN_SYNC, health=fresh)) == Condition(
        "Unknown", "NotReadYet", "the health of GPUs 0 and 1 was not read yet"
    )
    worn = _judged(GpuReading(FIRST, 0, inforom_corrupt=True))
    assert healthy(replace(IN_SYNC, health=worn)) == Condition(
        "Unknown",
        "NotReadYet",
        "the health of GPU 1 was not read yet; GPU 0 has a corrupt InfoROM (inspect hardware)",
    )
    sick = _judged(GpuReading(FIRST, 0, memory_unrepairable=True))
    assert healthy(replace(IN_SYNC, health=sick)).reason == "MemoryUnrepairable"
    silent = replace(IN_SYNC, observed=ObservedNode((OBSERVED.gpus[0], SILENT)), health=fresh)
    assert healthy(silent).reason == "GpuUnknown"
    none = replace(IN_SYNC, observed=ObservedNode(), health=fresh)
    assert healthy(none).reason == "NoGpus"
    assert healthy(replace(IN_SYNC, health=HealthState())) == healthy(IN_SYNC)  # no check has run


def test_the_worse_of_checks_and_driver_counts() -> None:
    lost = replace(IN_SYNC, observed=ObservedNode((LOST,)))
    not_yet = _judged(GpuReading(FIRST, 0, memory_unrepairable=False))
    pointer = "; see nodeagent explain GpuLost"
    worn = _judged(GpuReading(FIRST, 0, inforom_corrupt=True))
    assert healthy(replace(lost, health=worn)).reason == "GpuLost"
    condition = healthy(replace(lost, health=not_yet))
    assert condition.message.endswith(f"is lost: it fell off the bus{pointer}")
    found = _judged(GpuReading(FIRST, 0, answer=Answer(Silence.LOST)))
    assert healthy(replace(lost, health=found)).message == f"GPU 0 is lost (reboot){pointer}"
    hangs = replace(IN_SYNC, driver_error="a call hangs", health=found)
    assert healthy(hangs).status == "False"
    well = _judged(GpuReading(FIRST, 0, memory_unrepairable=False))
    assert healthy(replace(hangs, health=well)).reason == "DriverUnavailable"


def test_the_only_gpu_is_missing() -> None:
    """The driver lists none, but there is one on the PCI bus: that is not a node without GPUs."""
    state = HealthState()
    for at in (10.0, 50.0):
        reading = NodeReading(
            Moment(at, 1e9), "boot", listed_addresses=(), pci_addresses=("0000:1a:00.0",)
        )
        state = evaluate(state, reading, default_table()).state
    none = replace(IN_SYNC, observed=ObservedNode())
    condition = healthy(replace(none, health=state))
    assert (condition.status, condition.reason) == ("False", "GpuMissing")


def _judged(*gpus: GpuReading) -> HealthState:
    reading = NodeReading(Moment(10.0, 1e9), "boot", gpus=gpus)
    return evaluate(HealthState(), reading, default_table()).state


# --- the headline ---------------------------------------------------------------------------------


def test_the_headline_leads_both_messages() -> None:
    plan, well = f"the node is as plan {DIGEST} says", "the driver answers for every GPU (2)"
    client = Problem(code=Code.MPS_CLIENT, message="a client has no share")
    served = replace(IN_SYNC, problems=(client,))
    assert ready(served) == Condition("True", "InSync", f"A client has no share; {plan}")
    assert healthy(served) == Condition("True", "Healthy", f"A client has no share; {well}")
    fallen = replace(served, health=_judged(GpuReading(FIRST, 0, answer=Answer(Silence.LOST))))
    assert ready(fallen).message == f"GPU 0 is lost; {plan}"
    assert healthy(fallen).message.startswith("GPU 0 is lost (reboot); see")
    away = replace(fallen, phase=Phase.FAILED, driver_error="it is not loaded")
    assert ready(away).message.startswith("GPU 0 is lost; the driver does not answer: it is ")
    assert healthy(BLOCKED).message == f"{BLOCKED.problems[0].message}; {well}"
    assert healthy(replace(IN_SYNC, phase=Phase.WORKING)).message == well


# --- messages -------------------------------------------------------------------------------------


def test_messages_are_bounded_and_in_one_line() -> None:
    nasty = "\x1b[1m" + "line\n" * 1000
    states = [
        replace(IN_SYNC, driver_error=nasty),
        replace(IN_SYNC, note=nasty),
        replace(BLOCKED, problems=(Problem(code=Code.DRIVER, message=nasty),)),
        replace(IN_SYNC, observed=ObservedNode((replace(LOST, access_reason=nasty),) * 16)),
    ]
    for state in states:
        for condition in conditions_of(state).values():
            assert len(condition.message) <= 1024
            assert condition.message.isprintable()
            if condition.status != "True":
                assert re.search(r"; see nodeagent explain \w+$", condition.message)


def test_a_later_round_changes_nothing() -> None:
    later = replace(BLOCKED, rounds=99, observed_at=AT + timedelta(days=1))
    assert conditions_of(later) == conditions_of(BLOCKED)
