"""Follows objects of the API server: lists them, watches them, and reports each change.

Whatever breaks, what was seen last stays in force and the server is asked again with backoff. There
is no polling, and no loop without a wait in it, however a server misbehaves.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Final, Generic, Literal, NoReturn, Protocol, TypeVar

from msgspec import Raw
from msgspec.json import Decoder

from nodeagent.cluster.client import faults, requests
from nodeagent.cluster.client.access import ClusterAccess, Read
from nodeagent.cluster.client.faults import ClusterFault, ConnectionCut
from nodeagent.cluster.client.node_view import is_newer
from nodeagent.cluster.client.requests import Request
from nodeagent.pacing import Backoff
from nodeagent.structs import Struct


class Versioned(Protocol):
    """What a reflector has to know of an object."""

    @property
    def name(self) -> str: ...
    @property
    def resource_version(self) -> str: ...


Seen = TypeVar("Seen", bound=Versioned)


class _Metadata(Struct, rename="camel", frozen=True):
    resource_version: str = ""
    name: str = ""


class _Object(Struct):
    """An object, a bookmark that has a version alone, or the Status that is an error's."""

    metadata: _Metadata = _Metadata()
    code: int = 0


class _Line(Struct):
    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]
    object: Raw


_LINE: Final = Decoder(_Line)
_OBJECT: Final = Decoder(_Object)


class WatchEvent(Struct, frozen=True):
    """Up to `version`: what happened to the object of this name, which is `object` in JSON now."""

    type: Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
    version: str
    name: str
    object: bytes


def read_event(line: bytes, purpose: str) -> WatchEvent:
    """Read a line of a watch; raises the fault that one stands for."""
    try:
        found = _LINE.decode(line)
        head = _OBJECT.decode(found.object)
    except (ValueError, RecursionError) as error:
        # A line that was cut off looks the same as the page of a proxy.
        raise faults.strange_answer(purpose, str(error)) from error
    if found.type == "ERROR":
        raise faults.from_status(head.code, bytes(found.object), purpose=purpose)
    metadata = head.metadata
    return WatchEvent(found.type, metadata.resource_version, metadata.name, bytes(found.object))


class WatchIntervals(Struct, frozen=True):
    """Times in seconds; pairs are ranges from which each time is drawn anew.

    A silent watch is followed by one that goes on where it was: a server that has stopped leaves
    its connections up, and shows itself by not answering. After `watch` a list guards against
    events that were lost; a watch that begins with what is there would not be possible on an etcd
    without progress notifications.
    """

    watch: tuple[float, float] = (600.0, 900.0)  # how long watches go on from one list
    silence: float = 30.0
    retry: tuple[float, float] = (0.5, 30.0)  # at first, at most
    unserved: float = 30.0  # at most, where the server has no such objects
    healthy_after: float = 60.0  # a watch that lasted so long was a good one


INTERVALS: Final = WatchIntervals()


def _now() -> float:
    return asyncio.get_running_loop().time()


