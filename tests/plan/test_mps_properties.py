"""What holds for every plan with MPS: interrupted, in use, divided, in and out of MIG mode."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.plan import steps
from nodeagent.plan.desired import DesiredGpu, Layout, MigDisabled, MigEnabled, WantedInstance
from nodeagent.plan.observed import DeviceDaemon, Gpu, Placement
from nodeagent.plan.plan import GpuPlan, Policy, Verdict
from nodeagent.plan.planner import layout_of, plan_gpu
from nodeagent.plan.search import STOP, cost_of
from nodeagent.plan.shares import ComputeMode, TimeSlice, WantedMps
from nodeagent.plan.users import Usage, User
from nodeagent.structs import replace
from tests.draws import draws
from tests.plan import cards
from tests.plan.daemons import CLIENT, OFF, A, B, C, D, daemon, daemons_of

BOARDS = ("h100-80gb", "a100-40gb", "a30")
WANTED = st.sampled_from([None, None, A, B, C, D])
MODES = st.sampled_from([ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS])
SERVER = User(7, "nvidia-cuda-mps")


@st.composite
def daemons(draw: st.DrawFn) -> DeviceDaemon | None:
    """Any daemon of ours, most without clients, or none."""
    runs = draw(WANTED)
    if runs is None:
        return None
    clients = draw(st.sampled_from([None, None, None, CLIENT, cards.NOT_KNOWN]))
    return daemon(runs, clients, servers=(7,))


def facts(draw: st.DrawFn) -> dict[str, object]:
    """What concerns MPS on one device."""
    found = draw(daemons())
    usage = draw(st.sampled_from([Usage(), Usage(), Usage(), cards.IN_USE, cards.NOT_KNOWN]))
    if found is not None and draw(st.booleans()):
        usage = replace(usage, processes=(*usage.processes, SERVER))
    mode = draw(MODES)
    earlier = draw(st.sampled_from([None, ComputeMode.DEFAULT]))
    return {
        "mps": found,
        "usage": usage,
        "compute_mode": mode,
        "earlier_mode": None if earlier is mode else earlier,
    }


@st.composite
def gpus(draw: st.DrawFn) -> Gpu:
    """A GPU in any layout or outside MIG mode, shared and used anyhow."""
    gpu = cards.card(draw(st.sampled_from(BOARDS)))
    if draw(st.integers(0, 3)) == 0:
        slices = draw(st.sampled_from([None, TimeSlice.DEFAULT, TimeSlice.LONG]))
        earlier = draw(st.sampled_from([None, TimeSlice.SHORT]))
        return replace(
            gpu,
            mig=OFF,
            time_slice=slices,
            earlier_time_slice=earlier,
            **facts(draw),  # type: ignore[arg-type]  # keys of Gpu, by name
        )
    board = gpu.uuid.removeprefix("GPU-")
    ways = [way for ways in cards.layouts(board).values() for way in ways]
    if board == "h100-80gb" and draw(st.integers(0, 3)) == 0:
        gpu = cards.divided(gpu, "3g.40gb", 0, 1, 1, 1)
        gpu = cards.divided(gpu, "3g.40gb", 4, 1, 1)
    else:
        gpu = cards.with_instances(gpu, sorted(draw(st.sampled_from(ways))))
    instances = tuple(
        replace(i, compute=tuple(replace(c, **facts(draw)) for c in i.compute))  # type: ignore[arg-type]  # keys of ComputeInstance, by name
        for i in gpu.instances
    )
    return replace(gpu, instances=instances)


@st.composite
def wishes(draw: st.DrawFn, gpu: Gpu) -> DesiredGpu:
    """Anything that a document can ask of the GPU."""
    kind = draw(st.sampled_from(["same", "layout", "layout", "parts", "off", "on"]))
    slices = draw(st.sampled_from([None, *TimeSlice])) if kind == "off" else None
    if kind == "off":
        wanted = None if slices else draw(WANTED)
        return DesiredGpu(MigDisabled("m"), "gpus[0]", mps=wanted, time_slice=slices)
    if kind == "on":
        uuids = [c.uuid for i in gpu.instances for c in i.compute]
        given_out = {uuid: mps for uuid in uuids if (mps := draw(WANTED))}
        return DesiredGpu(MigEnabled("m"), "gpus[0]", mps_by_device=given_out)
    return DesiredGpu(Layout(tuple(_instances(draw, gpu, kind)), "m"), "gpus[0]")


def _instances(draw: st.DrawFn, gpu: Gpu, kind: str) -> list[WantedInstance]:
    if kind == "same":
        return [
            WantedInstance(
                i.profile,
                c.slices,
                draw(st.sampled_from([None, i.placement.start])),
                "m",
                draw(WANTED),
            )
            for i in gpu.instances
            for c in i.compute
        ]
    if kind == "parts":
        name = next(p.name for p in gpu.profiles if p.slices in (2, 3))
        parts = draw(st.integers(1, 4))
        return [WantedInstance(name, 1, None, "m", draw(WANTED)) for _ in range(parts)]
    key = draw(st.sampled_from(list(cards.layouts(gpu.uuid.removeprefix("GPU-")))))
    return [
        WantedInstance(name, profile.slices, None, "m", draw(WANTED))
        for name, count in key
        for profile in [gpu.profile(name)]
        if profile is not None
        for _ in range(count)
    ]


POLICIES = st.builds(Policy, reset_when_idle=st.booleans(), exclusive_mps=st.booleans())


def carried_out(gpu: Gpu, whole: GpuPlan, count: int) -> Gpu:
    """The GPU after so many steps, its new devices with UUIDs as the driver gives them."""
    cut = steps.after(gpu, whole.steps[:count])
    return replace(
        cut,
        instances=tuple(
            replace(
                i,
                compute=tuple(
                    replace(c, uuid=c.uuid or f"MIG-new-{i.placement}-{c.id}") for c in i.compute
                ),
            )
            for i in cut.instances
        ),
    )


# --- what is never done -----------------------------------------------------------------------


def devices_of(gpu: Gpu) -> dict[str, tuple[DeviceDaemon | None, Usage, ComputeMode | None]]:
    """By UUID: every device's daemon, users and mode."""
    found = {c.uuid: (c.mps, c.usage, c.compute_mode) for i in gpu.instances for c in i.compute}
    return {gpu.uuid: (gpu.mps, gpu.usage, gpu.compute_mode), **found}


