from collections.abc import Mapping

import pytest

from nodeagent.cluster.plan_sources.nos.grammar import MODE_LABEL, SPEC_PLAN, STATUS_PLAN
from nodeagent.cluster.plan_sources.nos.status import status_annotations
from nodeagent.documents.reading import digest_of
from nodeagent.plan.observed import Access, DeviceDaemon, Gpu, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.plan.users import Usage, User
from nodeagent.reconcile.plan_update import NoPlan, PlanText, PlanUpdate, UnreadablePlan
from nodeagent.structs import replace
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.shapes import Refused
from tests.cluster.plan_sources.nos.rig import (
    MIG,
    OFF,
    PLAN_ID,
    TWO,
    divided,
    gpu,
    node,
    offer,
    spec,
    state,
)
from tests.plan.cards import NOT_KNOWN
from tests.plan.cards import divided as parted

STATUS = "nos.nebuly.com/status-gpu"
NOTHING = NoPlan("a test asks nothing")


def written(
    known: NodeState, annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] = MIG
) -> dict[str, str | None]:
    """What is written, the status keys by what follows `status-gpu-`."""
    found = status_annotations(known, NOTHING, annotations=annotations or {}, labels=labels)
    return {key.removeprefix(f"{STATUS}-"): value for key, value in found.items()}


def of(*gpus: Gpu, annotations: Mapping[str, str] | None = None) -> dict[str, str | None]:
    return written(state(node(*gpus)), annotations)


# --- MIG devices ------------------------------------------------------------------------------


def test_what_is_in_use() -> None:
    one = divided(gpu(0), ("7g.40gb", 0, False))
    runs = WantedMps(Sharing((Share("10gb", 1, 1000, None),), "report"), Account(1000, 1000))

    def served(clients: Usage) -> Gpu:
        daemon = DeviceDaemon(runs, "Ready", servers=(801,), clients=clients)
        usage = Usage((User(801),))
        return one.with_mig_devices(lambda _, device: replace(device, usage=usage, mps=daemon))

    unknown = one.with_mig_devices(lambda _, device: replace(device, usage=NOT_KNOWN))
    cases = ((unknown, "used"), (served(Usage()), "free"), (served(Usage((User(5),))), "used"))
    for seen, use in cases:
        assert of(seen) == {f"0-7g.40gb-{use}": "1"}


def test_parts_and_half_made() -> None:
    one = parted(gpu(0), "3g.20gb", 0, 1, 2, used=(0,))
    half = divided(gpu(1), ("7g.40gb", 0, False))
    half = replace(half, instances=(replace(half.instances[0], compute=()),))
    assert of(one, half) == {"0-1c.3g.20gb-used": "1", "0-2c.3g.20gb-free": "1"}


def test_minus() -> None:
    """A device whose name nos would split at the wrong place is left out, and only that."""
    one = divided(gpu(0, "rtx-pro-6000"), ("2g.48gb-me", 0, False), ("2g.48gb", 6, True))
    assert of(one) == {"0-2g.48gb-used": "1"}


def test_in_the_words_of_the_spec() -> None:
    """A device is named as it was asked for, or nos would never see its spec fulfilled."""
    one = divided(gpu(0, "a100-80gb"), ("7g.80gb", 0, False))
    assert of(one) == {"0-7g.80gb-free": "1"}
    assert of(one, annotations=spec(None, **{"0-7g.79gb": "1"})) == {"0-7g.79gb-free": "1"}
    assert of(one, annotations=spec(None, **{"1-7g.79gb": "1"})) == {"0-7g.80gb-free": "1"}


# --- what goes, what stays --------------------------------------------------------------------


def test_stale_keys() -> None:
    """What nos' reporter would replace and is not so goes; every other key is left alone."""
    there = {
        f"{STATUS}-0-7g.40gb-free": "2",
        f"{STATUS}-0-1g.5gb-USED": "1",
        f"{STATUS}-00-7g.40gb-free": "1",
        f"{STATUS}-7-7g.40gb-unknown": "1",
        f"{STATUS}X-0-7g.40gb-free": "1",
        f"{STATUS}-0-1g.10gb-me-free": "1",
        **spec(None, **{"0-1g.5gb": "1"}),
        "nodeagent.io/status": "{}",
        STATUS_PLAN: "old",
    }
    found = status_annotations(
        state(node(divided(gpu(0), ("7g.40gb", 0, False)))), NOTHING, annotations=there, labels=MIG
    )
    stale = [key for key in there if key.startswith(STATUS) and key != f"{STATUS}-0-7g.40gb-free"]
    assert found == {**dict.fromkeys(stale), f"{STATUS}-0-7g.40gb-free": "1"}


