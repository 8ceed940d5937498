"""Server-side apply of a ResourceClaim's `status.devices`, as the API server does it.

After Kubernetes 1.36: the list is a map by driver, pool, device and share; what a manager applied
before and leaves out now goes; a device has to be one of the allocation's
(pkg/apis/resource/validation/validation.go), and a status needs the right for its driver, too.
"""

import json
from typing import Any

from tests.simulated_cluster.refusals import Refused, immutable, invalid

Object = dict[str, Any]
APPLY = "application/apply-patch+yaml"
KIND = "ResourceClaim"
_KEYS = ("driver", "pool", "device", "shareID")

_Key = tuple[str, ...]


class ClaimStatusRules:
    """Remembers what each manager has applied."""

    def __init__(self) -> None:
        self._applied: dict[tuple[str, str], set[_Key]] = {}  # by the claim's uid and the manager

    def applied(self, found: Object, body: Object, manager: str) -> Object:
        """The claim with what the manager says of its devices; raises Refused."""
        metadata, name = found["metadata"], found["metadata"]["name"]
        if not manager:
            raise Refused(400, "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value")
        uid = (body.get("metadata") or {}).get("uid", metadata["uid"])
        if uid != metadata["uid"]:
            raise invalid(KIND, name, immutable("metadata.uid", uid))
        status = found.get("status") or {}
        results = ((status.get("allocation") or {}).get("devices") or {}).get("results", [])
        allocated = {_key(result) for result in results}
        own = {_key(one): one for one in body["status"]["devices"]}
        for number, key in enumerate(own):
            if key not in allocated:
                names = ("Driver", "Pool", "Device", "ShareID")
                value = json.dumps(dict(zip(names, key, strict=True)), separators=(",", ":"))
                wrong = f"Invalid value: {value}: must be an allocated device in the claim"
                raise invalid(KIND, name, f"status.devices[{number}]: {wrong}")
        earlier = self._applied.get((metadata["uid"], manager), set())
        others = [one for one in status.get("devices", []) if _key(one) not in {*own, *earlier}]
        self._applied[metadata["uid"], manager] = set(own)
        others += own.values()
        status = {key: value for key, value in status.items() if key != "devices"}
        return {**found, "status": {**status, **({"devices": others} if others else {})}}


def _key(one: Object) -> _Key:
    return tuple(one.get(key) or "" for key in _KEYS)