def check(gpu: Gpu, result: GpuPlan, policy: Policy) -> None:
    """The order of steps is right, and nothing that serves a user is stopped or destroyed."""
    if result.verdict is not Verdict.APPLICABLE:
        assert result.steps == ()
        return
    here = devices_of(gpu)
    running = {uuid for uuid, (mps, _, _) in here.items() if mps}
    exclusive = {u for u, (_, _, m) in here.items() if m is ComputeMode.EXCLUSIVE_PROCESS}
    prepared: list[tuple[str, str, Placement | None]] = []
    for step in result.steps:
        match step:
            case steps.StopMps(device=device):
                mps, usage, _ = here[device]
                assert mps is not None
                assert not mps.clients.in_use
                assert usage.known
                assert {user.pid for user in usage.processes} <= {7}
                running.discard(device)
            case steps.DestroyGpuInstance(devices=devices):
                assert not running & set(devices)
            case steps.DestroyComputeInstance(device=device):
                assert device not in running
            case steps.SetMigMode() if gpu.mig and gpu.mig.current != step.enabled:
                assert not running
            case steps.SetComputeMode(device=device, mode=mode):
                place = (device, step.profile, step.placement)
                prepared += [place] * (mode is ComputeMode.EXCLUSIVE_PROCESS)
            case steps.StartMps(device=device):
                place = (device, step.profile, step.placement)
                made_so = place in prepared or device in exclusive
                assert made_so or not policy.exclusive_mps
                assert step.runs == (device in running)
                if not device:
                    prepared.remove(place) if policy.exclusive_mps else None
            case _:
                pass


def rank(step: object) -> int:
    """Daemons stop before MIG changes and start after them."""
    if isinstance(step, steps.StopMps):
        return 0
    if isinstance(step, steps.StartMps):
        return 2
    return 1 if not isinstance(step, steps.SetComputeMode) else -1


def picture(gpu: Gpu) -> object:
    """What the end is judged by: where which device lies, and how each is shared."""
    shared = Counter(
        (i.placement, c.profile, c.mps.runs if c.mps else None, c.compute_mode)
        for i in gpu.instances
        for c in i.compute
    )
    own = (gpu.mig, gpu.mps.runs if gpu.mps else None, gpu.compute_mode, gpu.time_slice)
    return cards.places(gpu), cards.present(gpu), shared, own


@settings(max_examples=draws(400))
@given(st.data())
def test_every_cut_leads_to_the_same_end(data: st.DataObject) -> None:
    """After any number of steps, planning anew ends where the plan would have; nothing is left."""
    gpu = data.draw(gpus())
    desired = data.draw(wishes(gpu))
    policy = data.draw(POLICIES)
    whole = plan_gpu(desired, gpu, policy)
    check(gpu, whole, policy)
    order = [rank(step) for step in whole.steps if rank(step) >= 0]
    assert order == sorted(order)
    for k in range(len(whole.steps) + 1):
        cut = carried_out(gpu, whole, k)
        again = plan_gpu(desired, cut, policy)
        check(cut, again, policy)
        assert picture(again.after) == picture(whole.after)
    if whole.verdict is Verdict.APPLICABLE and not whole.problems:
        done = carried_out(gpu, whole, len(whole.steps))
        assert plan_gpu(desired, done, policy).verdict is Verdict.IN_SYNC
        assert plan_gpu(layout_of(whole.after), done, policy).verdict is Verdict.IN_SYNC


