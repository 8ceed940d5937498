"""Pack what examines the agent on a machine with a GPU: `python -m tools.card_kit.pack [FILE]`.

The archive has the wheels of all that is needed there, for Python 3.12 on x86-64, the tests and the
script `run`. The wheels are downloaded by pip, with the hashes of the locks.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)
# What the tests of the driver need beside the program.
_TESTS = (
    "hypothesis",
    "iniconfig",
    "packaging",
    "pluggy",
    "pytest",
    "pytest-asyncio",
    "pytest-timeout",
    "sortedcontainers",
)
_LIMIT = 60  # MiB
_NAMES = ("tests", "tools/__init__.py", "tools/card_kit", "pyproject.toml")


def main() -> int:
    """Write the archive and print its size; 1 where it is too large."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/card-kit.tar")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(target, "w") as archive:
        _wheels(Path(folder))
        for wheel in sorted(Path(folder).glob("*.whl")):
            archive.add(wheel, f"card-kit/wheels/{wheel.name}")
        for name in _NAMES:
            if (ROOT / name).exists():
                archive.add(ROOT / name, f"card-kit/{name}", filter=_source)
        archive.add(ROOT / "tools/card_kit/run", "card-kit/run")
    size = target.stat().st_size / (1 << 20)
    print(f"{target}: {size:.1f} MiB")
    return 0 if size < _LIMIT else 1


def _wheels(folder: Path) -> None:
    blocks = re.split(
        r"\n(?=[a-z0-9])", (ROOT / "requirements/dev.txt").read_text(encoding="utf-8")
    )
    named = folder / "tests.txt"
    named.write_text(
        "\n".join(b for b in blocks if b.partition("==")[0] in _TESTS), encoding="utf-8"
    )
    options = [
        "--only-binary=:all:",
        "--python-version=3.12",
        "--implementation=cp",
        *(f"--platform={p}" for p in _PLATFORMS),
    ]
    for lock in (ROOT / "requirements/run.txt", named):
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            *options,
            "-r",
            str(lock),
            "-d",
            str(folder),
        ]
        subprocess.run(pip, check=True)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def _source(found: tarfile.TarInfo) -> tarfile.TarInfo | None:
    left_out = "__pycache__" in found.name or "goldens/recorded" in found.name
    return None if left_out else found


if __name__ == "__main__":
    sys.exit(main())
