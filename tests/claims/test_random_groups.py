"""Claims come and go at random on several GPUs, each with one or more of them in one container, as
wholes or as shares. Which can be there together is counted here once more.
"""

import random
from dataclasses import dataclass

import pytest

from nodeagent.claims.capacity import CLIENTS, MEMORY, THREADS
from nodeagent.claims.model import ClaimHeldUp
from nodeagent.claims.offering.gpu_rules import GpuRules
from nodeagent.claims.serving.node_claims import NodeClaims
from nodeagent.plan.observed import DeviceDaemon
from nodeagent.simulation import simulated
from tests.claims.machine import Home, pool_of
from tests.claims.samples import config_json, device_config
from tests.simulated_cluster.allocator import Allocated

SHARE = {MEMORY: 2 << 30, THREADS: 0, CLIENTS: 1}
Gpus = frozenset[str]


@dataclass(frozen=True, slots=True)
class Held:
    """What a claim has, and the GPUs of its daemon; none where it has no MPS."""

    claim: tuple[str, str, str]
    gpus: Gpus
    kind: str  # share, mps or plain
    daemon: Gpus


class Days:
    """Of one node."""

    def __init__(self, home: Home, pools: dict[str, str]) -> None:
        self._rng, self._home, self._pools = random.Random(0), home, pools
        self.held: list[Held] = []
        self.daemons: dict[str, DeviceDaemon] = {}
        self.number = 0
        self.seen: set[tuple[str, bool]] = set()  # what was wanted, and whether it was to be had

    async def live(self, rounds: int) -> None:
        rules = GpuRules(share="memory")
        async with self._home.core(daemons=self.daemons, rules=rules) as (claims, _):
            assert await self._home.upkeep(claims).round() == ()
            for _ in range(rounds):
                if self._rng.random() < 0.4 and self.held:
                    await self.end(claims)
                else:
                    await self._come(claims)
                self._check()
            while rounds == 0 and self.held:
                await self.end(claims)

    async def _come(self, claims: NodeClaims) -> None:
        kind = self._rng.choice(["share", "share", "mps", "plain"])
        taken = [g for one in self.held if {kind, one.kind} != {"share"} for g in one.gpus]
        free = [gpu for gpu in self._pools if gpu not in taken]
        self._rng.shuffle(free)
        gpus = frozenset(free[: self._rng.randint(1, 3)])
        if not free:  # nothing that a scheduler would allocate
            return
        claim = self._claim(gpus, kind)
        there = {one.daemon for one in self.held if gpus & one.daemon}
        joins = kind == "share" and len(there) == 1 and gpus <= next(iter(there))
        self.seen.add((kind, joins or not there))
        if joins or not there:
            await claims.prepare(*claim)
            daemon = next(iter(there), gpus) if kind != "plain" else frozenset[str]()
            self.held.append(Held(claim, gpus, kind, daemon))
        else:
            with pytest.raises(ClaimHeldUp, match="stay the same as long as a claim has it"):
                await claims.prepare(*claim)
            del self._home.claims[claim[:2]]

    def _claim(self, gpus: Gpus, kind: str) -> tuple[str, str, str]:
        self.number += 1
        consumed = SHARE if kind == "share" else None
        devices = (Allocated(self._pools[gpu], "gpu", consumed) for gpu in sorted(gpus))
        claim = self._home.claim(self.number, *devices)
        allocated = self._home.claims[claim[:2]]["status"]["allocation"]["devices"]
        for result in allocated["results"]:
            result["request"] = "gpus"
        if kind == "mps":
            allocated["config"] = [config_json(device_config(mps={"clients": {}}))]
        return claim

    async def end(self, claims: NodeClaims) -> None:
        one = self.held.pop(self._rng.randrange(len(self.held)))
        await claims.release(one.claim[2])
        del self._home.claims[one.claim[:2]]

    def _check(self) -> None:
        """Each daemon is of its claims, with the GPUs that it had from the start."""
        daemons = self.daemons.items()
        found = {device: frozenset(one.runs.devices_on(device)) for device, one in daemons}
        assert found == {gpu: one.daemon for one in self.held for gpu in one.daemon}
        for device, one in self.daemons.items():
            kinds = {share.name for share in one.runs.sharing.shares}
            own = [held for held in self.held if device in held.daemon]
            assert kinds == {held.claim[2] if held.kind == "share" else "clients" for held in own}


async def test_claims_with_several_gpus(home: Home) -> None:
    """What can be there together is, and everything else waits; nothing is left in the end."""
    with simulated("l40s:3") as node:
        pools = {card.identity.uuid: pool_of(node, card.index) for card in node.cards}
        days = Days(home, pools)
        while days.number < 250:
            await days.live(20)
        await days.live(0)
    assert (home.records(), home.files(), days.daemons) == ([], [], {})
    kinds = ("share", "mps", "plain")
    assert days.seen == {(kind, had) for kind in kinds for had in (True, False)}
