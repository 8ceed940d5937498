from collections.abc import Iterable
from typing import Any

import pytest

from nodeagent.metrics.agent_metrics import AgentSample, agent_families
from nodeagent.metrics.agent_samples import Work
from nodeagent.metrics.exposition import render
from nodeagent.metrics.node_metrics import claim_samples, node_samples
from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.users import Pod
from nodeagent.structs import replace
from nodeagent.views.claims import Claim, ClaimDevice, ClaimPhase, ClaimShare, FreeShare
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.shapes import MpsDaemon, MpsWaiting
from tests.plan.cards import card, with_instances
from tests.views.daemons import mps_client, mps_daemon

GPU = with_instances(card("h100-80gb"), [("3g.40gb", 0), ("1g.10gb", 4)])
WHERE = f'gpu="0",UUID="{GPU.uuid}"'


def _lines(
    *gpus: Gpu,
    digest: str = "sha256:0",
    phase: Phase = Phase.IN_SYNC,
    mps: tuple[MpsDaemon, ...] = (),
) -> dict[str, str]:
    state = NodeState("n", "file", phase=phase, digest=digest, observed=ObservedNode(gpus), mps=mps)
    return written(node_samples(state))


def written(samples: Iterable[AgentSample]) -> dict[str, str]:
    lines = render(agent_families(samples)).decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


@pytest.mark.parametrize(
    ("digest", "phase", "reported"),
    [("sha256:0", Phase.IN_SYNC, "1"), ("sha256:0", Phase.BLOCKED, "0"), ("", Phase.IN_SYNC, None)],
)
def test_whether_the_plan_is_applied(digest: str, phase: Phase, reported: str | None) -> None:
    lines = _lines(digest=digest, phase=phase)
    assert lines.get("nodeagent_plan_applied") == reported
    assert [name for name, value in lines.items() if value == "1" and "phase" in name] == [
        f'nodeagent_phase{{phase="{phase}"}}'
    ]


@pytest.mark.parametrize(
    ("there", "share", "largest"),
    [
        ([], "0.0", "8"),
        ([("1g.10gb", 0), ("1g.10gb", 4)], "0.0", "2"),
        # An H100's last slice is only reached by profiles that begin before it.
        ([("1g.10gb", 0), ("1g.10gb", 6)], str(1 - 5 / 6), "2"),
        ([("1g.10gb", start) for start in range(7)], "1.0", "0"),
        ([("7g.80gb", 0)], None, "0"),
    ],
)
def test_fragmentation(there: list[tuple[str, int]], share: str | None, largest: str) -> None:
    """The share of free slices that nothing can use as the instances lie; none without any free."""
    lines = _lines(with_instances(card("h100-80gb"), there))
    assert lines.get(f"nodeagent_mig_slots_unusable_ratio{{{WHERE}}}") == share
    assert lines[f"nodeagent_mig_largest_creatable_slots{{{WHERE}}}"] == largest
    assert lines[f'nodeagent_mig_creatable{{{WHERE},GPU_I_PROFILE="7g.80gb"}}'] == str(
        int(not there)
    )
    # Two that lie in both halves leave less room than they could.
    lost = float(lines[f"nodeagent_mig_fragmentation_ratio{{{WHERE}}}"])
    assert (lost > 0) == (len(there) == 2)


def test_a_gpu_that_does_not_answer_is_left_out() -> None:
    lost = replace(GPU, access=Access.LOST)
    assert not [series for series in _lines(lost) if "mig" in series]


def test_a_gpu_without_mig_has_no_room() -> None:
    assert not [series for series in _lines(replace(GPU, mig=None)) if "mig" in series]


