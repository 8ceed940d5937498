"""Make what is released: wheel, sdist, the image's recipe with its files, rendered manifests, the
Helm chart, the kubectl plugin, manual pages, and the bill of materials.

    python -m tools.make_dist [FOLDER]

FOLDER is `dist` unless named, and is made anew; one that is named must not be there. The recipe is
a build context: `docker build -` reads it from standard input. Files are the same for the same
sources, with SOURCE_DATE_EPOCH as their time.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from gzip import GzipFile
from pathlib import Path
from tempfile import TemporaryDirectory

from nodeagent import __version__
from tools import make_man_pages, make_sbom

ROOT = Path(__file__).parents[1]
NAME = f"nodeagent-{__version__}"
_EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "1580601600"))  # hatchling's own default


def main() -> int:
    """Fill the folder; returns the exit code."""
    folder = ROOT / "dist"
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1]).absolute()
    else:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    write_recipe(folder / f"{NAME}-image.tar.gz")
    write_chart(folder / f"{NAME}-chart.tgz")
    shutil.copy(ROOT / "nodeagent/kubectl.py", folder / "kubectl-nodeagent")
    write_manual(folder / f"{NAME}-man.tar.gz")
    make_sbom.write(folder / f"{NAME}-sbom.cdx.json")
    kubectl = shutil.which("kubectl")
    if kubectl:
        render_manifests(kubectl, folder)
    else:
        print("kubectl is not installed: without rendered manifests", file=sys.stderr)
    sums = [f"{_digest(path)}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    print("".join(sums), end="")
    return 0


def write_recipe(target: Path) -> None:
    """The Dockerfile and the files that it copies."""
    _pack(target, ((path, str(path.relative_to(ROOT))) for path in _recipe()))


def write_chart(target: Path) -> None:
    """The chart as Helm packs it, with the files behind its links."""
    charts = ROOT / "manifests/helm"
    found = (
        Path(folder, name)
        for folder, _, names in os.walk(charts / "nodeagent", followlinks=True)
        for name in names
    )
    _pack(target, ((path, str(path.relative_to(charts))) for path in found))


def write_manual(target: Path) -> None:
    """The manual pages, for a folder `man1`."""
    with TemporaryDirectory() as folder:
        for name, page in make_man_pages.pages().items():
            Path(folder, name).write_text(page, encoding="utf-8")
        _pack(target, ((path, f"man1/{path.name}") for path in Path(folder).iterdir()))


def _pack(target: Path, files: Iterable[tuple[Path, str]]) -> None:
    with (
        target.open("wb") as raw,
        GzipFile(filename="", fileobj=raw, mode="wb", mtime=_EPOCH) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for path, name in sorted(files):
            archive.add(path, name, recursive=False, filter=_plain)


def render_manifests(kubectl: str, folder: Path) -> None:
    """Each overlay, and the objects for monitoring, with a PodMonitor or with a ServiceMonitor, as
    one file that `kubectl apply -f` takes.
    """
    monitoring = ROOT / "manifests/monitoring"
    with TemporaryDirectory() as own:
        service_monitor = Path(own).resolve() / "monitoring-service-monitor"
        service_monitor.mkdir()
        there = os.path.relpath(monitoring, service_monitor)
        content = {
            "resources": [there],
            "components": [f"{there}/service-monitor"],
            "sortOptions": {"order": "fifo"},
        }
        (service_monitor / "kustomization.yaml").write_text(json.dumps(content), encoding="utf-8")
        overlays = sorted((ROOT / "manifests/overlays").iterdir())
        for source in (*overlays, monitoring, service_monitor):
            command = [kubectl, "kustomize", str(source)]
            done = subprocess.run(command, check=True, capture_output=True)
            (folder / f"{NAME}-{source.name}.yaml").write_bytes(done.stdout)


def _recipe() -> Iterator[Path]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    yield ROOT / "Dockerfile"
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for name in line.split()[:-1]:
            source = ROOT / name
            inside = source.rglob("*") if source.is_dir() else (source,)
            yield from (p for p in inside if p.is_file() and "__pycache__" not in p.parts)


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without the time and the owner that a file has here."""
    entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = _EPOCH, 0, 0, "", ""
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
