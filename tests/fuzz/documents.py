"""Readers of documents that people write: plans, settings, and files that the settings name."""

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import yaml

from nodeagent.api.web_config import read_web_config
from nodeagent.documents.reading import read_document
from nodeagent.documents.xids import read_xid_table
from nodeagent.errors import DocumentError, NodeagentError, UsageError
from nodeagent.metrics.selection import default_text, read_selection
from nodeagent.settings.sources import load_settings, schema_of, setting_names, variable_of
from tests.fuzz.runs import Parser, Refused

_HASH = "$2y$04$" + "a" * 21 + "e" + "a" * 31
_WEB_CONFIG = f"""
tls_server_config: {{cert_file: a.crt, key_file: /a.key, client_ca_file: ca.crt,
  client_auth_type: RequireAndVerifyClientCert, min_version: TLS12, max_version: TLS13}}
http_server_config: {{http2: false, headers: {{Strict-Transport-Security: max-age=60}}}}
basic_auth_users: {{prometheus: {_HASH}, other: {_HASH}}}
"""
_XIDS = """
version: v1
xids:
  - {xid: 63, class: gpuReset}
  - {xid: [13, 31], class: information}
  - {xid: 999, name: our own, class: nodeReboot}
"""
_SETTINGS = """
node_name: gpu-0
plan: {source: file, file: /etc/nodeagent/plan.yaml}
log: {level: info}
api: {listen: "[::1]:9470"}
metrics: {listen: ":9400", counters: /etc/nodeagent/counters.csv}
mps: {user: "1000:1000"}
kubernetes: {use: auto, clients: pauseLabels}
dra: {mode: dynamic, share: 4}
"""


def both_ways(*texts: str) -> tuple[bytes, ...]:
    """Each as it is written and as JSON, of which the structure can be changed."""
    as_json = (json.dumps(yaml.safe_load(text)) for text in texts)
    return tuple(text.encode() for text in (*texts, *as_json))


def _crowded(head: str, entry: str, count: int) -> bytes:
    return (head + "\n" + entry * count).encode()


# What costs most of a text that is let in: as many values as may be, one that is as long as may be,
# as many faults as are named.
_LARGE = (
    _crowded("version: v1\ngpus:", "  - {}\n", 5_900),
    _crowded("version: v1\nmig-configs:\n a:", "  - {devices: [0], mig-enabled: false}\n", 950),
    _crowded("version: v1\nxids:", "  - {xid: 5, class: gpuReset}\n", 1_150),
    b'{"version": "' + b"v" * ((1 << 20) - 100) + b'"}',
    b"? " + b"k" * 900_000 + b"\n: 1\n",
    b"[" * 60_000,
    b"- [" + b"x," * 5_900 + b"]\n",
    b"a: " + b"9" * 900_000,
    b"#" * 1_000_000,
    b"\n" * 1_000_000,
    b'"' + b"\\u0041" * 160_000 + b'"',
    b"|\n" + b" a\n" * 300_000,
    b"- &a b\n" * 9_000,
    _crowded("", "key{}: 1\n", 1).replace(b"{}", b"x" * 60_000),
)
_SMALLER = tuple(text[: (1 << 16) - 1] for text in _LARGE)


def _examples() -> Iterable[str]:
    return (path.read_text(encoding="utf-8") for path in sorted(Path("examples").glob("*.yaml")))


def _mig_parted() -> Iterable[str]:
    known = json.loads(Path("tests/data/mig_parted/files.json").read_text(encoding="utf-8"))
    for path in sorted(Path("examples/mig-parted").glob("*.yaml")):
        yield path.read_text(encoding="utf-8")
    for case in known["cli_validation"]["cases"][1:]:
        yield case["yaml"]


def _from_file(read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """For readers that take the file's name; it stays open, as one that is mounted does."""

    def reading(text: bytes, folder: Path) -> object:
        path = folder / "document"
        path.write_bytes(text)
        return read(path)

    return reading


def _one_configuration(text: bytes, _: Path) -> object:
    """The first that is named, as far as a pattern finds it."""
    named = re.search(rb'mig-configs"?:[\s{]*"?([\w.-]+)', text)
    return _document(text, named[1].decode() if named else None)


def _document(text: bytes, configuration: str | None = None) -> object:
    try:
        return read_document(text, configuration=configuration)
    except DocumentError as error:
        if not all(problem.message for problem in error.problems):
            raise AssertionError("a problem without a message") from error
        raise


def _environment(text: bytes, _: Path) -> None:
    """One setting of each kind has the text as its value."""
    value, wrong = os.fsdecode(text.replace(b"\0", b"")[: 128 << 10]), 0  # as execve takes it
    for name in _EACH_KIND:
        try:
            load_settings(None, {variable_of(name): value}, {})
        except UsageError:
            wrong += 1
    if wrong == len(_EACH_KIND):
        raise Refused


_EACH_KIND = tuple({json.dumps(schema_of(name)): name for name in setting_names()}.values())


def parsers() -> tuple[Parser, ...]:
    plans, files = both_ways(*_examples()), _mig_parted()
    return (
        Parser("plan", lambda text, _: _document(text), (DocumentError,), plans, _SMALLER),
        Parser(
            "mig-parted",
            _one_configuration,
            (DocumentError,),
            tuple(text.encode() for text in files),
            _LARGE,
        ),
        Parser(
            "XID table",
            lambda text, _: read_xid_table(text),
            (DocumentError,),
            both_ways(_XIDS),
            _LARGE,
        ),
        Parser(
            "web-config", _from_file(read_web_config), (UsageError,), both_ways(_WEB_CONFIG), _LARGE
        ),
        Parser(
            "counters CSV",
            lambda text, _: read_selection(text.decode("utf-8", "replace")),
            (NodeagentError,),
            (default_text().encode(), *default_text().encode().splitlines(keepends=True)[8:12]),
            (
                default_text().encode() * 90,
                b"DCGM_FI_DEV_SM_CLOK, gauge, help\n" * 4_990,
                b'"' + b'""' * 500_000,
                b'"a",' * 250_000,
                b"," * 1_000_000,
            ),
        ),
        Parser(
            "settings",
            _from_file(lambda path: load_settings(path, {}, {})),
            (UsageError,),
            both_ways(_SETTINGS),
            _LARGE,
        ),
        Parser(
            "settings, environment",
            _environment,
            (Refused,),
            tuple(b"30s 1h [::1]:9470 8Gi true 7 mixed 'a b' /etc/plan.yaml auto".split()),
            (b"9" * (128 << 10), b"'" * (128 << 10), b"a " * (64 << 10)),
        ),
    )
