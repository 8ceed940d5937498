from __future__ import annotations

import asyncio
import base64
import os
import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import bcrypt
import pytest

from nodeagent.api.limits import RequestLimits
from nodeagent.api.passwords import PasswordCheck, TooManyAsk
from nodeagent.api.web_config import read_web_config
from nodeagent.errors import UsageError
from tests.cluster.client.rig import certificate
from tests.machine_load import stretched, until

_DIGEST = "a" * 21 + "e" + "a" * 31  # the last letter of the salt has two bits
HASH = f"$2y$04${_DIGEST}"


def _read(folder: Path, text: str):  # type: ignore[no-untyped-def]  # what is read is tested
    path = folder / "web.yaml"
    path.write_text(text)
    return read_web_config(path)


def _refused(folder: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        _read(folder, text)
    return str(caught.value)


def test_all_that_can_be_said(tmp_path: Path) -> None:
    found = _read(
        tmp_path,
        f"""
tls_server_config:
  cert_file: tls/server.crt
  key_file: /keys/server.key
  client_ca_file: ca.crt
  client_auth_type: RequireAndVerifyClientCert
  min_version: TLS13
  max_version: TLS13
  prefer_server_cipher_suites: true
http_server_config:
  http2: false
  headers: {{Strict-Transport-Security: max-age=60}}
basic_auth_users:
  prometheus: {HASH}
""",
    )
    assert found.tls.files == (
        tmp_path / "tls/server.crt",
        Path("/keys/server.key"),
        tmp_path / "ca.crt",
    )
    assert found.tls.client_auth_type == "RequireAndVerifyClientCert"
    assert found.tls.min_version == found.tls.max_version == "TLS13"
    assert found.users == {"prometheus": HASH}
    assert found.http.headers == {"Strict-Transport-Security": "max-age=60"}
    assert HASH not in repr(found)


def test_the_context_is_what_the_file_says(tmp_path: Path) -> None:
    certificate(tmp_path)
    found = _read(
        tmp_path,
        "tls_server_config: {cert_file: certificate.pem, key_file: key.pem, "
        "client_ca_file: certificate.pem, client_auth_type: VerifyClientCertIfGiven}",
    )
    context = found.tls.context()
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_OPTIONAL


PAIR = "cert_file: a, key_file: b"


FAULTS: tuple[tuple[str, str], ...] = (
    ("tls_config: {}", "unknown field `tls_config`"),
    ("[x]", "Expected `object`"),
    ("tls_server_config: {cert_file: a}", "missing required field `key_file`"),
    ("tls_server_config: {key_file: a}", "missing required field `cert_file`"),
    (f"tls_server_config: {{{PAIR}, cert_fil: x}}", "unknown field `cert_fil`"),
    (f"tls_server_config: {{{PAIR}, cipher_suites: [X]}}", "unknown field `cipher_suites`"),
    (f"tls_server_config: {{{PAIR}, min_version: TLS10}}", "$.tls_server_config.min_version"),
    (f"tls_server_config: {{{PAIR}, max_version: [TLS12]}}", "$.tls_server_config.max_version"),
    (f"tls_server_config: {{{PAIR}, client_auth_type: [x]}}", "client_auth_type"),
    (f"tls_server_config: {{{PAIR}, min_version: TLS13, max_version: TLS12}}", "above"),
    (f"tls_server_config: {{{PAIR}, client_ca_file: c}}", "belong together"),
    (
        f"tls_server_config: {{{PAIR}, client_auth_type: RequireAndVerifyClientCert}}",
        "belong together",
    ),
    (f"tls_server_config: {{{PAIR}, client_auth_type: RequireAnyClientCert}}", "client_auth_type"),
    ('http_server_config: {headers: {X-Frame-Options: "a\\nb"}}', "http_server_config.headers"),
    ("basic_auth_users: secret", "$.basic_auth_users"),
    ("basic_auth_users: {prometheus: secret}", "basic_auth_users.prometheus is not a bcrypt hash"),
    (f"basic_auth_users: {{p: $2y$04${'a' * 53}}}", "bcrypt hash"),
    (f"basic_auth_users: {{p: $2y$31${_DIGEST}}}", "a cost from 4 to 15"),
    (f"basic_auth_users: {{p: $2y$03${_DIGEST}}}", "a cost from 4 to 15"),
    ("http_server_config: {headers: {Set-Cookie: x}}", "http_server_config.headers"),
    ("http_server_config: {http3: true}", "unknown field `http3`"),
    ("a: [", "is not YAML"),
)


def test_a_named_pipe_hangs_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "web.yaml")
    with pytest.raises(UsageError, match="not a regular file"):
        read_web_config(tmp_path / "web.yaml")


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    for text, reported in FAULTS:
        message = _refused(tmp_path, text)
        assert reported in message, text
        assert "web.yaml" in message, text
        assert "secret" not in message, text


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    tls = f"tls_server_config: {{{PAIR}}}"
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        _read(tmp_path, tls).tls.context()
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").write_text("x")
    with pytest.raises(UsageError, match="belong together"):
        _read(tmp_path, tls).tls.context()
    with pytest.raises(UsageError, match=r"missing.yaml cannot be read"):
        read_web_config(tmp_path / "missing.yaml")


LIMITS = RequestLimits(password_pause=0.0)
USERS = {"prometheus": bcrypt.hashpw(b"right:one", bcrypt.gensalt(4))}


