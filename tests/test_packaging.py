"""What is installed and shipped: the locks, the image, the manifests."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from nodeagent import __version__
from nodeagent.cli.parser import parse
from nodeagent.documents.reading import read_document
from nodeagent.settings import load_settings

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _lock(name: str) -> dict[str, str]:
    """Package versions of a lock file; each with at least one hash."""
    text = (ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8")
    pins = re.findall(
        r"^([\w.-]+)==(\S+)(?: ;[^\\\n]*)? \\\n    --hash=sha256:\w{64}", text, re.MULTILINE
    )
    assert len(pins) == len(re.findall(r"^\w", text, re.MULTILINE)), "a line is no hashed pin"
    return {_canonical(package): version for package, version in pins}


def _wanted(group: str) -> set[str]:
    names = set()
    for item in PROJECT["dependency-groups"][group]:
        names |= _wanted(item["include-group"]) if isinstance(item, dict) else {_canonical(item)}
    return names


def test_the_locks_hold_what_the_project_asks_for() -> None:
    """Every declared dependency is pinned, and one version of a package is used everywhere."""
    run, build, dev = _lock("run"), _lock("build"), _lock("dev")
    assert {_canonical(name) for name in PROJECT["project"]["dependencies"]} <= set(run)
    assert _wanted("build") <= set(build)
    assert _wanted("dev") <= set(dev)
    assert dev == dev | run | build


def test_the_locks_name_no_index() -> None:
    """Each machine installs from its own index."""
    for name in ("run", "build", "dev"):
        text = (ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8")
        assert not re.search(r"://|^-|\s--(?!hash=)", text, re.MULTILINE)


def test_each_dependency_has_a_reason() -> None:
    """CONTRIBUTING.md says what each declared dependency is for, and lists no other."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Dependencies")[1]
    listed = {
        _canonical(name)
        for first in re.findall(r"^\| ([\w, -]+?) \| (?!for)", page, re.MULTILINE)
        for name in first.split(", ")
    }
    declared = {_canonical(name) for name in PROJECT["project"]["dependencies"]} | _wanted("dev")
    assert declared == listed


def _manifest(name: str) -> Any:
    return yaml.safe_load((ROOT / "manifests" / name).read_text(encoding="utf-8"))


def test_the_manifests_fit_the_program() -> None:
    """The DaemonSet's command line parses, its plan is a plan, its tag is this version."""
    (container,) = _manifest("daemonset.yaml")["spec"]["template"]["spec"]["containers"]
    options = parse(container["args"])
    assert options.command == "run"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(Path(str(options.plan)).parent) in mounts
    kustomization = _manifest("kustomization.yaml")
    assert kustomization["images"] == [{"name": container["image"], "newTag": __version__}]
    assert read_document((ROOT / "manifests/plan.yaml").read_bytes()).entries == ()


def test_the_pod_reaches_the_hosts_systemd() -> None:
    """So that MPS daemons outlive it: the setting, the host's processes, root's powers, and the
    directories of daemons and of CDI at the same place inside and outside.
    """
    pod = _manifest("daemonset.yaml")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
    settings = load_settings(None, environment, {})
    assert settings.mps.launch == "hostSystemd"
    assert pod["hostPID"]
    assert container["securityContext"]["privileged"]
    outside = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v}
    inside = {m["name"]: m["mountPath"] for m in container["volumeMounts"] if m["name"] in outside}
    assert inside == outside
    assert {str(settings.run.dir), str(settings.cdi.dir)} <= set(inside.values())


def test_the_image_is_built_from_files_that_are_there() -> None:
    """Each file that the Dockerfile copies exists and is let through by .dockerignore."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source.split("/")[0] in allowed, source
