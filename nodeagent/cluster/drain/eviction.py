"""Which pods have to go so that a plan with `whenInUse: evict` can be carried out. Pure.

No pod is evicted in vain: while anything else is in the way as well (a process without a pod, a
pod that comes back to this node at once, unknown users), no pod of that GPU is evicted, nor of
those that one MPS daemon is to serve with it. Of the pods on a GPU only those go without whose end
the planner still finds the plan blocked.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from nodeagent.cluster.drain.pods import Pod
from nodeagent.plan.desired import DesiredGpu, DesiredNode, WhenInUse
from nodeagent.plan.observed import Gpu, Place, users_of
from nodeagent.plan.plan import GpuPlan, NodePlan, Policy, Verdict
from nodeagent.plan.planner import plan_gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.remedies import end_commands
from nodeagent.plan.users import PodName
from nodeagent.structs import Struct, field, replace

_READY = (Verdict.IN_SYNC, Verdict.APPLICABLE)


class Evictions(Struct, frozen=True):
    """The pods to evict now with the reason of each, those that terminate already, and the
    problems because of which no pod of a GPU is evicted.
    """

    wanted: Mapping[PodName, str] = field(default_factory=dict)
    terminating: frozenset[PodName] = frozenset()
    problems: tuple[Problem, ...] = ()


def asks_for_eviction(plan: NodePlan, desired: DesiredNode) -> bool:
    """Whether any GPU is blocked by its users and its entry says `evict`."""
    return any(_to_evict(plan, desired))


def evictions(
    plan: NodePlan, desired: DesiredNode, policy: Policy, pods: Iterable[Pod]
) -> Evictions:
    """Choose pods of all GPUs that are blocked by their users and whose entry says `evict`."""
    known = {pod.key: pod for pod in pods}
    wanted: dict[PodName, str] = {}
    terminating: set[PodName] = set()
    problems: list[Problem] = []
    found = [(gpu, _for_gpu(gpu, goal, policy, known)) for gpu, goal in _to_evict(plan, desired)]
    ready = {gpu.before.uuid for gpu in plan.gpus if gpu.verdict in _READY}
    ready |= {gpu.uuid for gpu, chosen in found if not isinstance(chosen, Problem)}
    for gpu, chosen in found:
        if isinstance(chosen, Problem):
            problems.append(chosen)
            continue
        daemon = desired.gpus[gpu.key].mps
        if daemon and not ready.issuperset(daemon.devices):
            continue  # another GPU, which says why, keeps the daemon from coming
        for name in chosen:
            pod = known.get(name)
            if pod is not None and pod.finished:
                continue  # it holds no GPU any more, and an eviction would delete its logs
            if pod is not None and pod.terminating:
                terminating.add(name)
            else:
                wanted.setdefault(name, _reason(gpu, name))
    return Evictions(wanted, frozenset(terminating), tuple(problems))


def _to_evict(plan: NodePlan, desired: DesiredNode) -> Iterator[tuple[Gpu, DesiredGpu]]:
    for gpu_plan in plan.gpus:
        wanted = desired.gpus.get(gpu_plan.before.key)
        if wanted is None or wanted.when_in_use is not WhenInUse.EVICT:
            continue
        in_use = any(problem.code is Code.IN_USE for problem in gpu_plan.problems)
        if in_use and gpu_plan.verdict is Verdict.BLOCKED:
            yield gpu_plan.before, wanted


def _for_gpu(
    gpu: Gpu, wanted: DesiredGpu, policy: Policy, known: Mapping[PodName, Pod]
) -> list[PodName] | Problem:
    users = (user for device in gpu.devices() for user in users_of(device))
    pods = sorted({pod for user in users if (pod := user.in_pod)})
    going = {pod for pod in pods if _can_go(known.get(pod))}
    rest = plan_gpu(wanted, _without(gpu, going), policy)
    # Evictions would leave the mode pending only, and the pods come back before a reset.
    waits = any(problem.code is Code.RESET_REQUIRED for problem in rest.problems)
    if rest.verdict is Verdict.BLOCKED or waits:
        return _in_vain(gpu, rest, [known[pod] for pod in pods if pod not in going])
    for pod in pods:
        fewer = going - {pod}
        if plan_gpu(wanted, _without(gpu, fewer), policy).verdict is not Verdict.BLOCKED:
            going = fewer
    return sorted(going)


def _can_go(pod: Pod | None) -> bool:
    """A pod that is not known here is tried: the API server will say."""
    return pod is None or not (pod.mirror or pod.controller == "DaemonSet")


def _in_vain(gpu: Gpu, rest: GpuPlan, staying: Iterable[Pod]) -> Problem:
    why = "; ".join(problem.message for problem in rest.problems)
    names, ways = [], []
    for pod in staying:
        if pod.mirror:
            names.append(f"{pod} (the kubelet runs it)")
            ways.append(f"take the manifest of {pod.name} out of the kubelet's staticPodPath")
        else:
            names.append(f"{pod} (its DaemonSet brings it back)")
            edit = f"`kubectl edit daemonset -n {pod.namespace} {pod.workload}`"
            ways.append(f"keep {pod.workload} from this node by its node selector, {edit}")
    users = (user for device in gpu.devices() for user in users_of(device) if not user.pod)
    if commands := end_commands((user.pid, "", "") for user in users):
        ways.append(f"run {commands}")
    also = f"; no eviction helps against {', '.join(names)}" if names else ""
    first = " and ".join(dict.fromkeys(ways)) or "end what is named here"
    # What no end of users mends has a remedy of its own.
    other = next((problem for problem in rest.problems if problem.code is not Code.IN_USE), None)
    return Problem(
        code=other.code if other else Code.IN_USE,
        message=f"no pod on GPU {gpu.index} is evicted, because that would not be enough: "
        f"{why}{also}",
        remedy=other.remedy if other else f"{first}; the evictions follow then",
        gpu=gpu.uuid,
        path=rest.problems[0].path if rest.problems else "",
    )


def _reason(gpu: Gpu, pod: PodName) -> str:
    devices = [
        f"{device.profile} at slice {instance.placement.start}"
        for instance, device in gpu.mig_devices()
        if any(user.in_pod == pod for user in users_of(device))
    ]
    where = f"{', '.join(devices)} of GPU {gpu.index}" if devices else f"GPU {gpu.index}"
    return f"it uses {where}, which has to change by the plan"


def _without(gpu: Gpu, pods: Collection[PodName]) -> Gpu:
    return _device_without(gpu, pods).with_mig_devices(lambda _, c: _device_without(c, pods))


def _device_without(device: Place, pods: Collection[PodName]) -> Place:
    mps = device.mps and replace(device.mps, clients=device.mps.clients.without(pods=pods))
    return replace(device, usage=device.usage.without(pods=pods), mps=mps)
