"""MPS daemons of claims: what a configuration makes of one, and the one daemon of a GPU whose
shares claims have: its limits, its life, and who uses it.
"""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from nodeagent.claims.capacity import Consumed
from nodeagent.claims.model import ClaimRecord, ClaimReference, ClaimRefused, ClaimState, FileState
from nodeagent.claims.offering.planned import goal_with_claims
from nodeagent.claims.outcomes import DaemonNotReady, require_lasting_unused, require_ready
from nodeagent.claims.parts import daemon_of, reserved_on, to_prepare, to_release
from nodeagent.claims.serving.cdi import ContainerDevice, claim_document
from nodeagent.claims.serving.daemons import ClaimDaemons
from nodeagent.claims.upkeep.reconciliation import ClaimAction
from nodeagent.errors import StillInUse
from nodeagent.files.cdi import Edits
from nodeagent.plan.desired import DesiredGpu, MigDisabled, MpsEntry, Replicas, ShareEntry, Shares
from nodeagent.plan.observed import DeviceDaemon, Gpu
from nodeagent.plan.plan import GpuOutcome, Verdict
from nodeagent.plan.planner import plan_gpu
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.plan.users import PodName, Usage, User
from nodeagent.structs import replace
from tests.claims.machine import no_daemons
from tests.claims.samples import GPU, mig_device, mig_result, record, share_of_gpu
from tests.claims.snapshots import decide, gpu, snapshot
from tests.plan.cards import card
from tests.plan.daemons import CLIENT, EXCLUSIVE, OFF, A, daemon, without_mig

H100 = card("h100-80gb")
SLICE = H100.profile("1g.10gb")
GIB = 1 << 30
USER = "3999999999:7"  # who has no entry on any host
DAEMONS = ClaimDaemons(USER, Path("/run/nodeagent"), True, no_daemons)
PATH = "config[0].mps"
L40S = card("l40s")  # 46068 MiB
SHARE = Consumed(8 * GIB, 0, 1)
NAME = "9f2d"  # the shareID
TRAINER = ClaimReference("team", "a")


def clients(
    memory: int | None, threads: float | None = 25.0, *, user: str | None = None
) -> MpsEntry:
    share = ShareEntry("clients", None, memory, threads, f"{PATH}.clients")
    return MpsEntry(PATH, Shares((share,), f"{PATH}.clients"), user=user, enforce="terminate")


def test_limits_and_user() -> None:
    found = DAEMONS.wanted(clients(4 * GIB), H100, SLICE, TRAINER)
    share = Share("clients", None, 4096, 25.0)
    assert found == WantedMps(Sharing((share,), "terminate"), Account(3999999999, 7))
    assert found.path == "claim team/a"
    other = DAEMONS.wanted(clients(None, user="3999999998:8"), H100, None, TRAINER)
    assert other.account == Account(3999999998, 8)
    anybody = DAEMONS.wanted(clients(None, user="any"), H100, None, TRAINER)
    assert anybody.account.any_user


def test_whom_the_settings_name_for_claims() -> None:
    """Root and any, which are refused of mps.user; a class's user counts before them."""
    for user, account in (("0", Account(0, 0)), ("any", Account(0, 0, any_user=True))):
        daemons = replace(DAEMONS, user=user)
        assert daemons.wanted(clients(None), H100, SLICE, TRAINER).account == account
        own = daemons.wanted(clients(None, user="3999999998:8"), H100, None, TRAINER)
        assert own.account == Account(3999999998, 8)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (clients(20 * GIB), "config[0].mps.clients.memory: found 20Gi, but the device has"),
        (clients(None, user="no-such-user"), "found 'no-such-user', but this host has no such"),
    ],
)
def test_what_cannot_be(entry: MpsEntry, message: str) -> None:
    with pytest.raises(ClaimRefused) as refused:
        DAEMONS.wanted(entry, H100, SLICE, TRAINER)
    assert refused.value.message.startswith("claim team/a: config[0].mps")
    assert message in refused.value.message
    assert "`kubectl get resourceclaim -n team a -o yaml`" in refused.value.remedy


