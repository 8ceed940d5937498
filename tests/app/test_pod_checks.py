"""The agent reads the pods of claims with MPS, each once, and says what does not go together."""

from pathlib import Path

from nodeagent.app.pod_checks import PodChecks
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
from tests.cluster.client.rig import running, until
from tests.plan.daemons import A
from tests.rig import open_driver

MPS = replace(A, account=Account(0, 0, any_user=True))


async def test_a_pod_that_came_to_claims_that_were_ready(tmp_path: Path) -> None:
    """One that cannot be read is asked for again, and none twice; the claim with MPS has the
    problem, until the other one is gone.
    """
    asked: list[str] = []
    answers: list[PodObject] = []

    async def fetch(_: str, __: str) -> None:
        return None

    async def fetch_pod(_: str, name: str) -> PodObject:
        asked.append(name)
        if not answers:
            raise NodeagentError("the API server does not answer")
        return answers[0]

    async def observe() -> ObservedNode:
        return ObservedNode(())

    claims = NodeClaims(
        ClaimPlaces("node-1", "boot-1", tmp_path / "claims"),
        owners=GpuOwners(open_driver(), Policy()),
        fetch=fetch,
        fetch_pod=fetch_pod,
        observe=observe,
        files=claim_files(tmp_path),
    )
    plain = record(whole_device(), uid="2", name="other")
    for one in (record(mig_device(mps=MPS)), plain):
        write_record(tmp_path / "claims", one)
    await claims.store.load()
    claims.pods.was_read(("team", "trainer"), reserved(UID, "pod"))
    checks = PodChecks(claims)
    async with running(checks.run()):
        await until(lambda: asked == ["pod"])
        answers.append(pod(main=[ALL, OTHER]))
        checks.wake()
        await until(lambda: checks.problems)
        [(uid, [problem])] = checks.problems.items()
        assert (uid, problem.code) == (UID, "MpsClient")
        assert "container main of pod team/pod has devices that exclude" in problem.message
        await claims.store.remove(plain.uid)
        checks.wake()
        await until(lambda: not checks.problems)
    assert asked == ["pod", "pod"]
