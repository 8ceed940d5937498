"""What holds for every plan: whatever is interrupted, in use, half-made or divided."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.plan.desired import DesiredGpu, MigDisabled, MigEnabled
from nodeagent.plan.observed import Gpu, MigMode
from nodeagent.plan.plan import GpuPlan, Policy, Verdict
from nodeagent.plan.planner import plan_gpu
from nodeagent.plan.steps import after
from nodeagent.structs import replace
from tests.draws import draws
from tests.plan import cards

BOARDS = ("h100-80gb", "a100-40gb", "a30", "rtx-pro-6000", "b200")


@st.composite
def gpus(draw: st.DrawFn) -> Gpu:
    """A GPU in any layout, with any of its devices in use or of unknown use, some half-made."""
    board = draw(st.sampled_from(BOARDS))
    ways = [way for ways in cards.layouts(board).values() for way in ways]
    gpu = cards.card(board, reported=draw(st.booleans()))
    if draw(st.booleans()):
        gpu = cards.with_instances(gpu, sorted(draw(st.sampled_from(ways))))
    instances = []
    for instance in gpu.instances:
        kind = draw(st.sampled_from(["idle", "idle", "used", "unknown", "half-made"]))
        usage = {"used": cards.IN_USE, "unknown": cards.NOT_KNOWN}.get(kind)
        compute = instance.compute
        if usage is not None:
            compute = tuple(replace(c, usage=usage) for c in compute)
        instances.append(replace(instance, compute=() if kind == "half-made" else compute))
    return replace(gpu, instances=tuple(instances))


@st.composite
def wishes(draw: st.DrawFn, gpu: Gpu) -> DesiredGpu:
    """Anything a document can ask of the GPU: a layout, divided or placed, or a mode."""
    kind = draw(st.sampled_from(["layout", "layout", "layout", "divided", "off", "on"]))
    if kind == "off":
        return DesiredGpu(MigDisabled("gpus[0].mig"), "gpus[0]")
    if kind == "on":
        return DesiredGpu(MigEnabled("gpus[0].mig"), "gpus[0]")
    board = gpu.uuid.removeprefix("GPU-")
    key = draw(st.sampled_from(list(cards.layouts(board))))
    if kind == "layout":
        return cards.wanted(gpu, key)
    parts: list[tuple[str, int, int | None]] = []
    for name, count in key:
        profile = gpu.profile(name)
        assert profile is not None
        for _ in range(count):
            if profile.slices > 1 and draw(st.booleans()):
                parts += [(name, 1, None)] * draw(st.integers(1, profile.slices))
            else:
                parts.append((name, profile.slices, None))
    return cards.devices(gpu, *parts)


def check(gpu: Gpu, result: GpuPlan) -> None:
    """Everything in use is left in the end, and a refused plan has no steps."""
    if result.verdict is not Verdict.APPLICABLE:
        assert result.steps == ()
    new = {i.id for i in result.after.instances} - {i.id for i in gpu.instances}
    assert all(number < 0 for number in new), "the driver gives no such id"
    kept = {c.uuid for i in result.after.instances for c in i.compute}
    assert {c.uuid for i in gpu.instances for c in i.compute if c.usage.in_use} <= kept


@settings(max_examples=draws(400))
@given(st.data())
def test_every_cut_leads_to_the_same_end(data: st.DataObject) -> None:
    """After any number of its steps, planning anew ends where the whole plan would have."""
    gpu = data.draw(gpus())
    desired = data.draw(wishes(gpu))
    policy = Policy(reset_when_idle=data.draw(st.booleans()))
    whole = plan_gpu(desired, gpu, policy)
    check(gpu, whole)
    for k in range(len(whole.steps) + 1):
        cut = after(gpu, whole.steps[:k])
        again = plan_gpu(desired, cut, policy)
        check(cut, again)
        assert cards.places(whole.after) == cards.places(again.after)
        assert cards.present(whole.after) == cards.present(again.after)
        assert whole.after.mig == again.after.mig
    done = plan_gpu(desired, whole.after, policy)
    if whole.verdict is Verdict.APPLICABLE and not whole.problems:
        assert done.verdict is Verdict.IN_SYNC


@settings(max_examples=draws(300))
@given(st.data())
def test_a_half_made_instance_in_any_step_heals(data: st.DataObject) -> None:
    """A step cut in its middle (a GPU instance made, its compute instances not) is completed or
    removed, and the devices asked for are there in the end.
    """
    gpu = data.draw(gpus())
    desired = data.draw(wishes(gpu))
    whole = plan_gpu(desired, gpu)
    for k in range(1, len(whole.steps) + 1):
        cut = after(gpu, whole.steps[:k])
        created = [i for i in cut.instances if i.id < 0]
        if not created:
            continue
        broken = replace(created[-1], compute=())
        cut = replace(
            cut, instances=(*(i for i in cut.instances if i.id >= 0), *created[:-1], broken)
        )
        again = plan_gpu(desired, cut)
        check(cut, again)
        assert cards.present(whole.after) == cards.present(again.after)


@settings(max_examples=draws(200))
@given(st.data())
def test_deterministic(data: st.DataObject) -> None:
    gpu = data.draw(gpus())
    desired = data.draw(wishes(gpu))
    shuffled = replace(gpu, instances=tuple(data.draw(st.permutations(gpu.instances))))
    one, other = plan_gpu(desired, gpu), plan_gpu(desired, shuffled)
    assert one.verdict is other.verdict
    assert cards.places(one.after) == cards.places(other.after)
    assert Counter(map(type, one.steps)) == Counter(map(type, other.steps))


@settings(max_examples=draws(200))
@given(st.data())
def test_a_user_of_unknown_instance_protects_all_devices(data: st.DataObject) -> None:
    """A process on the GPU of which no instance is known may use any: no device is destroyed."""
    gpu = data.draw(gpus())
    result = plan_gpu(data.draw(wishes(gpu)), replace(gpu, usage=cards.IN_USE))
    there = {c.uuid for i in gpu.instances for c in i.compute}
    assert there <= {c.uuid for i in result.after.instances for c in i.compute}


@settings(max_examples=draws(200))
@given(st.data())
def test_unknown_use_keeps_the_mode(data: st.DataObject) -> None:
    """While it is not known who uses the GPU, no mode is changed and nothing is reset."""
    gpu = replace(data.draw(gpus()), usage=cards.NOT_KNOWN)
    off = replace(gpu, mig=MigMode(current=False, pending=False), instances=())
    for one in (gpu, off):
        result = plan_gpu(data.draw(wishes(gpu)), one, Policy(reset_when_idle=True))
        assert result.after.mig == one.mig
