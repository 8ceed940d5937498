"""Whom a finding hit: the pods that use its device, joined to it and then kept with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from nodeagent.health.findings import Finding, Pod
from nodeagent.health.state import HealthState
from nodeagent.plan.observed import IDLE, ComputeInstance, Gpu, ObservedNode, User


def with_pods(state: HealthState, observed: ObservedNode) -> HealthState:
    """The state with the pods that use now what each finding hit.

    A finding of a known process hits that process' pod and no other. Pods are never taken away: who
    was hit and is gone since is still told until the finding ends. Best called right after `judge`,
    while the users are those of the moment.
    """
    joined = tuple(_joined(finding, observed) for finding in state.findings)
    return replace(state, findings=joined)


def _joined(finding: Finding, observed: ObservedNode) -> Finding:
    gpu = observed.gpu(finding.place.gpu)
    if gpu is None or (finding.pods and finding.pid):
        return finding
    users = [user for user in _users(gpu, finding) if user.pod]
    if finding.pid:
        users = [user for user in users if user.pid == finding.pid]
    pods = {Pod(user.namespace, user.pod, user.container) for user in users}
    return replace(finding, pods=tuple(sorted(pods | set(finding.pods))))


def _users(gpu: Gpu, finding: Finding) -> Iterator[User]:
    """The processes, MPS clients and allocations at the finding's place."""
    place = finding.place
    holders: list[Gpu | ComputeInstance] = [gpu] if place.instance is None else []
    holders += [
        device
        for instance in gpu.instances
        if place.instance in (None, instance.id) and place.placement in (None, instance.placement)
        for device in instance.compute
        if place.compute in (None, device.id)
    ]
    for holder in holders:
        yield from holder.usage.processes
        yield from (holder.mps.clients if holder.mps else IDLE).processes
