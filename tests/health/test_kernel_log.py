"""XIDs out of the kernel log, in every form that the driver writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.health.kernel_log import read_lines
from nodeagent.health.readings import XidEvent, XidSource

LOG = XidSource.KERNEL_LOG

FORMS = {
    "NVRM: Xid (PCI:0000:1a:00): 79, pid=4711, name=python, GPU has fallen off the bus.": XidEvent(
        79, 5.0, LOG, pci="0000:1a:00", pid=4711, process="python",
        message="GPU has fallen off the bus.",
    ),
    "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.": XidEvent(
        79, 5.0, LOG, pci="0000:01:00", message="GPU has fallen off the bus."
    ),
    "NVRM: Xid (0000:03:00): 14, Channel 00000001": XidEvent(
        14, 5.0, LOG, pci="0000:03:00", message="Channel 00000001"
    ),
    "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9).": (
        XidEvent(
            94, 5.0, LOG, pci="0000:01:00", instance=5, pid=7194,
            message="Contained: CE User Channel (0x9).",
        )
    ),
    "NVRM: Xid (PCI:0000:3B:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a b, Graphics Exception": (
        XidEvent(
            13, 5.0, LOG, pci="0000:3b:00", instance=1, compute=2, pid=9, process="a b",
            message="Graphics Exception",
        )
    ),
    "NVRM: Xid (PCI:0000:17:00): 45, pid='<unknown>', name=<unknown>, Ch 00000008": XidEvent(
        45, 5.0, LOG, pci="0000:17:00", message="Ch 00000008"
    ),
    "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000": (
        XidEvent(
            149, 5.0, LOG, pci="0018:01:00", fatal=True, detail=4,
            message="NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000",
        )
    ),
    "NVRM: Xid (PCI:0018:01:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 00 (0x03f00000": XidEvent(
        145, 5.0, LOG, pci="0018:01:00", fatal=False, detail=63,
        message="RLW_SRC_TRACK Nonfatal XC1 i0 Link 00 (0x03f00000",
    ),
    "NVRM: Xid (PCI:0000:97:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node "
    "Reboot Required)": XidEvent(
        154, 5.0, LOG, pci="0000:97:00", recovery=2,
        message="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    ),
    "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.": XidEvent(
        79, 5.0, LOG, pci="0000:18:00.0", message="GPU has fallen off the bus"
    ),
}  # fmt: skip


@pytest.mark.parametrize("line", FORMS)
def test_every_form(line: str) -> None:
    """Number, GPU, instances, process and message are read from a line as the driver writes it."""
    assert read_lines([line], 5.0) == ((FORMS[line],), None)


def test_the_message_of_several_lines() -> None:
    """A GPU that is named on one line and lost on a later one is one event, across two readings."""
    first = ["NVRM: The NVIDIA GPU 0000:18:00.0", "NVRM: (PCI ID: 10de:2330)"]
    events, begun = read_lines(first, 5.0)
    assert events == ()
    rest = ["NVRM: installed in this system has", "NVRM: fallen off the bus and is not responding"]
    events, begun = read_lines(rest, 5.2, begun)
    assert [(e.xid, e.pci) for e in events] == [(79, "0000:18:00.0")]
    assert begun is None


def test_the_lines_of_another_message() -> None:
    """What others write in between, or the driver much later, is not the end of the message."""
    named = "NVRM: The NVIDIA GPU 0000:18:00.0"
    end = "NVRM: fallen off the bus and is not responding to commands."
    assert read_lines([named, "eth0: link up", end], 5.0)[0] == ()
    assert read_lines([end], 9.0, read_lines([named], 5.0)[1])[0] == ()


def test_records_of_kmsg_have_time_and_number() -> None:
    """The record's own time and sequence count, not the moment of reading."""
    line = "3,339,5140900,-;NVRM: Xid (PCI:0000:1a:00): 31, pid=1, name=x, MMU Fault\n"
    (event,), _ = read_lines([line, " SUBSYSTEM=pci\n"], 99.0)
    assert (event.at, event.sequence, event.message) == (5.1409, 339, "MMU Fault")


def test_lines_of_dmesg_have_a_time() -> None:
    """So does `dmesg`, which has no sequence."""
    (event,), _ = read_lines(["[   12.500000] NVRM: Xid (PCI:0000:1a:00): 31, pid=1"], 99.0)
    assert (event.at, event.sequence, event.pid) == (12.5, -1, 1)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
        "NVRM: Xid (PCI:0000:1a:00)",
        "NVRM: Xid (PCI:zz): 79, no address",
        "usb 1-1: Xid 79",
        # a user's own cgroup, and a program, that the kernel names
        "oom-kill:oom_memcg=/user.slice/NVRM: Xid (PCI:0000:1a:00): 79, x,task=a,pid=9,uid=1000",
        "process '/tmp/NVRM: GPU 0000:1a:00.0: GPU has fallen off the bus' launched 'a' with NULL",
    ],
)
def test_other_lines_tell_nothing(line: str) -> None:
    """Neither do broken ones."""
    assert read_lines([line], 0.0) == ((), None)


@given(st.text(max_size=200), st.text(max_size=200))
def test_no_text_is_too_strange(head: str, tail: str) -> None:
    """Whatever stands in the log, reading it does not fail."""
    read_lines([head, f"NVRM: Xid (PCI:0000:1a:00): {tail}", f"1,2,3,-;{head}"], 0.0)
