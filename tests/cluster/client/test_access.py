import asyncio
import json
import os
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from nodeagent.claims.serving import pod_object
from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess, read_object
from nodeagent.cluster.client.credentials import InCluster, Kubeconfig
from nodeagent.cluster.client.node_view import read_node
from nodeagent.cluster.drain.pods import read_pod
from nodeagent.cluster.reflector import WatchIntervals
from tests.cluster.client.rig import Follower, certificate, kubeconfig, running
from tests.cluster.client.test_credentials import kubeconfig as kubeconfig_of_user
from tests.machine_load import stretched, until
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Dribble, Fault, Html


def served(folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context


def mounted(folder: Path, authority: Path, port: int) -> InCluster:
    """A service account in a pod of the cluster whose server listens there."""
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text("t")
    (folder / "ca.crt").write_text((authority / "certificate.pem").read_text())
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    return InCluster(folder, environ)


async def test_a_pod_follows_over_tls_through_a_change_of_certificates(tmp_path: Path) -> None:
    old, new = certificate(tmp_path / "old"), certificate(tmp_path / "new")
    async with ApiServer(tls=served(old)) as before:
        before.add_node("n")
        port = before.port
        way = mounted(tmp_path / "pod", old, port)
        async with ClusterAccess(way) as access:
            seen = Follower(access)
            async with running(seen.follower.run()):
                await until(lambda: before.faults.watching)
                assert before.requests[0].who == "t"
                await before.stop()
                async with ApiServer(tls=served(new), port=port) as after:
                    after.add_node("n", annotations={"nodeagent.io/plan": "new"})
                    await until(lambda: "TLS" in str(seen.follower.fault))
                    assert not after.requests
                    mounted(tmp_path / "pod", new, port)
                    await until(lambda: seen.plan == "new")
                    assert seen.follower.fault is None


async def test_a_request_at_the_end_is_a_cluster_fault(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work on a claim outlives the call that asked for it, and may outlive the connection."""
    server.tokens["t"] = "agent"
    (tmp_path / "netrc").write_text("default login me password secret")  # not for this server
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with ClusterAccess(kubeconfig(tmp_path, server.url, token="t")) as access:
        await access.listed(requests.list_node("n"), read_node)
        begun = asyncio.create_task(access.listed(requests.list_node("n"), read_node))
        await asyncio.sleep(0)
    later = asyncio.create_task(access.listed(requests.list_node("n"), read_node))
    for request in (begun, later):
        with pytest.raises(faults.ClusterUnreachable):
            await request


async def test_a_token_file_that_is_away_for_a_moment(server: ApiServer, tmp_path: Path) -> None:
    server.tokens["t"] = "agent"
    way = kubeconfig(tmp_path, server.url, token="t")
    async with ClusterAccess(way, reread_every=0.0) as access:
        await access.listed(requests.list_node("n"), read_node)
        (tmp_path / "token").unlink()
        assert (await access.listed(requests.list_node("n"), read_node)).first
        server.revoke("t")
        with pytest.raises(faults.NotAuthenticated) as refused:
            await access.listed(requests.list_node("n"), read_node)
    assert "Unauthorized (401)" in str(refused.value)
    assert f"{tmp_path / 'token'} cannot be read" in str(refused.value)


async def test_a_program_for_credentials_that_hangs_is_a_fault_and_no_second_one(
    server: ApiServer, tmp_path: Path
) -> None:
    ends = tmp_path / "ends"
    version = "client.authentication.k8s.io/v1"
    answer = {"apiVersion": version, "kind": "ExecCredential", "status": {"token": "new"}}
    waits = "for _ in $(seq 1500); do [ -e $0 ] && break; sleep 0.02; done"
    script = f"echo >> $0.started; {waits}; echo $1"
    arguments = ["-c", script, str(ends), json.dumps(answer)]
    program = {"apiVersion": version, "command": "sh", "args": arguments}
    path = kubeconfig_of_user(tmp_path / "a", cluster={"server": server.url}, exec=program)
    async with ClusterAccess(Kubeconfig(path), answer_within=0.2) as access:
        for _ in range(2):
            with pytest.raises(faults.CredentialsUnusable, match=r"within 0\.2 s"):
                await access.listed(requests.list_node("n"), read_node)
        ends.touch()
        access.answer_within = 30.0
        await access.listed(requests.list_node("n"), read_node)
    assert server.requests[-1].who == "new"
    assert (tmp_path / "ends.started").read_text() == "\n"


async def test_an_answer_that_drags_on(server: ApiServer, access: ClusterAccess) -> None:
    access.answer_within = 0.5
    server.faults.next(1, Dribble(60.0))
    before = asyncio.get_running_loop().time()
    with pytest.raises(faults.ConnectionCut, match="no answer in time"):
        await access.listed(requests.list_node("n"), read_node)
    assert asyncio.get_running_loop().time() - before < 30.0


async def test_an_answer_that_is_too_large_is_not_read(server: ApiServer, tmp_path: Path) -> None:
    """Whoever may make pods can make the list of them as large as they like."""
    fat = {"name": "main", "image": "none", "args": ["x" * 20_000]}
    server.add_pod("fat", node="n", spec={"containers": [fat]})
    async with ClusterAccess(kubeconfig(tmp_path, server.url), largest=20_000) as access:
        with pytest.raises(faults.ClusterUnreachable, match="more than 20000 bytes"):
            await access.listed(requests.list_pods("n"), read_pod)
        assert (await access.listed(requests.list_node("n"), read_node)).first


class _Pods(BaseHTTPRequestHandler):
    """Answers every request with a list of fat pods."""

    text = json.dumps(
        {
            "metadata": {"resourceVersion": "1"},
            "items": [
                {
                    "metadata": {"namespace": "n", "name": f"p{number}", "uid": f"u{number}"},
                    "spec": {"containers": [{"env": [{"name": "A", "value": "b"}] * 500}] * 8},
                }
                for number in range(30)
            ],
        }
    ).encode()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(self.text)))
        self.end_headers()
        self.wfile.write(self.text)

    def log_message(self, *_: object) -> None:
        pass


async def test_a_long_list_does_not_stop_the_loop(tmp_path: Path) -> None:
    """Who may make pods decides how long their list is. No turn of the loop takes the time in which
    it is read once; both are this thread's own time, however busy the machine is.
    """
    began = time.thread_time()
    whole = json.loads(_Pods.text)
    at_once = time.thread_time() - began
    del whole
    longest = 0.0

    async def turning() -> None:
        nonlocal longest
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - began)

    with ThreadingHTTPServer(("127.0.0.1", 0), _Pods) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        way = kubeconfig(tmp_path, f"http://127.0.0.1:{server.server_port}")
        try:
            async with ClusterAccess(way) as access:
                await access.find(requests.get_pod("n", "p"), read_object)  # what is made once
                async with running(turning()):
                    listed = await access.listed(requests.list_pods("n"), read_pod)
                    assert await access.find(requests.get_pod("n", "p"), read_object)
                    await asyncio.sleep(0)  # so that the last turn counts, too
        finally:
            server.shutdown()
            serving.join()
    assert [pod.name for pod in listed.items] == [f"p{number}" for number in range(30)]
    assert longest < at_once / 3


def test_the_end_waits_for_no_program_for_credentials(tmp_path: Path) -> None:
    """One that never ends would hold up the agent's until systemd kills it. It ends as well, with
    what it started.
    """
    script = "sleep 120 & echo $$ $! > $0.new; mv $0.new $0; wait"
    program = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "sh",
        "args": ["-c", script, str(tmp_path / "started")],
    }
    path = kubeconfig_of_user(tmp_path / "a", exec=program)
    code = f"""
import asyncio
from pathlib import Path
from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess, read_object
from nodeagent.cluster.client.credentials import Kubeconfig
from nodeagent.cluster.client.node_view import read_node

async def ask():
    async with ClusterAccess(Kubeconfig(Path({str(path)!r})), answer_within=0.1) as access:
        while not Path({str(tmp_path / "started")!r}).exists():
            try:
                await access.listed(requests.list_node("n"), read_node)
            except faults.CredentialsUnusable:
                pass

asyncio.run(ask())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr == b""
    for pid in (tmp_path / "started").read_text().split():
        with suppress(ProcessLookupError):
            end = os.pidfd_open(int(pid))
            assert select.select([end], [], [], stretched(20))[0]
            os.close(end)


# --- connections that die silently ----------------------------------------------------------------

IN_TIME = 45.0  # seconds after which no dead connection may look alive


def connections(port: int) -> Iterator[socket.socket]:
    """Both ends of this process' connections to this port; duplicates, taken from the kernel."""
    for path in Path("/proc/self/fd").iterdir():
        try:
            found = socket.socket(fileno=os.dup(int(path.name)))
        except OSError:
            continue  # no socket, or closed by now
        with found:
            if found.family != socket.AF_INET:
                continue
            try:
                ports = found.getsockname()[1], found.getpeername()[1]
            except OSError:
                continue  # one that listens
            if port in ports:
                yield found


async def test_the_kernel_probes_connections(server: ApiServer, access: ClusterAccess) -> None:
    """Keepalive and user timeout together end a dead connection in time, watch or not."""
    seen = Follower(access)
    async with running(seen.follower.run()):
        await until(lambda: server.faults.watching)
        await access.listed(requests.list_node("n"), read_node)
        intervals = WatchIntervals()  # the watch after a silent one is answered, or it is reported
        assert intervals.silence + access.answer_within <= IN_TIME
        found = 0
        for connection in connections(server.port):
            if connection.getsockname()[1] == server.port:
                continue  # the server's end
            found += 1
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, interval, probes, unanswered = (
                connection.getsockopt(socket.IPPROTO_TCP, option)
                for option in (
                    socket.TCP_KEEPIDLE,
                    socket.TCP_KEEPINTVL,
                    socket.TCP_KEEPCNT,
                    socket.TCP_USER_TIMEOUT,
                )
            )
            assert idle + interval * probes <= IN_TIME
            assert 0 < unanswered <= (IN_TIME - interval) * 1000
        assert found


# --- answers about pods and claims ----------------------------------------------------------------


@pytest.mark.parametrize("fault", [Html(404), Html(404, "404 page not found"), Answer(404)])
async def test_a_404_of_no_object(server: ApiServer, access: ClusterAccess, fault: Fault) -> None:
    server.faults.next(1, fault)
    with pytest.raises(faults.ObjectMissing):
        await access.find(requests.get_claim("a", "p"), read_object)


async def test_a_pod_that_is_too_deep(server: ApiServer, access: ClusterAccess) -> None:
    """Also in what is not read of it."""
    server.faults.next(1, Html(200, '{"x": ' + "[" * 20_000))
    with pytest.raises(faults.ClusterFault, match="recursion"):
        await access.find(requests.get_pod("a", "p"), pod_object.read_pod)


async def test_an_eviction_and_a_budget(server: ApiServer, access: ClusterAccess) -> None:
    uid = server.add_pod("p", namespace="a")["metadata"]["uid"]
    with pytest.raises(faults.WriteConflict):
        await access.send(requests.evict_pod("a", "p", uid="another"))
    server.pods.budgets["a", "p"] = "keep"
    with pytest.raises(faults.DisruptionRefused, match="budget keep needs 1 healthy pods"):
        await access.send(requests.evict_pod("a", "p", uid=uid))
    server.pods.budgets.clear()
    server.faults.next(1, Answer(429, retry_after=1))
    with pytest.raises(faults.ServerBusy):
        await access.send(requests.evict_pod("a", "p", uid=uid))
    await access.send(requests.evict_pod("a", "p", uid=uid))
    assert await access.find(requests.get_pod("a", "p"), read_object) is None
    with pytest.raises(faults.ObjectMissing):
        await access.send(requests.evict_pod("a", "p", uid=uid))
