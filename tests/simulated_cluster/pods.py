"""What happens to pods beyond being written: deletion, eviction and disruption budgets."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.simulated_cluster.refusals import Refused
from tests.simulated_cluster.store import Key, Object, Store


class Pods:
    """`evictions` has every Eviction that was granted; `budgets` names pods that must stay.

    Deleting a pod in `lingering` only marks it, as a real server does until the kubelet has ended
    its containers; `gone` ends that. Other pods are gone at once.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.evictions: list[dict[str, Any]] = []
        self.budgets: dict[tuple[str, str], str] = {}  # namespace and name, to the budget's name
        self.lingering: set[tuple[str, str]] = set()

    def delete(self, key: Key) -> Object:
        """Delete, or mark as to be deleted; what the request is answered with."""
        if (key.namespace, key.name) not in self.lingering:
            return self._store.delete(key)

        def mark(pod: Object) -> Object:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            pod["metadata"].setdefault("deletionTimestamp", now)
            pod["metadata"].setdefault("deletionGracePeriodSeconds", 30)
            return pod

        return self._store.change(key, mark)

    def gone(self, name: str, namespace: str) -> None:
        """A lingering pod has ended."""
        self.lingering.discard((namespace, name))
        self._store.delete(Key("pods", namespace, name))

    def evict(self, key: Key, body: dict[str, Any]) -> None:
        """Delete the pod unless a disruption budget protects it; raises Refused (429, 404, 409)."""
        pod = self._store.get(key)
        uid = body.get("deleteOptions", {}).get("preconditions", {}).get("uid")
        if uid not in (None, pod["metadata"]["uid"]):
            raise Refused(
                409,
                f"Precondition failed: UID in precondition: {uid}, "
                f"UID in object meta: {pod['metadata']['uid']}",
            )
        terminal = pod["status"].get("phase") in {"Succeeded", "Failed"}
        budget = self.budgets.get((key.namespace, key.name))
        if budget is not None and not terminal:
            raise Refused(
                429,
                "Cannot evict pod as it would violate the pod's disruption budget.",
                details={
                    "causes": [
                        {
                            "reason": "DisruptionBudget",
                            "message": f"The disruption budget {budget} needs 1 healthy pods and "
                            "has 1 currently",
                        }
                    ]
                },
            )
        self.delete(key)
        self.evictions.append(body)
