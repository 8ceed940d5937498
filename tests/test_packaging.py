"""What is installed and shipped: the locks, the package, the image."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _canonical(requirement: str) -> str:
    name = re.split(r"[<>=!~]", requirement)[0]
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


def _copied_into_the_image() -> list[str]:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    return [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE)
        for source in line.split()[:-1]
    ]


def test_the_image_is_built_from_files_that_are_there() -> None:
    """Each file that the Dockerfile copies exists and is let through by .dockerignore."""
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    copied = _copied_into_the_image()
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source.split("/")[0] in allowed, source


def test_the_package_builds_from_what_the_image_copies(tmp_path: Path) -> None:
    """A wheel is made of these files alone, without a network, and has all the package's data."""
    for source in _copied_into_the_image():
        if (ROOT / source).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / source, tmp_path / source, ignore=ignored)
        else:
            (tmp_path / source).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / source, tmp_path / source)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").iterdir()
    package = {
        str(path.relative_to(tmp_path))
        for path in (tmp_path / "nodeagent").glob("**/*")
        if path.is_file()
    }
    assert len(package) > 100
    assert package <= set(zipfile.ZipFile(wheel).namelist())
