import json
from collections import Counter
from collections.abc import Iterator
from ctypes import byref, c_uint
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nodeagent.simulation import Switches
from nodeagent.simulation.boards import GpuProfile
from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import Refused
from tests.simulation import calls

SEEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data" / "mig_observations.json").read_text()
)
SEVEN_SLICES = ("a100-40gb", "a100-80gb", "h100-80gb", "h100-pcie", "h200", "b200", "gb200")


def _boards_of(layout: str) -> tuple[str, ...]:
    return ("a30", "rtx-pro-6000") if layout == "quarter" else SEVEN_SLICES


@pytest.mark.parametrize(
    ("seen", "board"),
    [(s, board) for s in SEEN["creation_sequences"] for board in _boards_of(s["layout"])],
    ids=lambda value: value if isinstance(value, str) else value["name"],
)
def test_creations_land_where_they_were_seen_to_land(seen: dict[str, Any], board: str) -> None:
    with calls.node_with(board, mirrored=seen["layout"] == "mirrored"):
        device = calls.gpu()
        ids: list[int | None] = []
        places: list[str] = []
        for name in seen["create"]:
            try:
                instance = calls.create(device, name)
            except pynvml.NVMLError_InsufficientResources:
                ids.append(None)
                continue
            number, place = calls.place_of(instance)
            ids.append(number)
            places.append(place)
        assert seen["gi_ids"] == ids
        if "placements" in seen and board != "a30":
            assert seen["placements"] == places


Layout = frozenset[tuple[str, int]]  # profile and how many of it


@pytest.mark.parametrize(
    ("board", "data"),
    [
        ("a100-80gb", "geometries_7slice_plain"),
        pytest.param("h100-80gb", "geometries_7slice_with_me_rev2", marks=pytest.mark.full),
        ("a30", "geometries_A30_plain"),
    ],
)
def test_the_possible_layouts_are_those_of_the_tables(board: str, data: str) -> None:
    published = {frozenset(layout.items()) for layout in SEEN[data]["items"]}
    found = _layouts(board, {name for layout in published for name, _ in layout})
    counted = [Counter(dict(layout)) for layout in found]
    largest = {
        layout for layout in found if not any(Counter(dict(layout)) < other for other in counted)
    }
    assert published == largest
    assert SEEN[data].get("count_of_all_nonempty_sets", len(found)) == len(found)


@pytest.mark.parametrize("layout", SEEN["illegal"], ids=str)
def test_illegal_sets_cannot_be_created(layout: dict[str, int]) -> None:
    assert frozenset(layout.items()) not in _layouts("h100-80gb", set(layout))


def _layouts(board: str, names: set[str]) -> set[Layout]:
    """Every set of these profiles that can be created at some placements."""
    key = (board, frozenset(names))
    if key not in _KNOWN_LAYOUTS:
        with calls.node_with(board) as node:
            _KNOWN_LAYOUTS[key] = set(_reachable(node.cards[0], names))
    return _KNOWN_LAYOUTS[key]


_KNOWN_LAYOUTS: dict[tuple[str, frozenset[str]], set[Layout]] = {}


def _reachable(card: Card, names: set[str]) -> Iterator[Layout]:
    """By the card's own answers, each layout made anew before one more is tried."""
    profiles = {_short(p): p for p in card.board.profiles if _short(p) in names}
    assert names == set(profiles)
    front: list[tuple[tuple[str, int, int], ...]] = [()]
    seen = set(front)
    while front:
        lying = front.pop()
        for name, profile in profiles.items():
            for place in profile.placements:
                card.state.instances.clear()
                for other, start, size in lying:
                    card.create_instance(profiles[other].id, (start, size))
                try:
                    card.create_instance(profile.id, (place.start, place.size))
                except Refused:
                    continue
                more = tuple(sorted((*lying, (name, place.start, place.size))))
                if more not in seen:
                    seen.add(more)
                    front.append(more)
                    yield frozenset(Counter(name for name, _, _ in more).items())


def _short(profile: GpuProfile) -> str:
    if profile.kind == pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2:
        return "1g(REV2)"
    return f"{profile.slices}g{profile.name.partition('gb')[2]}"


