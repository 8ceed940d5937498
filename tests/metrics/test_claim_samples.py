"""What metrics say of claims: how many, what they hold, how long they take and why they fail."""

from __future__ import annotations

from typing import Any

from nodeagent.metrics.agent_metrics import agent_families
from nodeagent.metrics.agent_samples import Work
from nodeagent.metrics.exposition import render
from nodeagent.metrics.node_metrics import claim_samples
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.views.claims import Claim, ClaimDevice, ClaimPhase
from nodeagent.views.node_state import NodeState
from nodeagent.views.shapes import Pod
from tests.plan.cards import card

H100 = card("h100-80gb")
POD = Pod(namespace="team", name="pod-1", container="main")


def device(**known: Any) -> ClaimDevice:
    """A 1g.10gb of the H100."""
    given = {"request": "gpu", "pool": "p", "device": "mig-1g-10gb-4", "gpu": H100.uuid, "index": 0}
    part = {"profile": "1g.10gb", "start": 4, "size": 1, "gi": 7, "ci": 0, "uuid": "MIG-1"}
    return ClaimDevice(**{**given, **part, **known})


def whole(gpu: str = H100.uuid, **known: Any) -> ClaimDevice:
    """A GPU, or a share of it."""
    empty = {"profile": "", "start": None, "size": None, "gi": None, "ci": None, "uuid": ""}
    return device(**{"device": "gpu", "gpu": gpu, **empty, **known})


def claim(*devices: ClaimDevice, phase: ClaimPhase = ClaimPhase.READY, **known: Any) -> Claim:
    """Of one pod."""
    given = {"namespace": "team", "name": "trainer", "uid": "1", "pods": [POD], "problems": []}
    return Claim(**{**given, "phase": phase, "devices": list(devices), **known})


def series(*claims: Claim) -> dict[str, str]:
    """By name and labels."""
    node = ObservedNode((H100, Gpu(1, "GPU-t4")))
    state = NodeState("n", "file", observed=node, claims=claims)
    text = render(agent_families(claim_samples(state))).decode()
    written = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {line[0]: line[1] for line in written}


def slices(*claims: Claim) -> list[tuple[str, str]]:
    """Labels and value of what claims hold."""
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
    """With the labels that DCGM's have, the claim, and its pod where there is one."""
    where = f'gpu="0",UUID="{H100.uuid}",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"'
    whose = 'namespace="team",claim="trainer"'
    assert slices(claim(device())) == [(f'{{{where},{whose},pod="pod-1"}}', "1")]
    assert slices(claim(device(), pods=[POD, POD])) == [(f"{{{where},{whose}}}", "1")]


def test_whole_gpus_shares_and_lookers_on() -> None:
    """All slices of the card, one where it has none; what is another's is not counted again."""
    assert [value for _, value in slices(claim(whole(), whole("GPU-t4")))] == ["8", "1"]
    assert not slices(claim(whole(device="mps-20gi-1"), device(admin_access=True)))


def test_only_what_is_ready_or_not_released_yet_is_held() -> None:
    """Before that nothing of it is there for sure."""
    held = {phase for phase in ClaimPhase if slices(claim(device(), phase=phase))}
    assert held == {ClaimPhase.READY, ClaimPhase.RELEASING}


def test_durations_and_failures() -> None:
    """Of each operation; a failure counts by its reason and in no duration."""
    work = Work()
    assert not render(work.families())
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
