"""GPM: what a GPU or a GPU instance did between two samples. From Hopper on."""

# A body has C's parameters and the session, needed or not, and C's name says what it does:
# ruff: noqa: ARG001, D103

from __future__ import annotations

import struct
from collections.abc import Callable
from ctypes import sizeof
from functools import lru_cache
from typing import Any

import pynvml

from nodeagent.simulation.activity import WHOLE
from nodeagent.simulation.arguments import HandleOut, Number, Out
from nodeagent.simulation.boards import GpuProfile
from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import GPM_SAMPLE, GPU, GPU_ONLY, c_function
from nodeagent.simulation.handles import Kind
from nodeagent.simulation.nvml_session import Session
from nodeagent.simulation.owned_objects import GpmSample
from nodeagent.simulation.state import GpuInstance
from nodeagent.simulation.views import Device

_SINCE = (9, 0)
_HEAD = struct.Struct("IIQQ")  # version, number of metrics, two samples
_METRIC = struct.Struct("IId")  # metric, return code, value; texts follow
_METRIC_SIZE = sizeof(pynvml.c_nvmlGpmMetric_t)
_ROOM = pynvml.c_nvmlGpmMetricsGet_t.metrics.size // _METRIC_SIZE
_CUMULATIVE = range(248, 261)  # reported by drivers from R610 on
_CUMULATIVE_SINCE = 610
_NOT_SUPPORTED = (Code.NOT_SUPPORTED,)


@c_function(
    "nvmlGpmQueryDeviceSupport",
    GPU_ONLY,
    Out(pynvml.c_nvmlGpmSupport_t, pynvml.NVML_GPM_SUPPORT_VERSION),
    errors=(Code.ARGUMENT_VERSION_MISMATCH,),
)
def query_support(library: Session, gpu: Device, support: Any) -> None:
    support.isSupportedDevice = gpu.card.board.compute_capability >= _SINCE


@c_function("nvmlGpmSampleAlloc", HandleOut(Kind.GPM_SAMPLE))
def allocate(library: Session, handle: Any) -> None:
    number = library.gpm_samples.make()
    handle.write(library.handles.give(Kind.GPM_SAMPLE, library.session, serial=number))


@c_function("nvmlGpmSampleFree", GPM_SAMPLE)
def free(library: Session, sample: GpmSample) -> None:
    library.gpm_samples.free(sample)


@c_function("nvmlGpmSampleGet", GPU, GPM_SAMPLE, errors=_NOT_SUPPORTED)
def take(library: Session, gpu: Device, sample: GpmSample) -> None:
    """Whether a GPU in MIG mode has samples of the whole is not known: a switch."""
    if gpu.card.state.mig and not library.node.switches.gpm_of_mig_parent:
        raise Refused(Code.NOT_SUPPORTED)
    _take(gpu.card, sample, WHOLE)


@c_function("nvmlGpmMigSampleGet", GPU, Number(), GPM_SAMPLE, errors=_NOT_SUPPORTED)
def take_of_instance(library: Session, gpu: Device, instance: int, sample: GpmSample) -> None:
    gpu.card.require_mig()
    found = next((i for i in gpu.card.state.instances if i.id == instance), None)
    if found is None:
        raise Refused(Code.INVALID_ARGUMENT)
    _take(gpu.card, sample, found.serial)


def _take(card: Card, sample: GpmSample, serial: int) -> None:
    if card.board.compute_capability < _SINCE:
        raise Refused(Code.NOT_SUPPORTED)
    sample.gpu, sample.serial, sample.at = card.index, serial, card.now()
    sample.busy = card.sensors.busy_so_far(serial, sample.at)


@c_function(
    "nvmlGpmMetricsGet",
    Out(pynvml.c_nvmlGpmMetricsGet_t, pynvml.NVML_GPM_METRICS_GET_VERSION),
    errors=(*_NOT_SUPPORTED, Code.ARGUMENT_VERSION_MISMATCH),
)
def get_metrics(library: Session, wanted: Any) -> None:
    """Each metric has its own return code."""
    view = memoryview(wanted).cast("B")
    _, count, *tokens = _HEAD.unpack_from(view)
    first, second = (_sample(library, token) for token in tokens)
    if count > _ROOM or (first.gpu, first.serial) != (second.gpu, second.serial) or first.gpu < 0:
        raise Refused(Code.INVALID_ARGUMENT)
    card = library.node.cards[first.gpu]
    instance = next((i for i in card.state.instances if i.serial == first.serial), None)
    if first.serial and instance is None:
        raise Refused(Code.INVALID_ARGUMENT)
    is_told = _told_by(library, card, instance)
    seconds = second.at - first.at
    serial = first.serial
    busy = (second.busy - first.busy) / seconds if seconds > 0 else card.sensors.busy_now(serial)
    idle = instance is not None and not instance.compute
    for place in range(_HEAD.size, _HEAD.size + count * _METRIC_SIZE, _METRIC_SIZE):
        (metric,) = _NUMBER.unpack_from(view, place)
        if not is_told(metric):
            _METRIC.pack_into(view, place, metric, Code.NOT_SUPPORTED, 0.0)
        elif idle:  # nothing can run where there is no compute instance
            _METRIC.pack_into(view, place, metric, Code.NO_DATA, 0.0)
        else:
            value = card.sensors.gpm(metric, serial, busy)
            _METRIC.pack_into(view, place, metric, Code.SUCCESS, value)


_NUMBER = struct.Struct("I")


def _sample(library: Session, token: int) -> GpmSample:
    if not token:
        raise Refused(Code.INVALID_ARGUMENT)
    found: GpmSample = library.look_up(library.handles.take(token, "nvmlGpmMetricsGet"))
    return found


def _told_by(library: Session, card: Card, instance: GpuInstance | None) -> Callable[[int], bool]:
    """Which metrics a card or an instance has."""
    board = card.board
    newest = int(library.node.switches.driver_version.partition(".")[0]) >= _CUMULATIVE_SINCE
    if instance is None:
        most = max(board.profiles, key=lambda p: (p.slices, p.decoders), default=None)
        links = 0 if card.state.mig else board.nvlinks
        return _of_card(board.board.startswith(("gh", "gb")), links, newest, _engines(most))
    return _of_part(newest, _engines(card.profile(instance.profile)))


def _engines(profile: GpuProfile | None) -> tuple[int, int, int, int]:
    """Decoders, JPEG decoders, optical flow engines, encoders."""
    if profile is None:
        return (0, 0, 0, 0)
    return (profile.decoders, profile.jpeg, profile.ofa, profile.encoders)


@lru_cache
def _of_part(newest: bool, engines: tuple[int, int, int, int]) -> Callable[[int], bool]:
    decoders, jpeg, flow, encoders = engines
    known = {*range(1, 14), *range(30, 30 + decoders), *range(40, 40 + jpeg)}
    known |= {*range(50, 50 + flow), *range(166, 166 + encoders)}
    return (known | {*(_CUMULATIVE if newest else ())}).__contains__


@lru_cache
def _of_card(
    grace: bool, links: int, newest: bool, engines: tuple[int, int, int, int]
) -> Callable[[int], bool]:
    known = {20, 21}
    if links:
        known |= {60, 61, *range(62, 62 + 2 * links)}
    if grace:
        known |= {*range(100, 104), *range(160, 166)}
    of_part = _of_part(newest, engines)
    return lambda metric: metric in known or of_part(metric)