def test_profiles_with_mig_off() -> None:
    """New drivers tell profiles and placements regardless of the mode, old ones do not."""
    with calls.node_with("h100-80gb", mig=False):
        assert calls.placements(calls.gpu(), 9) == [(0, 4), (4, 4)]
    with calls.node_with("h100-80gb", mig=False, switches=Switches(profiles_need_mig=True)):
        calls.refused(
            "NotSupported",
            lambda: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(calls.gpu(), 0),
            lambda: calls.placements(calls.gpu(), 9),
        )


def test_what_needs_mig_on() -> None:
    with calls.node_with("h100-80gb", mig=False):
        device, count = calls.gpu(), c_uint()
        array = (pynvml.c_nvmlGpuInstance_t * 7)()
        calls.refused(
            "NotSupported",
            lambda: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, 19),
            lambda: pynvml.nvmlDeviceGetGpuInstances(device, 19, array, byref(count)),
            lambda: pynvml.nvmlDeviceGetGpuInstanceById(device, 1),
            lambda: pynvml.nvmlDeviceCreateGpuInstance(device, 19),
        )


def test_an_occupied_place_is_insufficient_resources() -> None:
    with calls.node_with("h100-80gb"):
        device = calls.gpu()
        calls.create(device, "2g", 2)
        for name, start in (("2g", 2), ("3g", 0), ("1g", 3), ("7g", 0)):
            with pytest.raises(pynvml.NVMLError_InsufficientResources):
                calls.create(device, name, start)


@pytest.mark.parametrize(("start", "size"), [(1, 4), (0, 3), (8, 4), (4, 8)])
def test_an_invalid_place_is_an_invalid_argument(start: int, size: int) -> None:
    """So is the enumeration value of a profile in place of its id, as 3 of 4g."""
    create_at = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement
    place = byref(pynvml.c_nvmlGpuInstancePlacement_t(start, size))
    with calls.node_with("h100-80gb"):
        calls.refused(
            "InvalidArgument",
            lambda: create_at(calls.gpu(), 9, place),
            lambda: pynvml.nvmlDeviceCreateGpuInstance(calls.gpu(), 3),
        )


def test_media_extensions_exclude_each_other_on_a30() -> None:
    with calls.node_with("a30"):
        device = calls.gpu()
        calls.create(device, "1g+me", 0)
        calls.refused("InsufficientResources", lambda: calls.create(device, "2g+me", 2))
        assert calls.free(device, "2g+me") == 0
        calls.create(device, "2g", 2)


def test_all_media_engines_leave_only_profiles_without() -> None:
    with calls.node_with("rtx-pro-6000"):
        device = calls.gpu()
        first = calls.create(device, "1g+me.all", 0)
        for name in ("1g", "1g+me", "1g+gfx", "2g"):
            assert calls.free(device, name) == 0
            with pytest.raises(pynvml.NVMLError_InsufficientResources):
                calls.create(device, name, 6)
        calls.create(device, "2g-me", 6)
        pynvml.nvmlGpuInstanceDestroy(first)
        calls.create(device, "1g", 0)
        calls.refused("InsufficientResources", lambda: calls.create(device, "1g+me.all", 3))


def test_a_client_from_before_blocks_creation() -> None:
    with calls.node_with("h100-80gb") as node:
        process = node.occupy(0)
        calls.refused("InUse", lambda: calls.create(calls.gpu(), "1g"))
        node.release(0, process.pid)
        calls.create(calls.gpu(), "1g")


def test_an_instance_with_compute_instances_cannot_be_destroyed() -> None:
    with calls.node_with("h100-80gb"):
        device = calls.gpu()
        instance = calls.create(device, "3g", 0)
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, calls.whole(instance).id)
        calls.refused("InUse", lambda: pynvml.nvmlGpuInstanceDestroy(instance))
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
        assert calls.place_of(calls.create(device, "3g", 0)) == (1, "0:4")


