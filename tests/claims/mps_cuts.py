"""Claims with MPS, killed: `python -m tests.claims.mps_cuts SCENARIO [WHAT...]` says at how many
changes, and fails where the next agent did not put everything right.

It is killed at the first change that has WHAT in its name, or, with none, at each of them in turn.
The life that is cut is a process of its own, since its daemon lives on and its threads must not.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from nodeagent.claims.capacity import CLIENTS, MEMORY, THREADS
from nodeagent.claims.model import RecordPhase
from nodeagent.claims.serving.cdi import file_name
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.mps.processes import CONTROL
from nodeagent.simulation import SimulatedNode
from tests.acceptance.mps_bench import is_daemon
from tests.claims.borders import Border, watched_process
from tests.claims.machine import UIDS, Home, laid_out, pool_of, until_done
from tests.claims.mps_rig import LIMITS, agent
from tests.claims.samples import config_json, device_config
from tests.machine_load import stretched
from tests.reconcile.controller_rig import DEFAULT, EXCLUSIVE, NodeRig, modes
from tests.rig import SOON, Rig
from tests.simulated_cluster.allocator import Allocated

OWN, BESIDE = UIDS[:2]
SLICE, WHOLE = Allocated("", "mig-1g-10gb-2"), Allocated("", "gpu")
SHARE = Allocated("", "gpu", {MEMORY: 8 << 30, THREADS: 0, CLIENTS: 1})
PART = Allocated("", "mig-1g-10gb-2", {MEMORY: 4 << 30, THREADS: 0, CLIENTS: 1})
Ending = Callable[["World"], Coroutine[Any, Any, None]]


class World:
    """A machine with its cards; `claim` is what the kubelet calls the claim of the device, of which
    it has one on each card, or on the last where it `joins` another with all. `node` are the cards
    as the present life, or the last one, has them.
    """

    def __init__(self, machine: NodeRig, scenario: Scenario) -> None:
        self.machine, self.scenario = machine, scenario
        self.home = Home(machine.folder / "home")
        with SimulatedNode(f"h100-80gb:{scenario.cards}", state=machine.state) as self.node:
            pools = [pool_of(self.node, card.index) for card in self.node.cards]
        each = [scenario.device._replace(pool=pool) for pool in pools]
        self.claim = self.home.claim(0, *(each[-1:] if scenario.joins else each))
        self.beside = self.home.claim(1, *(each if scenario.joins else each[-1:]))
        for claim in self.home.claims.values():
            for result in claim["status"]["allocation"]["devices"]["results"]:
                result["request"] = "gpu"
        devices = self.home.claims[self.claim[:2]]["status"]["allocation"]["devices"]
        if not scenario.device.consumed:
            devices["config"] = [config_json(device_config(mps=LIMITS), "FromClass")]

    @asynccontextmanager
    async def life(self, border: Border | None = None) -> AsyncIterator[tuple[NodeClaims, Rig]]:
        """One agent's, until it is killed."""
        with (
            SimulatedNode(state=self.machine.state) as self.node,
            watched_process(self.node, border or Border()),
        ):
            async with agent(self.home, self.machine, share="memory") as (claims, rig, _):
                yield claims, rig

    def reboot(self) -> None:
        """Instances, daemons, files and directories are gone."""
        for process in self.machine.processes():
            os.kill(process.pid, signal.SIGKILL)
        with SimulatedNode(state=self.machine.state) as node:
            node.reboot()
        shutil.rmtree(self.machine.run_dir)
        (self.home.cdi / file_name(OWN)).unlink()
        self.home.boot_id = "second"

    async def prepared(self) -> None:
        """Instance and daemon are there, or a share of another claim's."""
        async with self.life() as (claims, _):
            if self.scenario.prepared:
                await prepare(self, claims)
            if self.scenario.beside:
                await claims.prepare(*self.beside)

    async def worked(self, border: Border) -> None:
        """What is cut, in an agent that was there before."""
        async with self.life(border) as (claims, rig):
            if self.scenario.beside and not self.scenario.rebooted:
                # A daemon that is not Ready yet is changed later.
                await self.until_well(claims, rig)
            with border.counting():
                await self.scenario.work(self, claims)

    async def look_after(self, claims: NodeClaims, rig: Rig) -> list[str]:
        """What the agent does by itself, and what that leaves."""
        await rig.round()
        return [problem.message for problem in await self.home.upkeep(claims).round()]

    async def until_well(self, claims: NodeClaims, rig: Rig) -> None:
        async with asyncio.timeout(stretched(SOON)):
            while await self.look_after(claims, rig):
                await asyncio.sleep(0.05)

    def check(self, *, prepared: bool) -> None:
        """All of the claim is there, or nothing: record, file, instance, daemon, directories."""
        folder, processes = self.machine.run_dir / "mps", self.machine.processes()
        uids = [OWN] * prepared + [BESIDE] * self.scenario.beside
        assert self.home.records() == [f"{uid}.json" for uid in uids]
        assert self.home.files() == [file_name(uid) for uid in uids]
        assert tuple(laid_out(self.node)) == self.scenario.places * bool(uids)
        found, shared = modes(self.node), bool(uids)
        exclusive = shared * self.scenario.cards
        assert (found.count(EXCLUSIVE), found.count(DEFAULT)) == (exclusive, len(found) - exclusive)
        assert [one.program for one in processes if is_daemon(one)] == [CONTROL] * shared
        assert len(list(folder.iterdir()) if folder.exists() else []) == shared
        assert shared or processes == []


