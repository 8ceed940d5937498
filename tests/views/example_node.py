"""The node of docs/annotations.md: two H100, the first divided, the second shared with MPS."""

from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from nodeagent.documents.reading import digest_of, read_document
from nodeagent.errors import DocumentError
from nodeagent.health.reporting import Condition
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import ComputeInstance, MigMode, NvLinks, ObservedNode
from nodeagent.plan.plan import Policy
from nodeagent.plan.planner import plan
from nodeagent.plan.resolve import resolve
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.plan.users import Usage, User
from nodeagent.structs import replace
from nodeagent.views.conditions import conditions
from nodeagent.views.headline import headline
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.shapes import Json, Refused
from nodeagent.views.status_annotation import status_content
from tests.plan.cards import card, with_instances
from tests.views.daemons import mps_client, mps_daemon

AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
PLAN = """version: v1
gpus:
- {devices: [0], mig: {3g.40gb: 1, 1g.10gb: 2}}
- {devices: [1], mig: disabled, mps: {replicas: 4}}
"""
DIGEST = digest_of(PLAN.strip().encode())  # a shell's $(cat plan.yaml) has no line end
REFUSED = b"version: v1\ngpus: [{devices: [0], mig: {8g.40gb: 1}}]"
WHOLE = b"version: v1\ngpus: [{devices: [0], mig: {7g.80gb: 1}}]"
_LINKS = NvLinks(18, 18, (("nvswitch", 18),))


def _divided() -> ObservedNode:
    both = [
        replace(
            card("h100-80gb"),
            index=index,
            uuid=uuid,
            pci_bus_id=f"00000000:{bus}:00.0",
            numa_node=0,
            nvlink=_LINKS,
        )
        for index, uuid, bus in (
            (0, "GPU-b3bd7a30-5896-557f-8bf4-a9aa828e379c", "1A"),
            (1, "GPU-d7bebf44-ff5a-5584-9b92-0abca16ca105", "27"),
        )
    ]
    first = with_instances(both[0], (("3g.40gb", 4), ("1g.10gb", 0), ("1g.10gb", 1)), used=(0,))
    uuids = ("7c8d0c66-6b0e-5f1c-9d6d-2f0f6f1f8a01", "0d9be0fd", "c14a7be2")
    tails = ("", "-52a4-5c0e-8a3b-91d2f1c07f11", "-9f0d-5b7c-b1ce-53a4c0b2e9d0")
    named = tuple(
        replace(instance, compute=(_named(instance.compute[0], f"MIG-{uuid}{tail}"),))
        for instance, uuid, tail in zip(first.instances, uuids, tails, strict=True)
    )
    users = tuple(User(pid, "python", "mps") for pid in (4712, 4713))
    off = MigMode(current=False, pending=False)
    second = replace(both[1], mig=off, usage=Usage(users))
    return ObservedNode((replace(first, instances=named), second), "595.58.03")


def _named(device: ComputeInstance, uuid: str) -> ComputeInstance:
    return replace(device, uuid=uuid)


OBSERVED = _divided()
FIRST, SECOND = (gpu.uuid for gpu in OBSERVED.gpus)
SHARES = Sharing((Share("replica", 4, 20389, 25.0),), "report")
SHARED = WantedMps(SHARES, Account(1000, 1000))
DAEMON = mps_daemon(
    SECOND,
    "Ready",
    SHARED,
    pid=815,
    clients=(mps_client(4712, share="replica"), mps_client(4713, share="replica")),
)
IN_SYNC = NodeState(
    "gpu-node-0",
    "annotation",
    Phase.IN_SYNC,
    DIGEST,
    observed=OBSERVED,
    observed_at=AT,
    rounds=1,
    mps=(DAEMON,),
    runs_as="pod",
)
with pytest.raises(DocumentError) as _caught:
    resolve(read_document(REFUSED), OBSERVED)
_refused = _caught.value
REJECTED = replace(
    IN_SYNC,
    phase=Phase.REJECTED,
    refusal=Refused(digest=digest_of(REFUSED), problems=_refused.problems),
    problems=_refused.problems,
)
_whole = resolve(read_document(WHOLE), OBSERVED)
assert isinstance(_whole, DesiredNode)
_waits = plan(_whole, OBSERVED, Policy())
BLOCKED = replace(
    IN_SYNC,
    phase=Phase.BLOCKED,
    digest=digest_of(WHOLE),
    problems=tuple(problem for gpu in _waits.gpus for problem in gpu.problems),
)


def content_of(state: NodeState) -> Json:
    return status_content(state, headline(state))


def conditions_of(state: NodeState) -> Mapping[str, Condition]:
    return conditions(state, headline(state))
