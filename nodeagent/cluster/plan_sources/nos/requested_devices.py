"""What nos requests for each GPU by its annotations, and whether a GPU can be that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from nodeagent.cluster.plan_sources.nos.grammar import (
    MODE_LABEL,
    DeviceRequest,
    mig_profile,
)
from nodeagent.documents.findings import MAX_PROBLEMS
from nodeagent.documents.terms import MAX_INDEX, MAX_INSTANCES
from nodeagent.plan.names import ProfileName, find, nearest_profile
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.text import listed, quote


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """What one GPU is asked to be: MIG with these instances."""

    index: int
    gpu: Gpu | None
    instances: Counter[str] = field(default_factory=Counter)
    where: str = ""

    @property
    def uuid(self) -> str:
        return self.gpu.uuid if self.gpu else ""


def requested_devices(
    asked: Iterable[DeviceRequest], observed: ObservedNode
) -> tuple[dict[int, GpuRequest], list[Problem]]:
    """What each GPU is asked to be, by index, and all that is wrong with it."""
    known = {gpu.index: gpu for gpu in (*observed.gpus, *observed.gone)}
    requests: dict[int, GpuRequest] = {}
    wrong: list[Problem] = []
    for one in asked:
        if len(wrong) > MAX_PROBLEMS:
            break  # a hostile node must not cost time
        gpu = known.get(one.index)
        problem = _no_such_gpu(one, known) or _take(one, gpu, requests)
        if problem:
            wrong.append(problem)
    wrong += [problem for request in requests.values() for problem in _beyond(request)]
    return dict(sorted(requests.items())), wrong


def _take(one: DeviceRequest, gpu: Gpu | None, requests: dict[int, GpuRequest]) -> Problem | None:
    """Add to what the GPU is asked to be, or say what is wrong with it."""
    name = mig_profile(one.profile)
    if name is None:
        what = f"asks for {quote(one.profile)} on a node whose label {MODE_LABEL} is mig"
        remedy = "write a MIG profile such as 1g.10gb or 1g.10gb.me"
        return one.fault(Code.UNKNOWN_PROFILE, what, remedy)
    request = requests.setdefault(one.index, GpuRequest(one.index, gpu, where=one.where))
    request.instances[str(name)] += one.count
    return _no_such_profile(one, name, gpu)


def _no_such_gpu(one: DeviceRequest, known: Mapping[int, Gpu]) -> Problem | None:
    if one.index in known or (not known and one.index <= MAX_INDEX):
        return None
    have = f"it has {listed(map(str, known))}" if known else f"the largest is {MAX_INDEX}"
    what = f"names GPU {one.index}, which this node does not have"
    return one.fault(Code.UNKNOWN_DEVICE, what, have)


def _no_such_profile(one: DeviceRequest, name: ProfileName, gpu: Gpu | None) -> Problem | None:
    """The problem of a profile that the card lacks; None also while its profiles are not known."""
    if gpu is not None and gpu.access is Access.OK and gpu.mig is None:
        what = f"asks for {quote(one.profile)}, but {gpu.title} has no MIG"
        return one.fault(Code.NOT_MIG_CAPABLE, what, "remove it", gpu=gpu.uuid)
    if gpu is None or not gpu.profiles or len(find(name, gpu.profiles)) == 1:
        return None
    names = [profile.name for profile in gpu.profiles]
    near = nearest_profile(str(name), names)
    what = f"asks for {quote(one.profile)}, which {gpu.title} has not"
    remedy = f"{f'did you mean {near}? ' if near else ''}it offers {listed(names)}"
    return one.fault(Code.UNKNOWN_PROFILE, what, remedy, gpu=gpu.uuid)


def _beyond(request: GpuRequest) -> Iterator[Problem]:
    """What no GPU can be."""
    count = request.instances.total()
    if count > MAX_INSTANCES:
        yield Problem.of(
            Code.DOES_NOT_FIT,
            "nosTooMany",
            gpu=request.uuid,
            path=request.where,
            index=request.index,
            count=count,
            most=MAX_INSTANCES,
        )


# --- GPUs that nos asks nothing of ----------------------------------------------------------------


def emptied(requests: Mapping[int, GpuRequest], observed: ObservedNode) -> list[GpuRequest]:
    """The GPUs in MIG mode without a spec.

    For nos a spec is total: what it does not name has to go, once it is free. It never switches
    MIG on or off, so other GPUs are left alone, and so is the layout of a node it does not know
    as a whole.
    """
    left = [gpu for gpu in observed.gpus if gpu.index not in requests]
    return [GpuRequest(gpu.index, gpu) for gpu in left if gpu.mig is not None and gpu.mig.current]
