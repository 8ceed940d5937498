import contextlib
import http.client
import json
import resource
import socket
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path

import bcrypt

from nodeagent.api.limits import TCP_LIMITS
from tests.agent_environment import port_kept_free
from tests.app.agent_process import Process, agent, write_plan
from tests.cluster.client.rig import certificate
from tests.machine_load import wait_until

SOON = 60.0  # seconds that anything may take on a busy machine
SLOW = b"POST /v1/plan/preview HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\na"


def test_with_few_open_files_each_listener_has_its_share(tmp_path: Path) -> None:
    write_plan(tmp_path, "{3g.40gb: 2}")
    with (
        port_kept_free() as metrics,
        agent(tmp_path, NODEAGENT_METRICS_LISTEN=f"127.0.0.1:{metrics}") as process,
        contextlib.ExitStack() as stack,
    ):
        resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE, (128, 256))
        process.until_phase("InSync")
        until_listening(metrics)
        for port in (port_of(process), metrics):
            for _ in range(150):
                slow = stack.enter_context(socket.create_connection(("127.0.0.1", port), SOON))
                with contextlib.suppress(OSError):  # it was ended for another already
                    slow.sendall(SLOW)
            assert asked(port, "/metrics")[0] == 200
            assert process.ask()[0] == 200
        assert resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE) == (256, 256)
        assert process.end() == 0
        assert "out of system resource" not in process.said()


def test_an_error_has_its_words_when_no_file_can_be_opened(tmp_path: Path) -> None:
    """Nor does it need the files of the package, which an upgrade may just replace."""
    write_plan(tmp_path, "{3g.40gb: 2}")
    with agent(tmp_path) as process:
        process.until_phase("InSync")
        one = http.client.HTTPConnection("127.0.0.1", port_of(process), timeout=SOON)
        answers = []
        for limit, plan in ((256, "[]"), (3, "[{devices: all}]")):
            resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE, (limit, 256))
            one.request("POST", "/v1/plan/preview", f"{{version: v1, gpus: {plan}}}")
            answers.append(one.getresponse().read().decode())
        one.close()
        resource.prlimit(process.popen.pid, resource.RLIMIT_NOFILE, (256, 256))
        assert "the entry says nothing about its GPUs" in answers[1], answers
        assert process.end() == 0


def test_garbage_fills_no_log(tmp_path: Path) -> None:
    write_plan(tmp_path, "{3g.40gb: 2}")
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yaml").write_text(f"basic_auth_users: {{prometheus: {hashed}}}\n")
    settings = {"NODEAGENT_METRICS_WEB_CONFIG": f"{tmp_path}/web.yaml"}
    with (
        port_kept_free() as metrics,
        agent(tmp_path, NODEAGENT_METRICS_LISTEN=f"127.0.0.1:{metrics}", **settings) as process,
    ):
        process.until_phase("InSync")
        port = port_of(process)
        until_listening(metrics)
        for _ in range(20):
            for garbage in GARBAGE:
                for listener in (port, metrics):
                    send(listener, garbage)
        wanted = 20 * len(GARBAGE)
        status, text = asked(port, "/metrics")
        assert status == 200
        for name in ("api", "metrics"):
            line = f'nodeagent_http_refused_total{{listener="{name}",reason="malformed"}} {wanted}'
            assert line in text
        assert 'nodeagent_http_refused_total{listener="api",reason="host"} 0' in text
        assert process.end() == 0
        said = process.said()
    refusals = [line for line in logged(said) if line["message"] == "a client was refused"]
    assert {line["listener"] for line in refusals} == {"api", "metrics"}
    assert "Traceback" not in said
    assert "s3cret" not in said
    assert len(said) < 20_000


def test_refused_handshakes_leave_no_memory_behind(tmp_path: Path) -> None:
    """A peer's connections at once, again and again, that speak no TLS: no password is needed."""
    write_plan(tmp_path, "{3g.40gb: 2}")
    certificate(tmp_path)
    (tmp_path / "web.yaml").write_text(
        "tls_server_config: {cert_file: certificate.pem, key_file: key.pem}\n"
    )
    settings = {"NODEAGENT_METRICS_WEB_CONFIG": f"{tmp_path}/web.yaml"}
    with (
        port_kept_free() as metrics,
        agent(tmp_path, NODEAGENT_METRICS_LISTEN=f"127.0.0.1:{metrics}", **settings) as process,
    ):
        process.until_phase("InSync")
        until_listening(metrics)
        before = process.memory()
        for _ in range(5):
            with contextlib.ExitStack() as stack:
                address = ("127.0.0.1", metrics)
                clients = [
                    stack.enter_context(socket.create_connection(address, SOON))
                    for _ in range(TCP_LIMITS.connections_of_peer)
                ]
                for client in clients:
                    client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
                for client in clients:
                    with contextlib.suppress(ConnectionError):
                        assert client.recv(4096) == b""
        assert process.memory() - before < 24 << 20
        assert process.end() == 0


GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00 hello\r\n\r\n",
    b"GET /metrics HTCPCP/1.0\r\n\r\n",
    b"GET / HTTP/1.1\r\nno colon s3cret\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 10_000 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: s3cret\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: s3cret\xff\r\nConnection: close\r\n\r\n",
)


def send(port: int, garbage: bytes) -> None:
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), timeout=SOON) as own,
    ):
        own.sendall(garbage)
        while own.recv(4096):
            pass


def until_listening(port: int) -> None:
    """The metrics have their listener after the API has its own."""

    def listens() -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    wait_until(listens)


def port_of(process: Process) -> int:
    """The API's TCP port, by the line that says where the page is served."""

    def urls() -> list[str]:
        return [str(line["url"]) for line in logged(process.said()) if "url" in line]

    [url, *_] = wait_until(urls, said=process.said)
    return int(url.rsplit(":", 1)[1].strip("/"))


def logged(text: str) -> Iterator[dict[str, object]]:
    """The lines of a log, which begins after the words for people; each has to be an object."""
    complete = text.splitlines(keepends=True)
    log = dropwhile(lambda line: not line.startswith("{"), complete)
    for line in log:
        if line.endswith("\n"):
            found = json.loads(line)
            assert isinstance(found, dict)
            yield found


def asked(port: int, path: str) -> tuple[int, str]:
    """Status and text of an answer, over a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SOON)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
