import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from nodeagent.simulation import SimulatedNode
from nodeagent.structs import replace
from tests.acceptance.cluster_rig import FIRST, NODE, PACE, SOON, Member, plan_text
from tests.machine_load import until
from tests.simulated_cluster import faults
from tests.simulated_cluster.agent import STATUS
from tests.simulated_cluster.api_server import ApiServer

SECOND = plan_text("{2g.20gb: 3}")
LAST = plan_text("{3g.40gb: 1, 1g.10gb: 3}")

# With the rig's times two loops and a writer ask some forty times a second at most while all
# fails; a loop without a wait asks many hundred times.
MAX_A_SECOND = 60


@contextlib.asynccontextmanager
async def weathered(member: Member, *, most: int = MAX_A_SECOND) -> AsyncIterator[None]:
    """In the block something is wrong; after it the last plan wins, with so many requests a second
    in between and none afterwards.
    """
    clock = asyncio.get_running_loop().time
    begun, before = clock(), len(member.api.requests)
    yield
    member.plan(LAST)
    await member.in_sync(LAST)
    asked, took = len(member.api.requests) - before, clock() - begun
    assert asked <= 10 + most * took, f"{asked} requests in {took:.2f} s"
    assert {i.profile for i in member.rig.gpu().instances} == {"3g.40gb", "1g.10gb"}
    await member.quiet()
    assert member.publisher.state.reachable
    assert member.publisher.state.problem is None


# --- requests and watches that fail -------------------------------------------------------------


def everywhere(count: int, fault: faults.Fault) -> Callable[[ApiServer], None]:
    """The open watch, and then so many requests of any kind."""

    def order(api: ApiServer) -> None:
        api.faults.next(count, fault)
        api.faults.strike(fault)

    return order


def writing(count: int, fault: faults.Fault) -> Callable[[ApiServer], None]:
    return lambda api: api.faults.next(count, fault, verb="PATCH")


def watching(fault: faults.Fault) -> Callable[[ApiServer], None]:
    return everywhere(0, fault)


def expired(api: ApiServer) -> None:
    """The open watch ends, and what it would go on from is forgotten."""
    api.store.tick()
    api.expire()
    api.faults.strike(faults.End())


