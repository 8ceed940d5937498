import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.mps.clients import DEVICES_UNAVAILABLE, ClientError, SimulatedClient
from tests.machine_load import wait_until
from tests.simulation.mps.rig import Programs, Rig, gone

GIB = 1 << 30
US, OTHERS = os.geteuid(), 1000
OUT_OF_MEMORY, CONNECTION_FAILED, NOT_READY, TERMINATED = 2, 805, 807, 810


class Clients:
    def __init__(self, rig: Rig, stack: ExitStack) -> None:
        self._rig, self._stack = rig, stack

    def start(self, uid: int | None = None, **environment: str) -> SimulatedClient:
        return self._enter(uid, environment)

    def on(self, state: Path, device: str) -> SimulatedClient:
        return self._stack.enter_context(
            SimulatedClient(self._rig.pipes, state=state, device=device)
        )

    def accepted(self, uid: int | None = None, **environment: str) -> SimulatedClient:
        client = self._enter(uid, environment)
        client.wait_until_accepted()
        return client

    def _enter(self, uid: int | None, environment: Mapping[str, str]) -> SimulatedClient:
        client = SimulatedClient(self._rig.pipes, uid=uid, environment=environment)
        return self._stack.enter_context(client)


@pytest.fixture
def clients(rig: Rig) -> Iterator[Clients]:
    rig.start()
    with ExitStack() as stack:
        yield Clients(rig, stack)


def _refused(client: SimulatedClient) -> int:
    with pytest.raises(ClientError) as caught:
        client.wait_until_accepted()
    return caught.value.code


def test_a_client_starts_the_server(rig: Rig, clients: Clients) -> None:
    client = clients.accepted()
    server = rig.server()
    assert rig.ask(f"get_server_status {server}", f"get_client_list {server}") == (
        f"ACTIVE\n{client.pid}\n"
    )
    assert f"NEW SERVER {server}: Ready" in rig.log()
    assert "Server has started" in rig.log("server")


def test_a_limit_holds(rig: Rig, clients: Clients) -> None:
    rig.ask("set_default_device_pinned_mem_limit 0 1500M")
    client = clients.accepted()
    assert client.terms["limit"] == 1500 << 20
    block = client.allocate(GIB)
    with pytest.raises(ClientError) as caught:
        client.allocate((476 << 20) + 1)
    assert caught.value.code == OUT_OF_MEMORY
    client.free(block)
    client.allocate(1500 << 20)


@pytest.mark.parametrize(
    ("asked", "limit"), [("0=512M", 512 << 20), ("0=2G", GIB), ("1=5M", GIB), ("0=256", 256 << 20)]
)
def test_its_own_limit_only_lowers_it(rig: Rig, clients: Clients, asked: str, limit: int) -> None:
    rig.ask("set_default_device_pinned_mem_limit 0 1G")
    client = clients.accepted(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=asked)
    assert client.terms["limit"] == limit


def test_defaults_reach_the_next_server_only(rig: Rig, clients: Clients) -> None:
    rig.ask("set_default_device_pinned_mem_limit 0 1G")
    first = clients.accepted()
    server = rig.server()
    rig.ask("set_default_device_pinned_mem_limit 0 2G")
    assert rig.ask(f"get_device_pinned_mem_limit {server} 0") == "1G\n"
    assert clients.accepted().terms["limit"] == GIB
    rig.ask(f"set_device_pinned_mem_limit {server} 0 3G")
    assert clients.accepted().terms["limit"] == 3 * GIB
    with pytest.raises(ClientError):
        first.allocate(2 * GIB)
    rig.ask(f"shutdown_server {server} -f")
    wait_until(lambda: gone(server))
    assert clients.accepted().terms["limit"] == 2 * GIB


def test_another_user_waits_for_all_clients_of_the_first(rig: Rig, clients: Clients) -> None:
    first = clients.accepted(US)
    server = rig.server()
    other = clients.start(OTHERS)
    assert other.wait_until_connected()
    line = f"NEW CLIENT {other.pid} from user {OTHERS}: Server is not ready, push client to "
    wait_until(lambda: f"{line}pending list" in rig.log())
    second = clients.accepted(US)
    first.close()
    with pytest.raises(TimeoutError):
        other.wait_until_accepted(0.2)
    second.close()
    if US == 0:
        other.wait_until_accepted()
        assert rig.server() != server
        assert f"Server {server} exited with status 0" in rig.log()
        assert Path(f"/proc/{rig.server()}").stat().st_uid == OTHERS