@pytest.mark.parametrize("user", ["no-such-user", "0"])
def test_a_user_that_the_settings_name_in_vain(user: str) -> None:
    """Not the claim's configuration is wrong, where it has any."""
    daemons = replace(DAEMONS, default_user=user)
    with pytest.raises(ClaimRefused, match=rf"^claim team/a: [^:].*mps\.user says '{user}'") as no:
        daemons.wanted_share(mig_result(consumed=SHARE), L40S, None, TRAINER)
    assert no.value.remedy.startswith("set mps.user for the node's agent")
    with pytest.raises(ClaimRefused, match=r"^claim team/a: config\[0\]\.mps: ") as written:
        daemons.wanted(clients(None), H100, SLICE, TRAINER)
    assert written.value.remedy == no.value.remedy


# --- limits of a share ----------------------------------------------------------------------------


def limits(entry: MpsEntry | None = None, consumed: Consumed = SHARE) -> WantedMps:
    """The daemon for a claim that has that of the L40S."""
    result = mig_result(device="gpu", share_id=NAME, configuration=entry, consumed=consumed)
    return DAEMONS.wanted_share(result, L40S, None, TRAINER)


def test_the_limits_of_a_share() -> None:
    found = limits()
    share = Share(NAME, None, 8192, 17.78, total=8192)
    assert found == WantedMps(Sharing((share,), "report"), Account(3999999999, 7))
    assert found.path == str(TRAINER)
    lower = limits(clients(4 * GIB, 10.5))
    assert lower.sharing.shares == (replace(share, memory=4096, threads=10.5),)
    fewer = limits(clients(None, 5))
    assert fewer.sharing.shares == (replace(share, threads=5),)
    exact = limits(consumed=Consumed(8 * GIB, 60, 2))
    assert exact.sharing.shares == (replace(share, threads=60),)
    tiny = limits(consumed=Consumed(1 << 20))
    assert tiny.sharing.shares[0].threads == 0.1  # the least that a daemon can express


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (clients(9 * GIB, None), "clients.memory: found 9Gi, but the device has 8Gi"),
        (
            clients(None, 25),
            "found 25% of the threads, but its share of GPU 0 (NVIDIA L40S) has 17.78%",
        ),
        (
            MpsEntry("config[0].mps", Replicas(2, "config[0].mps.replicas")),
            "replicas: what it has of GPU 0 (NVIDIA L40S) is already one share",
        ),
    ],
)
def test_never_more_than_the_share(entry: MpsEntry, message: str) -> None:
    with pytest.raises(ClaimRefused) as refused:
        limits(entry)
    assert refused.value.message.startswith(f"{TRAINER}: config[0].mps.")
    assert message in refused.value.message
    where = "in spec.devices.config of the claim or its template, or in its DeviceClass"
    assert f"{where} ({TRAINER.show}" in refused.value.remedy


def test_what_its_containers_get() -> None:
    wanted = limits()
    device = ContainerDevice(mig_device(), (3,), mps=DAEMONS.client(L40S.uuid, wanted))
    [found] = json.loads(claim_document([device], Edits()))["devices"]
    edits, top = found["containerEdits"], f"/run/nodeagent/mps/{L40S.uuid}"
    assert edits["deviceNodes"] == [{"path": "/dev/nvidia3"}]
    assert dict(text.split("=", 1) for text in edits["env"]) == {
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "17.78",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M",
        "CUDA_MPS_PIPE_DIRECTORY": f"{top}/pipe",
        "CUDA_VISIBLE_DEVICES": L40S.uuid,
        "NODEAGENT_MPS_SLOT": f"{L40S.uuid}/{NAME}-0",
    }
    assert [mount["hostPath"] for mount in edits["mounts"]] == [f"{top}/pipe", f"{top}/shm"]


# --- its life -------------------------------------------------------------------------------------


def wanted(number: int) -> WantedMps:
    share = Share(f"share-{number}", None, 8192 - number, 17.78)
    return WantedMps(Sharing((share,), "report"), Account(1000, 1000))


def holder(number: int, uuid: str = L40S.uuid) -> ClaimRecord:
    device = share_of_gpu(uuid, wanted(number), share_id=f"share-{number}")
    return record(device, uid=f"{number}", name=f"c{number}")


ONE, TWO = holder(1), holder(2)
BARE = without_mig(L40S)


def serving(*records: ClaimRecord, users: Usage = CLIENT, card: Gpu = BARE) -> Gpu:
    """The GPU with the daemon of these."""
    runs = daemon_of(card.uuid, records)
    assert runs
    return replace(card, mps=daemon(runs, users), compute_mode=EXCLUSIVE)


