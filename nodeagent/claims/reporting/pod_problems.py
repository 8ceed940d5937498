"""What of a pod does not go together with the devices of its claim. Pure.

Whom a container runs as is said and not refused: it may change its user, and only its image knows
that where the pod does not say. That counts as root, which most images run as. In a user namespace
of the pod's own (`hostUsers: false`) every user is another than on the node. Devices that exclude
each other are refused before they are made (`containers`), and said of a pod that came to a claim
that was ready.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.serving.containers import conflicts
from nodeagent.claims.serving.pod_object import ClaimUser, PodObject
from nodeagent.plan.problems import Code, Problem

_ROOT: Final = 0


def has_mps(record: ClaimRecord) -> bool:
    """Return whether not every pod can use the claim's devices."""
    return any(device.mps for device in record.devices)


def pod_problems(
    record: ClaimRecord, pod: PodObject, records: Iterable[ClaimRecord]
) -> Iterator[Problem]:
    """The containers that have other devices beside those of the claim, by the `records` of all
    claims, or that run as another user than the MPS of the claim's devices serves.
    """
    for conflict in conflicts(pod, records):
        if conflict.concerns(record):
            yield conflict.problem_of(record)
    for container in pod.users_of(record.name):
        for device in record.devices:
            account = device.mps.account if device.mps else None
            if account is None or account.any_user:
                continue
            if pod.spec.host_users and account.uid == (container.user or _ROOT):
                continue
            if container.uses(device.result.main_request):
                yield _another_user(record, pod, container, device.gpu, account.uid)
                break


def _another_user(
    record: ClaimRecord, pod: PodObject, container: ClaimUser, gpu: str, user: int
) -> Problem:
    number, mend = container.user, f"set runAsUser: {user} in the securityContext of the pod"
    runs_as = "its image's user, root as a rule" if number is None else f"user {number}"
    if not pod.spec.host_users:
        number, mend = None, "drop hostUsers from the pod"
        runs_as = "a user of the pod's own (hostUsers: false)"
    return Problem.of(
        Code.MPS_CLIENT,
        "podUser",
        gpu=gpu,
        container=container.name,
        pod=f"{pod.metadata.namespace}/{pod.metadata.name}",
        runs_as=runs_as,
        claim=record.title,
        user=user,
        mend=mend,
        own="any" if number is None else number,
    )
