"""What is news about this node's claims, for Events: ready, refused, waiting, released, unhealthy,
and pods that do not go together with them.

Pure but for what it remembers: what was so when it was asked last.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from nodeagent.claims.model import ClaimedDevice, ClaimRecord, RecordPhase
from nodeagent.claims.reporting.device_reports import DeviceHealth
from nodeagent.claims.serving.attempts import Attempt, Operation
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import Struct

MISMATCH: Final = "ClaimMismatch"  # what a pod does wrong, perhaps one that has just come


class ClaimNews(Struct, frozen=True):
    """One thing that happened to a claim; `reason` is that of the Event. `gpu` is the UUID of the
    only GPU that it has devices of, "" where there is not one.
    """

    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    is_warning: bool = False
    gpu: str = ""


class ClaimHistory:
    """What was so when it was asked last; what an agent finds at its start is no news."""

    def __init__(self) -> None:
        self._ready: Mapping[str, ClaimRecord] | None = None  # by uid
        self._unhealthy: Mapping[tuple[str, str], str] = {}  # messages, by pool and device
        self._failed: Mapping[str, float] = {}  # when the last attempt failed, by uid
        self._of_pods: Mapping[str, tuple[Problem, ...]] = {}  # by uid

    def news(
        self,
        records: Iterable[ClaimRecord],
        attempts: Mapping[str, Attempt],
        health: Iterable[DeviceHealth],
        pod_problems: Mapping[str, tuple[Problem, ...]],
    ) -> tuple[ClaimNews, ...]:
        """Return what has changed since; `attempts` and `pod_problems` by uid."""
        known = tuple(records)
        ready = {one.uid: one for one in known if one.phase is RecordPhase.READY}
        kept = ready | {one.uid: one for one in known if one.phase is RecordPhase.RELEASING}
        sick = {(h.pool, h.device): h.message for h in health if h.health == "unhealthy"}
        failed = {uid: one.last for uid, one in attempts.items() if one.refusal}
        before, self._ready = self._ready, kept
        sick_before, self._unhealthy = self._unhealthy, sick
        failed_before, self._failed = self._failed, failed
        of_pods_before, self._of_pods = self._of_pods, pod_problems
        if before is None:
            return ()
        present = {one.uid for one in known}
        return (
            *(
                _news(one, "ClaimPrepared", f"ready: {_devices(one)}")
                for uid, one in ready.items()
                if uid not in before
            ),
            *(
                _news(one, "ClaimReleased", f"released: {_devices(one)}")
                for uid, one in before.items()
                if uid not in present
            ),
            *(
                _failure(uid, attempts[uid])
                for uid, last in failed.items()
                if failed_before.get(uid) != last
            ),
            *_health_news(kept.values(), sick_before, sick),
            *(
                _news(one, MISMATCH, _sentence(problem), is_warning=True)
                for uid, one in ready.items()
                for problem in pod_problems.get(uid, ())
                if problem not in of_pods_before.get(uid, ())
            ),
        )


def _failure(uid: str, attempt: Attempt) -> ClaimNews:
    refusal = attempt.refusal
    text = _sentence(refusal) if refusal else ""
    if attempt.operation is Operation.RELEASE:
        reason = "ClaimNotReleased"
    else:
        reason = (
            "ClaimRefused" if refusal and refusal.code == Code.CLAIM_REFUSED else "ClaimWaiting"
        )
    return ClaimNews(attempt.namespace, attempt.name, uid, reason, text, is_warning=True)


def _sentence(problem: Problem) -> str:
    return "; ".join(filter(None, (problem.message, problem.remedy)))


def _health_news(
    records: Iterable[ClaimRecord],
    before: Mapping[tuple[str, str], str],
    now: Mapping[tuple[str, str], str],
) -> Iterator[ClaimNews]:
    for record in records:
        for device in record.devices:
            key = device.result.pool, device.result.device
            title = device.result.device
            if key in now and _cause(before.get(key, "")) != _cause(now[key]):
                message = f"{title}: {now[key]}"
                yield _news(record, "ClaimUnhealthy", message, is_warning=True)
            elif key in before and key not in now:
                yield _news(record, "ClaimHealthy", f"{title} is not unhealthy any more")


def _cause(message: str) -> str:
    """The message without the driver's call that failed, `[nvmlDeviceGetMigMode: ...]`."""
    return message.partition(" [")[0]


def _news(record: ClaimRecord, reason: str, message: str, *, is_warning: bool = False) -> ClaimNews:
    gpu = next(iter(record.gpus)) if len(record.gpus) == 1 else ""
    return ClaimNews(record.namespace, record.name, record.uid, reason, message, is_warning, gpu)


def _devices(record: ClaimRecord) -> str:
    return ", ".join(map(_device, record.devices))


def _device(device: ClaimedDevice) -> str:
    """`mig-1g-10gb-6 of GPU-1 (MIG-2)`."""
    uuid = f" ({device.uuid})" if device.uuid else ""
    return f"{device.result.device} of {device.gpu}{uuid}"
