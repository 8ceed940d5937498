"""The image, built from this checkout by buildah on debootstrap's base; what is in it runs."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent import __version__

ROOT = Path(__file__).parents[1]
MISSING = [name for name in ("buildah", "debootstrap") if not shutil.which(name)]

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(MISSING), reason=f"Debian's {' and '.join(MISSING)} not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root builds a base with debootstrap"),
]

PLAN = "version: v1\ngpus:\n- devices: all\n  mig: {1g.10gb: 7}\n"

AGENT = f"""
cd $(mktemp -d)
printf '{PLAN}' > plan.yaml
nodeagent run --simulate h100-80gb:2 --plan plan.yaml --run-dir run --state-dir state \
  --listen 127.0.0.1:0 > log 2>&1 &
for _ in $(seq 300); do
  nodeagent status --run-dir run 2> /dev/null | grep -q '  InSync' && break || sleep 0.1
done
nodeagent status --run-dir run || cat log
kill $!
wait $! && echo "ended with $?"
"""


def run(*words: str, text: str | None = None) -> str:
    ran = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{' '.join(words)}\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
    return ran.stdout


class Builder:
    """buildah with images and containers of its own, in need of no daemon and of no namespaces."""

    def __init__(self, folder: Path) -> None:
        places = (f"--root={folder}/store", f"--runroot={folder}/run")
        self._words = ("buildah", "--storage-driver=vfs", *places)
        self.container = ""

    def __call__(self, command: str, *words: str) -> str:
        isolated = ("--isolation=chroot",) if command in {"build", "run"} else ()
        return run(*self._words, command, *isolated, *words).strip()

    def inside(self, *words: str, user: str = "root") -> str:
        return self("run", f"--user={user}", self.container, "--", *words)


@pytest.fixture(scope="module")
def image() -> Iterator[Builder]:
    with tempfile.TemporaryDirectory(prefix="nodeagent-image-") as folder:
        base = Path(folder) / "base"
        packages = "--include=python3,python3-venv,python3-pip"
        run("debootstrap", "--variant=minbase", packages, "bookworm", str(base))
        (base / "usr/bin/python").symlink_to("python3")  # as in Python's own image
        next(base.glob("usr/lib/python3.*/EXTERNALLY-MANAGED")).unlink()
        builder = Builder(Path(folder))
        empty = builder("from", "scratch")
        builder("add", "--quiet", empty, str(base), "/")
        builder("commit", "--quiet", empty, "localhost/base")
        # The index may be behind a proxy whose certificate only this machine knows.
        certificates = "--volume=/etc/ssl/certs:/etc/ssl/certs:ro"
        base_argument = "--build-arg=PYTHON=localhost/base"
        builder("build", certificates, base_argument, "--tag=localhost/nodeagent", str(ROOT))
        builder.container = builder("from", "localhost/nodeagent")
        yield builder
        builder("rm", "--all")


def test_it_runs(image: Builder) -> None:
    assert image.inside("nodeagent", "--version") == f"nodeagent {__version__}"
    command = f"printf '{PLAN}' | nodeagent plan --simulate h100-80gb:1 -f - -o json"
    planned = json.loads(image.inside("sh", "-c", command, user="65534"))
    assert planned["verdict"] == "applicable"


def test_the_agent_starts(image: Builder) -> None:
    said = image.inside("bash", "-euc", AGENT, user="65534")
    assert "  InSync" in said
    assert "GPU 1 now has 1g.10gb at 0, 1, 2, 3, 4, 5, 6" in said
    assert said.splitlines()[-1] == "ended with 0"


def test_what_it_is_made_of(image: Builder) -> None:
    size = int(image.inside("du", "-sm", "/opt/nodeagent").split()[0])
    assert 30 < size < 70
    assert "pip" not in image.inside("ls", "/opt/nodeagent/bin").split()


def test_what_it_says_of_itself(image: Builder) -> None:
    config = json.loads(image("inspect", "localhost/nodeagent"))["OCIv1"]["config"]
    assert config["Entrypoint"] + config["Cmd"] == ["nodeagent", "run"]
    assert config["Labels"]["org.opencontainers.image.version"] == __version__
    assert config["Labels"]["org.opencontainers.image.base.name"] == "localhost/base"
