from datetime import UTC, datetime, timedelta
from typing import Any

from nodeagent.claims.model import ClaimReference
from nodeagent.terminal.claims_page import (
    age_words,
    claim_lines,
    claims_page,
    claims_without_device,
)
from nodeagent.terminal.gpu_page import gpu_page
from nodeagent.terminal.page import plain_text as text
from nodeagent.terminal.status_words import room_lines
from tests.doc_blocks import ROOT, blocks_of

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
DEVICE = {
    "request": "gpu",
    "device": "mig-1g-10gb-4",
    "gpu": "GPU-0",
    "index": 0,
    "profile": "1g.10gb",
    "start": 4,
    "size": 1,
    "uuid": "MIG-1",
}
WHOLE = {"request": "all", "device": "gpu", "gpu": "GPU-1", "index": 1}
READY: dict[str, Any] = {
    "namespace": "team",
    "name": "trainer",
    "uid": "0000-1111",
    "phase": "Ready",
    "since": "2030-01-02T03:00:00.000Z",
    "pods": [{"namespace": "team", "name": "trainer-0", "container": "main"}],
    "devices": [DEVICE, WHOLE],
    "problems": [],
}
WAITING: dict[str, Any] = {
    "namespace": "team",
    "name": "second",
    "uid": "0000-2222",
    "phase": "Waiting",
    "pods": [],
    "devices": [],
    "refusal": {
        "code": "ClaimRefused",
        "message": "claim team/second was allocated a device that is held: gpu of claim a/b",
        "remedy": "wait until that one's pods have ended",
    },
    "problems": [{"code": "StateFile", "message": "the disk is full"}],
}


def test_each_device_is_a_row() -> None:
    assert (
        text(claims_page([READY, WAITING], NOW))
        == """\
CLAIM         PHASE    AGE  PODS       GPU  DEVICE     UUID   CLAIM UID
team/trainer  Ready     4m  trainer-0    0  1g.10gb@4  MIG-1  0000-1111
                                         1  gpu        GPU-1
team/second   Waiting    -  -            -  -          -      0000-2222

! claim team/second was allocated a device that is held: gpu of claim a/b
  wait until that one's pods have ended
! team/second: the disk is full
"""
    )


def test_the_example_in_the_pages_is_what_is_printed() -> None:
    trainer = {
        **READY,
        "uid": "00000000-0000-4000-8000-000000000006",
        "devices": [{**DEVICE, "start": 6, "uuid": "MIG-cbfdc1fb-a888-5510-be44-a372e7f0a81b"}],
    }
    rival = {
        **WAITING,
        "name": "rival",
        "uid": "00000000-0000-4000-8000-00000000000a",
        "since": "2030-01-02T03:03:40.000Z",
        "pods": [{"namespace": "team", "name": "rival-0", "container": "main"}],
        "refusal": {
            "code": "ClaimRefused",
            "message": "claim team/rival was allocated a device that is held: "
            "mig-1g-10gb-6 of claim team/trainer",
            "remedy": "wait until the pods of claim team/trainer have ended, or have this one's "
            f"scheduled again: {ClaimReference('team', 'rival').schedule_anew}",
        },
        "problems": [],
    }
    page = (ROOT / "docs/dra.md").read_text(encoding="utf-8")
    (shown,) = (b.body for b in blocks_of(page) if b.body.startswith("$ nodeagent claims\n"))
    assert f"$ nodeagent claims\n{text(claims_page([rival, trainer], NOW))}" == shown


def test_why_less_is_offered_stands_below() -> None:
    reasons = [
        {"gpu": "GPU-0", "message": "MIG mode of GPU 0 is off", "remedy": "reset it"},
        {"gpu": "GPU-1", "message": "the disk is full"},
    ]
    assert text(claims_page([], NOW, reasons[:1])) == (
        "No claim uses this node.\n\n"
        "! less is offered to claims: MIG mode of GPU 0 is off\n  reset it\n"
    )
    shown = text(claims_page([WAITING], NOW, reasons))
    assert shown.endswith(
        "! team/second: the disk is full\n"
        "! less is offered to claims: MIG mode of GPU 0 is off\n  reset it\n"
    )


def test_troubles_of_health_stand_at_the_gpu_alone() -> None:
    gpu = {"index": 0, "uuid": "GPU-0", "instances": [], "users": []}
    less = {
        "severity": "warning",
        "text": "Less is offered: MIG mode is off.",
        "remedy": "Reset it.",
    }
    sick = {"severity": "error", "text": "GPU 0 has errors.", "evidence": "3 of them"}
    shown = text(gpu_page({"gpus": [gpu], "troubles": [sick, less]}, 80))
    assert "! Less is offered: MIG mode is off.\n  Reset it.\n" in shown
    assert "3 of them" not in shown


def test_a_claim_is_a_line_at_its_device() -> None:
    assert text(claim_lines([READY, WAITING], "GPU-0")) == (
        "1g.10gb at 4: claim team/trainer Ready, pod trainer-0\n"
    )
    assert text(claim_lines([READY], "GPU-1")) == "GPU: claim team/trainer Ready, pod trainer-0\n"
    assert text(claims_without_device([READY, WAITING])) == (
        "claim team/second Waiting: "
        "claim team/second was allocated a device that is held: gpu of claim a/b\n"
    )


def test_a_share_of_a_gpu() -> None:
    """What it uses, where that is known, and may use; a GPU shows what claims could still have."""
    limits = {"memory": 8 << 30, "threads": 17.78}
    used = {**WHOLE, "share": {**limits, "used": 3 << 29}, "daemon": ["GPU-1", "GPU-2"]}
    turns = {**WHOLE, "share": {"memory": 4 << 30}}
    of_mig = {**turns, "profile": "1g.10gb", "start": 4, "uuid": "MIG-1"}
    claim = {**READY, "devices": [used, turns, of_mig]}
    _, row, _, last = text(claims_page([claim], NOW)).splitlines()
    assert "  1.5 GiB of 8 GiB, 17.78% (MPS of 2 GPUs)  GPU-1  " in row
    assert "  1g.10gb@4, 4 GiB, not enforced            MIG-1" in last
    first, second, third = text(claim_lines([claim], "GPU-1")).splitlines()
    assert third.startswith("1g.10gb at 4, share of 4 GiB, not enforced: claim team/trainer")
    assert first.startswith("share of 1.5 GiB of 8 GiB, 17.78%: claim team/trainer Ready")
    assert second.startswith("share of 4 GiB, not enforced: claim team/trainer")
    free = {"slots": [], "creatable": {}, "share": {"memory": 30 << 30, "threads": 40}}
    [room] = text(room_lines({"free": free})).splitlines()
    assert room == "room for claims with 30 GiB and 40% of the threads"
    free["share"] = {"memory": 0, "threads": 0}
    assert not room_lines({"free": free})


def test_a_record_that_cannot_be_read_has_only_its_uid() -> None:
    broken = {"phase": "Unreadable", "uid": "0000-3333", "pods": [], "devices": [], "problems": []}
    assert "0000-3333  Unreadable" in text(claims_page([broken], NOW))
    assert text(claims_without_device([{**broken, "uid": ""}])) == "claim - Unreadable\n"


def test_ages() -> None:
    seconds = (-5, 0, 119, 120, 7199, 7200, 172800)
    found = [age_words((NOW - timedelta(seconds=n)).isoformat(), NOW) for n in seconds]
    assert found == ["0s", "0s", "119s", "2m", "119m", "2h", "2d"]
    unknown = ("", "soon", "2030-01-02T03:04:05")
    assert {age_words(since, NOW) for since in unknown} == {"-"}
