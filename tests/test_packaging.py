import email
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from nodeagent import __version__
from tests.manifests.rendering import OVERLAYS, overlay, why_not, with_service_monitor
from tools import make_sbom

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def _canonical(requirement: str) -> str:
    name = re.split(r"[<>=!~;]", requirement)[0]
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
    run, build, dev = _lock("run"), _lock("build"), _lock("dev")
    assert _wanted("install") == set(_lock("install"))
    assert {_canonical(name) for name in PROJECT["project"]["dependencies"]} <= set(run)
    assert _wanted("build") <= set(build)
    assert _wanted("dev") <= set(dev)
    assert dev == dev | run | build


@pytest.mark.parametrize("lock", ["run", "dev"])
def test_the_locks_hold_what_their_packages_ask_for(lock: str) -> None:
    """Else nothing can be installed from them where nothing is installed yet."""
    locked, missing = _lock(lock), set[str]()
    for name in locked:
        with suppress(PackageNotFoundError):  # for another system
            for wanted in map(Requirement, distribution(name).requires or ()):
                if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                    missing |= {_canonical(wanted.name)} - locked.keys()
    assert missing == set()


def test_what_is_installed_is_small() -> None:
    """Without bytecode, which doubles what is Python: 79 MB with it, pip and the program itself."""
    files = [file for name in _lock("run") for file in distribution(name).files or ()]
    sizes = [Path(str(file.locate())).stat().st_size for file in files if file.suffix != ".pyc"]
    assert 10e6 < sum(sizes) < 45e6


