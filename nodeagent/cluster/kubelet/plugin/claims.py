"""Claims as the kubelet names them, and what serves its calls. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Protocol

from nodeagent.claims.model import UID, ClaimedDevice, ClaimRefused
from nodeagent.claims.serving.allocation import LABEL
from nodeagent.text import shown

_NAMESPACE: Final = re.compile(LABEL)
_NAME: Final = re.compile(rf"(?=.{{1,253}}\Z){LABEL}(\.{LABEL})*")


@dataclass(frozen=True, slots=True, order=True)
class ClaimName:
    """A ResourceClaim. Its uid makes file names, so `read_claim_name` lets only such through."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (uid {self.uid})"


class ClaimService(Protocol):
    """Makes a claim's devices and takes them down. Called again for what is done already.

    Both raise a NodeagentError, whose text stands in the Event of the claim's pod.
    """

    async def prepare(self, claim: ClaimName) -> tuple[ClaimedDevice, ...]: ...

    async def release(self, claim: ClaimName) -> None: ...


def read_claim_name(namespace: str, name: str, uid: str) -> ClaimName:
    """The claim. Raises ClaimRefused for a name that no API server would have let through."""
    for what, text, form in (
        ("namespace", namespace, _NAMESPACE),
        ("name", name, _NAME),
        ("uid", uid, UID),
    ):
        if not form.fullmatch(text):
            raise ClaimRefused(f"the claim's {what} {shown(text)} is not one of Kubernetes")
    return ClaimName(namespace, name, uid)
