"""`nodeagent claims`, against a server that answers as the agent does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.cli.agent_server import STATUS, answering

if TYPE_CHECKING:
    from tests.cli.conftest import Program

CLAIM: dict[str, Any] = {
    "namespace": "team",
    "name": "trainer",
    "uid": "0b8f6a3e-1c2d-4e5f-8a9b-0c1d2e3f4a5b",
    "phase": "Releasing",
    "pods": [{"namespace": "team", "name": "trainer-0", "container": ""}],
    "devices": [
        {
            "request": "gpu",
            "pool": "gpu-node-0/gpu-0",
            "device": "mig-3g-40gb-4",
            "gpu": "GPU-0",
            "index": 0,
            "profile": "3g.40gb",
            "start": 4,
            "size": 4,
            "gi": 2,
            "ci": 0,
            "uuid": "MIG-0",
        }
    ],
    "refusal": {
        "code": "InUse",
        "message": "claim team/trainer is used by pid 4711",
        "remedy": "end it",
    },
    "problems": [],
}
SERVED = {**STATUS, "claims": [CLAIM]}


def test_claims_are_listed(program: Program) -> None:
    """What they have, and what is in the way of their end."""
    with answering(json.dumps(SERVED).encode()) as (where, _):
        shown = program("claims", "--listen", where)
    assert (shown.code, shown.err) == (0, "")
    assert (
        shown.out
        == """\
CLAIM         PHASE      AGE  PODS       GPU  DEVICE     UUID   CLAIM UID
team/trainer  Releasing    -  trainer-0    0  3g.40gb@4  MIG-0  0b8f6a3e-1c2d-4e5f-8a9b-0c1d2e3f4a5b

! claim team/trainer is used by pid 4711
  end it
"""
    )


def test_programs_get_what_the_agent_says(program: Program) -> None:
    """As `/v1/status` has it, also keys of a later version, and nothing else of the node."""
    answer = {**SERVED, "claims": [{**CLAIM, "later": 1}]}
    with answering(json.dumps(answer).encode()) as (where, _):
        found = program("claims", "--listen", where, "-o", "json").json
    assert found == {key: answer[key] for key in ("node", "observedAt", "claims")}


def test_why_a_gpu_offers_less_is_shown(program: Program) -> None:
    """With the remedy: below the claims, and on the status page among what needs a hand, once."""
    why = {"code": "ResetRequired", "gpu": "GPU-0", "message": "MIG mode is off", "remedy": "reset"}
    answer = {**SERVED, "lessOffered": [why]}
    lines = "! less is offered to claims: MIG mode is off\n"
    with answering(json.dumps(answer).encode()) as (where, _):
        assert program("claims", "--listen", where).out.endswith(f"{lines}  reset\n")
        assert program("claims", "--listen", where, "-o", "json").json["lessOffered"] == [why]
        page = program("status", "--listen", where).out
    assert page.count(f"\n{lines}  reset\n") == 1
    with answering(json.dumps({**answer, "problems": [why]}).encode()) as (where, _):
        assert "less is offered" not in program("status", "--listen", where).out


def test_the_status_page_has_claims_at_their_devices(program: Program) -> None:
    """One line each, behind the users of the GPUs; those without a device after them."""
    waiting = {"namespace": "team", "name": "next", "phase": "Waiting", "pods": [], "devices": []}
    answer = {**STATUS, "claims": [CLAIM, waiting]}
    with answering(json.dumps(answer).encode()) as (where, _):
        shown = program("status", "--listen", where).out
    assert (
        "\nGPU 0  3g.40gb at 4: claim team/trainer Releasing, pod trainer-0: "
        "claim team/trainer is used by pid 4711\nclaim team/next Waiting\n"
    ) in shown
