"""Waits for events of the driver: XIDs, MIG layouts changed, memory errors, GPUs unbound.

One thread waits in NVML for a short while at a time, so that NVML can be shut down in between. It
waits several times before it reports that nothing happened, since the way through the event loop
costs more than a wait. An event set that fails is made anew; a kind of event that the driver or a
GPU does not have is not waited for.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from ctypes import c_void_p, cast
from dataclasses import dataclass, field
from typing import Any, Final

import pynvml

from nodeagent.errors import DeadlineExceeded, DriverError, DriverUnavailable, GpuLost
from nodeagent.gpu import nvml
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.nvml import call
from nodeagent.gpu.nvml_calls import ABSENT, constant
from nodeagent.gpu.nvml_errors import NO_PERMISSION, silence_of, with_subject
from nodeagent.gpu.workers import JOB_LIMIT, Worker
from nodeagent.health.readings import Answer, GpuEvent, GpuEventKind, XidEvent, XidSource
from nodeagent.structs import Struct

_XID: Final = constant("nvmlEventTypeXidCriticalError")
_MIG_CHANGE: Final = constant("nvmlEventMigConfigChange")
_KINDS: Final = {constant(kind.value): kind for kind in GpuEventKind}
_WANTED: Final = _XID | sum(_KINDS) - _MIG_CHANGE
_NEVER: Final = ABSENT - {NO_PERMISSION}  # what may not be had is there, and its XIDs are missed
_NONE = 0xFFFFFFFF  # no instance
_TIMEOUT = 10  # NVML's code for "nothing happened"
_MAX_EVENTS = 256  # events in one delivery


class Binding(Struct, frozen=True):
    """The driver was bound to a GPU (2) or taken off it (1); `gpu` is NVML's number for it."""

    kind: int
    gpu: int
    at: float


Event = XidEvent | GpuEvent | Binding


@dataclass(slots=True)
class _Sets:
    """The event sets of one session. `gpus`: UUIDs by the address of the handle. `system` is None
    where the driver has no such events. `missing`: why a GPU is not there that has events.
    """

    events: Any
    gpus: dict[int, str] = field(default_factory=dict)
    system: Any = None
    missing: DriverError | None = None

    def free(self) -> None:
        with suppress(DriverError):
            call("nvmlEventSetFree", self.events)
        self.free_system()

    def free_system(self) -> None:
        if self.system is not None:
            with suppress(DriverError):
                request = pynvml.nvmlSystemEventSetFreeRequest_v1
                call("nvmlSystemEventSetFree", request, self.system)
            self.system = None


class Timing(Struct, frozen=True):
    """Seconds. `wait`: how long at a time in NVML, up to `waits` times; `deadline`: what each may
    take longer; `pause`: before an event set that failed is made anew, `incomplete`: one that a GPU
    is missing.
    """

    wait: float = 0.5
    waits: int = JOB_LIMIT  # in one job of the thread
    deadline: float = 5.0
    pause: float = 1.0
    incomplete: float = 30.0


_TIMING: Final = Timing()


