"""Killed anywhere: at every change of a file or the hardware, and, in the long test, at every call.

After each cut a new agent finds what the files, the hardware and the processes say. Then the claim
is prepared, with its one daemon where it has MPS, or gone without a trace, whatever kubelet and API
server want by then; its neighbour stays.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec import json

from nodeagent.claims.model import RecordPhase
from nodeagent.claims.serving.cdi import file_name
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.simulation import SimulatedNode, simulated
from tests.claims.borders import Border, WatchedHome, watched
from tests.claims.machine import UIDS, laid_out, pool_of
from tests.claims.mps_cuts import SCENARIOS

Places = tuple[list[tuple[int, int]], ...]

SLICE, NEIGHBOURS = "mig-1g-10gb-2", "mig-2g-20gb-4"
OWN, NEIGHBOUR = UIDS[0], UIDS[1]


class World:
    """A machine with one or two cards; `claim` is what the kubelet calls the one worked on."""

    def __init__(self, node: SimulatedNode, folder: Path) -> None:
        self.node, self.home = node, WatchedHome(folder)
        self.claim = self.home.claim(0, (pool_of(node), SLICE))
        self.neighbour = ""  # its MIG device
        self.neighbours_claim = ("", "", "")

    @contextmanager
    def copied(self, folder: Path) -> Iterator[World]:
        state = folder.with_name(f"node-{folder.name}.json")  # its changes are none of the agent's
        state.write_bytes(json.encode(self.node.state))
        with simulated(state=state) as node:
            made = World(node, folder)
            for name in ("state", "cdi"):
                if (self.home.folder / name).exists():
                    shutil.copytree(self.home.folder / name, folder / name)
            home = self.home
            made.home.claims, made.home.pods = deepcopy(home.claims), deepcopy(home.pods)
            made.home.boot_id, made.claim = home.boot_id, self.claim
            made.neighbour, made.neighbours_claim = self.neighbour, self.neighbours_claim
            yield made

    @asynccontextmanager
    async def life(self, border: Border | None = None) -> AsyncIterator[NodeClaims]:
        with watched(self.node, self.home, border or Border()):
            async with self.home.core() as (claims, _):
                yield claims

    async def settle(self, *, own: bool) -> None:
        """A neighbour is prepared, and runs; the claim also where it is wanted."""
        key = pool_of(self.node), NEIGHBOURS
        self.neighbours_claim = self.home.claim(1, key)
        async with self.life() as claims:
            [device] = await claims.prepare(*self.neighbours_claim)
            self.home.run_pod(self.neighbours_claim, key)
            self.node.occupy(device.uuid, pid=4711, command="train")
            self.neighbour = device.uuid
            if own:
                await claims.prepare(*self.claim)

    async def begin(self, claims: NodeClaims) -> None:
        """What a kubelet asks for when it begins after a reboot: all its pods are made again."""
        if self.home.boot_id != "first":
            await claims.prepare(*self.neighbours_claim)

    def reboot(self) -> None:
        """Instances and files are gone, and so are processes."""
        self.node.reboot()
        for name in self.home.files():
            (self.home.cdi / name).unlink()
        self.home.boot_id = "second"

    # --- what has to be so in the end -------------------------------------------------------------

    def check(self, *uids: str, places: Places) -> None:
        """These claims have their record and their file, and the cards these instances."""
        assert self.home.records() == [f"{uid}.json" for uid in uids]
        assert self.home.files() == [file_name(uid) for uid in uids]
        assert tuple(laid_out(self.node, card.index) for card in self.node.cards) == places
        for state in (card.state for card in self.node.cards):
            assert all(len(instance.compute) == 1 for instance in state.instances)
        if self.neighbour and self.home.boot_id == "first":
            assert [p.pid for p in self.node.card(0).state.processes] == [4711]
            assert self.node.find(self.neighbour)


Work = Callable[[World, NodeClaims], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is cut. `arranged` comes before it. `places` are start and size of the instances on each
    card once the claim is prepared, `beside` those without it.
    """

    name: str
    arranged: Callable[[World], Awaitable[None]]
    work: Work
    places: Places = ([(2, 1), (4, 2)],)
    beside: Places = ([(4, 2)],)

    @property
    def neighbours(self) -> tuple[str, ...]:
        return (NEIGHBOUR,) if any(self.beside) else ()


