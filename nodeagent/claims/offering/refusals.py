"""Whether a claim may have a device now, and whose the device is then. Pure.

A scheduler may have allocated what was offered a moment ago and is not any more; who comes for it
is refused, with the reason.
"""

from __future__ import annotations

from typing import assert_never

from nodeagent.claims.model import ClaimReference, ClaimRefused, Result
from nodeagent.claims.names import WHOLE_GPU, GpuShare, share_named
from nodeagent.claims.offering.gpu_rules import GpuRules, Mode, Planned, offered_names
from nodeagent.plan.desired import Layout, MigDisabled, MigEnabled
from nodeagent.plan.observed import Gpu
from nodeagent.plan.shares import written_bytes


def admit(rules: GpuRules, result: Result, gpu: Gpu, claim: ClaimReference) -> bool:
    """Whether the claim has a device that is fixed. Raises ClaimRefused where it may not have
    it; an administrator may look at any.
    """
    if result.admin_access:
        return False
    if why := refusal(rules, gpu, result.device):
        raise ClaimRefused(
            f"{claim} does not get {result.device} of {gpu.title}, which is not offered any "
            f"more: {why}",
            remedy=f"have its pods scheduled again: {claim.schedule_anew}",
        )
    fixed = rules.is_fixed(result.device)
    if fixed and result.configuration is not None:
        raise ClaimRefused(
            f"{claim} says how {result.device} of {gpu.title} is shared, which the plan does",
            remedy="drop the configuration from spec.devices.config of the claim or its "
            "template, or from its DeviceClass, or share the device by the plan; "
            f"{claim.show} has it, with its source, in status.allocation.devices.config",
        )
    return fixed


def refusal(rules: GpuRules, gpu: Gpu, device: str) -> str:
    """Why no claim may have the device, which is one of the GPU's; "" where one may."""
    if rules.closed:
        return rules.closed
    offered = offered_names(gpu, rules)
    if device in offered.names:
        return ""
    if offered.reason:
        return offered.reason.message
    return _why_not_offered(rules, gpu, device)


def _why_not_offered(rules: GpuRules, gpu: Gpu, device: str) -> str:
    if share := share_named(device):
        return _why_no_share(rules, gpu, share)
    if rules.planned is not None and (why := _kept_from_claims(rules.planned, gpu, device)):
        return why
    if rules.mode is Mode.STATIC and device != WHOLE_GPU:
        return "no plan has it, and with dra.mode static nothing is made"
    if rules.planned is None:
        return _in_one_mode(gpu)
    return "there is no room for it beside the plan's instances"


def _why_no_share(rules: GpuRules, gpu: Gpu, share: GpuShare) -> str:
    if share.memory != rules.share:
        size = written_bytes(rules.share) if rules.share else "not set"
        return f"the setting dra.share is {size}"
    if rules.mode is Mode.STATIC:
        return "with dra.mode static nothing is made"
    if gpu.in_mig_mode:
        return _in_one_mode(gpu)
    if rules.planned is None and gpu.mig is None:
        return f"{gpu.title} has no room for it, or cannot limit MPS clients"
    if rules.planned is None or not isinstance(rules.planned.mig, MigDisabled):
        return f"{gpu.title} is for MIG devices, as long as no plan says mig: disabled"
    how = "says how the GPU is shared" if rules.planned.room else "says dra: false"
    return f"{rules.planned.path} of the plan {how}"


def _in_one_mode(gpu: Gpu) -> str:
    """Why there is only the whole of it, or only parts, where no plan says so."""
    if gpu.in_mig_mode:
        return f"{gpu.title} is in MIG mode"
    return f"MIG mode of {gpu.title} is off, and switching it on needs a GPU reset"


def _kept_from_claims(planned: Planned, gpu: Gpu, device: str) -> str:
    """What the plan says against the device being a claim's; "" if it is nothing."""
    for one in planned.fixed:
        if one.device == device and one.kept_back:
            return one.kept_back
    entry = f"{planned.path} of the plan"
    match planned.mig:
        case None | MigDisabled() if planned.mps and device == WHOLE_GPU:
            return f"{entry} shares the GPU by MPS"
        case None:
            return f"{entry} leaves MIG on {gpu.title} as it is"
        case MigDisabled():
            return f"{entry} has MIG disabled"
        case MigEnabled() | Layout() if device == WHOLE_GPU:
            return f"{entry} has MIG enabled"
        case Layout() if not planned.is_there:
            return f"the layout of {entry} is not there yet"
        case MigEnabled() | Layout():
            return "" if planned.room else f"{entry} says dra: false"
        case _:
            assert_never(planned.mig)