def test_an_ordinary_user_may_only_ask_for_profiles() -> None:
    with calls.node_with("h100-80gb", privileged=False) as node:
        made = node.cards[0].create_instance(19)
        node.cards[0].create_compute(made, 0)
        device, count = calls.gpu(), c_uint()
        array = (pynvml.c_nvmlGpuInstance_t * 7)()
        assert pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, 0).id == 19
        assert pynvml.nvmlDeviceGetGpuInstanceId(calls.mig_devices(device)[0]) == made.id
        calls.refused(
            "NoPermission",
            lambda: calls.placements(device, 19),
            lambda: pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device, 19),
            lambda: pynvml.nvmlDeviceGetGpuInstances(device, 19, array, byref(count)),
            lambda: pynvml.nvmlDeviceGetGpuInstanceById(device, made.id),
            lambda: pynvml.nvmlDeviceCreateGpuInstance(device, 19),
            lambda: pynvml.nvmlDeviceSetMigMode(device, 0),
        )


# --- compute instances ----------------------------------------------------------------------------


def _slots(instance: Any, wanted: list[str]) -> list[str]:
    profiles = calls.compute_profiles(instance)
    return [
        calls.slot_of(pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profiles[name].id))[1]
        for name in wanted
    ]


@pytest.mark.parametrize(
    ("board", "name", "wanted", "slots"),
    [
        ("a100-80gb", "3g", ["1c", "2c"], ["0:1", "1:2"]),
        ("a100-80gb", "3g", ["3c"], ["0:3"]),
        ("a100-80gb", "7g", ["3c", "3c", "1c"], ["0:3", "3:3", "6:1"]),
        ("h100-pcie", "3g", ["1c", "2c"], ["0:1", "1:2"]),
        ("rtx-pro-6000", "4g", ["2c", "1c", "1c"], ["0:2", "2:1", "3:1"]),
        ("h100-80gb", "3g", ["3c"], ["0:4"]),
        ("h100-80gb", "1gR2", ["1c"], ["0:2"]),
        ("h100-80gb", "7g", ["7c"], ["0:8"]),
        ("h100-80gb", "3g", ["1c", "2c"], ["2:1", "0:2"]),
    ],
)
def test_where_instances_land(board: str, name: str, wanted: list[str], slots: list[str]) -> None:
    """First fit on Ampere and where there is no smaller size, an aligned tree on the others."""
    with calls.node_with(board):
        assert _slots(calls.create(calls.gpu(), name), wanted) == slots


def test_unaligned_slots_do_not_exist_on_an_aligned_tree() -> None:
    """After one 1c at slot 0 of a 3g, a 2c has no place on Hopper."""
    with calls.node_with("h100-80gb"):
        instance = calls.create(calls.gpu(), "3g")
        place = byref(pynvml.c_nvmlComputeInstancePlacement_t(0, 1))
        pynvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(instance, 0, place)
        calls.refused(
            "InsufficientResources",
            lambda: pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 1),
        )


def test_double_memory_has_a_profile_of_its_own() -> None:
    """1g with double memory is filled by compute profile 7 on Hopper."""
    with calls.node_with("h100-80gb"):
        assert calls.whole(calls.create(calls.gpu(), "1gR2")).id == 7
    with calls.node_with("a100-80gb"):
        assert calls.whole(calls.create(calls.gpu(), "1gR2")).id == 0


def test_absent_profiles() -> None:
    of_gpu = pynvml.nvmlDeviceGetGpuInstanceProfileInfo
    of_instance = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
    with calls.node_with("h100-80gb"):
        device, instance = calls.gpu(), calls.create(calls.gpu(), "3g")
        calls.refused(
            "NotSupported",
            lambda: of_gpu(device, pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1),
            lambda: of_instance(instance, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE, 0),
        )
        calls.refused(
            "InvalidArgument",
            lambda: of_gpu(device, pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT),
            lambda: of_instance(instance, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT, 0),
            lambda: of_instance(instance, pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE, 1),
        )


def test_a_compute_instance_with_a_process_stays() -> None:
    with calls.node_with("h100-80gb") as node:
        device = calls.create_device(calls.gpu(), "1g")
        process = node.occupy(pynvml.nvmlDeviceGetUUID(device))
        instance = calls.instances(calls.gpu(), "1g")[0]
        compute = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0)
        calls.refused("InUse", lambda: pynvml.nvmlComputeInstanceDestroy(compute))
        node.release(pid=process.pid)
        pynvml.nvmlComputeInstanceDestroy(compute)
        calls.refused("NotFound", lambda: pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 0))
