"""Make the bill of materials of a release: CycloneDX JSON, of what the image installs.

    python tools/make_sbom.py FILE

Versions, hashes and who needs what are those of requirements/run.txt, licences those of
requirements/licences.toml. It is the same for the same sources.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from nodeagent import __version__

ROOT = Path(__file__).parents[1]
_PIN = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>\S+)[^\n]*\n(?P<hashes>(?:    --hash=\S+[^\n]*\n)+)"
    r"(?P<via>(?:    #[^\n]*(?:\n|\Z))*)",
    re.MULTILINE,
)
_OWN = "nodeagent"


@dataclass(frozen=True)
class Pin:
    """A package of the lock: the SHA-256 of each of its files, and the packages that need it."""

    name: str
    version: str
    hashes: tuple[str, ...]
    needed_by: tuple[str, ...]

    @property
    def purl(self) -> str:
        """By which scanners of known faults look it up."""
        return f"pkg:pypi/{self.name}@{self.version}"


def pins(lock: str) -> Iterator[Pin]:
    """The packages of a lock's text."""
    for found in _PIN.finditer(lock):
        via = found["via"].replace("# via", "#").replace("(pyproject.toml)", "")
        yield Pin(
            found["name"],
            found["version"],
            tuple(re.findall(r"sha256:([0-9a-f]{64})", found["hashes"])),
            tuple(re.findall(r"[\w.-]+", via)),
        )


def bill(lock: str, licences: dict[str, str], dockerfile: str) -> dict[str, Any]:
    """The document; raises KeyError for a package without a licence."""
    known = list(pins(lock))
    base = re.findall(r"^ARG PYTHON=(\S+)$", dockerfile, re.MULTILINE)[0]
    own = {
        "type": "application",
        "bom-ref": _OWN,
        "name": _OWN,
        "version": __version__,
        "licenses": [{"expression": "Apache-2.0"}],
        "purl": f"pkg:pypi/{_OWN}@{__version__}",
    }
    image, _, digest = base.partition("@sha256:")
    name, _, tag = image.partition(":")
    container: dict[str, Any] = {"type": "container", "bom-ref": base, "name": name, "version": tag}
    if digest:
        container["hashes"] = [{"alg": "SHA-256", "content": digest}]
    needs: dict[str, list[str]] = {_OWN: [base], **{pin.name: [] for pin in known}, base: []}
    for pin in known:
        for user in pin.needed_by:
            needs[user].append(pin.name)
    refs = {pin.name: pin.purl for pin in known}
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": [*(_component(pin, licences[pin.name]) for pin in known), container],
        "dependencies": [
            {"ref": refs.get(one, one), "dependsOn": [refs.get(name, name) for name in names]}
            for one, names in needs.items()
        ],
    }
    number = uuid5(NAMESPACE_URL, json.dumps(content))
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "serialNumber": f"urn:uuid:{number}",
        **content,
    }


def write(target: Path) -> None:
    """The bill of this release."""
    requirements = ROOT / "requirements"
    found = bill(
        (requirements / "run.txt").read_text(encoding="utf-8"),
        tomllib.loads((requirements / "licences.toml").read_text(encoding="utf-8")),
        (ROOT / "Dockerfile").read_text(encoding="utf-8"),
    )
    target.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _component(pin: Pin, licence: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": pin.purl,
        "name": pin.name,
        "version": pin.version,
        "licenses": [{"expression": licence}],
        "purl": pin.purl,
        # Each of its files has a hash of its own; which one is installed depends on the machine.
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/simple/{pin.name}/",
                "hashes": [{"alg": "SHA-256", "content": one} for one in pin.hashes],
            }
        ],
    }


if __name__ == "__main__":
    write(Path(sys.argv[1]))
