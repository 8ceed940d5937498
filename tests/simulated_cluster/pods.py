"""What happens to pods beyond being written: deletion, eviction and disruption budgets."""

from datetime import UTC, datetime
from typing import Any

from tests.simulated_cluster.refusals import Refused, another_uid
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
        lingers = (key.namespace, key.name) in self.lingering

        def mark(pod: Object) -> Object:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            pod["metadata"].setdefault("deletionTimestamp", now)
            pod["metadata"].setdefault("deletionGracePeriodSeconds", 30 if lingers else 0)
            return pod

        return self._store.change(key, mark) if lingers else mark(self._store.delete(key))

    def gone(self, name: str, namespace: str) -> None:
        self.lingering.discard((namespace, name))
        self._store.delete(Key("pods", namespace, name))

    def evict(self, key: Key, body: dict[str, Any]) -> None:
        """Delete the pod unless a disruption budget protects it; raises Refused (429, 404, 409)."""
        pod = self._store.get(key)
        uid = body.get("deleteOptions", {}).get("preconditions", {}).get("uid")
        if uid not in (None, pod["metadata"]["uid"]):
            raise another_uid("Pod", key.name, uid, pod["metadata"]["uid"])
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
