"""The agent reads the pods of claims with MPS and says what does not go together."""

from pathlib import Path

from nodeagent.app.pod_checks import PodChecks
from nodeagent.claims.model import ClaimRecord
from nodeagent.claims.records import write_record
from nodeagent.claims.serving.node_claims import ClaimPlaces, NodeClaims
from nodeagent.claims.serving.pod_object import PodObject
from nodeagent.errors import NodeagentError
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.plan import Policy
from nodeagent.plan.shares import Account
from nodeagent.reconcile.owner import GpuOwners
from nodeagent.structs import replace
from tests.claims.machine import claim_files
from tests.claims.samples import UID, mig_device, record, reserved, whole_device
from tests.claims.test_containers import ALL, OTHER, pod
from tests.cluster.client.rig import running
from tests.machine_load import until
from tests.plan.daemons import A
from tests.rig import open_driver

MPS = replace(A, account=Account(0, 0, any_user=True))
PLAIN = record(whole_device(), uid="2", name="other")


class Pods:
    """What the API server has of the pod; without an answer it does not answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: PodObject | None = None
        self.denied = False

    async def fetch(self, _: str, name: str) -> PodObject | None:
        self.asked.append(name)
        if self.denied:
            return None
        if self.answer is None:
            raise NodeagentError("the API server does not answer")
        return self.answer


async def loaded(tmp_path: Path, pods: Pods, *records: ClaimRecord) -> NodeClaims:
    """The node's claims with these records; the pod has the first of them."""

    async def fetch(_: str, __: str) -> None:
        return None

    async def observe() -> ObservedNode:
        return ObservedNode(())

    claims = NodeClaims(
        ClaimPlaces("node-1", "boot-1", tmp_path / "claims"),
        owners=GpuOwners(open_driver(), Policy()),
        fetch=fetch,
        fetch_pod=pods.fetch,
        observe=observe,
        files=claim_files(tmp_path),
    )
    for one in records:
        write_record(tmp_path / "claims", one)
    await claims.store.load()
    claims.pods.was_read(("team", "trainer"), reserved(UID, "pod"))
    return claims


async def test_a_pod_that_came_to_claims_that_were_ready(tmp_path: Path) -> None:
    """One that cannot be read is asked for again, and none twice; the claim with MPS has the
    problem, until the other one is gone.
    """
    pods = Pods()
    claims = await loaded(tmp_path, pods, record(mig_device(mps=MPS)), PLAIN)
    checks = PodChecks(claims)
    async with running(checks.run()):
        await until(lambda: pods.asked == ["pod"])
        pods.answer = pod(main=[ALL, OTHER])
        checks.wake()
        await until(lambda: checks.problems)
        [(uid, [problem])] = checks.problems.items()
        assert (uid, problem.code) == (UID, "MpsClient")
        assert "container main of pod team/pod has devices that exclude" in problem.message
        await claims.store.remove(PLAIN.uid)
        checks.wake()
        await until(lambda: not checks.problems)
    assert pods.asked == ["pod", "pod"]


async def test_a_pod_that_was_mended_under_its_name(tmp_path: Path) -> None:
    """A StatefulSet's, say, whose claim another pod has, too: the kubelet lists the same name."""
    pods = Pods()
    pods.answer = pod(main=[ALL, OTHER])
    claims = await loaded(tmp_path, pods, record(mig_device(mps=MPS)), PLAIN)
    checks = PodChecks(claims, interval=0.05)
    async with running(checks.run()):
        await until(lambda: checks.problems)
        pods.answer = pod(main=[ALL], side=[OTHER])
        await until(lambda: not checks.problems)


async def test_a_right_that_was_granted_later(tmp_path: Path) -> None:
    """It counts for the pods that are there already."""
    pods = Pods()
    pods.denied, pods.answer = True, pod(main=[ALL, OTHER])
    claims = await loaded(tmp_path, pods, record(mig_device(mps=MPS)), PLAIN)
    checks = PodChecks(claims, interval=0.05)
    async with running(checks.run()):
        await until(lambda: len(pods.asked) > 1)
        pods.denied = False
        await until(lambda: checks.problems)