@pytest.mark.skipif(US != 0, reason="only root starts a multi-user server")
def test_a_multiuser_server_serves_all(installed: Callable[[str], Programs]) -> None:
    with Rig(installed("555")) as multi, ExitStack() as stack:
        multi.start("-multiuser-server")
        clients = Clients(multi, stack)
        clients.accepted(OTHERS)
        clients.accepted(OTHERS + 1)
        assert Path(f"/proc/{multi.server()}").stat().st_uid == 0


@pytest.mark.skipif(US != 0, reason="only root can be another user")
def test_a_closed_folder_lets_the_server_end_without_a_word(rig: Rig, clients: Clients) -> None:
    rig.folder.chmod(0o700)
    rig.ask(f"start_server -uid {OTHERS}")
    wait_until(lambda: "exited with status 0" in rig.log())
    assert rig.ask("get_server_list") == ""
    assert rig.log("server") == ""


def test_a_server_that_fails_is_tried_six_times(rig: Rig, clients: Clients) -> None:
    rig.knobs.turn("no_gpu")
    assert _refused(clients.start()) == CONNECTION_FAILED
    assert rig.log().count("exited with status 1") == 6
    reported = "Driver initialization failed with: no CUDA-capable device is detected"
    assert rig.log("server").count(reported) == 6


def test_a_fault_closes_the_server_until_all_have_gone(rig: Rig, clients: Clients) -> None:
    culprit, innocent = clients.accepted(), clients.accepted()
    server = rig.server()
    culprit.fault()
    wait_until(lambda: rig.ask(f"get_server_status {server}") == "FAULT\n")
    with pytest.raises(ClientError):
        innocent.allocate(1)
    assert _refused(clients.start()) == NOT_READY
    assert f"Client process {culprit.pid} encountered a fatal GPU error." in rig.log("server")
    culprit.close()
    assert rig.ask(f"get_server_status {server}") == "FAULT\n"
    innocent.close()
    wait_until(lambda: rig.ask(f"get_server_status {server}") == "ACTIVE\n")
    clients.accepted()


def test_terminating_a_client(rig: Rig, clients: Clients) -> None:
    ended, other = clients.accepted(), clients.accepted()
    server = rig.server()
    assert rig.ask(f"terminate_client {server} {ended.pid}") == "0\n"
    assert rig.ask(f"get_client_list {server}") == f"{other.pid}\n"
    with pytest.raises(ClientError) as caught:
        ended.next_answer()
    assert caught.value.code == TERMINATED
    other.allocate(1)


def test_on_a_simulated_node(rig: Rig, clients: Clients, tmp_path: Path) -> None:
    state = tmp_path / "node.json"
    node = SimulatedNode("a100-40gb:2", state=state)
    try:
        client = clients.on(state, "1")
        client.wait_until_accepted()
        block = client.allocate(GIB)
        with pytest.raises(ClientError) as caught:
            client.allocate(100 * GIB)
        assert caught.value.code == OUT_OF_MEMORY
        with node.looks():
            server, process = node.cards[1].state.processes
            assert (process.pid, process.memory, process.kind) == (client.pid, GIB, "mps")
            assert (server.pid, server.kind) == (client.terms["server"], "compute")
        client.free(block)
        with node.looks():
            assert node.cards[1].state.processes[-1].memory == 0
        client.close()
        with node.looks():
            assert [process.pid for process in node.cards[1].state.processes] == [server.pid]
        rig.ask("quit")
        wait_until(lambda: gone(server.pid))
        with node.changes():
            assert node.cards[1].state.processes == []
    finally:
        node.close()


def test_an_exclusive_device_keeps_others_off(rig: Rig, clients: Clients, tmp_path: Path) -> None:
    state = tmp_path / "node.json"
    with SimulatedNode("a100-40gb:1", state=state) as node:
        with node.changes():
            node.cards[0].state.compute_mode = 3
        for _ in range(2):
            clients.on(state, "0").wait_until_accepted()
        with SimulatedClient(tmp_path / "elsewhere", state=state) as alone:
            with pytest.raises(ClientError, match="busy or unavailable") as caught:
                alone.wait_until_accepted()
            assert caught.value.code == DEVICES_UNAVAILABLE
        with node.looks():
            kinds = [process.kind for process in node.cards[0].state.processes]
        assert kinds == ["compute", "mps", "mps"]