class Reflector(Generic[Seen]):
    """Follows what `listing` lists while `run` runs; `read` decodes one of these objects.

    `on_change` gets what came, went or became another by its name, as it was before (None: it was
    not there), and is called after the first list in any case. `on_fault` gets a fault when
    following breaks and when it breaks in another way, and None when it goes on. Both are called in
    the loop and must not take long. `jitter` gives numbers in [0, 1).
    """

    def __init__(
        self,
        access: ClusterAccess,
        listing: Request,
        read: Read[Seen],
        *,
        on_change: Callable[[Mapping[str, Seen | None]], object],
        on_fault: Callable[[ClusterFault | None], object] = lambda _: None,
        intervals: WatchIntervals = INTERVALS,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._access = access
        self._listing = listing
        self._read = read
        self._on_change = on_change
        self._on_fault = on_fault
        self._intervals = intervals
        self._jitter = jitter
        first = intervals.retry[0]
        self._backoff = Backoff(*intervals.retry, spread=1.0, jitter=jitter)
        self._unserved = Backoff(first, intervals.unserved, spread=1.0, jitter=jitter)
        self._version = ""  # what to watch from; "": list first
        self._until = 0.0  # then list again, by the clock
        self.objects: dict[str, Seen] = {}  # by name
        self.is_listed = False  # since then `objects` are what there is
        self.fault: ClusterFault | None = None  # why they cannot be followed now
        self.is_reachable = False  # not before the first answer

    async def run(self) -> NoReturn:
        while True:
            try:
                if not self._version or _now() >= self._until:
                    await self.list()
                if await self._watch():
                    # A proxy that hangs up at once must not be asked in a circle.
                    await asyncio.sleep(self._backoff.next())
            except ClusterFault as fault:
                await self._back_off(fault)

    async def list(self) -> None:
        """Read all objects; what is read counts, whatever its version. Raises ClusterFault."""
        before = dict(self.objects)
        listed = await self._access.listed(self._listing, self._read)
        found = {seen.name: seen for seen in listed.items}
        for name in before.keys() | self.objects.keys():
            if self.objects.get(name) is not before.get(name):  # written or heard of meanwhile
                self._keep(name, found, listed.version)
        known, self.objects = self.objects, found
        names = known.keys() | found.keys()
        changed = {name: known.get(name) for name in names if known.get(name) != found.get(name)}
        self._version = listed.version
        low, high = self._intervals.watch
        self._until = _now() + low + (high - low) * self._jitter()
        if changed or not self.is_listed:
            self.is_listed = True
            self._on_change(changed)
        self._unserved.reset()
        self._answered()

    def learn(self, seen: Seen, before: Seen | None) -> bool:
        """The server's answer to a request that was made when `before` was known; whether it is
        news. A watch may have been faster, and know more by now.
        """
        known = self.objects.get(seen.name)
        if known is None and not is_newer(seen.resource_version, self._version):
            return False  # it was deleted since: what is followed has gone past it
        if (
            known is not before
            and known
            and not is_newer(seen.resource_version, known.resource_version)
        ):
            return False
        self.objects[seen.name] = seen
        return seen != known

    def forget(self, name: str) -> None:
        """The object was deleted by an own request."""
        self.objects.pop(name, None)

    def _keep(self, name: str, found: dict[str, Seen], version: str) -> None:
        """Have in `found`, the list at `version`, what was written or heard of while it was read,
        unless the list knows more.
        """
        known, listed = self.objects.get(name), found.get(name)
        if known is None:
            if listed and not is_newer(listed.resource_version, self._version):
                del found[name]  # else it was created anew
        elif is_newer(known.resource_version, listed.resource_version if listed else version):
            found[name] = known

    # --- the watch --------------------------------------------------------------------------------

    async def _watch(self) -> bool:
        """Watch once; whether the server ended it suspiciously early."""
        intervals = self._intervals
        seconds = max(self._until - _now(), 1.0)
        request = requests.watch(self._listing, version=self._version, seconds=seconds)
        async with self._access.watch(request) as stream:
            begun = last = _now()
            self._answered()
            try:
                silence = intervals.silence
                while line := await self._access.next_line(request, stream, silence=silence):
                    last = _now()
                    self._take(line, request)
            finally:
                ended = _now()
                is_silent = ended - last >= intervals.silence
                if is_silent or ended - begun >= intervals.healthy_after:
                    self._backoff.reset()  # failures before a good watch are forgotten
        return not is_silent and ended - begun < min(intervals.healthy_after, seconds - 1.0)

    def _take(self, line: bytes, request: Request) -> None:
        event = read_event(line, request.purpose)
        known = self.objects.get(event.name)
        is_news = is_newer(event.version, known.resource_version if known else self._version)
        if event.type != "BOOKMARK" and is_news:  # else it is sent again, or late
            try:
                found = None if event.type == "DELETED" else self._read(event.object)
            except (ValueError, RecursionError) as error:
                raise faults.strange_answer(request.purpose, str(error)) from error
            self._replace(event.name, found)
        if is_newer(event.version, self._version):
            self._version = event.version

    def _replace(self, name: str, found: Seen | None) -> None:
        known = self.objects.pop(name, None)
        if found is not None:
            self.objects[name] = found
        if found != known:
            self._on_change({name: known})

    # --- faults -----------------------------------------------------------------------------------

    def _answered(self) -> None:
        self.is_reachable = True
        if self.fault is not None:
            self.fault = None
            self._on_fault(None)

    async def _back_off(self, fault: ClusterFault) -> None:
        if not isinstance(fault, ConnectionCut):
            self._version = ""  # 410, or what happened meanwhile is not known
        self.is_reachable = False
        before, self.fault = self.fault, fault
        if type(before) is not type(fault):
            self._on_fault(fault)
        backoff = self._unserved if isinstance(fault, faults.ObjectMissing) else self._backoff
        await asyncio.sleep(backoff.next(fault.retry_after or 0.0))