async def prepare(world: World, claims: NodeClaims) -> object:
    return await claims.prepare(*world.claim)


async def release(_: World, claims: NodeClaims) -> None:
    await claims.release(OWN)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is cut, of a claim that may be prepared before, or a share `beside` it. `places` are
    start and size of the instances that there are with either.
    """

    work: Callable[[World, NodeClaims], Awaitable[object]]
    prepared: bool = False
    rebooted: bool = False
    beside: bool = False
    device: Allocated = SLICE
    places: tuple[tuple[int, int], ...] = ((2, 1),)
    cards: int = 1
    joins: bool = False


SCENARIOS = {
    "slice": Scenario(prepare),
    "slice released": Scenario(release, prepared=True),
    "slice after a reboot": Scenario(prepare, prepared=True, rebooted=True),
    "whole": Scenario(prepare, device=WHOLE, places=()),
    "whole released": Scenario(release, prepared=True, device=WHOLE, places=()),
    "share": Scenario(prepare, device=SHARE, places=()),
    "share beside": Scenario(prepare, beside=True, device=SHARE, places=()),
    "share released beside": Scenario(release, prepared=True, beside=True, device=SHARE, places=()),
    "two": Scenario(prepare, device=WHOLE, places=(), cards=2),
    "two after a reboot": Scenario(prepare, True, True, device=WHOLE, places=(), cards=2),
    "beside two": Scenario(prepare, beside=True, device=SHARE, places=(), cards=2, joins=True),
    "two released": Scenario(release, prepared=True, device=WHOLE, places=(), cards=2),
    "two released beside": Scenario(release, True, False, True, SHARE, (), 2),
    "part": Scenario(prepare, device=PART),
    "part beside": Scenario(prepare, beside=True, device=PART),
    "part after a reboot": Scenario(
        prepare, prepared=True, rebooted=True, beside=True, device=PART
    ),
    "part released beside": Scenario(release, prepared=True, beside=True, device=PART),
}


# --- what kubelet and API server want after the cut ----------------------------------------------


async def goes_on(world: World) -> None:
    """The kubelet asks for the claim once more, and in the end has it released."""
    async with world.life() as (claims, rig):
        await world.look_after(claims, rig)
        await until_done(lambda: prepare(world, claims))
        world.check(prepared=True)
        assert await world.look_after(claims, rig) == []
        assert {record.phase for record in claims.store.records} == {RecordPhase.READY}
        await release(world, claims)
        world.check(prepared=False)


async def vanishes(world: World) -> None:
    """Pod and claim are gone, and the kubelet never asks again."""
    del world.home.claims[world.claim[:2]]
    async with world.life() as (claims, rig):
        await world.until_well(claims, rig)
        world.check(prepared=False)


async def is_released(world: World) -> None:
    """The kubelet asks for its release, before the agent looked after anything."""
    async with world.life() as (claims, rig):
        await until_done(lambda: release(world, claims))
        await world.look_after(claims, rig)
        world.check(prepared=False)


ENDINGS = goes_on, vanishes, is_released


# --- cuts -----------------------------------------------------------------------------------------


def _die() -> BaseException:
    os.kill(os.getpid(), signal.SIGKILL)
    return AssertionError("the process outlived its end")


def _at(change: str) -> Border:
    return Border(0, error=_die, concerns=lambda what: change in what)


def _after(changes: int) -> Border:
    """Without the files that are the simulated hardware, and the kernel's."""
    others = "node.json", "write null", "write oom_score_adj"
    return Border(changes, error=_die, concerns=lambda what: not any(o in what for o in others))


def _is_killed(life: Callable[[], Coroutine[Any, Any, None]]) -> bool:
    """Whether it was, in a process of its own; raises where it failed in another way."""
    if (pid := os.fork()) == 0:
        try:
            asyncio.run(life())
            os._exit(0)
        except BaseException:  # noqa: BLE001  # in the child, of which nothing else is seen
            traceback.print_exc()
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in {0, -signal.SIGKILL}:
        raise SystemExit(code)
    return code != 0


def cut(scenario: Scenario, ending: Ending, border: Border) -> bool:
    """Whether the work was cut there; what is left is looked after by the next agent."""
    with NodeRig() as machine:
        world = World(machine, scenario)
        if scenario.prepared or scenario.beside:
            _is_killed(world.prepared)
        if scenario.rebooted:
            world.reboot()
        killed = _is_killed(lambda: world.worked(border))
        _is_killed(lambda: ending(world))
    return killed


def main(name: str, *changes: str) -> int:
    """How many cuts there were."""
    scenario = SCENARIOS[name]
    if changes:
        endings = itertools.cycle(ENDINGS)
        return sum(cut(scenario, next(endings), _at(change)) for change in changes)
    cuts = 0
    while cut(scenario, ENDINGS[cuts % 3], _after(cuts)):
        cuts += 1
    return cuts


if __name__ == "__main__":
    sys.stdout.write(f"{main(*sys.argv[1:])}\n")
