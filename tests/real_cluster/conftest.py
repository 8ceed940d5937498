"""The cluster of NODEAGENT_TEST_KUBECONFIG with our manifests, and the node on this machine."""

import contextlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.manifests.rendering import MANIFESTS
from tests.real_cluster.rig import KUBECONFIG, NODE, RESOURCE, Cluster, Member, Node
from tests.simulated_cluster.agent import PLAN

FOREIGN = "nodeagent-suite"  # a Node without a kubelet


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """With everything of the overlay for claims."""
    if not KUBECONFIG or shutil.which("kubectl") is None:
        pytest.skip("no cluster")
    command = ["kubectl", "--kubeconfig", KUBECONFIG, "proxy", "--port=0"]
    manifests = ("-k", str(MANIFESTS / "overlays" / "dra"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            address = re.search(r"127\.0\.0\.1:\d+", proxy.stdout.readline())
            assert address is not None, "kubectl proxy says no address"
            cluster = Cluster(f"http://{address[0]}")
            with contextlib.suppress(AssertionError):  # test_manifests says what is wrong with them
                cluster.kubectl("apply", *manifests)
            cluster.ask("POST", "/api/v1/nodes", {"metadata": {"name": FOREIGN}})
            cluster.kubectl("wait", "--for=create", "serviceaccount/default", "--timeout=60s")
            yield cluster
            cluster.kubectl("delete", "node", FOREIGN)
            cluster.kubectl("delete", *manifests, "--ignore-not-found", "--timeout=60s")
        finally:
            proxy.terminate()


@pytest.fixture
def folder(short: Path) -> Path:
    return short


@pytest.fixture
def member(cluster: Cluster, folder: Path) -> Iterator[Member]:
    """The agent of a Node that has no kubelet, on one H100."""
    member = Member(folder, cluster, FOREIGN)
    yield member
    member.close()


@pytest.fixture
def node(cluster: Cluster, folder: Path) -> Iterator[Node]:
    """The node on this machine with eight H100, its agent serving; no pod is there, nor left."""
    with serving(cluster, folder) as node:
        yield node


@pytest.fixture
def sharing(cluster: Cluster, folder: Path) -> Iterator[Node]:
    """The same with one H100, which claims may share."""
    with serving(cluster, folder, "h100-80gb:1", NODEAGENT_DRA_SHARE="memory") as node:
        yield node


@pytest.fixture
def dividing(cluster: Cluster, folder: Path) -> Iterator[Node]:
    """The same, of which claims may share the MIG devices."""
    with serving(cluster, folder, "h100-80gb:1", NODEAGENT_DRA_SHARE_MIG="memory") as node:
        yield node


@pytest.fixture
def pair(cluster: Cluster, folder: Path) -> Iterator[Node]:
    with serving(cluster, folder, "h100-80gb:2", NODEAGENT_DRA_SHARE="memory") as node:
        yield node


@contextlib.contextmanager
def serving(
    cluster: Cluster, folder: Path, boards: str = "h100-80gb:8", **settings: str
) -> Iterator[Node]:
    if not NODE:
        pytest.skip("no node")
    node = Node(folder, cluster)
    node.boards = boards
    node.settings |= settings
    cluster.annotate(node.node, PLAN, None)  # of a test that was interrupted
    # Other boards' are kept for ten minutes, as those of cards that were taken out.
    cluster.ask("DELETE", f"{RESOURCE}/resourceslices?fieldSelector=spec.nodeName={node.node}")
    try:
        node.serve()
        node.delete_pods()  # those that an earlier run left
        yield node
        node.delete_pods()
    finally:
        node.close()
