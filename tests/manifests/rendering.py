"""The manifests as files, and as kubectl renders them."""

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).parents[2] / "manifests"
OVERLAYS = ("dra", "gpu-operator", "nos", "plain", "simulated")
OLDEST = (1, 27)  # the first kubectl whose kustomize knows sortOptions

Document = dict[str, Any]


@functools.cache
def why_not() -> str:
    """Why nothing can be rendered here; empty when it can."""
    if shutil.which("kubectl") is None:
        return "kubectl is not installed"
    said = subprocess.run(
        ["kubectl", "version", "--client"], capture_output=True, text=True, check=False
    ).stdout
    found = re.search(r"v(\d+)\.(\d+)\.", said)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        return f"kubectl is older than {OLDEST[0]}.{OLDEST[1]}, or says no version: {said[:100]!r}"
    return ""


@functools.cache
def overlay(name: str) -> tuple[Document, ...]:
    """All documents of an overlay; not to be changed."""
    return render(MANIFESTS / "overlays" / name)


def with_components(folder: Path, name: str, components: Iterable[str]) -> tuple[Document, ...]:
    """An overlay of one's own, made in `folder` from one of ours and some components."""
    return _together(folder, f"overlays/{name}", [f"components/{one}" for one in components])


def with_service_monitor(folder: Path) -> tuple[Document, ...]:
    return _together(folder, "monitoring", ["monitoring/service-monitor"])


def _together(folder: Path, resource: str, components: Iterable[str]) -> tuple[Document, ...]:
    from_there = os.path.relpath(MANIFESTS, folder)
    content = {
        "resources": [f"{from_there}/{resource}"],
        "components": [f"{from_there}/{one}" for one in components],
        "sortOptions": {"order": "fifo"},
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    return render(folder)


def render(folder: Path) -> tuple[Document, ...]:
    result = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return tuple(yaml.safe_load_all(result.stdout))


def written(path: str) -> tuple[Document, ...]:
    return tuple(yaml.safe_load_all((MANIFESTS / path).read_text(encoding="utf-8")))


def one(documents: Iterable[Document], kind: str, name: str = "nodeagent") -> Document:
    (found,) = (d for d in documents if (d["kind"], d["metadata"]["name"]) == (kind, name))
    return found


def pod_of(documents: Iterable[Document]) -> tuple[Document, Document]:
    """The DaemonSet's pod, and its one container."""
    pod = one(documents, "DaemonSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container
