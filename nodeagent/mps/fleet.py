"""All MPS daemons of a node: started, adopted, drained, stopped and reported."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Self
from weakref import WeakValueDictionary

from nodeagent.errors import NodeagentError, UnknownDevice
from nodeagent.files.state import set_aside
from nodeagent.mps import requests
from nodeagent.mps.adoption import found_process, left_by, lost_daemons, unrecorded
from nodeagent.mps.clients.watch import RunningDaemon
from nodeagent.mps.context import MpsContext
from nodeagent.mps.files.directories import make_directories, remove_directories, spec_in
from nodeagent.mps.files.records import Record, RecordUnusable, read_records
from nodeagent.mps.launch.orphans import end_orphans
from nodeagent.mps.lifecycle import model
from nodeagent.mps.lifecycle.model import DaemonPhase, Ending, ReportSubject
from nodeagent.mps.processes import MpsProcess
from nodeagent.mps.supervisor import Supervisor
from nodeagent.plan.observed import DeviceDaemon
from nodeagent.plan.shares import Account, WantedMps
from nodeagent.structs import replace
from nodeagent.views.shapes import MpsDaemon
from nodeagent.waiting import ends_within


class Fleet:
    """All daemons of a node, inside `async with` and in one event loop. They outlive the block."""

    def __init__(self, context: MpsContext) -> None:
        self._context = context
        self._supervisors: dict[str, Supervisor] = {}
        self._coming: dict[str, tuple[str, ...]] = {}  # devices of daemons that are being started
        self._cordoned: Mapping[str, str] = {}  # devices that admit no new clients, and why
        # A lock lives while it is held or waited for: each new MIG device has a new UUID.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._context.watch)
        self._stack.push_async_callback(self._detach)
        try:
            records = await asyncio.to_thread(lambda: list(read_records(self._context.run_dir)))
            for record in records:
                await self._take_over(record)
            for daemon in await asyncio.to_thread(lost_daemons, self._context.run_dir):
                await self._end_lost(daemon)
            await self.poll()  # so that the clients are known from the start
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _detach(self) -> None:
        supervisors = tuple(self._supervisors.values())
        self._supervisors.clear()
        await asyncio.gather(*(supervisor.aclose() for supervisor in supervisors))

    # --- what an earlier agent left -------------------------------------------------------------

    async def _take_over(self, read: Record | RecordUnusable) -> None:
        try:
            record = await self._recovered(read) if isinstance(read, RecordUnusable) else read
            if record is None:
                return
            supervisor = self._supervisor(record)
        except NodeagentError as error:
            subject = ReportSubject.START_FAILED
            if isinstance(read, RecordUnusable):
                subject = ReportSubject.CANNOT_BE_ENDED  # a daemon may run there
            self._context.report(read.device, model.Report(subject, str(error)))
            return
        spec = supervisor.spec_of(record.runs or record.wanted)
        process = await found_process(spec, record.process)
        if process is not None:
            supervisor.adopt(process, record.runs or record.wanted, record.wanted)
        elif record.drained:
            supervisor.stay_down(record.wanted)
        else:
            supervisor.want(record.wanted)

    async def _recovered(self, unusable: RecordUnusable) -> Record | None:
        """A record for the daemon that may run there, which keeps others from the device. Without
        daemon and record file the device's directories are removed, and there is no record.
        """
        context, device, words = self._context, unusable.device, unusable.message
        record = await unrecorded(context.run_dir, device, context.control_client)
        if record is None:
            left = await asyncio.to_thread(left_by, context.run_dir, device)
            await end_orphans(left, grace=context.settings.grace)
            if unusable.path is None:
                await asyncio.to_thread(remove_directories, context.run_dir, device)
                return None
            words += "; no daemon runs there"
        elif record.process is not None:
            pid = record.process.pid
            words += f"; the daemon there (pid {pid}) is taken over with the limits that it has"
        if unusable.path is not None:
            try:
                words += f"; the file is now {await asyncio.to_thread(set_aside, unusable.path)}"
            except OSError as error:
                words += f"; the file cannot be renamed either: {error.strerror or error}"
        context.report(device, model.Report(ReportSubject.RECORD_UNUSABLE, words))
        return record

    async def _end_lost(self, daemon: MpsProcess) -> None:
        """End a daemon whose record was deleted with its directory, unless it has a server: no
        client finds it any more, and none could be started in its place.
        """
        context, device = self._context, Path(daemon.pipe_directory).parent.name
        if device in self._supervisors:  # it starts another daemon in its place
            return
        try:
            left = left_by(context.run_dir, device)
            account = Account(daemon.uid, daemon.uid)
            spec = replace(left, wanted=replace(left.wanted, account=account))
            await end_orphans(spec, grace=context.settings.grace)
            words = f"its directory was deleted under its daemon (pid {daemon.pid}), which is ended"
            report = model.Report(ReportSubject.RECORD_UNUSABLE, words)
        except NodeagentError as error:
            report = model.Report(ReportSubject.CANNOT_BE_ENDED, str(error))
        context.report(device, report)

    def _supervisor(self, record: Record) -> Supervisor:
        supervisor = Supervisor(self._context, record)
        self._update_cordon(supervisor)
        self._supervisors[record.device] = supervisor
        return supervisor

    # --- what is wanted -------------------------------------------------------------------------

    async def start(self, device: str, wanted: WantedMps) -> None:
        """Make the device's daemon as `wanted`, and wait until it is Ready. Raises NotReady when it
        is late or has failed, while the fleet goes on trying; NodeagentError when a start cannot
        even be tried, as where another daemon serves one of its devices.
        """
        async with self._lock_for_plan(device):
            self._insist_on_free(device, wanted.devices_on(device))
            if wanted.devices and device not in self._supervisors:
                # One of its GPUs may lack what only that GPU's own steps could give it.
                wrong = self._context.check(spec_in(self._context.run_dir, device, wanted))
                if wrong:
                    raise requests.NotReady.of("notStarted", device=device, why="; ".join(wrong))
            self._coming[device] = wanted.devices_on(device)
            try:
                supervisor = self._supervisors.get(device) or await self._new(device, wanted)
                before = supervisor.wanted
                supervisor.want(wanted)
            finally:
                del self._coming[device]
            await requests.wait_until_ready(supervisor)
            if supervisor.wanted != before:
                self._context.changed()  # its clients are judged again, even with the same limits

    def _insist_on_free(self, device: str, devices: Collection[str]) -> None:
        served = self._coming | {s.device: s.devices for s in self._supervisors.values()}
        for other, theirs in served.items():
            if other != device and (shared := set(devices).intersection(theirs)):
                raise NodeagentError.of("servedByOther", device=min(shared), other=other)

    async def stop(self, device: str) -> None:
        """End the daemon that serves the device, remove its files. Raises StillInUse and changes
        nothing when it has clients or may have; NodeagentError when it does not end.
        """
        serving = self._serving(device)
        name = serving.device if serving else device
        async with self._lock_for_plan(name):
            supervisor = self._supervisors.get(name)
            if supervisor is not None and device in supervisor.devices:
                await requests.stop(supervisor)
                await self._forget(supervisor)

    async def drain(
        self, device: str, *, seconds: float | None, force: bool = False
    ) -> tuple[int, ...]:
        """Admit no new client and wait `seconds` for those connected; then the daemon is Down until
        it is requested again. Clients that are left are ended with `force`; without it the drain is
        given up, and their pids are returned, or StillInUse is raised where they are not known.
        Raises NodeagentError where a process could not be ended, and UnknownDevice.
        """
        async with self._lock(self._known(device).device):
            return await requests.drain(self._known(device), seconds=seconds, force=force)

    async def restart(self, device: str, *, force: bool = False) -> None:
        """Restart the daemon, also one that failed or was drained. Raises StillInUse when it has
        clients, which are ended with `force`; NotReady, and UnknownDevice.
        """
        async with self._lock(self._known(device).device):
            await requests.restart(self._known(device), force=force)

    def cordon(self, devices: Mapping[str, str]) -> None:
        """Admit no new clients to these devices, each with the reason, and to all others again.
        Connected clients and daemons keep running; a daemon that is started meanwhile is cordoned,
        too.
        """
        self._cordoned = dict(devices)
        for supervisor in self._supervisors.values():
            self._update_cordon(supervisor)

    def _update_cordon(self, supervisor: Supervisor) -> None:
        reasons = (self._cordoned.get(device, "") for device in supervisor.devices)
        supervisor.cordon(next(filter(None, reasons), ""))

    def retry(self) -> None:
        """Try again what was given up, and start what was drained."""
        for supervisor in self._supervisors.values():
            if supervisor.state.phase in {DaemonPhase.FAILED, DaemonPhase.DOWN}:
                supervisor.handle(model.RetryRequested())

    async def keep_only(self, devices: Collection[str]) -> None:
        """End and forget the daemons of all other devices, which do not exist any more."""
        gone = [s for s in self._supervisors.values() if not set(devices) & set(s.devices)]
        await asyncio.gather(*(self._end(supervisor) for supervisor in gone))

    async def _end(self, supervisor: Supervisor) -> None:
        # It also ends a drain that has its turn.
        supervisor.handle(model.DrainRequested(0.0, force=True))
        try:
            async with self._lock_for_plan(supervisor.device):
                await requests.end(supervisor)
                await self._forget(supervisor)
        except NodeagentError as error:
            words = model.Report(ReportSubject.CANNOT_BE_ENDED, str(error))
            self._context.report(supervisor.device, words)

    async def _new(self, device: str, wanted: WantedMps) -> Supervisor:
        account, run_dir = wanted.account, self._context.run_dir
        shm = self._context.private_shm
        await asyncio.to_thread(
            make_directories, run_dir, device, uid=account.uid, gid=account.gid, shm=shm
        )
        return self._supervisor(Record(device, wanted))

    async def _forget(self, supervisor: Supervisor) -> None:
        del self._supervisors[supervisor.device]
        await supervisor.aclose()
        self._context.changed()

    def _serving(self, device: str) -> Supervisor | None:
        """Of the daemon that serves the device, perhaps beside others."""
        if device in self._supervisors:
            return self._supervisors[device]
        return next((s for s in self._supervisors.values() if device in s.devices), None)

    def _known(self, device: str) -> Supervisor:
        supervisor = self._serving(device)
        if supervisor is None:
            known = ", ".join(sorted(self._supervisors)) or "there is none at all"
            raise UnknownDevice(f"{device} has no MPS daemon", remedy=f"daemons: {known}")
        return supervisor

    @asynccontextmanager
    async def _lock_for_plan(self, device: str) -> AsyncIterator[None]:
        """Hold the device's lock for a plan. A drain that a person requested may hold it for days,
        and plans for other devices must not wait for that: raises NotReady after a short while.
        """
        lock = self._lock(device)
        try:
            async with asyncio.timeout(self._context.settings.answer_deadline):
                await lock.acquire()
        except TimeoutError:
            raise requests.NotReady.of("onRequest", device=device) from None
        try:
            yield
        finally:
            lock.release()

    def _lock(self, device: str) -> asyncio.Lock:
        return self._locks.setdefault(device, asyncio.Lock())

    # --- state ----------------------------------------------------------------------------------

    async def poll(self) -> None:
        """Ask all daemons now; returns when they have answered, or their time is over."""
        await self._all(_poll, within=self._context.settings.answer_deadline + 1.0)

    async def settled(self) -> None:
        """Wait until no daemon is on its way to Ready, at most as long as for one start."""
        await self._all(_wait_until_settled, within=self._context.start_timeout)

    async def _all(self, wait: Callable[[Supervisor], Awaitable[None]], *, within: float) -> None:
        """Wait for each daemon, for at most `within` seconds."""
        waits = map(wait, self._supervisors.values())
        await ends_within(within, asyncio.gather(*waits, return_exceptions=True))

    def statuses(self) -> tuple[MpsDaemon, ...]:
        return tuple(requests.daemon_shape(s) for _, s in sorted(self._supervisors.items()))

    def running(self) -> tuple[RunningDaemon, ...]:
        """The daemons that clients can use, by device."""
        return tuple(
            RunningDaemon(s.state.wanted, s.control, s.state.pid, s.clients)
            for _, s in sorted(self._supervisors.items())
            if s.state.wanted is not None
            and s.was_ready
            and not s.unrecorded
            and s.state.phase is not DaemonPhase.DOWN
        )

    def daemon_of(self, device: str) -> DeviceDaemon | None:
        supervisor = self._serving(device)
        return None if supervisor is None else requests.device_daemon(supervisor)


async def _poll(supervisor: Supervisor) -> None:
    monitor = supervisor.monitor
    if monitor is None:
        return
    polls = monitor.polls
    monitor.poll_soon()

    def polled() -> bool:
        ends = supervisor.monitor is not monitor or supervisor.state.ending is not Ending.NO
        return ends or monitor.polls > polls

    await supervisor.until(polled)


async def _wait_until_settled(supervisor: Supervisor) -> None:
    def on_its_way() -> bool:
        state = supervisor.state
        has_just_ended = state.phase is DaemonPhase.BACKOFF and not state.failures
        return state.phase in {DaemonPhase.STARTING, DaemonPhase.LIMITING} or has_just_ended

    await supervisor.until(lambda: not on_its_way())
