import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from nodeagent.cluster.client import faults
from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.cluster.keeper import Keeper, WriteIntervals
from tests.cluster.client.rig import running

pytestmark = pytest.mark.virtual_time


class Store:
    """Objects by key, whose writing can be made to fail."""

    def __init__(self, **intervals: object) -> None:
        self.there: dict[str, int] = {}
        self.sent: list[tuple[float, str, int]] = []
        self.failing: dict[str, ClusterFault] = {}
        self.looks = 0
        self.faults: list[type[object]] = []
        self.keeper = Keeper[str, int](
            self,
            WriteIntervals(**intervals),  # type: ignore[arg-type]  # a few by name
            on_fault=lambda fault: self.faults.append(type(fault)),
            jitter=lambda: 0.0,
        )

    def difference(self, key: str, value: int) -> int | None:
        return value if self.there.get(key) != value else None

    async def send(self, key: str, part: int) -> None:
        self.sent.append((asyncio.get_running_loop().time(), key, part))
        if fault := self.failing.get(key):
            raise fault
        self.there[key] = part

    async def read_again(self) -> None:
        self.looks += 1
        self.failing.clear()


@asynccontextmanager
async def kept(**intervals: object) -> AsyncIterator[Store]:
    store = Store(**intervals)
    async with running(store.keeper.run()):
        yield store


async def test_who_was_tried_last_comes_last() -> None:
    async with kept(interval=0.0, retry=(1.0, 1.0)) as store:
        store.failing["a"] = faults.ClusterUnreachable("down")
        for key in "abc":
            store.keeper.want(key, 1)
        await asyncio.sleep(5.0)
        assert store.there == {"b": 1, "c": 1}
        assert [key for _, key, _ in store.sent][:3] == ["a", "b", "c"]


async def test_a_fault_is_reported_when_it_begins_and_when_it_ends() -> None:
    async with kept(interval=0.0, retry=(1.0, 1.0), denied=(1.0, 8.0)) as store:
        store.failing["a"] = faults.NotAllowed("no")
        store.keeper.want("a", 1)
        for number in range(20):
            store.keeper.want("b", number)
            await asyncio.sleep(1.0)
        assert store.there == {"b": 19}
        assert isinstance(store.keeper.fault, faults.NotAllowed)
        assert store.faults == [faults.NotAllowed]
        store.keeper.forget("a")
        await asyncio.sleep(0.01)
        assert store.faults == [faults.NotAllowed, type(None)]
        assert store.keeper.fault is None


async def test_a_fault_ends_when_another_program_did_what_failed() -> None:
    """And does not last until all else is written."""
    async with kept(interval=100.0, burst=1, denied=(50.0, 50.0)) as store:
        store.failing["a"] = faults.NotAllowed("no")
        for value in (1, 2):
            store.keeper.want("a", 1)
            store.keeper.want("b", value)  # the second has to wait for its turn
            await asyncio.sleep(0.01)
        store.failing["c"] = faults.RequestRefused("no")
        store.keeper.want("c", 1)
        await asyncio.sleep(0.01)
        store.keeper.forget("c")
        await asyncio.sleep(0.01)
        assert isinstance(store.keeper.fault, faults.NotAllowed)  # which lasts
        store.there["a"] = 1
        store.keeper.changed()
        await asyncio.sleep(0.01)
        assert store.faults == [faults.NotAllowed, faults.RequestRefused, type(None)]


@pytest.mark.parametrize(
    ("fault", "another", "pauses"),
    [
        (faults.NotAllowed("no"), 2, [1.0, 2.0, 4.0, 8.0, 8.0]),
        (faults.DisruptionRefused("no"), 2, [1.0, 2.0, 4.0, 8.0, 8.0]),
        (faults.RequestRefused("no"), 1, [8.0, 8.0, 8.0, 8.0, 8.0]),
        (faults.ClusterUnreachable("no"), 1, [0.5, 1.0, 2.0, 2.0, 2.0]),
    ],
)
async def test_how_long_each_fault_waits(
    fault: ClusterFault, another: int, pauses: list[float]
) -> None:
    async with kept(interval=0.0, retry=(0.5, 2.0), denied=(1.0, 8.0)) as store:
        store.failing["a"] = fault
        store.keeper.want("a", 1)
        await asyncio.sleep(0.01)
        store.keeper.want("a", another)
        await asyncio.sleep(100.0)
    times = [at for at, _, _ in store.sent[:6]]
    assert [after - before for before, after in pairwise(times)] == pytest.approx(pauses, abs=0.01)