async def prepare(world: World, claims: NodeClaims) -> object:
    return await claims.prepare(*world.claim)


async def release(_: World, claims: NodeClaims) -> None:
    await claims.release(OWN)


async def look_after(world: World, claims: NodeClaims) -> object:
    return await world.home.upkeep(claims).round()


async def on_two_empty_cards(world: World) -> None:
    """Outside MIG mode; nothing was claimed yet."""
    keys = (pool_of(world.node), SLICE), (pool_of(world.node, 1), "mig-3g-40gb-4")
    world.claim = world.home.claim(0, *keys)


async def in_mig_mode(world: World) -> None:
    """A card without instances, which is claimed as a whole."""
    async with world.life() as claims:
        await claims.prepare(*world.claim)
        await claims.release(OWN)
    world.claim = world.home.claim(0, (pool_of(world.node), "gpu"))


async def beside_a_neighbour(world: World) -> None:
    await world.settle(own=False)


async def prepared(world: World) -> None:
    await world.settle(own=True)


async def lost(world: World) -> None:
    """Its instance and its file are gone."""
    await world.settle(own=True)
    state = world.node.card(0).state
    state.instances[:] = [one for one in state.instances if one.start != 2]
    (world.home.cdi / file_name(OWN)).unlink()


async def lost_to_a_running_pod(world: World) -> None:
    """Which the kubelet started long ago."""
    await lost(world)
    world.home.run_pod(world.claim, (pool_of(world.node), SLICE))


async def allocated_anew(world: World) -> None:
    """To another device, under the same uid."""
    await world.settle(own=True)
    world.claim = world.home.claim(0, (pool_of(world.node), "mig-1g-20gb-2"))


async def rebooted(world: World) -> None:
    """Instances and files are gone."""
    await world.settle(own=True)
    world.reboot()


CLAIM_SCENARIOS = (
    Scenario("first", on_two_empty_cards, prepare, ([(2, 1)], [(4, 4)]), ([], [])),
    Scenario("whole", in_mig_mode, prepare, ([],), ([],)),
    Scenario("beside", beside_a_neighbour, prepare),
    Scenario("again", prepared, prepare),
    Scenario("lost", lost, prepare),
    Scenario("anew", allocated_anew, prepare, ([(2, 2), (4, 2)],)),
    Scenario("release", prepared, release),
    Scenario("reboot", rebooted, prepare),
    Scenario("upkeep", rebooted, look_after),
)


BY_ITSELF = Scenario("by itself", lost_to_a_running_pod, look_after)


# --- what kubelet and API server want after the cut ----------------------------------------------


async def goes_on(world: World, scenario: Scenario) -> None:
    """The kubelet asks for the claim once more, and in the end has it released."""
    async with world.life() as claims:
        await look_after(world, claims)
        await world.begin(claims)
        await prepare(world, claims)
        world.check(OWN, *scenario.neighbours, places=scenario.places)
        assert {record.phase for record in claims.store.records} == {RecordPhase.READY}
        assert await look_after(world, claims) == ()
        await release(world, claims)
    world.check(*scenario.neighbours, places=scenario.beside)


async def vanishes(world: World, scenario: Scenario) -> None:
    """Pod and claim are gone, and the kubelet never asks again."""
    del world.home.claims[world.claim[:2]]
    async with world.life() as claims:
        await world.begin(claims)
        assert await look_after(world, claims) == ()
    world.check(*scenario.neighbours, places=scenario.beside)


