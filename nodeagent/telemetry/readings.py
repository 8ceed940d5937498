"""What people want to see of GPUs at work, out of the newest sample."""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.metrics.samples import SampleSet
from nodeagent.metrics.sources import Number
from nodeagent.telemetry.accounting import ACTIVITY_FIELDS
from nodeagent.telemetry.ownership import FB_USED, Device, device_of
from nodeagent.views.node_state import Reading

_TEMPERATURE, _POWER = 150, 155  # DCGM's field ids; degrees Celsius and watts
READING_FIELDS = (*ACTIVITY_FIELDS, _TEMPERATURE, _POWER, FB_USED)
_MEBIBYTE = 1 << 20


def readings(sample: SampleSet, active: Mapping[Device, float]) -> Mapping[Device, Reading]:
    """Of each GPU and GPU instance what was read of it; `active`: as `activity` has it."""
    temperature, power, memory = (
        _values(sample, number) for number in (_TEMPERATURE, _POWER, FB_USED)
    )
    return {
        device: Reading(
            utilization=round(100.0 * active[device], 1) if device in active else None,
            temperature=temperature.get(device),
            power=round(power[device], 1) if device in power else None,
            memory=int(memory[device]) * _MEBIBYTE if device in memory else None,
        )
        for device in active.keys() | temperature.keys() | power.keys() | memory.keys()
    }


def _values(sample: SampleSet, number: int) -> Mapping[Device, Number]:
    """The values of a field by device."""
    found = ((device_of(subject.entity), value) for subject, value in sample.values.get(number, ()))
    return {device: value for device, value in found if device is not None}
