import pynvml
import pytest

from nodeagent.errors import DriverError
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.steps.instances import compute_profile_for
from nodeagent.plan.observed import ComputeInstanceProfile, GpuInstanceProfile, Placement
from nodeagent.simulation import SimulatedNode
from nodeagent.structs import replace
from tests.gpu.steps_of import add_compute, create, destroy, laid_out, layout


@pytest.mark.parametrize(
    "function",
    [
        "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlComputeInstanceGetInfo_v2",
    ],
)
@pytest.mark.parametrize("code", ["UNKNOWN", "INSUFFICIENT_RESOURCES", "IN_USE", "GPU_IS_LOST"])
async def test_what_cannot_be_finished_is_taken_away_again(
    driver: Driver, node: SimulatedNode, function: str, code: str
) -> None:
    gpu = await laid_out(driver, 0, at4="1g.10gb")
    # What is read back is read up to three times.
    skip, times = (1, 3) if function.endswith("_v2") else (0, 1)
    node.inject(function, error=code, skip=skip, times=times)
    with pytest.raises(DriverError, match=f"GPU 0: .*{function.removesuffix('_v2')}"):
        await driver.apply(create(gpu, "3g.40gb", 0, (2, 1)))
    node.clear_faults()
    again = await driver.observe_gpu(gpu.uuid)
    assert layout(again) == {Placement(4, 1): ("1g.10gb",)}


async def test_a_failure_after_the_work_is_cleared_too(driver: Driver, node: SimulatedNode) -> None:
    gpu = await laid_out(driver, 0)
    node.inject("nvmlGpuInstanceCreateComputeInstance", error="UNKNOWN", applied=True)
    with pytest.raises(DriverError):
        await driver.apply(create(gpu, "3g.40gb", 0))
    assert layout(await driver.observe_gpu(gpu.uuid)) == {}


async def test_a_wrong_part_is_taken_away(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that reports success has not proven what it made."""
    gpu = await laid_out(driver, 0)
    function = "nvmlGpuInstanceCreateComputeInstance"
    right = getattr(pynvml.nvmlLib, function)
    monkeypatch.setitem(
        pynvml._nvmlGetFunctionPointer_cache,
        function,
        lambda instance, _, made: right(
            instance, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE, made
        ),
    )
    with pytest.raises(DriverError, match=r"profile 1 was asked for .* made one of profile 0"):
        await driver.apply(create(gpu, "3g.40gb", 0, (2, 1)))
    assert layout(await driver.observe_gpu(gpu.uuid)) == {}


async def test_what_cannot_be_taken_away_is_reported(driver: Driver, node: SimulatedNode) -> None:
    gpu = await laid_out(driver, 0)
    node.inject("nvmlGpuInstanceCreateComputeInstance", error="INSUFFICIENT_RESOURCES")
    node.inject("nvmlGpuInstanceDestroy", error="UNKNOWN")
    with pytest.raises(DriverError, match=r"3g.40gb is left half-made.*no free room"):
        await driver.apply(create(gpu, "3g.40gb", 0))
    assert layout(await driver.observe_gpu(gpu.uuid)) == {Placement(0, 4): ()}


async def test_a_part_is_added_to_what_is_meant_alone(driver: Driver, node: SimulatedNode) -> None:
    """Ids are re-used, so profile and place must be the step's too."""
    gpu = await laid_out(driver, 0)
    await driver.apply(create(gpu, "3g.40gb", 0, (1,)))
    gpu = await driver.observe_gpu(gpu.uuid)
    step = add_compute(gpu, gpu.instances[0], 1)
    await driver.apply(destroy(gpu, gpu.instances[0]))
    with pytest.raises(DriverError, match=r"3g.40gb at 0:4\) does not exist any more"):
        await driver.apply(step)
    await driver.apply(create(gpu, "4g.40gb", 0, (1,)))
    with pytest.raises(DriverError, match=r"is not 3g.40gb at 0:4 any more but 4g.40gb at 0:4"):
        await driver.apply(step)
    assert node.journal.total("nvmlGpuInstanceCreateComputeInstance") == 2


async def test_a_profile_of_another_card_is_not_tried(driver: Driver, node: SimulatedNode) -> None:
    gpu = await laid_out(driver, 0)
    step = replace(create(gpu, "3g.40gb", 0), profile_id=14)
    with pytest.raises(DriverError, match=r"no profile 3g.40gb with id 14"):
        await driver.apply(step)
    assert node.journal.total("*Create*") == 0


# --- which compute profile ------------------------------------------------------------------------

PLAIN = ComputeInstanceProfile(0, 1, 3, 16)
DOUBLE = ComputeInstanceProfile(7, 1, 1, 26)
TWO = ComputeInstanceProfile(1, 2, 1, 32)


def instance_profile(slices: int) -> GpuInstanceProfile:
    return GpuInstanceProfile(9, 2, f"{slices}g.40gb", slices, 1, 60, 2, ())


@pytest.mark.parametrize(
    ("slices", "offered", "chosen"),
    [
        (1, [PLAIN, DOUBLE], DOUBLE),  # one slice each, and only one fills the instance
        (3, [PLAIN, DOUBLE, TWO], PLAIN),  # the big one would leave no room for the others
    ],
)
def test_which_of_several_is_chosen(
    slices: int, offered: list[ComputeInstanceProfile], chosen: ComputeInstanceProfile
) -> None:
    assert compute_profile_for(instance_profile(slices), offered, 1) is chosen


def test_a_size_that_is_not_offered_is_refused_with_those_that_are() -> None:
    with pytest.raises(DriverError, match=r"2 slices was asked for in 1g\.40gb, which offers 1"):
        compute_profile_for(instance_profile(1), [PLAIN, DOUBLE], 2)
