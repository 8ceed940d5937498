"""Which document counts, as GPUs come and go."""

import gc
import sys
from dataclasses import dataclass

import pytest

from nodeagent.plan.numbers import NumberedGpu
from nodeagent.plan.observed import Access, MigMode, ObservedNode
from nodeagent.plan.plan import Policy, Verdict
from nodeagent.plan.problems import Code
from nodeagent.reconcile.active_plan import ActivePlan, PlanEvaluation
from nodeagent.reconcile.loop_control import LoopControl
from nodeagent.reconcile.plan_update import KeptPlan, NoPlan, PlanText, PlanUpdate
from nodeagent.structs import replace
from nodeagent.views.shapes import Refused
from tests.rig import driving, plan_text


def made() -> ActivePlan:
    return ActivePlan(LoopControl())


async def observe(boards: str = "h100-80gb:2") -> ObservedNode:
    async with driving(boards) as (driver, _):
        return await driver.observe()


async def evaluated(plan: ActivePlan, observed: ObservedNode) -> PlanEvaluation:
    await plan.read_offer()
    return plan.evaluate(observed, Policy())


async def test_refused_until_the_gpu_is_there() -> None:
    node, plan = await observe(), made()
    one = replace(node, gpus=node.gpus[:1])
    plan.offer(PlanText(plan_text("{1g.10gb: 7}", "[0, 1]")))
    evaluation = await evaluated(plan, one)
    assert evaluation.plan is None
    assert evaluation.refusal
    assert [p.code for p in evaluation.refusal.problems] == [Code.UNKNOWN_DEVICE]
    assert (await evaluated(plan, node)).accepted


async def test_a_gpu_that_goes_does_not_take_the_plan_with_it() -> None:
    node, plan = await observe(), made()
    plan.offer(PlanText(plan_text("{1g.10gb: 7}", "[0, 1]")))
    await evaluated(plan, node)
    evaluation = await evaluated(plan, replace(node, gpus=node.gpus[:1]))
    assert evaluation.refusal is None
    assert evaluation.plan
    assert [gpu.verdict for gpu in evaluation.plan.gpus] == [Verdict.APPLICABLE]
    assert [p.code for p in evaluation.plan.problems] == [Code.GPU_LOST]


async def test_a_gpu_that_answers_later_and_cannot_be_so_is_not_in_sync() -> None:
    """Silent, it could not be checked; its fault is reported then, and the other GPUs go on."""
    node, plan = await observe("a100-40gb:1,a30:1"), made()
    silent = replace(node.gpus[1], access=Access.UNKNOWN, access_reason="it hangs")
    plan.offer(PlanText(plan_text("{1g.5gb: 7}", "[0, 1]")))
    assert (await evaluated(plan, replace(node, gpus=(node.gpus[0], silent)))).accepted
    evaluation = await evaluated(plan, node)
    assert evaluation.plan
    assert [gpu.verdict for gpu in evaluation.plan.gpus] == [
        Verdict.APPLICABLE,
        Verdict.UNSATISFIABLE,
    ]
    [problem] = evaluation.plan.gpus[1].problems
    assert (problem.code, problem.path) == (Code.UNKNOWN_PROFILE, 'gpus[0].mig["1g.5gb"]')
    assert evaluation.plan.verdict is Verdict.UNSATISFIABLE


async def test_what_a_gpu_cannot_be_is_not_accepted_while_it_is_silent() -> None:
    """The last good plan stays in force, although the newest could not be refused anew."""
    node, plan = await observe("h100-80gb:1"), made()
    plan.offer(PlanText(plan_text("{1g.10gb: 7}")))
    await evaluated(plan, node)
    plan.offer(PlanText(plan_text("{1g.5gb: 7}")))
    refusal = (await evaluated(plan, node)).refusal
    assert refusal
    silent = replace(node.gpus[0], access=Access.UNKNOWN, access_reason="it hangs")
    evaluation = await evaluated(plan, replace(node, gpus=(silent,)))
    assert (evaluation.accepted, evaluation.refusal) == (None, refusal)
    plan.offer(PlanText(plan_text("{1g.10gb: 6}")))
    assert (await evaluated(plan, replace(node, gpus=(silent,)))).accepted


