"""What people, pods and the API server get to know of claims."""

from pathlib import Path
from typing import Any

import pytest

from nodeagent.claims.capacity import Consumed, RequestPolicy
from nodeagent.claims.model import Allocated, ClaimedDevice, ClaimRecord, RecordPhase
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.offering.pool_offer import OfferContext, PoolOffer, pool_offer
from nodeagent.claims.records import UnreadableRecord
from nodeagent.claims.reporting.claim_news import ClaimHistory
from nodeagent.claims.reporting.device_reports import DeviceHealth, Status
from nodeagent.claims.reporting.overview import ClaimFacts, free_shares, served_claims
from nodeagent.claims.serving.attempts import Attempt, Operation
from nodeagent.claims.serving.claim_pods import RECENT, ClaimPods
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.plan.users import Pod
from nodeagent.structs import replace
from nodeagent.views.claims import Claim, ClaimShare, FreeShare, with_use
from nodeagent.views.shapes import as_json
from tests.claims.samples import (
    GPU,
    MIG_DEVICE,
    POOL,
    UID,
    claim_object,
    mig_device,
    record,
    reserved,
    share_of_gpu,
    whole_device,
)
from tests.plan.cards import card
from tests.views.daemons import mps_client, mps_daemon

# --- for people -----------------------------------------------------------------------------------


REFUSAL = Problem(code="InUse", message="pid 4711 uses it", remedy="end it")
GIB = 1 << 30
MADE = mig_device(instance=7, compute=0, uuid="MIG-1")


def facts(*gpus: Gpu, **known: Any) -> ClaimFacts:
    given = {"node": ObservedNode(gpus or (Gpu(3, GPU),)), "boot_id": "boot-1", "pods": ClaimPods()}
    return ClaimFacts(**{**given, **known})


def only(**known: Any) -> Claim:
    (claim,) = served_claims(facts(**known))
    return claim


def attempt(operation: Operation = Operation.PREPARE, **known: Any) -> Attempt:
    return Attempt("team", "trainer", operation, **known)


def test_a_claim_that_is_ready() -> None:
    pods = ClaimPods()
    pods.was_read(("team", "trainer"), reserved("uid", "pod-1"))
    ready = record(MADE, since=1893553445.5)
    assert as_json(only(records=(ready,), pods=pods)) == {
        "namespace": "team",
        "name": "trainer",
        "uid": UID,
        "phase": "Ready",
        "since": "2030-01-02T03:04:05.500Z",
        "pods": [{"namespace": "team", "name": "pod-1", "container": ""}],
        "devices": [
            {
                "request": "gpu",
                "pool": POOL,
                "device": "mig-1g-10gb-4",
                "gpu": GPU,
                "index": 3,
                "profile": "1g.10gb",
                "start": 4,
                "size": 1,
                "gi": 7,
                "ci": 0,
                "uuid": "MIG-1",
            }
        ],
        "problems": [],
    }


LIMITS = Sharing((Share("share-1", None, 4096, 17.78, total=8192),), "report")
SHARE = share_of_gpu(GPU, WantedMps(LIMITS, Account(1000, 1000)), consumed=Consumed(8 * GIB, 0, 2))


def test_a_share_of_a_gpu() -> None:
    """What it may use, what it reserved, and what its clients on that GPU use."""
    ready = only(records=(record(SHARE),))
    [device] = ready.devices
    assert device.share == ClaimShare(memory=8 * GIB, threads=17.78, reserved=0, clients=2)
    clients = [
        mps_client(pid, share=share, memory_used=used)
        for pid, share, used in ((1, "share-1", GIB), (2, "share-1", GIB), (3, "share-2", 5 * GIB))
    ]
    [shown] = with_use([ready], [mps_daemon(GPU, "Ready", clients=tuple(clients))])
    assert shown.devices[0].share
    assert shown.devices[0].share.used == 2 * GIB
    [elsewhere] = with_use([ready], [mps_daemon("GPU-2", "Ready", clients=tuple(clients))])
    assert elsewhere == ready
    [turns] = only(records=(record(replace(SHARE, mps=None)),)).devices
    assert turns.share == ClaimShare(memory=8 * GIB, clients=2)


