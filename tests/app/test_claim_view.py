from pathlib import Path

from nodeagent.app.claim_view import ClaimView
from nodeagent.claims.model import ClaimedDevice
from nodeagent.claims.records import write_record
from nodeagent.claims.reporting.device_reports import DeviceHealth
from nodeagent.claims.serving.attempts import Operation
from nodeagent.claims.serving.node_claims import ClaimPlaces, NodeClaims
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.plan import Policy
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.owner import GpuOwners
from tests.claims.machine import claim_files, uid
from tests.claims.samples import GPU, MIG_DEVICE, POOL, UID, mig_device, record, reserved
from tests.rig import open_driver

MADE: ClaimedDevice = mig_device(instance=7, compute=0, uuid="MIG-1")


async def test_each_source_of_it_counts_at_once(tmp_path: Path) -> None:
    nodes = [ObservedNode((Gpu(3, GPU),))]
    health: list[DeviceHealth] = []

    async def fetch(_: str, __: str) -> None:
        return None

    async def observe() -> ObservedNode:
        return nodes[-1]

    claims = NodeClaims(
        ClaimPlaces("node-1", "boot-1", tmp_path / "claims"),
        owners=GpuOwners(open_driver(), Policy()),
        fetch=fetch,
        fetch_pod=fetch,
        observe=observe,
        files=claim_files(tmp_path),
    )
    write_record(tmp_path / "claims", record(MADE))
    await claims.store.load()
    view = ClaimView(claims, observe=lambda: nodes[-1], health=lambda: tuple(health))
    (first,) = before = view.served
    assert (first.name, first.phase, first.devices[0].index) == ("trainer", "Ready", 3)
    assert view.served is before
    with view.attempts.attempt(Operation.PREPARE, "team", "other", uid(1)):
        assert [claim.name for claim in view.served] == ["other", "trainer"]
    assert view.served == before
    view.pods.was_read(("team", "trainer"), reserved(UID, "pod-1"))
    assert [pod.name for pod in view.served[0].pods] == ["pod-1"]
    view.upkeep_problems = {UID: Problem(code=Code.IN_USE, message="it is used")}
    health.append(DeviceHealth(POOL, MIG_DEVICE, "unhealthy", 0.0, "it is hot"))
    assert [one.message for one in view.served[0].problems] == [
        "it is used",
        f"{MIG_DEVICE}: it is hot",
    ]
    nodes.append(ObservedNode((Gpu(4, GPU),)))
    assert view.served[0].devices[0].index == 4
