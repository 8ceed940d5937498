"""MPS daemons as values, cards that have them, and GPUs that want them."""

from nodeagent.plan.desired import DesiredGpu, Layout, WantedInstance
from nodeagent.plan.observed import ComputeInstance, DeviceDaemon, Gpu, GpuInstance, MigMode
from nodeagent.plan.plan import GpuPlan
from nodeagent.plan.shares import Account, ComputeMode, Share, Sharing, WantedMps
from nodeagent.plan.users import Usage, User
from nodeagent.structs import replace
from tests.plan.cards import card

CLIENT = Usage((User(815, "train", "mps", pod="trainer", namespace="ml"),))
OFF = MigMode(current=False, pending=False)
EXCLUSIVE, DEFAULT = ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT


def mps(memory: int | None = 1024, threads: float | None = 25.0, uid: int = 1000) -> WantedMps:
    """Two clients, each with so many MiB and percent."""
    share = Share("small", 2, memory, threads)
    return WantedMps(Sharing((share,), "report"), Account(uid, uid), "gpus[0].mps")


# B may become of A while it runs; C needs a new daemon (no memory limit), D as well (the user).
A, B, C, D = mps(), mps(2048), mps(None), mps(uid=2000)


def daemon(
    runs: WantedMps, clients: Usage | None = None, servers: tuple[int, ...] = ()
) -> DeviceDaemon:
    return DeviceDaemon(runs, "Ready", pid=99, servers=servers, clients=clients or Usage())


def without_mig(gpu: Gpu, **more: object) -> Gpu:
    """The GPU outside MIG mode, in compute mode DEFAULT."""
    bare = replace(
        gpu, mig=OFF if gpu.mig else None, instances=(), compute_mode=ComputeMode.DEFAULT
    )
    return replace(bare, **more)  # type: ignore[arg-type]  # keys of Gpu, by name


def give(gpu: Gpu, *daemons: DeviceDaemon | None, exclusive: bool = True) -> Gpu:
    """The GPU whose MIG devices have these daemons, in the order of their slices."""
    left = list(daemons)
    instances = []
    for instance in sorted(gpu.instances, key=lambda i: i.placement):
        compute = tuple(
            _given(c, left.pop(0) if left else None, exclusive) for c in instance.compute
        )
        instances.append(replace(instance, compute=compute))
    return replace(gpu, instances=tuple(instances))


def _given(device: ComputeInstance, of_it: DeviceDaemon | None, exclusive: bool) -> ComputeInstance:
    taken = of_it is not None and exclusive
    return replace(
        device,
        mps=of_it,
        compute_mode=ComputeMode.EXCLUSIVE_PROCESS if taken else ComputeMode.DEFAULT,
        earlier_mode=ComputeMode.DEFAULT if taken else None,
    )


def shared(gpu: Gpu, *parts: tuple[str, int | None, WantedMps | None]) -> DesiredGpu:
    """Whole instances given as (profile, start or None, MPS or None)."""
    instances = []
    for number, (name, start, wanted) in enumerate(parts):
        profile = gpu.profile(name)
        assert profile is not None
        path = f"gpus[0].mig[{number}]"
        instances.append(WantedInstance(name, profile.slices, start, path, wanted))
    return DesiredGpu(Layout(tuple(instances), "gpus[0].mig"), "gpus[0]")


def daemons_of(gpu: Gpu) -> list[WantedMps | None]:
    """What the devices' daemons are, in the order of their slices; of a GPU outside MIG, its."""
    if gpu.mig is None or not gpu.mig.current:
        return [gpu.mps.runs if gpu.mps else None]
    ordered: list[GpuInstance] = sorted(gpu.instances, key=lambda i: i.placement)
    return [c.mps.runs if c.mps else None for i in ordered for c in i.compute]


H100 = card("h100-80gb")
T4 = without_mig(card("t4"))


def whole(wanted: WantedMps | None = None, **more: object) -> DesiredGpu:
    return DesiredGpu(None, "gpus[0]", mps=wanted, **more)  # type: ignore[arg-type]  # by name


def running(runs: WantedMps, gpu: Gpu = T4, clients: Usage | None = None, **more: object) -> Gpu:
    """A GPU with a daemon of its own, as the agent leaves it."""
    return without_mig(
        gpu,
        **{
            "mps": daemon(runs, clients),
            "compute_mode": EXCLUSIVE,
            "earlier_mode": DEFAULT,
            **more,
        },
    )


def kinds(result: GpuPlan) -> list[type]:
    return [type(step) for step in result.steps]
