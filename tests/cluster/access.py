"""Who may ask: bearer tokens, and tokens that may write only to their own Node."""

from __future__ import annotations

from tests.cluster.journal import Request
from tests.cluster.refusals import Refused

NODES = "/api/v1/nodes/"
OPEN_PATHS = {"/version", "/readyz", "/healthz", "/livez"}


class Access:
    """`tokens` maps each accepted token to a user's name; while it is empty everyone may ask.

    `own_node` maps a token to the name of the only Node that it may write to, as an admission
    policy does it: anything else is denied with `denial` (422, or 403 where the policy says so).
    """

    def __init__(self) -> None:
        self.tokens: dict[str, str] = {}
        self.own_node: dict[str, str] = {}
        self.denial = 422

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
