"""Installations of the simulated programs, and the real ones where there are any."""

from collections.abc import Callable, Iterator

import pytest

from nodeagent.simulation.mps.versions import VERSIONS
from tests.simulation.mps.rig import Programs, Rig, programs_of, real_programs


@pytest.fixture(scope="session")
def installed() -> Callable[[str], Programs]:
    """A function that gives the programs of a version, made once."""
    return lambda version: Programs(programs_of(version), VERSIONS[version], real=False)


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
