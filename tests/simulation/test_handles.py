"""Tokens of handles: never used twice, remembered as long as a caller may still have them."""

from __future__ import annotations

import pytest

from nodeagent.simulation import SimulatorMisuse
from nodeagent.simulation.handles import Handle, Handles, Kind


def test_thousands_of_instances_leave_nothing_behind() -> None:
    """What is used stays, GPUs and samples always; the rest is forgotten, and its token not given
    again.
    """
    handles = Handles()
    gpu = handles.give(Handle(Kind.GPU, 1, 0))
    sample = handles.give(Handle(Kind.GPM_SAMPLE, 1, serial=1))
    used = handles.give(Handle(Kind.MIG_DEVICE, 1, 0, 1))
    unused = handles.give(Handle(Kind.MIG_DEVICE, 1, 0, 2))
    tokens = set()
    for serial in range(3, 6000):
        tokens.add(handles.give(Handle(Kind.MIG_DEVICE, 1, 0, serial)))
        handles.take(used, "here")
    assert handles.take(gpu, "here").kind is Kind.GPU
    assert handles.take(sample, "here").kind is Kind.GPM_SAMPLE
    assert handles.take(used, "here").serial == 1
    with pytest.raises(SimulatorMisuse, match="never given out"):
        handles.take(unused, "here")
    assert len(tokens) == 5997
    assert not {gpu, used, unused} & tokens
    oldest_kept = sorted(tokens)[3 - 1024]
    assert handles.take(oldest_kept, "here").serial == 6000 - 1021
    with pytest.raises(SimulatorMisuse):
        handles.take(sorted(tokens)[3 - 1025], "here")


def test_many_sessions_leave_room_for_the_handles_in_use() -> None:
    """A GPU has another handle in each; those of past ones are forgotten before what is used."""
    handles = Handles()
    for session in range(3000):
        gpu = handles.give(Handle(Kind.GPU, session, 0))
        devices = [handles.give(Handle(Kind.MIG_DEVICE, session, 0, n)) for n in range(7)]
        for token in (gpu, *devices):
            assert handles.take(token, "a test").session == session