FAULTS = {
    "410 in the watch": watching(faults.ErrorEvent(410)),
    "410 at the next watch": expired,
    "409": writing(3, faults.Answer(409)),
    "429": everywhere(3, faults.Answer(429)),
    "500": everywhere(4, faults.Answer(500)),
    "cut watch": watching(faults.Cut()),
    "cut watch that looks whole": watching(faults.Cut(clean=True)),
    "cut answers": everywhere(3, faults.Cut()),
    "reset": everywhere(3, faults.Reset()),
    "reset writes": writing(3, faults.Reset()),
    "frozen watch": watching(faults.Freeze()),
    "frozen answers": everywhere(2, faults.Freeze()),
    "frozen writes": writing(2, faults.Freeze()),
    "slow": everywhere(2, faults.Slow(0.3)),
    "dribbling": everywhere(2, faults.Dribble(0.3)),
    "a proxy's page": everywhere(3, faults.Html(502)),
    "a deep page that says 200": everywhere(3, faults.Html(200, "[" * 20_000 + "\n")),
    "watches that end at once": everywhere(5, faults.End()),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
async def test_a_fault_passes(member: Member, fault: Callable[[ApiServer], None]) -> None:
    struck = member.api.faults.struck
    async with weathered(member):
        fault(member.api)
        member.plan(SECOND)
        await until(lambda: member.api.faults.struck > struck or fault is expired)
    member.api.faults.clear()


async def test_retry_after_is_obeyed_by_all(member: Member) -> None:
    clock = asyncio.get_running_loop().time
    async with weathered(member):
        member.api.faults.next(2, faults.Answer(429, retry_after=1))
        struck = clock()
        member.api.faults.strike(faults.Answer(429, retry_after=1))
        member.plan(SECOND)
        await until(lambda: clock() - struck > 0.9)
        assert len([r for r in member.api.requests if r.time > struck]) <= 3
    member.api.faults.clear()


async def test_a_fault_that_stays_makes_no_storm(member: Member) -> None:
    clock = asyncio.get_running_loop().time
    begun = clock()
    member.api.faults.next(10_000, faults.Answer(500))
    member.api.faults.strike(faults.End())
    member.api.annotate(NODE, **{STATUS: "{}"})  # which it would mend
    await until(lambda: clock() - begun > 1.5)
    for half in (0.5, 1.0):  # after the first waits, which are short
        times = [r.time - begun for r in member.api.requests]
        asked = sum(1 for time in times if half <= time < half + 0.5)
        assert 0 < asked <= MAX_A_SECOND / 2
    member.api.faults.clear()
    async with weathered(member):
        pass


# --- who we are ---------------------------------------------------------------------------------


async def test_a_token_that_is_replaced_late(
    gpus: SimulatedNode, api: ApiServer, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("old")
    api.tokens["old"] = "agent"
    async with Member(tmp_path, api).running() as member:
        await member.in_sync(member.plan(FIRST))
        async with weathered(member):
            api.revoke("old")
            api.faults.strike(faults.Reset())
            await until(lambda: "401" in str(member.publisher.state.problem))
            assert not member.publisher.state.reachable
            await asyncio.sleep(0.5)
            api.tokens["new"] = "agent"
            member.token.write_text("new")


# --- clocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [86_400.0, -86_400.0])
async def test_a_clock_that_jumps(
    gpus: SimulatedNode, api: ApiServer, tmp_path: Path, seconds: float
) -> None:
    patient = replace(PACE, patience=SOON)  # work that takes its time is not reported meanwhile
    async with Member(tmp_path, api, intervals=patient, answer_within=SOON).running() as member:
        await member.settled(FIRST)
        async with weathered(member, most=20):
            for jump in (seconds, 0.0):
                member.jumped = jump
                plan = plan_text("{2g.20gb: 3}", f"{jump}")
                member.plan(plan)
                await member.in_sync(plan)
                member.api.faults.strike(faults.End())
            await member.quiet()
            assert member.asked()["list nodes"] == 1
            # Each of three plans is shown at most as due and as done, by annotation and condition.
            assert member.asked()["write nodes"] <= 12


# --- a server that is not there -----------------------------------------------------------------


async def test_the_server_restarts(member: Member) -> None:
    async with weathered(member):
        member.plan(SECOND)
        await member.api.restart()


async def test_the_server_is_gone_a_day(
    gpus: SimulatedNode, api: ApiServer, tmp_path: Path
) -> None:
    """The plan stays in force and work goes on; at its return the newest state is written, once.

    A day is to the product's longest wait as eight minutes are to the rig's; a second and
    a half of them are enough for the waits to have grown.
    """
    patient = replace(PACE, patience=SOON)  # work that takes its time is not reported meanwhile
    async with Member(tmp_path, api, intervals=patient, answer_within=SOON).running() as member:
        await member.settled(FIRST)
        async with weathered(member, most=20):
            async with api.refusing():
                await until(lambda: not member.publisher.state.reachable)
                rounds = member.rig.state.rounds
                for _ in range(15):
                    await asyncio.sleep(0.1)
                    member.rig.control.wake("a day's work")
                while member.rig.state.rounds < rounds + 8:  # a busy machine does fewer meanwhile
                    await asyncio.sleep(0.1)
                    member.rig.control.wake("a day's work")
                assert len(member.rig.gpu().instances) == 7
                member.plan(SECOND)
                before = len(api.requests)
            await member.in_sync(SECOND)
            await member.quiet()
            asked = member.asked(before)
            assert asked["list nodes"] <= 2
            assert asked["watch"] <= 2
            assert asked["write nodes"] == 2  # the status annotation, and the condition


async def test_a_start_without_the_server(
    gpus: SimulatedNode, api: ApiServer, tmp_path: Path
) -> None:
    async with Member(tmp_path, api).running() as member:
        await member.in_sync(member.plan(FIRST))
    api.annotate(NODE, **{STATUS: None})
    before = len(api.requests)
    await api.stop()
    async with Member(tmp_path, api).running() as member:
        await until(lambda: member.rig.state.phase == "InSync" and member.rig.state.digest)
        assert not member.publisher.state.reachable
        assert len(api.requests) == before
        async with weathered(member):
            await api.start()
            await member.in_sync(FIRST)
