"""A pod as the API server has it, as far as its claims depend on it.

Who may read pods may be denied it, and what a pod says is a tenant's: it can have a claim of the
pod's own refused, and no more.
"""

from collections.abc import Iterator

from msgspec import Struct, field, json


class _Security(Struct, rename="camel"):
    run_as_user: int | None = None


class _UsedClaim(Struct):
    name: str
    request: str = ""


class _Resources(Struct):
    claims: tuple[_UsedClaim, ...] = ()


class _Container(Struct, rename="camel"):
    name: str
    security_context: _Security | None = None
    resources: _Resources | None = None


class _PodClaim(Struct, rename="camel"):
    name: str
    resource_claim_name: str | None = None


class _Spec(Struct, rename="camel"):
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()
    security_context: _Security | None = None
    resource_claims: tuple[_PodClaim, ...] = ()
    host_users: bool = True


class _Metadata(Struct):
    namespace: str
    name: str


class _Mapping(Struct, rename="camel"):
    container_name: str
    request_name: str


class _ForLimits(Struct, rename="camel"):
    """The claim that the scheduler made for the pod's limits."""

    resource_claim_name: str
    request_mappings: tuple[_Mapping, ...] = ()


class _Status(Struct, rename="camel"):
    resource_claim_statuses: tuple[_PodClaim, ...] = ()
    extended_resource_claim_status: _ForLimits | None = None


class ClaimUser(Struct, frozen=True):
    """A container with what it uses of one claim: `requests`, none: all of them. `user` is the
    runAsUser that it has, None: it runs as its image says.
    """

    name: str
    user: int | None
    requests: frozenset[str]

    def uses(self, request: str) -> bool:
        """Return whether the devices of that main request are the container's."""
        return not self.requests or request in self.requests


class PodObject(Struct):
    """The pod."""

    metadata: _Metadata
    spec: _Spec
    status: _Status = field(default_factory=_Status)

    def users_of(self, claim: str) -> Iterator[ClaimUser]:
        """Its containers that use the claim of that name."""
        claims = (*self.spec.resource_claims, *self.status.resource_claim_statuses)
        names = {one.name for one in claims if one.resource_claim_name == claim}
        limits = self.status.extended_resource_claim_status
        mapped = limits.request_mappings if limits and limits.resource_claim_name == claim else ()
        for one in (*self.spec.init_containers, *self.spec.containers):
            used = one.resources.claims if one.resources else ()
            requests = [each.request for each in used if each.name in names]
            requests += [each.request_name for each in mapped if each.container_name == one.name]
            if requests:
                some = frozenset(requests) if all(requests) else frozenset[str]()
                yield ClaimUser(one.name, self._user(one), some)

    def _user(self, container: _Container) -> int | None:
        """A container's own counts before its pod's."""
        contexts = (container.security_context, self.spec.security_context)
        found = (one.run_as_user for one in contexts if one)
        return next((user for user in found if user is not None), None)


# Made in the thread that imports this: several that are the first to use a class crash (0.22).
_DECODER = json.Decoder(PodObject)


def read_pod(text: bytes) -> PodObject:
    """Raises ValueError or RecursionError."""
    return _DECODER.decode(text)