@dataclass(slots=True)
class EventListener:
    """Delivers the events of a driver that was entered.

    `failure` is why none arrive at present, None while all is well. `last` is the uptime of the
    last wait for all GPUs that ended well.
    """

    driver: Driver
    timing: Timing = _TIMING
    uptime: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME)
    failure: DriverError | None = None
    last: float | None = None
    _worker: Worker = field(default_factory=lambda: Worker("the wait for events"))
    _sets: _Sets | None = None
    _of: tuple[int, int] = (-1, -1)
    _made_at: float = 0.0
    _drained: float = 0.0  # when no event was waiting
    _broken: bool = False
    _arrived: deque[Event] = field(default_factory=deque)  # and not yet delivered
    _lent: bool = False
    _is_left: bool = False  # by its caller, which the thread has to notice

    async def run(
        self,
        deliver: Callable[[tuple[Event, ...]], None],
        report: Callable[[], None] = lambda: None,
    ) -> None:
        """Deliver events until cancelled.

        `report` is called after the first wait, after each one that failed, after the first one
        that ended well again, and where a GPU is missing or is no more.
        """
        self.last = self.uptime()
        reported: tuple[DriverError | None, ...] = ()
        while True:
            events = await self.listen()
            now = (self.failure, self._missing)
            if self.failure is not None or now != reported:
                report()
            reported = now
            if events:
                deliver(events)
            if self.failure is not None:
                await asyncio.sleep(self.timing.pause)

    async def listen(self) -> tuple[Event, ...]:
        """Wait a while for events; those that arrived, perhaps none. Raises nothing."""
        if not self._lent:
            self.driver.pool.lend(self._worker)
            self._lent = True
        self._is_left = False
        try:
            await self.driver.pool.ask(
                self._listen,
                what="waiting for events",
                worker=self._worker,
                deadline=self.timing.wait + self.timing.deadline,
            )
            self.failure = None
            if self._missing is None:
                self.last = self.uptime()
        except DeadlineExceeded as error:
            self.failure = error
        except DriverError as error:
            self._broken = True
            self.failure = error
        except asyncio.CancelledError:
            self._is_left = True
            raise
        # What came before a failure, such as the XID of the GPU that is lost now, counts too.
        return tuple(self._arrived.popleft() for _ in range(len(self._arrived)))

    @property
    def answer(self) -> Answer | None:
        """Whether events arrive, for health; None while NVML as a whole cannot be used. A driver
        that has no events leaves nothing to wait for.
        """
        error = self.failure or self._missing
        if error is None or error.code in _NEVER:
            return Answer(last=self.last)
        if isinstance(error, DriverUnavailable):
            return None
        return Answer(silence_of(error), self.last, error.message)

    @property
    def _missing(self) -> DriverError | None:
        return self._sets.missing if self._sets else None

    # --- in the thread ------------------------------------------------------------------------

    def _listen(self) -> None:
        before = self._sets
        for _ in range(self.timing.waits):
            self._wait()
            is_news = self._sets is not before or self.failure is not None  # that it waits again
            if self._arrived or is_news or self._is_left or self.driver.pool.lock.is_wanted:
                return

    def _wait(self) -> None:
        of = (self.driver.pool.session, self.driver.pool.gpu_count)
        if self._missing:
            self._broken |= self.uptime() - self._made_at >= self.timing.incomplete
        if self._sets is None or of != self._of or self._broken:
            if self._sets is not None and of[0] == self._of[0]:
                self._sets.free()
            self._sets = None
            self._sets, self._of, self._made_at = _make_sets(of[1]), of, self.uptime()
            self._broken, self._drained = False, self._made_at
        wait = round(self.timing.wait * 1000)
        for number in range(_MAX_EVENTS):
            events = self._next(self._sets, 0 if number else wait)
            if events is None:
                break
            self._arrived += events
        self._arrived += self._bindings(self._sets)

    def _next(self, sets: _Sets, milliseconds: int) -> list[Event] | None:
        """One event, if it is of a kind that is judged; None when nothing happened in that time."""
        try:
            data = call("nvmlEventSetWait", sets.events, milliseconds)
        except DriverError as error:
            if error.code == _TIMEOUT:
                self._drained = self.uptime()
                return None
            raise
        gpu, now = sets.gpus.get(_address(data.device), ""), self.uptime()
        instance = None if data.gpuInstanceId == _NONE else data.gpuInstanceId
        compute = None if data.computeInstanceId == _NONE else data.computeInstanceId
        if data.eventType == _XID:
            xid = data.eventData
            of = (now, XidSource.NVML, gpu)
            since = self._drained
            return [XidEvent(xid, *of, instance=instance, compute=compute, since=since)]
        kind = _KINDS.get(data.eventType)
        return [GpuEvent(kind, gpu, now, instance, compute, self._drained)] if kind else []

    def _bindings(self, sets: _Sets) -> list[Binding]:
        if sets.system is None:
            return []
        room = (pynvml.c_nvmlSystemEventData_v1_t * 4)()
        found = call(
            "nvmlSystemEventSetWait",
            pynvml.nvmlSystemEventSetWaitRequest_v1,
            sets.system,
            1,  # millisecond: sources differ on whether 0 means for ever
            room,
            len(room),
        )
        return [Binding(event["eventType"], event["gpuId"], self.uptime()) for event in found]


def _make_sets(gpus: int) -> _Sets:
    """Register the GPUs for events. Raises DriverError, with nothing left behind for a retry."""
    sets = _Sets(call("nvmlEventSetCreate"))
    for index in range(gpus):
        try:
            device = nvml.device_by_index(index)
            uuid = nvml.uuid(device)
            supported = call("nvmlDeviceGetSupportedEventTypes", device)
            call("nvmlDeviceRegisterEvents", device, supported & _WANTED, sets.events)
        except DriverError as error:
            # One that is lost, or has no events, is so for as long as the driver runs.
            if not isinstance(error, GpuLost) and error.code not in _NEVER:
                sets.missing = with_subject(f"GPU {index}", error)
            continue
        sets.gpus[_address(device)] = uuid
        with suppress(DriverError):  # the supported types do not say whether it is
            call("nvmlDeviceRegisterEvents", device, _MIG_CHANGE, sets.events)
    kinds = pynvml.nvmlSystemEventTypeGpuDriverBind | pynvml.nvmlSystemEventTypeGpuDriverUnbind
    try:
        sets.system = call("nvmlSystemEventSetCreate", pynvml.nvmlSystemEventSetCreateRequest_v1)
        request = pynvml.nvmlSystemRegisterEventRequest_v1
        call("nvmlSystemRegisterEvents", request, kinds, sets.system)
    except DriverError as error:
        sets.free_system()
        if error.code not in ABSENT:
            sets.free()
            raise
    return sets


def _address(handle: Any) -> int:
    """The address behind a handle, by which handles of one GPU are equal: they do not compare."""
    return cast(handle, c_void_p).value or 0
