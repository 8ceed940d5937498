"""GPM: what a GPU or a GPU instance did between two samples. From Hopper on."""

import struct
from ctypes import sizeof
from functools import lru_cache
from typing import Annotated, Any

import pynvml

from nodeagent.simulation.arguments import Out
from nodeagent.simulation.boards import GpuProfile
from nodeagent.simulation.card import Card
from nodeagent.simulation.codes import Code, Refused
from nodeagent.simulation.functions.registry import (
    GpmSampleIn,
    GpmSampleOut,
    GpuIn,
    UInt,
    WholeGpuIn,
    c_function,
)
from nodeagent.simulation.handles import Kind
from nodeagent.simulation.nvml_session import GpmSample, Session
from nodeagent.simulation.state import WHOLE, GpuInstance, of_instance

_SINCE = (9, 0)
_HEAD = struct.Struct("IIQQ")  # version, number of metrics, two samples
_METRIC = struct.Struct("IId")  # metric, return code, value; texts follow
_NUMBER = struct.Struct("I")
_METRIC_SIZE = sizeof(pynvml.c_nvmlGpmMetric_t)
_ROOM = pynvml.c_nvmlGpmMetricsGet_t.metrics.size // _METRIC_SIZE
_FIRST_OF_ENGINES = (30, 40, 50, 166)  # decoders, JPEG decoders, optical flow, encoders
_CUMULATIVE = range(248, 261)  # reported by drivers from R610 on
_CUMULATIVE_SINCE = 610


@c_function()
def nvmlGpmQueryDeviceSupport(
    session: Session,
    gpu: WholeGpuIn,
    support: Annotated[Any, Out(pynvml.c_nvmlGpmSupport_t, pynvml.NVML_GPM_SUPPORT_VERSION)],
) -> None:
    support.isSupportedDevice = gpu.card.board.compute_capability >= _SINCE


@c_function()
def nvmlGpmSampleAlloc(session: Session, handle: GpmSampleOut) -> None:
    handle.write(session.allocate(Kind.GPM_SAMPLE, GpmSample()))


@c_function(Code.NOT_SUPPORTED)
def nvmlGpmSampleGet(session: Session, gpu: GpuIn, sample: GpmSampleIn) -> None:
    """Whether a GPU in MIG mode has samples of the whole is not known: a switch."""
    if gpu.card.state.mig and not session.node.switches.gpm_of_mig_parent:
        raise Refused(Code.NOT_SUPPORTED)
    _take(gpu.card, sample, WHOLE)


@c_function(Code.NOT_SUPPORTED)
def nvmlGpmMigSampleGet(session: Session, gpu: GpuIn, instance: UInt, sample: GpmSampleIn) -> None:
    gpu.card.require_mig()
    found = next((i for i in gpu.card.state.instances if i.id == instance), None)
    if found is None:
        raise Refused(Code.INVALID_ARGUMENT)
    _take(gpu.card, sample, found.serial)


def _take(card: Card, sample: GpmSample, serial: int) -> None:
    if card.board.compute_capability < _SINCE:
        raise Refused(Code.NOT_SUPPORTED)
    sample.gpu, sample.serial, sample.at = card.index, serial, card.now()
    sample.busy = card.sensors.grown(of_instance("busy", serial), sample.at)


@c_function(Code.NOT_SUPPORTED)
def nvmlGpmMetricsGet(
    session: Session,
    wanted: Annotated[Any, Out(pynvml.c_nvmlGpmMetricsGet_t, pynvml.NVML_GPM_METRICS_GET_VERSION)],
) -> None:
    """Each metric has its own return code."""
    view = memoryview(wanted).cast("B")
    _, count, *tokens = _HEAD.unpack_from(view)
    first, second = (_sample(session, token) for token in tokens)
    if count > _ROOM or (first.gpu, first.serial) != (second.gpu, second.serial) or first.gpu < 0:
        raise Refused(Code.INVALID_ARGUMENT)
    card = session.node.cards[first.gpu]
    instance = next((i for i in card.state.instances if i.serial == first.serial), None)
    if first.serial and instance is None:
        raise Refused(Code.INVALID_ARGUMENT)
    known = _known_metrics(session, card, instance)
    seconds = second.at - first.at
    serial = first.serial
    busy = (second.busy - first.busy) / seconds if seconds > 0 else card.sensors.load(serial)
    idle = instance is not None and not instance.compute
    for place in range(_HEAD.size, _HEAD.size + count * _METRIC_SIZE, _METRIC_SIZE):
        (metric,) = _NUMBER.unpack_from(view, place)
        if metric not in known:
            _METRIC.pack_into(view, place, metric, Code.NOT_SUPPORTED, 0.0)
        elif idle:  # nothing can run where there is no compute instance
            _METRIC.pack_into(view, place, metric, Code.NO_DATA, 0.0)
        else:
            value = card.sensors.gpm(metric, serial, busy)
            _METRIC.pack_into(view, place, metric, Code.SUCCESS, value)


def _sample(session: Session, token: int) -> GpmSample:
    if not token:
        raise Refused(Code.INVALID_ARGUMENT)
    found: GpmSample = session.look_up(session.handles.take(token, "nvmlGpmMetricsGet"))
    return found


def _known_metrics(session: Session, card: Card, instance: GpuInstance | None) -> frozenset[int]:
    """Which metrics a card or an instance has."""
    board = card.board
    newest = int(session.node.switches.driver_version.partition(".")[0]) >= _CUMULATIVE_SINCE
    if instance is not None:
        return _of_part(newest, _engines(card.profile(instance.profile)))
    most = max(board.profiles, key=lambda p: (p.slices, p.decoders), default=None)
    links = 0 if card.state.mig else board.nvlinks
    engines = _engines(most) if most else (0, 0, 0, 0)
    return _of_card(newest, engines, links, board.has_grace)


def _engines(profile: GpuProfile) -> tuple[int, int, int, int]:
    return (profile.decoders, profile.jpeg, profile.ofa, profile.encoders)


@lru_cache
def _of_part(newest: bool, engines: tuple[int, int, int, int]) -> frozenset[int]:
    known = {*range(1, 14), *(_CUMULATIVE if newest else ())}
    for first, count in zip(_FIRST_OF_ENGINES, engines, strict=True):
        known |= {*range(first, first + count)}
    return frozenset(known)


@lru_cache
def _of_card(
    newest: bool, engines: tuple[int, int, int, int], links: int, grace: bool
) -> frozenset[int]:
    known = {20, 21} | _of_part(newest, engines)
    if links:
        known |= {60, 61, *range(62, 62 + 2 * links)}
    if grace:
        known |= {*range(100, 104), *range(160, 166)}
    return frozenset(known)