def test_mps_daemons_and_their_clients() -> None:
    device = GPU.instances[0].compute[0].uuid
    known = mps_client(
        4712,
        share="small",
        slot="small-0",
        memory_used=0,
        memory_limit=8 << 30,
        threads=25.0,
        namespace="ml",
        pod="a",
        container="main",
    )
    daemons = (
        mps_daemon(
            device,
            "Ready",
            restarts=2,
            clients=(known, mps_client(4713, findings=("has no share", "is one too many"))),
            waiting=(MpsWaiting(pid=4714, user=1234),),
        ),
        mps_daemon("GPU-gone", "Backoff"),
    )
    lines = _lines(GPU, mps=daemons)
    where = (
        f'{WHERE},GPU_I_PROFILE="3g.40gb",GPU_I_ID="{GPU.instances[0].id}",'
        f'compute_instance="0",mig_uuid="{device}"'
    )
    whose = f'{where},pid="4712",share="small-0",container="main",namespace="ml",pod="a"'
    assert lines[f"nodeagent_mps_daemon_up{{{where}}}"] == "1"
    assert lines[f"nodeagent_mps_restarts_total{{{where}}}"] == "2"
    assert lines[f"nodeagent_mps_clients{{{where}}}"] == "2"
    assert lines[f"nodeagent_mps_intruders{{{where}}}"] == "1"
    assert lines[f"nodeagent_mps_waiting_clients{{{where}}}"] == "1"
    assert lines[f"nodeagent_mps_client_memory_bytes{{{whose}}}"] == "0"
    assert lines[f"nodeagent_mps_client_memory_limit_bytes{{{whose}}}"] == str(8 << 30)
    assert lines[f"nodeagent_mps_client_active_thread_percentage{{{whose}}}"] == "25.0"
    assert not [series for series in lines if "4713" in series]
    assert lines['nodeagent_mps_daemon_up{UUID="GPU-gone"}'] == "0"


H100 = card("h100-80gb")
POD = Pod(namespace="team", name="pod-1", container="main")


def device(**known: Any) -> ClaimDevice:
    given = {"request": "gpu", "pool": "p", "device": "mig-1g-10gb-4", "gpu": H100.uuid, "index": 0}
    part = {"profile": "1g.10gb", "start": 4, "size": 1, "gi": 7, "ci": 0, "uuid": "MIG-1"}
    return ClaimDevice(**{**given, **part, **known})


def whole(gpu: str = H100.uuid, **known: Any) -> ClaimDevice:
    empty = {"profile": "", "start": None, "size": None, "gi": None, "ci": None, "uuid": ""}
    return device(**{"device": "gpu", "gpu": gpu, **empty, **known})


def claim(*devices: ClaimDevice, phase: ClaimPhase = ClaimPhase.READY, **known: Any) -> Claim:
    given = {"namespace": "team", "name": "trainer", "uid": "1", "pods": [POD], "problems": []}
    return Claim(**{**given, "phase": phase, "devices": list(devices), **known})


def series(*claims: Claim) -> dict[str, str]:
    node = ObservedNode((H100, Gpu(1, "GPU-t4")))
    return written(claim_samples(NodeState("n", "file", observed=node, claims=claims)))


def slices(*claims: Claim) -> list[tuple[str, str]]:
    name = "nodeagent_claim_slices"
    return [(k.removeprefix(name), v) for k, v in series(*claims).items() if k.startswith(name)]


def test_claims_are_counted_by_phase() -> None:
    """Each phase is there, so that an alert sees none turn into some; nothing without claims."""
    found = series(claim(), claim(phase=ClaimPhase.WAITING), claim(phase=ClaimPhase.WAITING))
    assert {k: v for k, v in found.items() if k.startswith("nodeagent_claims")} == {
        'nodeagent_claims{phase="Waiting"}': "2",
        'nodeagent_claims{phase="Preparing"}': "0",
        'nodeagent_claims{phase="Ready"}': "1",
        'nodeagent_claims{phase="Releasing"}': "0",
        'nodeagent_claims{phase="Unreadable"}': "0",
    }
    assert not list(claim_samples(NodeState("n", "file")))


def test_the_slices_of_a_claim() -> None:
    where = f'gpu="0",UUID="{H100.uuid}",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"'
    whose = 'namespace="team",claim="trainer"'
    assert slices(claim(device())) == [(f'{{{where},{whose},pod="pod-1"}}', "1")]
    assert slices(claim(device(), pods=[POD, POD])) == [(f"{{{where},{whose}}}", "1")]