def test_silence() -> None:
    """A GPU that does not answer is counted as last seen and in use, and so are all while the
    driver does not; never seen, it is left, and so is all before the first look.
    """
    seen = divided(gpu(0), ("7g.40gb", 0, False))
    silent = replace(seen, access=Access.UNKNOWN)
    never = replace(gpu(1), access=Access.LOST, mig=None)
    there = {f"{STATUS}-{index}-7g.40gb-free": "1" for index in range(3)}
    assert of(silent, never, annotations=there) == {
        "0-7g.40gb-free": None,
        "0-7g.40gb-used": "1",
        "2-7g.40gb-free": None,
    }
    hanging = state(node(seen), driver_error="it hangs")
    assert written(hanging) == {"0-7g.40gb-used": "1"}
    assert written(NodeState("node-a", "nos"), {**there, STATUS_PLAN: PLAN_ID}) == {}


def test_not_a_node_of_nos() -> None:
    there = {f"{STATUS}-0-7g.40gb-free": "1", SPEC_PLAN: PLAN_ID}
    for labels in ({}, {MODE_LABEL: "other"}, {MODE_LABEL: "mps"}):
        assert written(state(TWO), there, labels) == {}


# --- the plan's id ----------------------------------------------------------------------------

ASKED = spec(**{"0-7g.40gb": "1"})
OFFERED = offer(ASKED, MIG, TWO)
assert isinstance(OFFERED, PlanText)
NO = Problem(code=Code.DOES_NOT_FIT, message="a test says no")
UNREADABLE = UnreadablePlan(NO)
DEAD = NodeState("node-a", "nos", Phase.FAILED, driver_error="no driver")


def refused(digest: str) -> NodeState:
    """The last good plan is in force, because that of this digest was refused."""
    known = state(TWO, PlanText(b"last good"), Phase.REJECTED)
    return replace(known, refusal=Refused(digest=digest, problems=(NO,)))


@pytest.mark.parametrize(
    ("known", "offered", "judged", "is_answered"),
    [
        *(
            (state(TWO, OFFERED, phase), OFFERED, True, phase is not Phase.WORKING)
            for phase in Phase
        ),
        (state(TWO, PlanText(b"another")), OFFERED, True, False),
        (NodeState("node-a", "nos"), OFFERED, True, False),
        (state(TWO), NOTHING, True, False),
        # What is from before nos asked for this.
        (state(TWO, OFFERED), OFFERED, False, False),
        (state(TWO, OFFERED), UNREADABLE, False, False),
        # What cannot even be read, was refused or meets a dead driver would hold up the cluster.
        (NodeState("node-a", "nos"), UNREADABLE, True, True),
        (refused(digest_of(OFFERED.text)), OFFERED, True, True),
        (refused("sha256:earlier"), OFFERED, True, False),
        (DEAD, OFFERED, True, True),
        (DEAD, None, False, True),
        (NodeState("node-a", "nos"), None, True, False),
    ],
)
def test_when_a_plan_is_answered(
    known: NodeState, offered: PlanUpdate | None, judged: bool, is_answered: bool
) -> None:
    found = status_annotations(known, offered, annotations=ASKED, labels=MIG, judged=judged)
    assert found.get(STATUS_PLAN) == (PLAN_ID if is_answered else None)


def test_ids_without_a_plan() -> None:
    """Without an id nothing is answered, and an earlier answer is left as it is. What is too long
    for one would crowd out the other annotations.
    """
    known = state(ObservedNode((gpu(0, mig=OFF),)))
    for there in ({STATUS_PLAN: "old"}, {STATUS_PLAN: "old", SPEC_PLAN: ""}):
        assert status_annotations(known, NOTHING, annotations=there, labels=MIG) == {}
    long = {**ASKED, SPEC_PLAN: "1" * 1025}
    assert status_annotations(state(TWO, OFFERED), OFFERED, annotations=long, labels=MIG) == {}