async def test_a_refusal_that_lasts_takes_no_memory() -> None:
    node, plan = await observe("h100-80gb:1"), made()
    plan.offer(PlanText(plan_text("{1g.5gb: 7}")))
    await evaluated(plan, node)
    silent = replace(node.gpus[0], access=Access.UNKNOWN, access_reason="it hangs")
    first, later = replace(node, gpus=(silent,)), replace(node, gpus=(silent,))
    held = sys.getrefcount(first)
    await evaluated(plan, first)
    await evaluated(plan, later)
    gc.collect()
    assert sys.getrefcount(first) == held


async def test_a_gpu_that_never_gave_its_uuid_keeps_no_plan_from_the_others() -> None:
    node, plan = await observe(), made()
    nameless = replace(node.gpus[0], uuid="", access=Access.UNKNOWN, access_reason="it hangs")
    plan.offer(PlanText(plan_text("{1g.10gb: 7}", "[0, 1]")))
    assert (await evaluated(plan, replace(node, gpus=(nameless,)))).refusal
    assert (await evaluated(plan, replace(node, gpus=(nameless, node.gpus[1])))).accepted


async def test_a_gpu_that_another_program_made_unfit_is_not_in_sync() -> None:
    """A time slice is for a GPU outside MIG mode, and the plan does not ask for that."""
    node, plan = await observe("h100-80gb:1"), made()
    text = b"version: v1\ngpus: [{devices: [0], timeSlice: default}]\n"
    plan.offer(PlanText(text))
    assert (await evaluated(plan, node)).accepted
    divided = replace(node.gpus[0], mig=MigMode(current=True, pending=True), compute_mode=None)
    evaluation = await evaluated(plan, replace(node, gpus=(divided,)))
    assert evaluation.plan
    assert evaluation.plan.verdict is Verdict.UNSATISFIABLE
    [problem] = evaluation.plan.gpus[0].problems
    assert problem.path == "gpus[0].timeSlice"
    assert "write mig: disabled" in problem.remedy
    assert (await evaluated(plan, node)).refusal is None


async def test_a_gpu_that_comes_and_cannot_be_so_is_not_in_sync() -> None:
    """An entry for all GPUs is for one more, too."""
    node, plan = await observe("a100-40gb:1,a30:1"), made()
    plan.offer(PlanText(plan_text("{1g.5gb: 7}")))
    one = replace(node, gpus=node.gpus[:1])
    assert (await evaluated(plan, one)).accepted
    evaluation = await evaluated(plan, node)
    assert evaluation.plan
    assert evaluation.plan.verdict is Verdict.UNSATISFIABLE
    assert [problem.gpu for problem in evaluation.plan.problems] == [node.gpus[1].uuid]
    assert [gpu.verdict for gpu in evaluation.plan.gpus] == [Verdict.APPLICABLE]


@pytest.mark.parametrize("life", ["this", "next", "next, without a source", "numbers unknown"])
async def test_a_gpu_that_moves_up_is_not_the_one_that_was_named(life: str) -> None:
    """One fell off the bus, NVML was started anew, and the one behind it has its number now: what
    the plan says of that number is not said of it.
    """
    node, plan = await observe(), made()
    text = PlanText(plan_text("{1g.10gb: 7}", "[0]"))
    plan.offer(text)
    if life != "this":
        await evaluated(plan, node)
        kept, plan = plan.kept, made()
        assert kept
        plan.remember(KeptPlan(text) if life == "numbers unknown" else kept)
        plan.offer(text if life == "next" else NoPlan("there is none"))
    first, second = node.gpus
    if life in ("this", "numbers unknown"):
        assert [gpu.before.uuid for gpu in (await evaluated(plan, node)).gpus] == [first.uuid]
    gone = replace(first, access=Access.LOST, access_reason="the driver does not list it any more")
    for gpus in ((replace(second, index=0), gone), (replace(second, index=0),)):
        evaluation = await evaluated(plan, replace(node, gpus=gpus))
        assert second.uuid not in evaluation.desired.gpus
        assert [gpu.steps for gpu in evaluation.gpus] in ([()], [])
        assert evaluation.plan
        assert evaluation.plan.verdict is Verdict.BLOCKED
    assert [gpu.before.uuid for gpu in (await evaluated(plan, node)).gpus] == [first.uuid]
    plan.offer(PlanText(plan_text("{1g.10gb: 6}", "[1]")))
    assert (await evaluated(plan, replace(node, gpus=(replace(second, index=0), gone)))).refusal
    plan.offer(PlanText(plan_text("{1g.10gb: 6}", "[0]")))
    evaluation = await evaluated(plan, replace(node, gpus=(replace(second, index=0), gone)))
    assert [gpu.before.uuid for gpu in evaluation.gpus] == [second.uuid], "as numbered now"


