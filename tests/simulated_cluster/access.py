"""Who may ask: bearer tokens, and tokens that may write only to their own Node."""

import re

from tests.simulated_cluster.journal import Request
from tests.simulated_cluster.refusals import Refused, forbidden

NODES = "/api/v1/nodes/"
OPEN_PATHS = {"/version", "/readyz", "/healthz", "/livez"}
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

Right = tuple[str, str]  # verb and resource, such as pods/eviction


class Access:
    """`tokens` maps each accepted token to a user's name; while it is empty everyone may ask.

    `own_node` maps a token to the name of the only Node that it may write to, as an admission
    policy does it: anything else is denied with `denial` (422, or 403 where the policy says so).
    `withheld` are the rights that no user has; every user has all others, the `powerless` none.
    Unless `unguarded`, the annotation by which an agent tries whether policies limit it is denied.
    """

    def __init__(self) -> None:
        self.tokens: dict[str, str] = {}
        self.own_node: dict[str, str] = {}
        self.denial = 422
        self.withheld: set[Right] = set()
        self.powerless: set[str] = set()
        self.unguarded = False

    def revoke(self, token: str) -> None:
        """The token is refused from now on, also when it was the last one."""
        self.tokens.pop(token, None)
        self._closed = True

    _closed = False

    def check(self, request: Request) -> None:
        """Raise Refused (401, 403 or 422) where the request may not be served."""
        if request.path in OPEN_PATHS:
            return
        if (self.tokens or self._closed) and request.who not in self.tokens:
            raise Refused(401, "Unauthorized")
        user, right = self.tokens.get(request.who, "agent"), right_of(request)
        if right in self.withheld or user in self.powerless:
            raise forbidden(user, *right, request)
        if not self.unguarded and "guard.nodeagent.io/" in str(request.body):
            raise Refused(
                403,
                "nodes is forbidden: ValidatingAdmissionPolicy 'nodeagent-own-node' with binding "
                "'nodeagent-own-node' denied request: no annotation of an agent",
            )
        own = self.own_node.get(request.who)
        if own is None or not request.write or not request.path.startswith(NODES):
            return
        name = request.path.removeprefix(NODES).partition("/")[0]
        if name != own:
            raise Refused(
                self.denial,
                f"nodes \"{name}\" is forbidden: ValidatingAdmissionPolicy 'own-node' with binding "
                f"'own-node' denied request: the token of node {own} may not write to node {name}",
                details={"name": name, "kind": "nodes"},
            )


def right_of(request: Request) -> Right:
    """What the request needs the right to."""
    found = re.fullmatch(
        r"/(?:api|apis/node.k8s.io|apis/resource.k8s.io)/v1(?:/namespaces/[^/]+)?/([^/]+)(?:/([^/]+))?(?:/([^/]+))?",
        request.path,
    )
    if found is None:
        return "", ""
    resource, name, below = found.groups()
    verb = VERBS.get(request.method, "")
    if verb == "get" and name is None:
        verb = "watch" if request.watch else "list"
    return verb, f"{resource}/{below}" if below else resource
