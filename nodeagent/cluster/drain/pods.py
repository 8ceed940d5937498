"""The pods on the agent's node, as far as a change of its GPUs depends on them. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, Self

from msgspec.json import Decoder

from nodeagent.plan.users import PodName
from nodeagent.structs import Struct, field, read_in_threads

_MIRROR: Final = "kubernetes.io/config.mirror"
# The minute since 1970 that a CronJob puts behind its name, from 2025 to 2084: no date looks alike.
_MINUTE: Final = re.compile(r"-(29|[3-5]\d)\d{6}$")
_DYNAMIC_MIG: Final = re.compile(r"(?:^|,)\s*DynamicMIG=true\s*(?:,|$)", re.IGNORECASE)


class Pod(Struct, frozen=True):
    """A pod on this node.

    `terminating`: its deletion was requested. `controller` is the kind of its controlling owner
    ("DaemonSet"), "" without one, `workload` the name of what it is one of. `mirror`: the kubelet
    runs it from a file, and the API server cannot remove it. `selects` are the node labels that its
    nodeSelector and its required node affinity name. `dynamic_mig`: a container's variable switches
    on the feature gate DynamicMIG. `uid` distinguishes it from a later pod of the same name.
    """

    namespace: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    phase: str = "Running"
    terminating: bool = False
    controller: str = ""
    workload: str = ""
    mirror: bool = False
    selects: frozenset[str] = frozenset()
    dynamic_mig: bool = False
    uid: str = ""

    @property
    def key(self) -> PodName:
        return PodName(self.namespace, self.name)

    @property
    def finished(self) -> bool:  # by its phase, while containers may still run
        return self.phase in ("Succeeded", "Failed")

    def __str__(self) -> str:
        return str(self.key)


class PodSelector(Struct, frozen=True):
    """Selects pods of this node, in any namespace: those that have all of `labels`, or, where it is
    set, those of DaemonSets whose node selector or affinity names the node label `selects`.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    selects: str = ""

    def matches(self, pod: Pod) -> bool:
        if self.selects:
            return pod.controller == "DaemonSet" and self.selects in pod.selects
        return bool(self.labels) and self.labels.items() <= pod.labels.items()

    @classmethod
    def of(cls, text: str) -> Self:
        """Read `key=value,key=value`; raises ValueError for anything else."""
        pairs = [pair.partition("=") for pair in text.split(",")]
        if not all(key.strip() and mark for key, mark, _ in pairs):
            raise ValueError(f"{text!r} are no labels: key=value is due, with commas between")
        return cls({key.strip(): value.strip() for key, _, value in pairs})

    def __str__(self) -> str:
        if self.selects:
            return f"pods that select {self.selects}"
        return ",".join(f"{key}={value}" for key, value in self.labels.items())


# --- a pod in JSON --------------------------------------------------------------------------------


class _Owner(Struct):
    kind: str
    name: str = ""
    controller: bool = False


class _Metadata(Struct, rename="camel"):
    namespace: str
    name: str
    uid: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None
    deletion_timestamp: str | None = None


class _Expression(Struct):
    key: str


class _Term(Struct, rename="camel"):
    match_expressions: list[_Expression] | None = None


class _Terms(Struct, rename="camel"):
    node_selector_terms: list[_Term] | None = None


class _NodeAffinity(Struct, rename="camel"):
    required_during_scheduling_ignored_during_execution: _Terms | None = None


class _Affinity(Struct, rename="camel"):
    node_affinity: _NodeAffinity | None = None


class _Variable(Struct):
    name: str
    value: str | None = None


class _Container(Struct):
    env: list[_Variable] | None = None


class _Spec(Struct, rename="camel", frozen=True):
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    init_containers: list[_Container] | None = None
    containers: list[_Container] | None = None
    ephemeral_containers: list[_Container] | None = None


class _Status(Struct, frozen=True):
    phase: str = ""


@read_in_threads
class _Pod(Struct):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()


_POD: Final = Decoder(_Pod)


def read_pod(text: bytes) -> Pod:
    """A pod in the API server's JSON; raises ValueError for what is not a pod."""
    pod = _POD.decode(text)
    metadata = pod.metadata
    owners = (one for one in metadata.owner_references or () if one.controller)
    owner = next(owners, _Owner(""))
    return Pod(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        labels=metadata.labels or {},
        phase=pod.status.phase,
        terminating=metadata.deletion_timestamp is not None,
        controller=owner.kind,
        workload=_workload(metadata, owner) or metadata.name,
        mirror=_MIRROR in (metadata.annotations or {}),
        selects=frozenset(_selected(pod.spec)),
        dynamic_mig=any(map(_DYNAMIC_MIG.search, _feature_gates(pod.spec))),
    )


def _workload(pod: _Metadata, owner: _Owner) -> str:
    """The owner's name; a Deployment's and a CronJob's in place of what these made for the pod."""
    if owner.kind == "ReplicaSet":
        return owner.name.removesuffix(f"-{(pod.labels or {}).get('pod-template-hash')}")
    if owner.kind == "Node":  # of a pod that the kubelet runs from a file
        return pod.name.removesuffix(f"-{owner.name}")
    return _MINUTE.sub("", owner.name) if owner.kind == "Job" else owner.name


def _selected(spec: _Spec) -> Iterator[str]:
    """The keys of the node labels on which it depends whether the pod may be on a node."""
    yield from spec.node_selector or {}
    affinity = (spec.affinity or _Affinity()).node_affinity or _NodeAffinity()
    required = affinity.required_during_scheduling_ignored_during_execution or _Terms()
    for term in required.node_selector_terms or ():
        for expression in term.match_expressions or ():
            yield expression.key


def _feature_gates(spec: _Spec) -> Iterator[str]:
    for container in (
        *(spec.init_containers or ()),
        *(spec.containers or ()),
        *(spec.ephemeral_containers or ()),
    ):
        for variable in container.env or ():
            if variable.name == "FEATURE_GATES" and variable.value is not None:
                yield variable.value