async def is_released(world: World, scenario: Scenario) -> None:
    """The kubelet asks for its release, before the agent looked after anything."""
    async with world.life() as claims:
        await world.begin(claims)
        await release(world, claims)
        await look_after(world, claims)
    world.check(*scenario.neighbours, places=scenario.beside)


async def runs_on(world: World, scenario: Scenario) -> None:
    async with world.life() as claims:
        assert await look_after(world, claims) == ()
        world.check(OWN, *scenario.neighbours, places=scenario.places)


Ending = Callable[[World, Scenario], Awaitable[None]]


async def cut(world: World, scenario: Scenario, ending: Ending, border: Border) -> bool:
    """Whether the work was cut there; what is left is looked after by the next agent."""
    try:
        async with world.life(border) as claims:
            with border.counting():
                await scenario.work(world, claims)
    except BaseException:  # what others make of `Killed` is said to nobody
        if not border.failed:
            raise
    await ending(world, scenario)
    return bool(border.failed)


async def cuts(
    scenario: Scenario, endings: Sequence[Ending], folder: Path, *, reads: bool = False
) -> int:
    """How many there are; the endings take turns, each on a machine of its own."""
    with simulated(f"h100-80gb:{len(scenario.places)}") as node:
        arranged = World(node, folder / "arranged")
        await scenario.arranged(arranged)
    count = 0
    while True:
        with arranged.copied(folder / f"{count}") as world:
            ending = endings[count % len(endings)]
            if not await cut(world, scenario, ending, Border(count, reads=reads)):
                return count
        count += 1


ENDINGS = goes_on, vanishes, is_released
each_scenario = pytest.mark.parametrize(
    "scenario", CLAIM_SCENARIOS, ids=lambda scenario: scenario.name
)


async def test_a_running_pod_needs_no_call_of_the_kubelets(folder: Path) -> None:
    """What the agent was making again by itself when it was killed, the next one finishes."""
    assert await cuts(BY_ITSELF, [runs_on], folder) > 6


@each_scenario
async def test_cut_at_every_change(scenario: Scenario, folder: Path) -> None:
    """Of a file or the hardware; what lies between two of them leaves the same behind."""
    count = await cuts(scenario, ENDINGS, folder)
    assert (count > 6) is (scenario.name != "again")  # which has nothing to change


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("ending", ENDINGS)
@each_scenario
async def test_cut_at_every_call(scenario: Scenario, ending: Ending, folder: Path) -> None:
    assert await cuts(scenario, [ending], folder, reads=True) > 20


# --- claims with MPS ------------------------------------------------------------------------------


def cuts_of_mps(*arguments: str, seconds: float) -> int:
    """How many there were in a scenario, each put right by the next agent."""
    program = [sys.executable, "-m", "tests.claims.mps_cuts", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.splitlines()[-1])  # logs are above


def test_killed_around_the_start_of_the_daemon() -> None:
    """When all is made and recorded but the daemon, and when it runs and was not asked yet."""
    assert cuts_of_mps("slice", "start", "ask", seconds=200) == 2


def test_killed_while_the_daemon_goes() -> None:
    """When it has ended, and its directories are gone but for its record."""
    assert cuts_of_mps("whole released", "remove record.json", seconds=200) == 1


def test_killed_while_a_share_comes_beside_another() -> None:
    """When the daemon's record has it and the daemon's directory has not: the other one stays."""
    assert cuts_of_mps("share beside", "rename .record.json", seconds=200) == 1


def test_killed_between_two_gpus_of_one_daemon() -> None:
    """When both are ready but for the daemon, and when it runs and was not asked yet."""
    assert cuts_of_mps("two", "start", "ask", seconds=200) == 2


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_at_every_change(scenario: str) -> None:
    assert cuts_of_mps(scenario, seconds=1100) > (6 if "beside" in scenario else 20)
