"""Renders one page of metrics: values of all readers, the node's state, and owners of devices.

The first scrape after something was read renders it, and the next ones get it as it is. Instances
that the newest sample of a GPU did not find appear nowhere in it, whichever source mentioned them.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from nodeagent.cluster.kubelet.processes import Owner
from nodeagent.metrics.agent_metrics import AgentSample, agent_families
from nodeagent.metrics.agent_samples import ReaderState, Work, advice_samples, reader_samples
from nodeagent.metrics.catalogue import catalogue
from nodeagent.metrics.dcgm import families
from nodeagent.metrics.exposition import gzipped, render
from nodeagent.metrics.node_metrics import health_samples, node_samples
from nodeagent.metrics.samples import Labels, MonotonicCounters, SampleSet, Slice, Subject, merged
from nodeagent.metrics.selection import Selection
from nodeagent.plan.observed import Gpu
from nodeagent.structs import replace
from nodeagent.telemetry import ownership
from nodeagent.telemetry.accounting import Accounts, activity, readings
from nodeagent.telemetry.samples import GpuSample, ProcessReading, SampleBatch
from nodeagent.views.node_state import NodeState, Reading

_MAX_GAP = 120.0  # seconds between two samples; of a longer gap nothing is known


class Exporter:
    """Takes what is read and gives the page. Belongs to one thread.

    `clock` gives seconds and does not jump, those of the samples. `current` gives the node's state
    with the daemons and health as they are now.
    """

    def __init__(
        self,
        selection: Selection,
        *,
        host: Labels,
        renamed: bool = False,
        repeat_whole: bool = False,
        build: AgentSample,
        clock: Callable[[], float],
        current: Callable[[], NodeState],
    ) -> None:
        self.work = Work()
        self.readings: Mapping[ownership.Device, Reading] = {}
        self._selection = selection
        self._families = partial(families, host=host, renamed=renamed, repeat_whole=repeat_whole)
        self._build = build
        self._clock = clock
        self._current = current
        self._by_reader: dict[str, SampleSet] = {}  # one that fails keeps its last values
        self._counters = MonotonicCounters(catalogue().fields)
        self._gpus: dict[str, GpuSample] = {}  # as they were found last, by UUID
        self._processes: dict[
            str, tuple[float, Mapping[int | None, tuple[ProcessReading, ...]]]
        ] = {}
        self._owners: Mapping[int, Owner] = {}
        self.owners_due = 0.0  # when what is held counts although owners were not looked up yet
        self.accounts = Accounts(longest_gap=_MAX_GAP)
        self._readers: tuple[ReaderState, ...] = ()
        self._state_at = clock()
        self._page: bytes | None = None  # the text, if it was written since the last change

    # --- what is read -----------------------------------------------------------------------------

    def select(self, selection: Selection) -> None:
        self._selection = selection
        self._page = None

    def take(self, batch: SampleBatch) -> None:
        """Take over what the sampler delivered."""
        self._by_reader |= batch.samples
        for reader in batch.gone:
            self._by_reader.pop(reader, None)
        self._gpus = {sample.gpu.uuid: sample for sample in batch.latest}
        self._readers = batch.readers
        self._page = None
        now = self._clock()
        state = self._state()
        who = self._uses(state)
        sample = self._sample(who)
        active = activity(sample)
        self.readings = readings(sample, active)
        known = {uuid for uuid, gpu in self._gpus.items() if now - gpu.at <= _MAX_GAP}
        active = {device: part for device, part in active.items() if device[0] in known}
        if now >= self.owners_due:
            self.accounts.observe(
                now,
                state.observed,
                who,
                active,
                read={d: found for d, found in self.readings.items() if d[0] in known},
                claims=state.claims or (),
                daemons=state.mps,
            )

    def put_processes(
        self, gpu: str, found: Mapping[int | None, tuple[ProcessReading, ...]]
    ) -> None:
        """Record who runs on a GPU, by its UUID: on each of its instances; None: outside any."""
        self._processes[gpu] = (self._clock(), found)

    def changed(self) -> None:
        self._state_at = self._clock()
        self._page = None

    # --- who has it -------------------------------------------------------------------------------

    def unknown_pids(self) -> set[int]:
        return ownership.pids_without_pod(self._current().observed, self._all_processes())

    def put_owners(self, owners: Mapping[int, Owner]) -> None:
        self._owners, self.owners_due = owners, 0.0

    def _all_processes(self) -> Mapping[ownership.Device, tuple[ProcessReading, ...]]:
        found: dict[ownership.Device, tuple[ProcessReading, ...]] = {}
        for uuid, (at, running) in self._processes.items():
            gpu = self._gpus.get(uuid)
            if gpu is None or self._clock() - at > _MAX_GAP:
                continue  # then what was observed counts
            for instance in (None, *map(_number, gpu.slices)):
                found[uuid, instance] = running.get(instance, ())
        return found

    # --- the text ---------------------------------------------------------------------------------

    def scrape(
        self,
        zipped: bool,
        cost: Iterable[AgentSample] = (),
        refused: Mapping[tuple[str, str], int] = MappingProxyType({}),
    ) -> bytes:
        """The text, with what changes without a reading: ages, the process' cost, and how many
        clients were `refused`, by listener and reason.
        """
        now = self._clock()
        if self._page is None:
            self._page = self._write()
        samples = [*reader_samples(self._readers, now), *cost]
        samples += [
            AgentSample("nodeagent_http_refused_total", count, key)
            for key, count in sorted(refused.items())
        ]
        cluster = self._current().cluster
        if cluster is not None:
            samples.append(AgentSample("nodeagent_cluster_reachable", int(cluster.reachable)))
        text = self._page + render(agent_families(samples))
        return gzipped(text) if zipped else text

    def _write(self) -> bytes:
        state = self._state()
        who = self._uses(state)
        sample = ownership.by_owner(self._sample(who), who)
        self.work.add_gpus(state.observed.gpus)
        ignored = AgentSample("nodeagent_counters_ignored", len(self._selection.findings))
        samples = [*node_samples(state), *self.accounts.samples(), ignored, self._build]
        samples += health_samples(state.health) if state.health else ()
        samples += advice_samples(self.accounts.advice, tuple(self.accounts.held()))
        families = self._families(sample, self._selection)
        return render([*families, *agent_families(samples), *self.work.families()])

    def _uses(self, state: NodeState) -> Mapping[ownership.Device, ownership.DeviceUse]:
        held = ownership.claimed(state.claims or ())
        return ownership.uses(state.observed, self._all_processes(), self._owners.get, held)

    def _sample(self, who: Mapping[ownership.Device, ownership.DeviceUse]) -> SampleSet:
        slices = {
            uuid: tuple(_owned(part, (uuid, _number(part)), who) for part in gpu.slices)
            for uuid, gpu in self._gpus.items()
            if gpu.slices
        }
        wholes = [_owned(gpu.whole, (uuid, None), who) for uuid, gpu in self._gpus.items()]
        return self._counters.steady(merged(self._by_reader.values(), slices, wholes))

    def _state(self) -> NodeState:
        """The node's state without the instances that are known to be gone."""
        state = self._current()
        gpus = tuple(map(self._as_seen, state.observed.gpus))
        gone = _devices(state.observed.gpus) - _devices(gpus)
        if not gone:
            return state
        return replace(
            state,
            observed=replace(state.observed, gpus=gpus),
            mps=tuple(daemon for daemon in state.mps if daemon.device not in gone),
        )

    def _as_seen(self, gpu: Gpu) -> Gpu:
        sample = self._gpus.get(gpu.uuid)
        if sample is None or sample.at < self._state_at:
            return gpu
        present = {_number(subject) for subject in sample.slices}
        # Those without a compute instance are no devices, and no sample has them.
        left = tuple(i for i in gpu.instances if i.id in present or not i.compute)
        return gpu if len(left) == len(gpu.instances) else replace(gpu, instances=left)


def _devices(gpus: Iterable[Gpu]) -> frozenset[str]:
    return frozenset(device.uuid for gpu in gpus for _, device in gpu.mig_devices())


def _number(subject: Subject) -> int | None:
    return subject.entity.id if isinstance(subject.entity, Slice) else None


def _owned(
    subject: Subject, device: ownership.Device, who: Mapping[ownership.Device, ownership.DeviceUse]
) -> Subject:
    use = who.get(device)
    owner = use.sole if use else None
    return Subject(subject.entity, owner.labels) if owner else subject