def test_shares_of_one_daemon() -> None:
    """Each with all GPUs of that. What clients of several GPUs use on each, is not known."""
    assert SHARE.mps
    both = (GPU, "GPU-9")
    here = replace(SHARE, mps=replace(SHARE.mps, devices=both))
    daemon = mps_daemon(GPU, "Ready", clients=(mps_client(1, share="share-1", memory_used=GIB),))
    last = replace(here, gpu="GPU-9")
    for devices, used in (((last,), GIB), ((here, last), None)):
        [shown] = with_use([only(records=(record(*devices),))], [daemon])
        assert {device.daemon for device in shown.devices} == {both}
        assert {one.share and one.share.used for one in shown.devices} == {used}


def test_what_is_left_of_a_shared_gpu() -> None:
    """In steps, as it can be requested; nothing beside a claim that has it as a whole, where its
    memory or its clients are consumed, or where it takes no more claims.
    """
    gpu = replace(card("l40s"), uuid=GPU, cuda_version=(13, 0))
    context = OfferContext("node-1", GpuRules(share="memory"), 0)
    offer = pool_offer(gpu, context)

    def left(*devices: ClaimedDevice, offered: PoolOffer = offer) -> FreeShare | None:
        return free_shares([offered], [record(*devices)] if devices else []).get(GPU)

    most = offer.devices[-1].policies["gpu.nvidia.com/memory"].default
    all_of_it = FreeShare(memory=most, threads=100, clients=48)
    assert left() == left(whole_device(GPU, admin_access=True)) == all_of_it
    other = share_of_gpu(GPU, consumed=Consumed(4 * GIB, 60, 1))
    assert left(SHARE, other) == FreeShare(memory=most - 12 * GIB, threads=40, clients=45)
    nothing = FreeShare(memory=0, threads=0, clients=0)
    for device in (whole_device(GPU), mig_device(), mig_device(shared=True)):
        assert left(device) == nothing
    assert left(SHARE, share_of_gpu(GPU, consumed=Consumed(GIB, 0, 46))) == nothing
    held_back = replace(context, held_back=REFUSAL)
    assert left(offered=pool_offer(gpu, held_back)) == nothing
    by_turns = pool_offer(gpu, replace(context, rules=GpuRules(share="time")))
    assert left(SHARE, offered=by_turns) == FreeShare(memory=most - 8 * GIB)
    assert left(offered=pool_offer(gpu, replace(context, rules=GpuRules()))) is None
    [held] = (one for one in offer.devices if one.policies)
    of_a_newer_release = replace(
        held,
        capacity={**held.capacity, "bandwidth": 9},
        policies={**held.policies, "bandwidth": RequestPolicy(1, 1, 1)},
    )
    assert left(offered=replace(offer, devices=(of_a_newer_release,))) == all_of_it
    not_ours = replace(held, attributes={}, capacity={}, policies={"?": RequestPolicy(1, 1, 1)})
    assert left(offered=replace(offer, devices=(not_ours,))) is None


PREPARING: dict[str, Any] = {"since": 5.0, "last": 9.0, "running": True}
REFUSED: dict[str, Any] = {"since": 5.0, "last": 9.0, "running": False, "refusal": REFUSAL}


@pytest.mark.parametrize(
    ("recorded", "last", "phase", "second"),
    [
        (None, attempt(**PREPARING), "Preparing", "05"),
        (None, attempt(**REFUSED), "Waiting", "05"),
        (None, attempt(**{**REFUSED, "running": True}), "Waiting", "05"),
        (None, attempt(Operation.RELEASE, **REFUSED), "Releasing", "05"),
        (RecordPhase.INTENT, None, "Waiting", "03"),
        (RecordPhase.INTENT, attempt(**PREPARING), "Preparing", "05"),
        (RecordPhase.INTENT, attempt(**REFUSED), "Waiting", "05"),
        (RecordPhase.READY, None, "Ready", "03"),
        (RecordPhase.RELEASING, None, "Releasing", "03"),
        (RecordPhase.RELEASING, attempt(**PREPARING), "Releasing", "03"),
    ],
)
def test_how_far_it_is(
    recorded: RecordPhase | None, last: Attempt | None, phase: str, second: str
) -> None:
    """A record counts more than an attempt, but for what waits: since its first attempt."""
    records = (record(phase=recorded, since=3.0),) if recorded else ()
    claim = only(records=records, attempts={UID: last} if last else {})
    assert (claim.phase, claim.since) == (phase, f"1970-01-01T00:00:{second}.000Z")
    assert claim.refusal == (last.refusal if last else None)