def test_a_time_slice_that_was_the_same_before_can_be_gone_back_to() -> None:
    """Where only the compute mode had to change for it, the way back keeps that change."""
    gpu = Gpu(
        0, "GPU-a", compute_mode=ComputeMode.EXCLUSIVE_PROCESS, earlier_time_slice=TimeSlice.SHORT
    )
    whole = plan_gpu(DesiredGpu(None, "p", time_slice=TimeSlice.SHORT), gpu, Policy())
    done = carried_out(gpu, whole, len(whole.steps))
    assert plan_gpu(layout_of(whole.after), done, Policy()).verdict is Verdict.IN_SYNC


@settings(max_examples=draws(300))
@given(st.data())
def test_the_way_back_restores_the_daemons(data: st.DataObject) -> None:
    """From any cut the earlier picture can be had again, unless users are in the way."""
    gpu = data.draw(gpus())
    policy = data.draw(POLICIES)
    whole = plan_gpu(data.draw(wishes(gpu)), gpu, policy)
    goal = layout_of(gpu)
    for k in range(len(whole.steps) + 1):
        cut = carried_out(gpu, whole, k)
        back = plan_gpu(goal, cut, policy)
        check(cut, back, policy)
        if back.verdict in {Verdict.APPLICABLE, Verdict.IN_SYNC} and not back.problems:
            assert cards.places(back.after) == cards.places(gpu)
            now, before = daemons_of(back.after), daemons_of(gpu)
            assert Counter(map(repr, now)) == Counter(map(repr, before))


@settings(max_examples=draws(300))
@given(st.data())
def test_what_is_as_wanted_is_not_touched(data: st.DataObject) -> None:
    """A plan for another device of the GPU names no device whose daemon is equal and stays."""
    gpu = data.draw(gpus())
    result = plan_gpu(data.draw(wishes(gpu)), gpu)
    end = {c.uuid: c.mps for i in result.after.instances for c in i.compute if c.uuid}
    kept = {
        uuid
        for uuid, (mps, _, _) in devices_of(gpu).items()
        if mps and (found := end.get(uuid)) and found.runs == mps.runs
    }
    touched = {s.device for s in result.steps if isinstance(s, steps.StopMps | steps.StartMps)}
    assert not kept & touched


@settings(max_examples=draws(200))
@given(st.data())
def test_nothing_about_sharing_is_nothing_to_do(data: st.DataObject) -> None:
    """Without daemons and earlier settings a plan without MPS has no step of MPS."""
    gpu = data.draw(gpus())
    bare = replace(
        gpu,
        mps=None,
        earlier_mode=None,
        earlier_time_slice=None,
        instances=tuple(
            replace(i, compute=tuple(replace(c, mps=None, earlier_mode=None) for c in i.compute))
            for i in gpu.instances
        ),
    )
    desired = data.draw(wishes(gpu))
    if isinstance(desired.mig, Layout):
        plain = tuple(replace(w, mps=None) for w in desired.mig.instances)
        desired = replace(desired, mig=replace(desired.mig, instances=plain))
    result = plan_gpu(replace(desired, mps=None, mps_by_device={}, time_slice=None), bare)
    about = (steps.StopMps, steps.StartMps, steps.SetComputeMode)
    assert not any(isinstance(step, about) for step in result.steps)


# --- the least --------------------------------------------------------------------------------


@settings(max_examples=draws(150))
@given(
    st.lists(WANTED, min_size=1, max_size=4),
    st.lists(WANTED, min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_as_few_daemons_as_can_be_are_stopped(
    here: list[WantedMps | None], wanted: list[WantedMps | None], random: object
) -> None:
    """Idle equal instances: brute force over which stay and who gets what finds none better."""
    gpu = cards.with_instances(cards.card("h100-80gb"), [("1g.10gb", s) for s in range(len(here))])
    shared = tuple(
        replace(
            i,
            compute=tuple(
                replace(c, mps=daemon(runs) if runs else None, compute_mode=ComputeMode.DEFAULT)
                for c in i.compute
            ),
        )
        for i, runs in zip(gpu.instances, here, strict=True)
    )
    gpu = replace(gpu, instances=shared)
    asked = tuple(WantedInstance("1g.10gb", 1, None, "m", mps) for mps in wanted)
    result = plan_gpu(DesiredGpu(Layout(asked, "m"), "gpus[0]"), gpu)
    stopped = sum(isinstance(step, steps.StopMps) for step in result.steps)
    started = sum(isinstance(step, steps.StartMps) for step in result.steps)
    assert (stopped, started) == _fewest(here, wanted)


def _fewest(here: list[WantedMps | None], wanted: list[WantedMps | None]) -> tuple[int, int]:
    """Over all ways to pair instances with wishes; as many instances stay as can."""

    def best(rest: tuple[WantedMps | None, ...], left: tuple[WantedMps | None, ...]) -> int:
        if not rest:
            return sum(cost_of(None, mps) for mps in left)
        first, others = rest[0], rest[1:]
        prices = [
            cost_of(first, mps) + best(others, (*left[:n], *left[n + 1 :]))
            for n, mps in enumerate(left)
        ]
        if len(rest) > len(left):  # one too many: it goes, with its daemon
            prices.append((STOP if first else 0) + best(others, left))
        return min(prices)

    return divmod(best(tuple(here), tuple(wanted)), STOP)
