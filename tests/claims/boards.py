"""GPUs of every board, and which of their devices can lie side by side by the simulator's rules."""

from collections.abc import Iterable
from functools import cache

from nodeagent.claims.names import mig_device_name, places
from nodeagent.claims.offering.counters import CounterScheme
from nodeagent.plan.observed import Gpu, MigMode
from nodeagent.simulation.boards import GpuProfile, board_names, load_board
from nodeagent.simulation.geometry import may_join
from nodeagent.structs import replace
from tests.plan.cards import with_instances

NODE = "gpu-7.example.com"
MIG_BOARDS = tuple(name for name in board_names() if load_board(name).has_mig)
KINDS = ("a30", "a100-40gb", "h100-80gb", "b200", "rtx-pro-6000")  # one of each

# Sets of devices, the empty one included, that the hardware allows.
LEGAL_SETS = {
    board: 76 if board == "a30" else 717 if board.startswith("rtx-pro") else 2319
    for board in MIG_BOARDS
}

DeviceSet = frozenset[str]


def mig_off(gpu: Gpu) -> Gpu:
    return replace(gpu, mig=MigMode(current=False, pending=False), instances=())


def with_devices(gpu: Gpu, names: Iterable[str]) -> Gpu:
    """The GPU with GPU instances where these devices are."""
    found = [places(gpu)[name] for name in names]
    return with_instances(gpu, [(p.profile.name, p.placement.start) for p in found])


@cache
def legal_sets(board: str) -> frozenset[DeviceSet]:
    """By the simulator, which refuses what the hardware refuses."""
    candidates = [
        (mig_device_name(profile.name, placement.start), profile, placement.mask)
        for profile in load_board(board).profiles
        for placement in profile.placements
    ]
    found: set[DeviceSet] = set()

    def grow(first: int, names: tuple[str, ...], lying: list[GpuProfile], taken: int) -> None:
        found.add(frozenset(names))
        for number in range(first, len(candidates)):
            name, profile, mask = candidates[number]
            if not mask & taken and may_join(profile, lying):
                grow(number + 1, (*names, name), [*lying, profile], taken | mask)

    grow(0, (), [], 0)
    return frozenset(found)


def feasible_sets(gpu: Gpu) -> frozenset[DeviceSet]:
    scheme = CounterScheme.of(gpu)
    candidates = [(name, scheme.consumption(place)) for name, place in places(gpu).items()]
    left = dict(scheme.totals)
    found: set[DeviceSet] = set()

    def grow(first: int, names: tuple[str, ...]) -> None:
        found.add(frozenset(names))
        for number in range(first, len(candidates)):
            name, takes = candidates[number]
            if all(left[counter] >= amount for counter, amount in takes.items()):
                for counter, amount in takes.items():
                    left[counter] -= amount
                grow(number + 1, (*names, name))
                for counter, amount in takes.items():
                    left[counter] += amount

    grow(0, ())
    return frozenset(found)
