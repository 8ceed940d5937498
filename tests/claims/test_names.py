"""Names of pools and devices: unique, fit for Kubernetes, and back to what they mean."""

from __future__ import annotations

import re

import pytest

from nodeagent.claims.names import (
    WHOLE_GPU,
    DevicePlace,
    GpuShare,
    locate,
    mig_device_name,
    places,
    pool_name,
    share_named,
)
from nodeagent.errors import UnknownDevice
from nodeagent.simulation.boards import board_names
from nodeagent.structs import replace
from tests.claims.boards import NODE
from tests.plan.cards import card


def test_spelling() -> None:
    """What a scheduler's user reads for each kind of profile."""
    cases = [
        ("1g.10gb", 6, "mig-1g-10gb-6"),
        ("1g.10gb+me", 4, "mig-1g-10gb-me-4"),
        ("7g.80gb", 0, "mig-7g-80gb-0"),
        ("2g.48gb-me", 6, "mig-2g-48gb-nome-6"),
        ("1g.24gb+me.all", 9, "mig-1g-24gb-me-all-9"),
        ("4g.96gb+gfx", 0, "mig-4g-96gb-gfx-0"),
        ("1g.24gb+gfx,me", 3, "mig-1g-24gb-gfx-me-3"),
    ]
    for profile, start, name in cases:
        assert mig_device_name(profile, start) == name


@pytest.mark.parametrize("board", board_names())
def test_unique_and_back(board: str) -> None:
    """Each placement of each profile has a name of its own, which leads back to it alone."""
    gpu = replace(card(board), uuid="GPU-1F0C9A8E-0000-1111-2222-333344445555")
    pool = pool_name(NODE, gpu.uuid)
    assert pool == "gpu-7.example.com/gpu-1f0c9a8e-0000-1111-2222-333344445555"
    every = [(p.name, place) for p in gpu.profiles for place in p.placements]
    assert len(places(gpu)) == len(every)
    for profile, placement in every:
        name = mig_device_name(profile, placement.start)
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name)
        located = locate(pool, name, NODE, [card("t4"), gpu])
        assert located.gpu is gpu
        assert isinstance(located.part, DevicePlace)
        assert (located.part.profile.name, located.part.placement) == (profile, placement)
        assert located.part.name == name
    whole = locate(pool, WHOLE_GPU, NODE, [gpu])
    assert (whole.gpu, whole.part) == (gpu, None)


def test_shares() -> None:
    """The name of one has its memory, in one spelling, and leads back to it where the GPU has that
    much.
    """
    gpu = card("l40s")  # 46068 MiB
    pool = pool_name(NODE, gpu.uuid)
    for memory, number, name in ((8 << 30, 4, "mps-8gi-4"), (1500 << 20, 0, "mps-1500mi-0")):
        share = GpuShare(memory, number)
        assert (share.name, share_named(name)) == (name, share)
        assert locate(pool, name, NODE, [gpu]).part == share
    for name in ("mps-1024mi-0", "mps-08gi-0", "mps-8gi-00", "mps-8Gi-0", "mps-8gi", "gpu"):
        assert share_named(name) is None
    with pytest.raises(UnknownDevice, match="has no device mps-8gi-5"):
        locate(pool, "mps-8gi-5", NODE, [gpu])


def test_which_shares_overlap() -> None:
    """Of one size none; of two sizes those that have memory in common, lying side by side."""
    small, large = ([GpuShare(size << 30, n) for n in range(4)] for size in (8, 12))
    for one in small:
        assert [other for other in small if one.overlaps(other)] == [one]
        expected = [other for other in large if {*_gib(one)} & {*_gib(other)}]
        assert [other for other in large if one.overlaps(other)] == expected
        assert all(other.overlaps(one) for other in expected)


def _gib(share: GpuShare) -> range:
    return range(share.start >> 30, share.end >> 30)


@pytest.mark.parametrize(
    ("pool", "device", "message"),
    [
        (f"{NODE}/gpu-h100-80gb", "mig-1g-10gb-7", r"has no device mig-1g-10gb-7 \(it has: gpu, "),
        (f"{NODE}/gpu-h100-80gb", "mps-20gb-0", "has no device mps-20gb-0"),
        (f"{NODE}/gpu-h100-80gb", "MIG-1g-10gb-0", "has no device MIG-1g-10gb-0"),
        (f"{NODE}/gpu-gone", "gpu", r"this node has no GPU gpu-gone \(it has: gpu-h100-80gb\)"),
        (f"{NODE}/GPU-h100-80gb", "gpu", "this node has no GPU GPU-h100-80gb"),
        ("other/gpu-h100-80gb", "gpu", f"pool other/gpu-h100-80gb is not one of node {NODE}"),
        (NODE, "gpu-0", f"pool {NODE} is not one of node {NODE}"),  # as NVIDIA's driver has them
    ],
)
def test_refuses(pool: str, device: str, message: str) -> None:
    """What is not this node's is refused, and the reason says what would be."""
    with pytest.raises(UnknownDevice, match=message):
        locate(pool, device, NODE, [card("h100-80gb")])


def test_unknown_profiles() -> None:
    """While the driver does not list a card's profiles, that is the reason."""
    gpu = replace(card("h100-80gb"), profiles=(), unlisted="NVML code 3")
    with pytest.raises(UnknownDevice, match=r"MIG profiles .*: NVML code 3 .*a newer"):
        locate(pool_name(NODE, gpu.uuid), "mig-1g-10gb-0", NODE, [gpu])
