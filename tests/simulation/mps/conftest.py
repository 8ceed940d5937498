"""Installations of the simulated programs, and the real ones where there are any."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from nodeagent.simulation.mps.installation import install
from nodeagent.simulation.mps.versions import VERSIONS
from tests.simulation.mps.rig import Programs, Rig, real_programs


@pytest.fixture(scope="session")
def installed() -> Iterator[Callable[[str], Programs]]:
    """A function that gives the programs of a version, made once."""
    folder = Path(tempfile.mkdtemp(prefix="mps-programs-", dir="/tmp"))
    folder.chmod(0o755)

    @cache
    def get(version: str) -> Programs:
        install(folder / version, version=version)
        return Programs(folder / version, VERSIONS[version], real=False)

    yield get
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def real() -> Programs | None:
    return real_programs()


def chosen(name: str, installed: Callable[[str], Programs], real: Programs | None) -> Programs:
    """The programs of a version, or the real ones; skips where there are none."""
    if name != "real":
        return installed(name)
    if real is None:
        pytest.skip("no nvidia-cuda-mps-control on PATH")
    return real


FIRST_AND_LAST = ("535", "615")


@pytest.fixture(
    params=[
        *FIRST_AND_LAST,
        *(
            pytest.param(other, marks=pytest.mark.full)
            for other in VERSIONS
            if other not in FIRST_AND_LAST
        ),
        "real",
    ]
)
def every(
    request: pytest.FixtureRequest, installed: Callable[[str], Programs], real: Programs | None
) -> Programs:
    return chosen(request.param, installed, real)


@pytest.fixture(params=[pytest.param("535", marks=pytest.mark.full), "550", "real"])
def compared(
    request: pytest.FixtureRequest, installed: Callable[[str], Programs], real: Programs | None
) -> Programs:
    return chosen(request.param, installed, real)


@pytest.fixture
def rig(installed: Callable[[str], Programs]) -> Iterator[Rig]:
    """A simulated daemon's folders; nothing runs yet."""
    with Rig(installed("550")) as made:
        yield made