def test_whole_gpus_shares_and_lookers_on() -> None:
    assert [value for _, value in slices(claim(whole(), whole("GPU-t4")))] == ["8", "1"]
    assert not slices(claim(whole(share=ClaimShare(memory=1)), device(admin_access=True)))


def test_shares_of_gpus() -> None:
    """Of each request what it may use and uses, of each GPU what is left; a MIG device is named."""
    part = ClaimShare(memory=8, threads=17.5, clients=1)
    whose = f'gpu="0",UUID="{H100.uuid}",namespace="team",claim="trainer",request="gpu",pod="pod-1"'
    other, more = whose.replace('"gpu"', '"more"'), ClaimShare(memory=4, threads=8.75, clients=1)
    slice_ = whose.replace(",namespace", ',GPU_I_PROFILE="1g.10gb",GPU_I_ID="7",namespace')
    of_gpu, of_mig = (
        mps_client(7, share=name, memory_used=used, memory_limit=8)
        for name, used in (("s-1", 3), ("s-3", 2))
    )
    state = NodeState(
        "n",
        "file",
        observed=ObservedNode((H100,)),
        claims=(
            claim(
                whole(share=part, share_id="s-1"),
                whole(share=more, share_id="s-2", request="more"),
                device(share=ClaimShare(memory=6), share_id="s-3"),
            ),
        ),
        mps=(
            mps_daemon(H100.uuid, "Ready", clients=(of_gpu,)),
            mps_daemon("MIG-1", "Ready", clients=(of_mig,)),
        ),
        free_shares={H100.uuid: FreeShare(memory=5, threads=40), "GPU-2": FreeShare(memory=1)},
    )
    found = written(claim_samples(state)).items()
    assert {f"{name} {value}" for name, value in found if "_share" in name} == {
        f"nodeagent_claim_share_memory_limit_bytes{{{whose}}} 8",
        f"nodeagent_claim_share_memory_used_bytes{{{whose}}} 3",
        f"nodeagent_claim_share_active_thread_percentage{{{whose}}} 17.5",
        f"nodeagent_claim_share_memory_limit_bytes{{{slice_}}} 6",
        f"nodeagent_claim_share_memory_used_bytes{{{slice_}}} 2",
        f"nodeagent_claim_share_memory_limit_bytes{{{other}}} 4",
        f"nodeagent_claim_share_active_thread_percentage{{{other}}} 8.75",
        f'nodeagent_shares_free_memory_bytes{{gpu="0",UUID="{H100.uuid}"}} 5',
        f'nodeagent_shares_free_thread_percentage{{gpu="0",UUID="{H100.uuid}"}} 40',
    }


def test_only_what_is_ready_or_not_released_yet_is_held() -> None:
    held = {phase for phase in ClaimPhase if slices(claim(device(), phase=phase))}
    assert held == {ClaimPhase.READY, ClaimPhase.RELEASING}


def test_durations_and_failures() -> None:
    work = Work()
    assert b"claim" not in render(work.families())
    for operation, seconds, reason in (
        ("prepare", 0.04, ""),
        ("prepare", 30.0, "InUse"),
        ("prepare", 31.0, "InUse"),
        ("release", 0.2, ""),
        ("release", 0.2, "Driver"),
    ):
        work.add_claim(operation, seconds, reason)
    lines = render(work.families()).decode().splitlines()
    for line in (
        'nodeagent_claim_prepare_duration_seconds_bucket{le="0.025"} 0',
        'nodeagent_claim_prepare_duration_seconds_bucket{le="0.05"} 1',
        "nodeagent_claim_prepare_duration_seconds_count 1",
        "nodeagent_claim_prepare_duration_seconds_sum 0.04",
        "nodeagent_claim_release_duration_seconds_count 1",
        'nodeagent_claim_failures_total{operation="prepare",reason="InUse"} 2',
        'nodeagent_claim_failures_total{operation="release",reason="Driver"} 1',
    ):
        assert line in lines