def test_the_tests_that_the_makefile_names_are_there() -> None:
    """pytest refuses a whole run for one path that is gone."""
    parts = re.search(r"(?m)^PARTS +:= (.*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert parts is not None
    shown = subprocess.run(
        ["make", "--dry-run", "pytest-pure", *parts[1].split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    named = set(re.findall(r"\btests/[\w/.]+", shown.stdout))
    assert len(named) > 20
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_locks_name_no_index() -> None:
    for name in ("install", "run", "build", "dev"):
        text = (ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8")
        assert not re.search(r"://|^-|\s--(?!hash=)", text, re.MULTILINE)


def test_each_dependency_has_a_reason() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## Dependencies")[1]
    listed = {
        _canonical(name)
        for first in re.findall(r"^\| ([\w, -]+?) \| (?!for)", page, re.MULTILINE)
        for name in first.split(", ")
    }
    declared = {_canonical(name) for name in PROJECT["project"]["dependencies"]}
    declared |= _wanted("dev") | _wanted("install")
    assert declared == listed


def test_each_dependency_has_a_floor() -> None:
    run = _lock("run")
    for requirement in PROJECT["project"]["dependencies"]:
        name, floor = requirement.split(">=")
        assert _version(run[_canonical(name)]) >= _version(floor), requirement


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


# --- licences -----------------------------------------------------------------------------------

LICENCES = tomllib.loads((ROOT / "requirements/licences.toml").read_text(encoding="utf-8"))
# What may be shipped beside this program, in the image, without more than its text.
FREE = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MPL-2.0", "PSF-2.0"}


def test_each_package_has_its_licence() -> None:
    assert set(LICENCES) == set(_lock("dev")) | set(_lock("install"))
    assert {one for text in LICENCES.values() for one in re.split(" AND | OR ", text)} <= FREE


def test_licences_are_those_of_the_packages() -> None:
    """Where a package says it exactly this is what it says, else its text is of that family."""
    for name, listed in LICENCES.items():
        try:
            metadata = distribution(name).metadata
        except PackageNotFoundError:  # for another system
            continue
        exact = metadata.get_all("License-Expression", [])
        loose = " ".join(metadata.get_all("License", []) + metadata.get_all("Classifier", []))
        loose += distribution(name).read_text("licenses/LICENSE") or ""
        family = {"PSF-2.0": "Python Software Foundation"}.get(listed, listed.partition("-")[0])
        assert exact == [listed] or (not exact and family in loose), name


# --- the image ----------------------------------------------------------------------------------


def test_the_base_image_is_given_by_its_digest() -> None:
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == ["${PYTHON}"] * 2
    base = r"(?m)^ARG PYTHON=(python):(3\.11\.\d+-slim-\w+)@sha256:([0-9a-f]{64})$"
    ((name, tag, digest),) = re.findall(base, DOCKERFILE)
    (container,) = [
        one
        for one in make_sbom.bill("", {}, DOCKERFILE)["components"]
        if one["type"] == "container"
    ]
    assert (container["name"], container["version"]) == (name, tag)
    assert container["hashes"] == [{"alg": "SHA-256", "content": digest}]


def test_the_image_says_what_it_is() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="([^"]*)"', DOCKERFILE))
    project = PROJECT["project"]
    assert labels == {
        "title": project["name"],
        "description": project["description"],
        "version": __version__,
        "licenses": project["license"],
        "authors": project["authors"][0]["name"],
        "base.name": "${PYTHON}",
        "revision": "${REVISION}",
        "created": "${CREATED}",
    }
    final = DOCKERFILE.split("\nFROM ")[-1]
    for argument in ("PYTHON", "REVISION", "CREATED"):
        assert re.search(rf"^ARG {argument}\b", final, re.MULTILINE), argument


def _copied_into_the_image() -> list[str]:
    return [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    ]


def test_the_image_is_built_from_files_that_are_there() -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    copied = _copied_into_the_image()
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert source.split("/")[0] in allowed, source


def test_the_package_builds_from_what_the_image_copies(tmp_path: Path) -> None:
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


# --- what is released ---------------------------------------------------------------------------


def test_the_bill_of_materials(tmp_path: Path) -> None:
    make_sbom.write(tmp_path / "sbom.json")
    found = json.loads((tmp_path / "sbom.json").read_text(encoding="utf-8"))
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    libraries = {one["name"]: one for one in found["components"] if one["type"] == "library"}
    assert {name: one["version"] for name, one in libraries.items()} == _lock("run")
    lock = (ROOT / "requirements/run.txt").read_text(encoding="utf-8")
    hashes = [
        known["content"]
        for one in libraries.values()
        for reference in one["externalReferences"]
        for known in reference["hashes"]
    ]
    assert sorted(hashes) == sorted(re.findall(r"sha256:(\w+)", lock))
    for name, one in libraries.items():
        assert one["licenses"] == [{"expression": LICENCES[name]}]
    needs = {one["ref"]: set(one["dependsOn"]) for one in found["dependencies"]}
    declared = {libraries[_canonical(name)]["purl"] for name in PROJECT["project"]["dependencies"]}
    assert {ref for ref in needs["nodeagent"] if ref.startswith("pkg:")} == declared
    reached, left = set[str](), {"nodeagent"}
    while left:
        reached |= left
        left = {ref for one in left for ref in needs[one]} - reached
    assert reached == {
        one["bom-ref"] for one in (*found["components"], found["metadata"]["component"])
    }


@pytest.mark.full
def test_what_is_released(tmp_path: Path) -> None:
    """`make dist`: a wheel that says what it needs, sources that are whole, the image's recipe with
    every file that it copies, manifests as kubectl renders them, the chart, manual pages, and sums.
    """
    folder, again, name = tmp_path / "dist", tmp_path / "again", f"nodeagent-{__version__}"
    for each in (folder, again):
        command = [sys.executable, "-m", "tools.make_dist", str(each)]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert (folder / "SHA256SUMS").read_bytes() == (again / "SHA256SUMS").read_bytes()

    with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl") as wheel:
        metadata = email.message_from_bytes(wheel.read(f"{name}.dist-info/METADATA"))
    assert metadata["Author"] == PROJECT["project"]["authors"][0]["name"]
    assert metadata["License-Expression"] == "Apache-2.0"
    needed = {re.sub(r"[\s()]", "", one) for one in metadata.get_all("Requires-Dist", [])}
    assert {_canonical(one) for one in needed} == {
        _canonical(one) for one in PROJECT["project"]["dependencies"]
    }
    assert all(">=" in one for one in needed)

    with tarfile.open(folder / f"{name}.tar.gz") as sources:
        shipped = {path.removeprefix(f"{name}/") for path in sources.getnames()}
    git = ["git", "ls-files"]
    listing = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    listed = {path for path in listing.splitlines() if not path.startswith(".")}
    assert {path for path in listed if not (ROOT / path).is_symlink()} <= shipped
    for link in (path for path in listed if (ROOT / path).is_symlink()):
        assert any(path.startswith(f"{link}/") for path in shipped), link

    with tarfile.open(folder / f"{name}-image.tar.gz") as recipe:
        inside = recipe.getnames()
    for source in ("Dockerfile", *_copied_into_the_image()):
        assert any(path == source or path.startswith(f"{source}/") for path in inside), source

    if not why_not():
        rendered = {one: overlay(one) for one in OVERLAYS}
        rendered["monitoring-service-monitor"] = with_service_monitor(tmp_path)
        for one, documents in rendered.items():
            text = (folder / f"{name}-{one}.yaml").read_text(encoding="utf-8")
            assert tuple(yaml.safe_load_all(text)) == documents
        assert (folder / f"{name}-monitoring.yaml").is_file()

    with tarfile.open(folder / f"{name}-man.tar.gz") as manual:
        assert {"man1/nodeagent.1", "man1/nodeagent-mps-drain.1"} <= set(manual.getnames())

    sums = (folder / "SHA256SUMS").read_text(encoding="utf-8").split()
    summed = dict(zip(sums[1::2], sums[::2], strict=True))
    assert summed == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.name != "SHA256SUMS"
    }
    assert {f"{name}-sbom.cdx.json", f"{name}-chart.tgz", "kubectl-nodeagent"} <= summed.keys()
