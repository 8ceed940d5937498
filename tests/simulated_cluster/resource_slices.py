"""What the API server does with ResourceSlices: drops what its gates are off for, checks the rest.

After Kubernetes 1.36, pkg/registry/resource/resourceslice/strategy.go and
pkg/apis/resource/validation/validation.go: only what decides how an agent has to behave.
"""

import copy
from datetime import UTC, datetime
from typing import Any

from nodeagent.claims.offering.resource_slices import read_quantity
from tests.simulated_cluster.refusals import Refused, immutable, invalid

Object = dict[str, Any]

MOST_SPECIAL = 64  # devices of a slice that has counters or taints in it
MOST_DEVICES = 128
KIND = "ResourceSlice"


class SliceRules:
    """`partitionable` and `taints` are feature gates: without them fields are dropped silently."""

    def __init__(self) -> None:
        self.partitionable = True
        self.taints = True

    def admitted(self, body: Object) -> Object:
        """What is stored of a body; raises Refused (422)."""
        after = copy.deepcopy(body)
        name, spec = str((after.get("metadata") or {}).get("name", "")), after.get("spec")
        if not isinstance(spec, dict):
            raise invalid(KIND, name, "spec: Required value")
        if not self.partitionable:
            spec.pop("sharedCounters", None)
        for device in spec.get("devices") or ():
            if not self.partitionable:
                device.pop("consumesCounters", None)
            if not self.taints:
                device.pop("taints", None)
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        self._check(name, spec)
        return after

    def check_update(self, before: Object, after: Object) -> None:
        """Raise Refused where a field changes that may not."""
        name = before["metadata"]["name"]
        for field in ("driver", "nodeName"):
            if before["spec"].get(field) != after["spec"].get(field):
                raise invalid(KIND, name, immutable(f"spec.{field}", after["spec"].get(field)))
        if before["spec"]["pool"]["name"] != after["spec"]["pool"]["name"]:
            fault = immutable("spec.pool.name", after["spec"]["pool"]["name"])
            raise invalid(KIND, name, fault)

    def _check(self, name: str, spec: Object) -> None:
        pool = spec.get("pool") or {}
        if not (spec.get("driver") and spec.get("nodeName") and pool.get("name")):
            raise invalid(KIND, name, "spec: Required value: driver, nodeName and pool.name")
        generation = pool.get("generation", -1)
        if pool.get("resourceSliceCount", 0) < 1 or not 0 <= generation < 2**63:
            raise invalid(KIND, name, "spec.pool: Invalid value")
        if "devices" in spec and "sharedCounters" in spec:
            only = "only one of `sharedCounters` or `devices` is allowed"
            raise invalid(KIND, name, f'spec: Invalid value: "": {only}')
        devices = spec.get("devices") or ()
        for capacity in (one for device in devices for one in device.get("capacity", {}).values()):
            valid = capacity.get("requestPolicy", {}).get("validRange", {})
            least, step = (read_quantity(valid.get(key, "0")) for key in ("min", "step"))
            if least + step > read_quantity(capacity["value"]):
                fault = f"requestPolicy.validRange.step: one step {least + step} is larger"
                raise invalid(KIND, name, f"spec.devices[].capacity.{fault}")
        special = any("consumesCounters" in d or "taints" in d for d in devices)
        if len(devices) > (MOST_SPECIAL if special else MOST_DEVICES):
            raise invalid(KIND, name, f"spec.devices: Too many: {len(devices)}")
        names = [device.get("name") for device in devices]
        if len(names) != len(set(names)):
            raise invalid(KIND, name, "spec.devices: Duplicate value")
        if not isinstance(spec.get("nodeName"), str):
            raise Refused(400, "spec.nodeName has to be a string")
