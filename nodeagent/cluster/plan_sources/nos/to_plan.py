"""What nos requests of a node, as a plan in the agent's own language.

The text depends only on what is requested and on the cards, never on the order of keys or the id
of nos' plan: a new id that requests the same is the same plan, with the same digest.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from nodeagent.cluster.plan_sources.nos.grammar import (
    BY_MIG,
    MODE_LABEL,
    SPEC,
    SPEC_PLAN,
    DeviceRequest,
    is_divided,
    mig_profile,
    read_spec,
)
from nodeagent.documents.findings import MAX_PROBLEMS
from nodeagent.documents.terms import MAX_INDEX, MAX_INSTANCES
from nodeagent.plan.names import ProfileName, find, nearest_profile
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.structs import Struct, field, replace
from nodeagent.text import did_you_mean, listed, quote

_SOME_ID = "0"  # which one it is does not matter to the plan
_MAX_NAMED = 3  # further places in a sentence about the first


class DeferredNosPlan(Struct, frozen=True):
    """What nos requests by these annotations and labels."""

    annotations: Mapping[str, str]
    labels: Mapping[str, str]

    def on(self, observed: ObservedNode) -> PlanUpdate:
        """The plan for this node's cards. A GPU in MIG mode for which nos requests nothing is
        emptied.
        """
        if not is_divided(self.labels):
            return NoPlan(_not_divided(self.labels))
        if not self.annotations.get(SPEC_PLAN):
            return NoPlan(f"nos has no plan for this node yet: it has no annotation {SPEC_PLAN}")
        reading = read_spec(self.annotations)
        requests, wrong = _requested(reading.devices, observed)
        faults = (*reading.wrong, *wrong)
        if faults:
            return UnreadablePlan(_as_one(faults))
        whole = [*requests.values(), *_emptied(requests, observed)]
        gpus = [
            {"devices": [gpu.index], "mig": dict(sorted(gpu.instances.items()))}
            for gpu in sorted(whole, key=lambda gpu: gpu.index)
        ]
        document = {"version": "v1", "gpus": gpus}
        return PlanText(json.dumps(document, separators=(",", ":")).encode())

    @property
    def ignored(self) -> tuple[Problem, ...]:
        """What nos ignores in silence, at most 20; it keeps no plan from being executed."""
        # Without an id the annotations are not to be acted upon.
        counts = is_divided(self.labels) and self.annotations.get(SPEC_PLAN)
        return read_spec(self.annotations).ignored[:MAX_PROBLEMS] if counts else ()


def deferred_plan(annotations: Mapping[str, str], labels: Mapping[str, str]) -> DeferredNosPlan:
    """What nos requests of this Node, reduced to what matters, so that nothing else is a change."""
    found = {MODE_LABEL: labels[MODE_LABEL]} if MODE_LABEL in labels else {}
    if not is_divided(labels):
        return DeferredNosPlan({}, found)
    spec = {key: text for key, text in annotations.items() if key.startswith(SPEC)}
    if annotations.get(SPEC_PLAN):
        spec[SPEC_PLAN] = _SOME_ID
    return DeferredNosPlan(spec, found)


def _not_divided(labels: Mapping[str, str]) -> str:
    value = labels.get(MODE_LABEL)
    if value is None:
        return f"nos does not divide this node: it has no label {MODE_LABEL}"
    if value == "mps":
        return (
            f"nos does not divide this node by MIG: its label {MODE_LABEL} is mps, which needs a "
            "plan of your own with mps, by another plan.source"
        )
    return (
        f"nos does not divide this node: its label {MODE_LABEL} is {quote(value)}, not {BY_MIG} "
        f"{did_you_mean(value.strip(), (BY_MIG,))}"
    ).rstrip()


def _as_one(faults: tuple[Problem, ...]) -> Problem:
    """The first fault, with where the others are."""
    first, others = faults[0], [fault.path for fault in faults[1:] if fault.path]
    if not others:
        return first
    also = listed(dict.fromkeys(others), _MAX_NAMED)
    return replace(first, message=f"{first.message} (wrong too: {also})")


# --- the GPUs -------------------------------------------------------------------------------------


class _GpuRequest(Struct, frozen=True):
    """What one GPU is asked to be: MIG with these instances."""

    index: int
    gpu: Gpu | None
    instances: Counter[str] = field(default_factory=Counter)
    where: str = ""

    @property
    def uuid(self) -> str:
        return self.gpu.uuid if self.gpu else ""


def _requested(
    asked: Iterable[DeviceRequest], observed: ObservedNode
) -> tuple[dict[int, _GpuRequest], list[Problem]]:
    """What each GPU is asked to be, by index, and all that is wrong with it."""
    known = {gpu.index: gpu for gpu in (*observed.gpus, *observed.gone)}
    requests: dict[int, _GpuRequest] = {}
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


def _take(one: DeviceRequest, gpu: Gpu | None, requests: dict[int, _GpuRequest]) -> Problem | None:
    """Add to what the GPU is asked to be, or say what is wrong with it."""
    name = mig_profile(one.profile)
    if name is None:
        what = f"asks for {quote(one.profile)} on a node whose label {MODE_LABEL} is mig"
        remedy = "write a MIG profile such as 1g.10gb or 1g.10gb.me"
        return one.fault(Code.UNKNOWN_PROFILE, what, remedy)
    request = requests.setdefault(one.index, _GpuRequest(one.index, gpu, where=one.where))
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
    if gpu is not None and gpu.answers and gpu.mig is None:
        what = f"asks for {quote(one.profile)}, but {gpu.title} has no MIG"
        return one.fault(Code.NOT_MIG_CAPABLE, what, "remove it", gpu=gpu.uuid)
    if gpu is None or not gpu.profiles or len(find(name, gpu.profiles)) == 1:
        return None
    names = [profile.name for profile in gpu.profiles]
    near = nearest_profile(str(name), names)
    what = f"asks for {quote(one.profile)}, which {gpu.title} has not"
    remedy = f"{f'did you mean {near}? ' if near else ''}it offers {listed(names)}"
    return one.fault(Code.UNKNOWN_PROFILE, what, remedy, gpu=gpu.uuid)


def _beyond(request: _GpuRequest) -> Iterator[Problem]:
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


def _emptied(requests: Mapping[int, _GpuRequest], observed: ObservedNode) -> list[_GpuRequest]:
    """The GPUs in MIG mode without a spec.

    For nos a spec is total: what it does not name has to go, once it is free. It never switches
    MIG on or off, so other GPUs are left alone, and so is the layout of a node it does not know
    as a whole.
    """
    left = [gpu for gpu in observed.gpus if gpu.index not in requests]
    return [_GpuRequest(gpu.index, gpu) for gpu in left if gpu.in_mig_mode]
