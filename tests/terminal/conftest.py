"""GPUs as values, to be drawn."""

import pytest

from nodeagent.plan.observed import (
    ComputeInstance,
    Gpu,
    GpuInstance,
    GpuInstanceProfile,
    MigMode,
    Placement,
)
from nodeagent.plan.users import IDLE, Usage, User
from nodeagent.structs import replace

GIB = 1 << 30


def _profile(name: str, number: int, placements: tuple[tuple[int, int], ...]) -> GpuInstanceProfile:
    return GpuInstanceProfile(
        id=number,
        kind=number,
        name=name,
        slices=int(name[0]),
        memory=10 * GIB,
        multiprocessors=16,
        max_count=len(placements),
        placements=tuple(Placement(*p) for p in placements),
    )


class Gpus:
    python = Usage((User(4711, "python"),))

    def instance(
        self,
        number: int,
        profile: str,
        start: int,
        size: int,
        *,
        usage: Usage = IDLE,
        parts: int = 1,
    ) -> GpuInstance:
        """A GPU instance with `parts` compute instances; none: half-made."""
        name = profile if parts == 1 else f"1c.{profile}"
        devices = tuple(
            ComputeInstance(n, name, 1, f"MIG-{number}-{n}", usage=usage) for n in range(parts)
        )
        return GpuInstance(number, 19, profile, Placement(start, size), devices)

    def gpu(self, *instances: GpuInstance, index: int = 0) -> Gpu:
        return Gpu(
            index=index,
            uuid=f"GPU-{index}",
            name="NVIDIA H100 80GB HBM3",
            mig=MigMode(current=True, pending=True),
            profiles=(
                _profile("1g.10gb", 19, tuple((n, 1) for n in range(7))),
                _profile("3g.40gb", 9, ((0, 4), (4, 4))),
                _profile("7g.80gb", 0, ((0, 8),)),
            ),
            instances=instances,
        )

    def off(self, *, pending: bool = False) -> Gpu:
        return replace(self.gpu(), mig=MigMode(current=False, pending=pending))


@pytest.fixture
def gpus() -> Gpus:
    return Gpus()