async def test_a_replaced_gpu_has_the_number_of_its_place() -> None:
    """The card in a slot is exchanged: the plan goes on to name that slot by its number."""
    node, plan = await observe("h100-80gb:3"), made()
    text = plan_text("{1g.10gb: 7}", "[0, 2]")
    plan.offer(PlanText(text))
    await evaluated(plan, node)
    assert plan.kept
    first, second, third = node.gpus
    new = replace(first, uuid="GPU-new")
    plan_of_next = made()
    plan_of_next.remember(plan.kept)
    plan_of_next.offer(PlanText(text))
    evaluation = await evaluated(plan_of_next, replace(node, gpus=(new, second, third)))
    assert [gpu.before.uuid for gpu in evaluation.gpus] == ["GPU-new", third.uuid]
    assert evaluation.plan
    assert evaluation.plan.verdict is Verdict.APPLICABLE


async def test_other_cards_have_their_own_numbers() -> None:
    """The disk moved into another machine: no number is left of those before."""
    node, plan = await observe(), made()
    numbers = (NumberedGpu(0, "GPU-elsewhere", "00000001:99:00.0"),)
    plan.remember(KeptPlan(PlanText(plan_text("{1g.10gb: 7}", "[1]")), numbers))
    plan.offer(NoPlan("there is none"))
    evaluation = await evaluated(plan, node)
    assert [gpu.before.uuid for gpu in evaluation.gpus] == [node.gpus[1].uuid]


@dataclass(frozen=True)
class FirstGpu:
    """Asks for a layout of the GPU that is first when made, as nos does, and another of others."""

    def on(self, observed: ObservedNode) -> PlanUpdate:
        rest = sorted({gpu.index for gpu in observed.gpus} - {0})
        entries = f"{{devices: [0], mig: {{1g.10gb: 7}}}}, {{devices: {rest}, mig: {{}}}}"
        return PlanText(f"version: v1\ngpus: [{entries}]\n".encode())


async def test_a_plan_that_is_made_on_the_node_keeps_its_numbers() -> None:
    """A source that numbers GPUs asks for the same as before, though one has fallen off the bus."""
    node, plan = await observe(), made()
    plan.offer(FirstGpu())
    await plan.read_offer(node)
    assert plan.evaluate(node, Policy()).accepted
    first, second = node.gpus
    gone = replace(first, access=Access.LOST, access_reason="the driver does not list it any more")
    moved = replace(node, gpus=(replace(second, index=0), gone))
    await plan.read_offer(moved)
    evaluation = plan.evaluate(moved, Policy())
    assert evaluation.accepted is None
    assert evaluation.plan
    assert evaluation.plan.verdict is Verdict.BLOCKED
    assert not any(gpu.after.instances for gpu in evaluation.gpus)


async def test_a_remembered_plan_that_no_longer_suits_is_refused() -> None:
    plan = made()
    plan.remember(KeptPlan(PlanText(plan_text("{1g.10gb: 7}"))))
    plan.offer(NoPlan("there is none"))
    evaluation = await evaluated(plan, await observe("t4:1"))
    assert evaluation.plan is None
    assert isinstance(evaluation.refusal, Refused)
    assert evaluation.refusal.digest == plan.digest


async def test_the_configuration_belongs_to_the_plan() -> None:
    """The same file with another name chosen is another plan."""
    text = b"version: v1\nmig-configs: {a: [{devices: [0], mig-enabled: false}]}\n"
    node, plan = await observe(), made()
    plan.offer(PlanText(text, "a"))
    assert (await evaluated(plan, node)).accepted == PlanText(text, "a")
    plan.offer(PlanText(text, "c"))
    assert (await evaluated(plan, node)).refusal
    assert plan.text == PlanText(text, "a")
