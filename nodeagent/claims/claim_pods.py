"""Which pods have each claim, by what the API server and the kubelet say. Pure.

The claim's `reservedFor` is known before its devices are made; the kubelet lists pods and
containers as soon as they are ready.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, Final

from msgspec import Meta, Struct, ValidationError, convert

from nodeagent.claims.decisions import Allocated
from nodeagent.views.shapes import Pod

ClaimKey = tuple[str, str]  # namespace and name

_MOST_PODS: Final = 256  # the API server's own limit


class ClaimPods:
    """The pods of all claims of this node."""

    def __init__(self) -> None:
        self._reserved: dict[ClaimKey, list[Pod]] = {}
        self._listed: dict[ClaimKey, list[Pod]] = {}

    def reserve(self, key: ClaimKey, claim: object | None) -> None:
        """What the API server has of the claim now; None: it is gone."""
        self._reserved[key] = _reserved_for(key[0], claim)

    def observe(self, allocations: Iterable[Allocated], known: Collection[ClaimKey]) -> bool:
        """All that the kubelet lists now; whether it is new. Other claims than the `known` ones
        are forgotten.
        """
        containers: dict[ClaimKey, dict[str, set[str]]] = {}
        for one in allocations:
            pods = containers.setdefault((one.namespace, one.claim), {})
            pods.setdefault(one.pod, set()).add(one.container)
        before, self._listed = (
            self._listed,
            {
                key: [_pod(key[0], name, inside) for name, inside in sorted(pods.items())]
                for key, pods in containers.items()
            },
        )
        self._reserved = {key: pods for key, pods in self._reserved.items() if key in known}
        return self._listed != before

    def of(self, key: ClaimKey) -> list[Pod]:
        """The kubelet's list counts where it has the claim."""
        return self._listed.get(key) or self._reserved.get(key, [])


def _pod(namespace: str, name: str, containers: set[str]) -> Pod:
    """With its container where only one has the claim."""
    container = next(iter(containers)) if len(containers) == 1 else ""
    return Pod(namespace=namespace, name=name, container=container)


# --- the object, as far as it matters -------------------------------------------------------------


class _Consumer(Struct):
    resource: str = ""
    name: str = ""


class _Status(Struct, rename="camel"):
    reserved_for: Annotated[tuple[_Consumer, ...], Meta(max_length=_MOST_PODS)] = ()


class _Claim(Struct):
    status: _Status | None = None


def _reserved_for(namespace: str, claim: object | None) -> list[Pod]:
    """None where the object is not as it should be: whether it is, others say."""
    try:
        status = convert(claim, _Claim).status
    except (ValidationError, RecursionError):
        return []
    consumers = status.reserved_for if status else ()
    return [
        Pod(namespace=namespace, name=one.name, container="")
        for one in consumers
        if one.name and one.resource in {"pods", ""}
    ]
