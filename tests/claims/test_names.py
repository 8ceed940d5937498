"""Names of pools and devices: unique, fit for Kubernetes, and back to what they mean."""

from __future__ import annotations

import re

import pytest

from nodeagent.claims.names import WHOLE_GPU, locate, mig_device_name, places, pool_name
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
        assert located.place is not None
        assert (located.place.profile.name, located.place.placement) == (profile, placement)
        assert located.place.name == name
    whole = locate(pool, WHOLE_GPU, NODE, [gpu])
    assert (whole.gpu, whole.place) == (gpu, None)


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
    gpu = replace(card("h100-80gb"), profiles=())
    with pytest.raises(UnknownDevice, match="its MIG profiles are not known"):
        locate(pool_name(NODE, gpu.uuid), "mig-1g-10gb-0", NODE, [gpu])