def test_ids_of_an_earlier_start_are_not_shown() -> None:
    """They are used again, for others."""
    (device,) = only(records=(record(MADE, boot_id="boot-0"),)).devices
    assert (device.gi, device.ci, device.uuid) == (None, None, "")


def test_what_is_wrong_with_it() -> None:
    found = {
        UID: Problem(
            code=Code.IN_USE, message="claim team/trainer: the claim is gone, but it is used"
        )
    }
    states: tuple[tuple[Status, list[str]], ...] = (
        ("healthy", ["InUse"]),
        ("unhealthy", ["InUse", "GpuUnhealthy"]),
        ("unknown", ["InUse", "GpuUnknown"]),
    )
    for state, codes in states:
        said = "it has errors. Reset it."
        one = DeviceHealth(POOL, "mig-1g-10gb-4", state, 1.0, said, "Reset it.")
        claim = only(
            records=(record(MADE),), upkeep_problems=found, health={(POOL, "mig-1g-10gb-4"): one}
        )
        assert [problem.code for problem in claim.problems] == codes
        for problem in claim.problems[1:]:
            assert (problem.message, problem.gpu) == ("mig-1g-10gb-4: it has errors.", GPU)
            assert problem.remedy == "Reset it."


def test_a_record_that_cannot_be_read_is_a_claim_too() -> None:
    """Its name is known where the kubelet asks for it."""
    broken = UnreadableRecord(Path("/claims/x.json"), UID, "it is damaged")
    unread = only(unreadable=(broken,))
    assert (unread.name, unread.uid, unread.phase) == ("", UID, "Unreadable")
    assert "x.json" in unread.problems[0].message
    assert only(unreadable=(broken,), attempts={UID: attempt(**REFUSED)}).name == "trainer"


def test_they_are_in_the_order_of_their_names() -> None:
    """So that the same state is the same text."""
    attempts = {
        uid: Attempt("team", name, Operation.PREPARE, 1.0, 1.0)
        for uid, name in (("3", "b"), ("2", "c"), ("1", "a"))
    }
    assert [claim.name for claim in served_claims(facts(attempts=attempts))] == ["a", "b", "c"]


# --- whose a claim is -----------------------------------------------------------------------------


TRAINER = ("team", "trainer")
KEY_OF_DEVICE = ("node/gpu", "mig-1g-10gb-4", "")


def pod(name: str, container: str = "") -> Pod:
    return Pod(namespace="team", name=name, container=container)


def listed_in(pod: str, container: str, claim: str = "trainer") -> Allocated:
    return Allocated("team", claim, pod, KEY_OF_DEVICE, container)


def test_the_pods_that_a_claim_is_reserved_for() -> None:
    pods = ClaimPods()
    pods.was_read(TRAINER, reserved("uid", "a", "b"))
    assert pods.of(TRAINER) == [pod("a"), pod("b")]
    pods.was_read(TRAINER, None)
    assert pods.of(TRAINER) == []


def test_what_was_read_of_a_claim_is_its_present_state_for_a_moment() -> None:
    """Other pods may come to share it, and one of its name may be made anew."""
    now = 100.0
    pods = ClaimPods(lambda: now)
    assert pods.recent(TRAINER) is None
    pods.was_read(TRAINER, reserved("uid", "a"))
    assert pods.recent(TRAINER) == reserved("uid", "a")
    now += RECENT
    assert pods.recent(TRAINER) is None
    assert pods.of(TRAINER) == [pod("a")]


def test_the_object_names_its_pods() -> None:
    consumers = [
        {"resource": "pods", "name": "a", "uid": "uid-a"},
        {"resource": "podgroups", "name": "group", "uid": "uid-group"},
        {"apiGroup": "", "resource": "pods", "name": "b", "uid": "uid-b"},
    ]
    claim = {"metadata": {"uid": "uid"}, "status": {"reservedFor": consumers}}
    assert claim_object(claim).pods == (("a", "uid-a"), ("b", "uid-b"))


def test_the_kubelet_adds_the_container() -> None:
    pods = ClaimPods()
    pods.was_read(TRAINER, reserved("uid", "a", "b"))
    listed = [listed_in("a", "main"), listed_in("b", "one"), listed_in("b", "two")]
    assert pods.observe(listed, {TRAINER})
    assert pods.of(TRAINER) == [pod("a", "main"), pod("b")]
    assert not pods.observe(listed, {TRAINER})
    assert pods.observe([], {TRAINER})
    assert pods.of(TRAINER) == [pod("a"), pod("b")]