async def test_what_is_refused_for_long_holds_up_no_other() -> None:
    async with kept(interval=0.0, denied=(1.0, 100.0)) as store:
        store.failing["a"] = faults.RequestRefused("no")
        store.failing["b"] = faults.NotAllowed("no")
        store.keeper.want("a", 1)
        store.keeper.want("b", 1)
        await asyncio.sleep(0.5)
        store.failing.clear()
        await asyncio.sleep(1.0)
        assert store.there == {"b": 1}


async def test_another_value_is_not_refused() -> None:
    async with kept(interval=0.0) as store:
        store.failing["a"] = faults.RequestRefused("no")
        store.keeper.want("a", 1)
        await asyncio.sleep(0.01)
        store.failing.clear()
        store.keeper.want("a", 2)
        await asyncio.sleep(0.01)
        assert store.there == {"a": 2}


@pytest.mark.parametrize(("denials", "held"), [(1, True), (3, True), (4, False), (5, False)])
async def test_another_value_is_held_back_only_at_first(denials: int, held: bool) -> None:
    """A server that starts forbids everything; one that goes on forbidding may mean the content."""
    async with kept(interval=0.0, denied=(1.0, 300.0)) as store:
        store.failing["a"] = faults.NotAllowed("no")
        store.keeper.want("a", 1)
        await asyncio.sleep(2 ** (denials - 1) - 0.5)  # after 0, 1, 3, 7 and 15 seconds
        assert len(store.sent) == denials
        store.failing.clear()
        store.keeper.want("a", 2)
        await asyncio.sleep(0.01)
        assert store.there == ({} if held else {"a": 2})


async def test_after_a_conflict_it_is_looked() -> None:
    async with kept(interval=0.0) as store:
        store.failing["a"] = faults.WriteConflict("faster")
        store.keeper.want("a", 1)
        await asyncio.sleep(60.0)
        assert store.there == {"a": 1}
        assert store.looks == 1
        assert len(store.sent) == 2


@pytest.mark.parametrize(("shared", "at"), [(True, 4.0), (False, 1.0)])
async def test_an_allowance_is_of_each_key_or_of_all(shared: bool, at: float) -> None:
    async with kept(interval=1.0, burst=2, shared=shared) as store:
        begun = asyncio.get_running_loop().time()
        for value in range(3):
            store.keeper.want("a", value)
            store.keeper.want("b", value)
            await store.keeper.settled()
        assert store.there == {"a": 2, "b": 2}
        assert store.sent[-1][0] - begun == pytest.approx(at, abs=0.01)


async def test_a_server_that_asks_for_patience_gets_it() -> None:
    async with kept(interval=0.0, retry=(0.1, 0.1)) as store:
        store.failing["a"] = faults.ServerBusy("busy", retry_after=20.0)
        store.keeper.want("a", 1)
        await asyncio.sleep(0.01)
        store.failing.clear()
        for value in range(10):
            store.keeper.want("b", value)
            await asyncio.sleep(1.0)
        assert len(store.sent) == 1
        await asyncio.sleep(11.0)
        assert store.there == {"a": 1, "b": 9}


async def test_what_is_missing_is_tried_when_it_changes() -> None:
    async with kept(interval=0.0, denied=(1.0, 100.0)) as store:
        store.failing["a"] = faults.ObjectMissing("there is none")
        store.keeper.want("a", 1)
        await asyncio.sleep(50.0)
        store.keeper.changed()
        await asyncio.sleep(150.0)
        assert [at - store.sent[0][0] for at, _, _ in store.sent] == pytest.approx(
            [0.0, 50.0, 150.0], abs=0.01
        )


async def test_a_value_that_is_undone_is_written_ever_more_seldom() -> None:
    async with kept(interval=0.0, retry=(1.0, 8.0)) as store:
        contests: list[int] = []
        store.keeper.on_overwritten = contests.append
        store.keeper.want("a", 1)
        for _ in range(20):
            await asyncio.sleep(1.0)
            store.there.clear()
            store.keeper.changed()
        times = [at - store.sent[0][0] for at, _, _ in store.sent]
        assert times == pytest.approx([0.0, 1.0, 2.0, 4.0, 8.0, 16.0], abs=0.01)
        assert contests == [1]
        assert store.keeper.overwritten == (1,)
        await asyncio.sleep(19.9)  # it was undone once more, and written 4 seconds later
        assert store.keeper.overwritten == (1,)
        await asyncio.sleep(0.2)  # twice the longest wait since then
        assert not store.keeper.overwritten
        for _ in range(5):
            store.there.clear()
            store.keeper.changed(forget_sent=True)
            await asyncio.sleep(0.01)
            assert store.there == {"a": 1}