def _check_of(
    users: Mapping[str, bytes], limits: RequestLimits = LIMITS, *matches: Hashing
) -> PasswordCheck:
    check = PasswordCheck(limits, *matches)
    check.users = users
    return check


def _basic(text: bytes) -> str:
    return "Basic " + base64.b64encode(text).decode()


RIGHT = _basic(b"prometheus:right:one")
HEADERS = {
    *(RIGHT, RIGHT.replace("Basic", "bAsIc"), _basic(b"prometheus:wrong"), _basic(b"prometheus:")),
    *(_basic(b"nobody:right:one"), _basic(b"prometheus"), _basic(b"prometheus:" + b"x" * 100)),
    *(_basic(b"prometheus:right\0one"), _basic(b"\xff:right:one"), "Basic ?", "Bearer x", ""),
}


async def test_who_is_let_in() -> None:
    """Only a known name with its own password; anything else is a no, never an error."""
    accepted = {header for header in HEADERS if await _check_of(USERS).accepts(header)}
    assert accepted == {RIGHT, RIGHT.replace("Basic", "bAsIc")}


@pytest.mark.parametrize("kind", [b"2a", b"2b", b"2y"])
async def test_hashes_of_every_kind_count(kind: bytes) -> None:
    """htpasswd writes $2y$, Python $2b$, older tools $2a$."""
    hashed = b"$" + kind + USERS["prometheus"].removeprefix(b"$2b")
    assert await _check_of({"p": hashed}).accepts(_basic(b"p:right:one"))


class Hashing:
    """Stands for bcrypt: records its calls, and answers when the test allows it."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.go_on = threading.Event()

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.calls.append(password)
        self.go_on.wait(stretched(30))
        return password == b"right:one" and hashed == USERS["prometheus"]

    async def begun(self, count: int) -> None:
        await until(lambda: len(self.calls) >= count)


@pytest.fixture
def hashing() -> Iterator[Hashing]:
    made = Hashing()
    yield made
    made.go_on.set()


def _asking(check: PasswordCheck, password: bytes, peer: str = "") -> asyncio.Task[bool]:
    return asyncio.create_task(check.accepts(_basic(b"prometheus:" + password), peer))


async def test_a_right_password_is_hashed_once(hashing: Hashing) -> None:
    hashing.go_on.set()
    check = _check_of(USERS, LIMITS, hashing)
    for _ in range(3):
        assert await check.accepts(RIGHT)
    assert hashing.calls == [b"right:one"]
    check.users = {"prometheus": b"another"}
    assert not await check.accepts(RIGHT)
    assert len(hashing.calls) == 2


async def test_a_hash_that_is_replaced_meanwhile_lets_nobody_in(hashing: Hashing) -> None:
    """What was compared with the former hash proves nothing of the new one, nor of no user."""
    check = _check_of(USERS, LIMITS, hashing)
    for users in ({"prometheus": b"another"}, {"other": b"another"}):
        check.users = USERS
        asking = _asking(check, b"right:one", str(users))
        await hashing.begun(len(hashing.calls) + 1)
        check.users = users
        hashing.go_on.set()
        await asking
        assert not await check.accepts(RIGHT)
        hashing.go_on.clear()
        check = _check_of(USERS, LIMITS, hashing)


async def test_an_address_has_one_password_in_line(hashing: Hashing) -> None:
    """Also after its client left, so that reconnecting makes guessing no quicker; clients with the
    same password get one answer, and other addresses wait for their turn.
    """
    check = _check_of(USERS, LIMITS, hashing)
    gone = _asking(check, b"guess", "guesser")
    await hashing.begun(1)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    for guess in (b"another", b"right:one"):
        with pytest.raises(TooManyAsk):
            await _asking(check, guess, "guesser")
    same = _asking(check, b"guess", "guesser")
    others = [_asking(check, b"right:one", peer) for peer in ("user", "user")]
    await asyncio.sleep(0.01)
    assert hashing.calls == [b"guess"]
    hashing.go_on.set()
    assert await asyncio.gather(same, *others) == [False, True, True]
    assert hashing.calls == [b"guess", b"right:one"]
    assert await check.accepts(RIGHT, "guesser")


async def test_the_line_is_bounded(hashing: Hashing) -> None:
    check = _check_of(USERS, RequestLimits(passwords=2), hashing)
    asking = [_asking(check, b"right:one", str(n)) for n in range(3)]
    await hashing.begun(1)
    with pytest.raises(TooManyAsk):
        await asking[2]
    await check.close()
    ended = await asyncio.gather(*asking, return_exceptions=True)
    assert [type(each) for each in ended[:2]] == [asyncio.CancelledError] * 2


@pytest.mark.virtual_time
async def test_a_wrong_password_is_answered_after_a_pause(hashing: Hashing) -> None:
    """So are those in line behind it, from whatever address: hashing takes little of a core."""
    hashing.go_on.set()
    check = _check_of(USERS, RequestLimits(password_pause=100.0), hashing)
    now = asyncio.get_running_loop().time
    began = now()
    assert await check.accepts(RIGHT)
    assert now() < began + 50
    guesses = [_asking(check, b"%d" % n, str(n)) for n in range(2)]
    assert not any(await asyncio.gather(*guesses))
    assert now() >= began + 200
