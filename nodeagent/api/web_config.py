"""Prometheus' web-config file: who may ask the metrics' listener, and how it proves who it is.

The format is that of Prometheus' exporter-toolkit (docs/web-configuration.md there). What Python's
TLS cannot do is refused, never ignored: a lock that is not there protects nothing.
"""

import re
import ssl
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from nodeagent.documents.bounded_yaml import MAX_TEXT, read_tree
from nodeagent.errors import DocumentError, UsageError
from nodeagent.files.state import read_regular_file

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
# bcrypt refuses any other form; the last letter of a salt carries only two bits. It knows no cost
# below 4; each step doubles the time, and 15 takes 2 s for each request.
_BCRYPT = r"\$2[aby]\$(0[4-9]|1[0-5])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31}"

_Version = Literal["TLS12", "TLS13"]
_HEADERS = (
    r"\A(Content-Security-Policy|Strict-Transport-Security"
    r"|X-(Frame-Options|Content-Type-Options|XSS-Protection))\Z"
)
_HeaderName = Annotated[str, Meta(pattern=_HEADERS)]
_HeaderText = Annotated[str, Meta(pattern=r"\A[^\t\r\n]*\Z")]


class Tls(Struct, frozen=True, forbid_unknown_fields=True):
    """What `tls_server_config` says; paths in it are relative to the file's folder."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None
    client_auth_type: Literal[
        "NoClientCert", "VerifyClientCertIfGiven", "RequireAndVerifyClientCert"
    ] = "NoClientCert"
    min_version: _Version = "TLS12"
    max_version: _Version = "TLS13"
    prefer_server_cipher_suites: bool = True  # as Python does, whatever it says

    def __post_init__(self) -> None:
        if self.min_version > self.max_version:
            raise ValueError("min_version is above max_version")
        if (self.client_auth_type == "NoClientCert") != (self.client_ca_file is None):
            raise ValueError("client_ca_file and a client_auth_type that verifies belong together")

    @property
    def files(self) -> tuple[Path, ...]:
        names = (self.cert_file, self.key_file, self.client_ca_file)
        return tuple(name for name in names if name)

    def context(self) -> ssl.SSLContext:
        """Read the files; raises UsageError where one cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[self.min_version]
        context.maximum_version = _VERSIONS[self.max_version]
        used = f"{self.cert_file} and {self.key_file}"
        try:
            # A key with a passphrase is refused: OpenSSL would ask for it on the terminal.
            context.load_cert_chain(self.cert_file, self.key_file, password=lambda: "")
            if self.client_ca_file is not None:
                used = str(self.client_ca_file)
                context.load_verify_locations(used)
        except ssl.SSLError as error:
            raise UsageError.of("tlsFiles", files=used, why=error.reason or error) from None
        except OSError as error:
            raise _unreadable(used, error) from None
        context.verify_mode = _CLIENT_AUTH[self.client_auth_type]
        return context


class _Http(Struct, frozen=True, forbid_unknown_fields=True):
    http2: bool = False
    headers: dict[_HeaderName, _HeaderText] = {}


class WebConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """What the file says. Users are bcrypt hashes by name; without any, no password is needed."""

    tls: Tls | None = field(name="tls_server_config", default=None)
    users: dict[str, str] | None = field(name="basic_auth_users", default=None)
    http: _Http | None = field(name="http_server_config", default=None)

    def __post_init__(self) -> None:
        for name, hashed in (self.users or {}).items():
            if not re.fullmatch(_BCRYPT, hashed):
                raise ValueError(
                    f"basic_auth_users.{name} is not a bcrypt hash with a cost from 4 to 15; "
                    "htpasswd -nBC 10 NAME makes one"
                )

    def __repr__(self) -> str:
        return "WebConfig(...)"  # without hashes


def read_web_config(path: Path) -> WebConfig:
    """The file, checked; raises UsageError, which names no value, since that may be secret."""
    try:
        tree = read_tree(read_regular_file(path, MAX_TEXT))
        return msgspec.convert(
            {} if tree.value is None else tree.value,
            WebConfig,
            dec_hook=lambda _, name: (path.parent / Path(name)).absolute(),  # a named file
        )
    except OSError as error:
        raise _unreadable(path, error) from None
    except DocumentError as error:
        # Without the text found, which may be a hash.
        raise UsageError(f"{path} is not YAML with keys and values", remedy=error.remedy) from None
    except msgspec.ValidationError as error:
        remedy = "docs/monitoring.md has what may stand there"
        raise UsageError(f"{path}: {error}", remedy=remedy) from None


def _unreadable(files: object, error: OSError) -> UsageError:
    return UsageError(f"{files} cannot be read: {error.strerror or error}")
