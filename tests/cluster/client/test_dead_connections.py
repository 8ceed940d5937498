"""Stopped servers and connections that die silently are detected in time."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.cluster.client import requests
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.credentials import Kubeconfig
from nodeagent.cluster.client.faults import ConnectionCut
from nodeagent.cluster.client.node_view import read_node
from nodeagent.cluster.reflector import WatchIntervals
from tests.cluster.client.rig import PLAN, QUICK, Follower, kubeconfig, running, until
from tests.simulated_cluster.agent import NAME
from tests.simulated_cluster.api_server import ApiServer

IN_TIME = 45.0  # seconds after which no dead connection may look alive
STOPPED_IN_TIME = 45.0  # seconds for a server whose kernel still answers
SO_ATTACH_FILTER = 26  # socket(7); the socket module has no name for it


@contextlib.asynccontextmanager
async def server_process(folder: Path) -> AsyncIterator[int]:
    """An API server in a process of its own, with a kubeconfig in `folder`; its pid."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.simulated_cluster", "--folder", str(folder)),
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process.pid
    finally:
        process.kill()
        await process.wait()


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


def test_the_times_together(tmp_path: Path) -> None:
    """The watch after a silent one is answered, or the server is not reachable."""
    intervals = WatchIntervals()
    access = ClusterAccess(kubeconfig(tmp_path, "http://127.0.0.1:1"))
    assert intervals.silence + access.answer_within <= STOPPED_IN_TIME


async def test_connections_are_probed_by_the_kernel(
    server: ApiServer, access: ClusterAccess
) -> None:
    """Keepalive and user timeout together end a dead connection in time, watch or not."""
    seen = Follower(access)
    async with running(seen.follower.run()):
        await until(lambda: server.faults.watching)
        await access.listed(requests.list_node("n"), read_node)
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


async def test_a_server_that_is_stopped_is_unreachable(tmp_path: Path) -> None:
    """SIGSTOP: the kernel keeps its connections alive, the watch is just silent."""
    intervals = replace(QUICK, silence=0.5)
    async with server_process(tmp_path) as pid:
        config = tmp_path / "kubeconfig"
        await until(config.exists)
        async with ClusterAccess(Kubeconfig(config), answer_within=3.0) as access:
            seen = Follower(access, NAME, intervals=intervals)
            async with running(seen.follower.run()):
                await until(lambda: seen.views)
                await asyncio.sleep(3 * intervals.silence)  # silence alone is no fault
                assert seen.faults == []
                os.kill(pid, signal.SIGSTOP)
                try:
                    await until(lambda: seen.faults)
                finally:
                    os.kill(pid, signal.SIGCONT)
                fault = seen.faults[0]
                assert fault is not None
                assert "a watch of Node gpu-node-0: no answer in time" in fault.message
                await until(lambda: seen.faults[-1] is None)
                assert seen.follower.is_reachable


@pytest.mark.full
@pytest.mark.timeout(60)  # the kernel's own timers, of whole seconds
async def test_packets_that_are_dropped(server: ApiServer, tmp_path: Path) -> None:
    """Both ends drop every packet unseen: the kernel gives the connection up."""
    intervals = replace(QUICK, watch=(300, 300), silence=300)
    async with ClusterAccess(kubeconfig(tmp_path, server.url)) as access:
        seen = Follower(access, intervals=intervals)
        async with running(seen.follower.run()):
            await until(lambda: server.faults.watching)
            server.annotate("n", **{PLAN: "one"})
            await until(lambda: seen.plan == "one")  # so the watch is open on both ends
            for connection in connections(server.port):
                drop_all(connection)
            await until(lambda: seen.faults, seconds=IN_TIME)
    assert isinstance(seen.faults[0], ConnectionCut)


def drop_all(connection: socket.socket) -> None:
    """Let no packet in; the kernel does not even acknowledge one."""
    accept_none = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF: return 0
    program = struct.pack("HP", 1, ctypes.addressof(accept_none))
    connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
