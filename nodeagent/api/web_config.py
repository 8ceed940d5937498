"""Prometheus' web-config file: who may ask the metrics' listener, and how it proves who it is.

The format is that of Prometheus' exporter-toolkit (docs/web-configuration.md there). What Python's
TLS cannot do is refused with a reason, never ignored: a lock that is not there protects nothing.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeagent.documents.bounded_yaml import MAX_TEXT, read_tree
from nodeagent.errors import DocumentError, UsageError
from nodeagent.files.state import read_regular_file
from nodeagent.text import did_you_mean, listed

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_OLD_VERSIONS = ("TLS10", "TLS11")
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_UNVERIFIED = ("RequestClientCert", "RequireAnyClientCert")
# bcrypt refuses any other form; the last letter of a salt carries only two bits.
_BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}")
_COSTS = range(4, 16)  # bcrypt knows none below; each step doubles the time, and 15 takes 2 s
_BOTH_NEEDED = "a certificate and its key belong together"

_SECTIONS = ("tls_server_config", "basic_auth_users", "http_server_config")
_TLS_KEYS = (
    *("cert_file", "key_file", "client_ca_file", "client_auth_type"),
    *("min_version", "max_version", "prefer_server_cipher_suites"),
)
_REFUSED_TLS_KEYS = {
    "cipher_suites": "which suites TLS 1.2 may use is left to OpenSSL",
    "curve_preferences": "which curves are used is left to OpenSSL",
    "client_allowed_sans": "names in client certificates are not checked",
    "cert": "certificates come from files",
    "key": "keys come from files",
    "client_ca": "certificates come from files",
}
_HEADERS = (
    *("Content-Security-Policy", "X-Frame-Options", "X-Content-Type-Options"),
    *("X-XSS-Protection", "Strict-Transport-Security"),
)


@dataclass(frozen=True, slots=True)
class Tls:
    """What `tls_server_config` says; paths are absolute or relative to where the agent runs."""

    certificate: Path
    key: Path
    client_ca: Path | None = None
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    oldest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.certificate, self.key, self.client_ca) if path)

    def context(self) -> ssl.SSLContext:
        """Read the files; raises UsageError where one cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self.oldest
        context.maximum_version = self.newest
        try:
            # A key with a passphrase is refused: OpenSSL would ask for it on the terminal.
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")
        except ssl.SSLError as error:
            raise UsageError(
                f"{self.certificate} and {self.key} cannot be used: {error.reason or error}",
                remedy=f"PEM files without a passphrase; {_BOTH_NEEDED}",
            ) from None
        except OSError as error:
            raise _unreadable(f"{self.certificate} or {self.key}", error) from None
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except ssl.SSLError as error:
                raise UsageError(
                    f"{self.client_ca} has no certificates: {error.reason or error}",
                    remedy="a PEM file",
                ) from None
            except OSError as error:
                raise _unreadable(self.client_ca, error) from None
            context.verify_mode = self.client_auth
        return context


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What the file says. `users` are bcrypt hashes by name; empty: no password is asked for."""

    tls: Tls | None = None
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)


def read_web_config(path: Path) -> WebConfig:
    """The file, checked; raises UsageError. Names of files in it are relative to its folder."""
    try:
        tree = read_tree(read_regular_file(path, MAX_TEXT))
    except OSError as error:
        raise _unreadable(path, error) from None
    except DocumentError as error:
        # Without the text found, which may be a hash.
        raise UsageError(f"{path} is not YAML with keys and values", remedy=error.remedy) from None
    reading = _Reading(path)
    sections = reading.map(tree.value, "", _SECTIONS)
    headers = reading.http(sections.get("http_server_config"))
    return WebConfig(
        reading.tls(sections.get("tls_server_config")),
        reading.users(sections.get("basic_auth_users")),
        headers,
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads the parts of one file. Faults name the file and never a value, which may be secret."""

    path: Path

    def fault(self, message: str, remedy: str = "") -> UsageError:
        return UsageError(f"{self.path}: {message}", remedy=remedy)

    def map(
        self, value: Any, where: str, keys: Sequence[str] = (), refusal: str = "is not known"
    ) -> dict[str, Any]:
        """The map at this place; if `keys` are given, it may have no others."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.fault(f"{where or 'the file'} has no keys", "accepted: keys with values")
        for name in value:
            if keys and name not in keys:
                remedy = did_you_mean(name, keys) or listed(keys, most=len(keys))
                raise self.fault(f"{where}.{name} {refusal}".removeprefix("."), remedy)
        return value

    def tls(self, value: Any) -> Tls | None:
        where = "tls_server_config"
        given = self.map(value, where)
        if not given:
            return None
        for name, why in _REFUSED_TLS_KEYS.items():
            if given.get(name):
                raise self.fault(f"{where}.{name} is not supported", why)
        self.map({name: None for name in given if name not in _REFUSED_TLS_KEYS}, where, _TLS_KEYS)
        certificate, key = self._file(given, "cert_file"), self._file(given, "key_file")
        if certificate is None or key is None:
            missing = "cert_file" if certificate is None else "key_file"
            raise self.fault(f"tls_server_config has no {missing}", _BOTH_NEEDED)
        client_ca = self._file(given, "client_ca_file")
        oldest = self._version(given, "min_version", ssl.TLSVersion.TLSv1_2)
        newest = self._version(given, "max_version", ssl.TLSVersion.MAXIMUM_SUPPORTED)
        if oldest is ssl.TLSVersion.TLSv1_3 and newest is ssl.TLSVersion.TLSv1_2:
            raise self.fault("min_version is above max_version")
        return Tls(certificate, key, client_ca, self._client_auth(given, client_ca), oldest, newest)

    def _file(self, given: Mapping[str, Any], name: str) -> Path | None:
        value = given.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str) or "\0" in value:
            raise self.fault(f"tls_server_config.{name} is not a path")
        return (self.path.parent / value).absolute()

    def _client_auth(self, given: Mapping[str, Any], client_ca: Path | None) -> ssl.VerifyMode:
        value = str(given.get("client_auth_type") or "NoClientCert")
        if value in _UNVERIFIED:
            raise self.fault(
                f"client_auth_type {value} is not supported",
                "a client's certificate is either verified or not asked for: "
                + listed(tuple(_CLIENT_AUTH), most=3),
            )
        if value not in _CLIENT_AUTH:
            raise self.fault(
                "client_auth_type is not known", "one of " + listed(tuple(_CLIENT_AUTH), most=3)
            )
        if value == "NoClientCert" and client_ca is not None:
            raise self.fault(
                "client_ca_file is given, but client_auth_type asks for no certificate",
                "client_auth_type: RequireAndVerifyClientCert",
            )
        if value != "NoClientCert" and client_ca is None:
            raise self.fault(f"client_auth_type {value} needs client_ca_file")
        return _CLIENT_AUTH[value]

    def _version(
        self, given: Mapping[str, Any], name: str, default: ssl.TLSVersion
    ) -> ssl.TLSVersion:
        if given.get(name) is None:
            return default
        value = str(given[name])
        if value in _OLD_VERSIONS:
            raise self.fault(f"{name} {value} is not offered any more", "TLS12 or TLS13")
        if value not in _VERSIONS:
            raise self.fault(f"{name} is not known", "TLS12 or TLS13")
        return _VERSIONS[value]

    def users(self, value: Any) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name, hashed in self.map(value, "basic_auth_users").items():
            if not isinstance(hashed, str) or not (match := _BCRYPT.fullmatch(hashed)):
                raise self.fault(
                    f"basic_auth_users.{name} is not a bcrypt hash",
                    "htpasswd -nBC 10 NAME makes one",
                )
            if int(match[1]) not in _COSTS:
                raise self.fault(
                    f"the hash of basic_auth_users.{name} has a cost of {int(match[1])}",
                    f"from {_COSTS[0]} to {_COSTS[-1]}; above, each request takes seconds",
                )
            found[name] = hashed.encode()
        return found

    def http(self, value: Any) -> dict[str, str]:
        where = "http_server_config"
        given = self.map(value, where)
        for name, setting in given.items():
            if name not in {"http2", "headers"}:
                raise self.fault(f"{where}.{name} is not known", "http2 or headers")
            if name == "http2" and not isinstance(setting, bool):
                raise self.fault(f"{where}.http2 is not true or false")
        where = f"{where}.headers"
        headers = self.map(given.get("headers"), where, _HEADERS, "is not accepted")
        for name, text in headers.items():
            if not isinstance(text, str) or not text.isprintable():
                raise self.fault(f"{where}.{name} is not a text of one line")
        return headers


def _unreadable(files: object, error: OSError) -> UsageError:
    return UsageError(f"{files} cannot be read: {error.strerror or error}")
