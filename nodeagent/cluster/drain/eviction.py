"""Which pods have to go so that a plan with `whenInUse: evict` can be carried out.

No pod is evicted in vain: while anything else is in the way as well (a process without a pod, a
pod that comes back to this node at once, unknown users), no pod of that GPU is evicted. Of the
pods on it only those go without whose end the planner still finds the plan blocked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace

from nodeagent.cluster.drain.steps import EvictPod, NodeFacts, PodFact
from nodeagent.plan.desired import DesiredGpu, DesiredNode, WhenInUse
from nodeagent.plan.observed import ComputeInstance, Gpu, MpsDaemon, Usage, User
from nodeagent.plan.plan import GpuPlan, NodePlan, Policy, Verdict
from nodeagent.plan.planner import plan_gpu
from nodeagent.plan.problems import Code, Problem

_Pod = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Evictions:
    """The pods to evict now, those that leave already, and why elsewhere none is evicted.

    `then` is what could be done once they are gone.
    """

    wanted: tuple[EvictPod, ...] = ()
    leaving: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    then: tuple[GpuPlan, ...] = ()


def asks_for_eviction(plan: NodePlan, desired: DesiredNode) -> bool:
    """Whether any GPU is blocked by its users and its entry says `evict`."""
    asked = ((gpu, desired.gpus.get(gpu.before.key)) for gpu in plan.gpus)
    return any(wanted is not None and _is_to_evict(gpu, wanted) for gpu, wanted in asked)


def evictions(plan: NodePlan, desired: DesiredNode, policy: Policy, node: NodeFacts) -> Evictions:
    """For all GPUs that are blocked by its users and whose entry says `evict`."""
    wanted: dict[_Pod, EvictPod] = {}
    leaving: dict[str, None] = {}
    problems: list[Problem] = []
    then: list[GpuPlan] = []
    for gpu_plan in plan.gpus:
        asked = desired.gpus.get(gpu_plan.before.key)
        if asked is None or not _is_to_evict(gpu_plan, asked):
            continue
        chosen = _for_gpu(gpu_plan.before, asked, policy, node)
        if isinstance(chosen, Problem):
            problems.append(chosen)
            continue
        then.append(plan_gpu(asked, _without(gpu_plan.before, chosen), policy))
        for pod in chosen:
            fact = node.pod(*pod)
            if fact is not None and fact.finished:
                continue  # only listed still: to evict it would delete what is left to read of it
            if fact is not None and fact.leaving:
                leaving[str(fact)] = None
            else:
                wanted.setdefault(pod, EvictPod(*pod, _reason(gpu_plan.before, pod)))
    return Evictions(tuple(wanted.values()), tuple(leaving), tuple(problems), tuple(then))


def _is_to_evict(plan: GpuPlan, asked: DesiredGpu) -> bool:
    in_use = any(problem.code is Code.IN_USE for problem in plan.problems)
    return plan.verdict is Verdict.BLOCKED and in_use and asked.when_in_use is WhenInUse.EVICT


def _for_gpu(gpu: Gpu, asked: DesiredGpu, policy: Policy, node: NodeFacts) -> list[_Pod] | Problem:
    pods = sorted({(u.namespace, u.pod) for u in _users(gpu) if u.pod})
    going = {pod for pod in pods if _can_go(node.pod(*pod))}
    rest = plan_gpu(asked, _without(gpu, going), policy)
    if rest.verdict is Verdict.BLOCKED:
        return _in_vain(gpu, rest, [node.pod(*pod) for pod in pods if pod not in going])
    for pod in pods:
        fewer = going - {pod}
        if plan_gpu(asked, _without(gpu, fewer), policy).verdict is not Verdict.BLOCKED:
            going = fewer
    return [pod for pod in pods if pod in going]


def _can_go(pod: PodFact | None) -> bool:
    """A pod that is not known here is tried: the API server will say."""
    return pod is None or not (pod.mirror or pod.controller == "DaemonSet")


def _in_vain(gpu: Gpu, rest: GpuPlan, staying: Iterable[PodFact | None]) -> Problem:
    why = "; ".join(problem.message for problem in rest.problems)
    names = [
        f"{pod} ({'the kubelet runs it' if pod.mirror else 'its DaemonSet brings it back'})"
        for pod in staying
        if pod is not None
    ]
    also = f"; no eviction helps against {', '.join(names)}" if names else ""
    return Problem(
        Code.IN_USE,
        f"no pod on GPU {gpu.index} is evicted, since that would not be enough: {why}{also}",
        "end what is named here; evictions follow by themselves then",
        gpu=gpu.uuid,
        path=rest.problems[0].path if rest.problems else "",
    )


def _reason(gpu: Gpu, pod: _Pod) -> str:
    devices = [
        f"{device.profile} at slice {instance.placement.start}"
        for instance in gpu.instances
        for device in instance.compute
        if any((u.namespace, u.pod) == pod for u in _of(device))
    ]
    where = f"{', '.join(devices)} of GPU {gpu.index}" if devices else f"GPU {gpu.index}"
    return f"it uses {where}, which has to change by the plan"


# --- the GPU without some of its users ------------------------------------------------------------


def _of(device: Gpu | ComputeInstance) -> Iterator[User]:
    yield from device.usage.processes
    if device.mps is not None:
        yield from device.mps.clients.processes


def _users(gpu: Gpu) -> Iterator[User]:
    yield from _of(gpu)
    for instance in gpu.instances:
        for device in instance.compute:
            yield from _of(device)


def _without(gpu: Gpu, pods: Collection[_Pod]) -> Gpu:
    return replace(
        gpu,
        usage=_usage(gpu.usage, pods),
        mps=_daemon(gpu.mps, pods),
        instances=tuple(
            replace(
                instance,
                compute=tuple(
                    replace(c, usage=_usage(c.usage, pods), mps=_daemon(c.mps, pods))
                    for c in instance.compute
                ),
            )
            for instance in gpu.instances
        ),
    )


def _usage(usage: Usage, pods: Collection[_Pod]) -> Usage:
    return replace(
        usage, processes=tuple(u for u in usage.processes if (u.namespace, u.pod) not in pods)
    )


def _daemon(daemon: MpsDaemon | None, pods: Collection[_Pod]) -> MpsDaemon | None:
    return daemon and replace(daemon, clients=_usage(daemon.clients, pods))
