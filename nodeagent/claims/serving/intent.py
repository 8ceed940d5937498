"""What a claim's allocation comes to on this node's GPUs, before anything is made."""

from __future__ import annotations

from collections.abc import Callable

from nodeagent.claims.files.cdi import device_id
from nodeagent.claims.model import ClaimAllocation, ClaimedDevice, ClaimRecord, Phase, Result
from nodeagent.claims.names import GpuShare, Place, locate
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.offering.refusals import admit
from nodeagent.claims.reference import ClaimReference
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.errors import Transient, UnknownDevice
from nodeagent.plan.desired import MpsEntry
from nodeagent.plan.observed import Access, Gpu, ObservedNode


def intended(
    allocation: ClaimAllocation,
    observed: ObservedNode,
    daemons: ClaimDaemons,
    *,
    rules: Callable[[Gpu], GpuRules],
    node: str,
    boot_id: str,
) -> ClaimRecord:
    """The claim's first record. Raises NodeagentError. May block on the user database."""
    uid, namespace, name = allocation.uid, allocation.namespace, allocation.name
    claim = ClaimReference(namespace, name)

    def device(result: Result) -> ClaimedDevice:
        try:
            located = locate(result.pool, result.device, node, observed.gpus)
        except UnknownDevice as error:
            anew = f"have its pods scheduled again: {claim.schedule_anew}"
            remedy = "; ".join(filter(None, (error.remedy, anew)))
            raise UnknownDevice(f"{claim}: {error.message}", remedy=remedy) from error
        gpu, part = located.gpu, located.part
        if gpu.access is not Access.OK:
            raise Transient(
                f"{claim} has to wait: {gpu.title} does not answer: {gpu.access_reason}",
                remedy=f"`nodeagent status --gpu {gpu.index}` shows what is wrong with it",
            )
        fixed = admit(rules(gpu), result, gpu, claim)
        place = part if isinstance(part, Place) else None
        profile, mps = place.profile if place else None, None
        entry = result.configuration if isinstance(result.configuration, MpsEntry) else None
        if isinstance(part, GpuShare):
            mps = daemons.wanted_share(entry, gpu, part, claim)
        elif entry:
            mps = daemons.wanted(entry, gpu, profile, claim)
        return ClaimedDevice(
            result,
            gpu.uuid,
            device_id(uid, result),
            profile.name if profile else "",
            place.placement if place else None,
            fixed=fixed,
            mps=mps,
        )

    devices = tuple(map(device, allocation.results))
    return ClaimRecord(uid, namespace, name, Phase.INTENT, boot_id, devices)