def test_claims_that_are_over_are_forgotten() -> None:
    """Else a node would remember every claim that it ever had."""
    pods = ClaimPods()
    pods.was_read(TRAINER, reserved("uid", "a"))
    pods.observe([], ())
    assert pods.of(TRAINER) == []


# --- news -----------------------------------------------------------------------------------------


READY = record(mig_device(uuid="MIG-1"))
SICK = DeviceHealth(POOL, MIG_DEVICE, "unhealthy", 1.0, "GPU 0 fell off the bus. Reboot.")
WELL = DeviceHealth(POOL, MIG_DEVICE, "healthy", 1.0)


def failed(at: float, operation: Operation = Operation.PREPARE, code: str = "InUse") -> Attempt:
    why = Problem(code=code, message="pid 7 uses it", remedy="wait")
    return Attempt("team", "trainer", operation, 0.0, at, running=False, refusal=why)


def said(
    history: ClaimHistory,
    records: tuple[ClaimRecord, ...],
    attempts: dict[str, Attempt],
    health: tuple[DeviceHealth, ...],
    of_pods: tuple[Problem, ...] = (),
) -> list[tuple[str, str, bool]]:
    """Reasons, messages, and whether it is a warning."""
    news = history.news(records, attempts, health, {UID: of_pods})
    assert {(one.namespace, one.name, one.uid) for one in news} <= {("team", "trainer", UID)}
    return [(one.reason, one.message, one.is_warning) for one in news]


def test_a_claim_comes_and_goes() -> None:
    history = ClaimHistory()
    assert said(history, (), {}, ()) == []
    making, releasing = (
        record(phase=phase) for phase in (RecordPhase.INTENT, RecordPhase.RELEASING)
    )
    what = f"{MIG_DEVICE} of {GPU} (MIG-1)"
    assert said(history, (making,), {}, ()) == []
    assert said(history, (READY,), {}, (WELL,)) == [("ClaimPrepared", f"ready: {what}", False)]
    assert said(history, (READY,), {}, (WELL,)) == []
    assert said(history, (releasing,), {}, (WELL,)) == []
    (released,) = said(history, (), {}, ())
    assert released[0] == "ClaimReleased"


def test_a_pod_that_does_not_go_together_with_it() -> None:
    """Said once, as long as the claim is ready; it is a problem of the claim."""
    history = ClaimHistory()
    wrong = Problem(code=Code.MPS_CLIENT, message="main runs as user 0", remedy="change it")
    said(history, (READY,), {}, ())
    assert said(history, (READY,), {}, (), (wrong,)) == [
        ("ClaimMismatch", "main runs as user 0; change it", True)
    ]
    assert said(history, (READY,), {}, (), (wrong,)) == []
    assert only(records=(READY,), pod_problems={UID: (wrong,)}).problems == [wrong]


def test_what_is_there_at_the_start_is_no_news() -> None:
    """Nor that it is sick already, or was refused."""
    assert said(ClaimHistory(), (READY,), {UID: failed(1.0)}, (SICK,)) == []


def test_each_failed_attempt_is_news() -> None:
    history = ClaimHistory()
    said(history, (), {}, ())
    why = "pid 7 uses it; wait"
    refused = {UID: failed(2.0, code="ClaimRefused")}
    assert said(history, (), {UID: failed(1.0)}, ()) == [("ClaimWaiting", why, True)]
    assert said(history, (), refused, ()) == [("ClaimRefused", why, True)]
    assert said(history, (), refused, ()) == []
    release = {UID: failed(3.0, Operation.RELEASE)}
    assert said(history, (), release, ()) == [("ClaimNotReleased", why, True)]


def test_health_is_news_when_it_changes() -> None:
    history = ClaimHistory()
    said(history, (READY,), {}, (WELL,))
    first, second = (
        replace(SICK, message=f"GPU 0 is lost [{call}: GpuIsLost]") for call in ("one", "other")
    )
    assert len(said(history, (READY,), {}, (first,))) == 1
    assert said(history, (READY,), {}, (second,)) == []
    message = f"{MIG_DEVICE}: {SICK.message}"
    assert said(history, (READY,), {}, (SICK,)) == [("ClaimUnhealthy", message, True)]
    assert said(history, (READY,), {}, (SICK,)) == []
    over = f"{MIG_DEVICE} is not unhealthy any more"
    assert said(history, (READY,), {}, (WELL,)) == [("ClaimHealthy", over, False)]
