"""What a claim is called, and the commands of kubectl about it that remedies name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CLASSES: Final = (
    "`kubectl get deviceclass -o custom-columns=NAME:.metadata.name,CONFIG:.spec.config`"
)
"""Lists the device classes with their configurations."""


@dataclass(frozen=True, slots=True)
class ClaimReference:
    """A claim by namespace and name. Its commands are those that its tenant may run."""

    namespace: str
    name: str

    def __str__(self) -> str:
        """`claim team/trainer`."""
        return f"claim {self.namespace}/{self.name}"

    @property
    def show(self) -> str:
        """Prints the claim with what it was allocated."""
        return f"`{self._get} -o yaml`"

    @property
    def show_writers(self) -> str:
        """Prints it with who wrote each field."""
        return f"`{self._get} -o yaml --show-managed-fields`"

    @property
    def describe(self) -> str:
        """Prints its Events, such as the scheduler's."""
        return f"`kubectl describe resourceclaim -n {self.namespace} {self.name}`"

    @property
    def schedule_anew(self) -> str:
        """Deletes the pods that have it; their controllers make them anew."""
        pods = f"{self._get} -o jsonpath='{{.status.reservedFor[*].name}}'"
        return f"`kubectl delete pod -n {self.namespace} $({pods})`"

    @property
    def _get(self) -> str:
        return f"kubectl get resourceclaim -n {self.namespace} {self.name}"