def test_it_is_for_all_claims_on_the_gpu() -> None:
    found = daemon_of(L40S.uuid, [TWO, ONE, holder(3, "GPU-2")])
    assert found == daemon_of(L40S.uuid, [ONE, TWO])
    assert found
    assert [(s.name, s.memory) for s in found.sharing.shares] == [
        ("share-1", 8191),
        ("share-2", 8190),
    ]
    assert daemon_of("GPU-3", [ONE, TWO]) is None


def test_no_release_waits_for_a_daemon_of_others() -> None:
    both = serving(ONE, TWO)
    assert both.mps
    for mps in (None, replace(both.mps, state="Backoff")):
        there = replace(both, mps=mps)
        assert plan_gpu(to_release(TWO, there, [ONE]), there).verdict is Verdict.IN_SYNC


def test_gpus_of_one_daemon() -> None:
    """It is left alone on a GPU of which no claim has a share any more, and waited for at the first
    alone, where it is started.
    """
    [own] = holder(1, "GPU-2").devices
    mps = replace(wanted(1), devices=(L40S.uuid, "GPU-2"))
    claim = record(replace(own, mps=mps))
    left = replace(BARE, mps=replace(daemon(mps), state="Backoff"), compute_mode=EXCLUSIVE)
    assert [str(one) for one in reserved_on(left.uuid, [claim])] == [
        "the whole GPU (claim team/trainer)"
    ]
    held = tuple(reserved_on(left.uuid, [claim]))
    nothing = goal_with_claims(DesiredGpu(None, "gpus[0]"), left, held, [claim])
    assert plan_gpu(nothing, left).verdict is Verdict.IN_SYNC
    for there in (left, replace(left, uuid="GPU-2")):
        outcome = GpuOutcome(plan_gpu(to_prepare(claim, there, []), there), (), there)
        with pytest.raises(DaemonNotReady) if there is left else nullcontext():
            require_ready(outcome, claim)


def test_a_plan_beside_shares() -> None:
    """It is in sync as long as it leaves the GPU to them; else it waits, and names all of them."""
    records = [holder(number, "GPU-h100-80gb") for number in (1, 2)]
    there = serving(*records, card=without_mig(card("h100-80gb")))
    held = tuple(reserved_on(there.uuid, records))
    disabled = DesiredGpu(MigDisabled("gpus[0].mig"), "gpus[0]")
    assert plan_gpu(goal_with_claims(disabled, there, held, records), there).steps == ()
    shared = goal_with_claims(replace(disabled, mps=A), there, held, records)
    blocked = plan_gpu(shared, there)
    assert blocked.verdict is Verdict.BLOCKED
    assert "claim team/c1" in blocked.problems[0].message
    assert "claim team/c2" in blocked.problems[0].message


# --- who uses a share -----------------------------------------------------------------------------


def test_users_of_a_share() -> None:
    """A process in a pod of other claims is theirs; any other may be this one's, and so may anybody
    while the driver does not say.
    """
    theirs, mine = (User(5, "train", "mps", namespace="team", pod=pod) for pod in ("its", "own"))
    stray = User(7, "train")
    others = {PodName("team", "its")}
    require_lasting_unused(ONE, replace(BARE, usage=Usage((theirs,))), others)
    for user in (mine, stray):
        with pytest.raises(StillInUse) as used:
            require_lasting_unused(ONE, replace(BARE, usage=Usage((theirs, user))), others)
        assert used.value.message.endswith(f": GPU 0 (NVIDIA L40S) is in use by {user}")
        remedy = used.value.remedy
        assert remedy.startswith(
            "end it if it is this claim's"
        )  # by no command: it may be another's
        assert f"`cat /proc/{user.pid}/cgroup`" in remedy
    unknown = replace(BARE, usage=Usage(known=False, reason="it hangs"))
    with pytest.raises(StillInUse, match="unknown users"):
        require_lasting_unused(ONE, unknown, others)


@pytest.mark.parametrize("numbers", [(1,), (1, 2), (1, 2, 3)])
def test_upkeep_of_the_daemon(numbers: tuple[int, ...]) -> None:
    records = (holder(1, GPU), holder(2, GPU))
    served = daemon_of(GPU, [holder(number, GPU) for number in numbers])
    assert served
    there = snapshot(
        gpu(mig=OFF, mps=DeviceDaemon(served, "Ready")),
        records=records,
        claims={one.uid: ClaimState.SAME for one in records},
        files={one.uid: FileState.SAME for one in records},
    )
    for one in records:
        expected = ClaimAction.LEAVE if numbers == (1, 2) else ClaimAction.REPAIR
        assert decide(there, one.uid).action is expected
