"""What of a pod does not go together with the devices of its claim. Pure.

It is said and not refused: a container may change its user, and only its image knows whom it runs
as where the pod does not say.
"""

from __future__ import annotations

from collections.abc import Iterator

from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.serving.pod_object import ClaimUser, PodObject
from nodeagent.plan.problems import Code, Problem


def serves_one_user(record: ClaimRecord) -> bool:
    """Return whether the claim has MPS that not every pod can be a client of."""
    return any(device.mps and not device.mps.account.any_user for device in record.devices)


def pod_problems(record: ClaimRecord, pod: PodObject) -> Iterator[Problem]:
    """The containers that run as another user than the MPS of the claim's devices serves."""
    for container in pod.users_of(record.name):
        for device in record.devices:
            account = device.mps.account if device.mps else None
            if account is None or account.any_user or account.uid == container.user:
                continue
            if container.uses(device.result.main_request):
                yield _another_user(record, pod, container, device.gpu, account.uid)
                break


def _another_user(
    record: ClaimRecord, pod: PodObject, container: ClaimUser, gpu: str, user: int
) -> Problem:
    runs_as = "its image's user" if container.user is None else f"user {container.user}"
    return Problem.of(
        Code.MPS_CLIENT,
        "podUser",
        gpu=gpu,
        container=container.name,
        pod=f"{pod.metadata.namespace}/{pod.metadata.name}",
        runs_as=runs_as,
        unsaid=", root as a rule" if container.user is None else "",
        claim=record.title,
        user=user,
        own="any" if container.user is None else container.user,
    )
