"""XIDs out of the kernel log, in every form that the driver writes, and the table of them."""

import json
import pkgutil
from pathlib import Path

import pytest

from nodeagent.documents.xids import read_xid_table
from nodeagent.errors import DocumentError
from nodeagent.health.kernel_log import read_lines
from nodeagent.health.readings import XidEvent, XidSource
from nodeagent.health.xids import XidClass, default_table

# --- the table ------------------------------------------------------------------------------------


PAGE = (Path(__file__).parents[2] / "docs/health.md").read_text(encoding="utf-8")


def test_the_table_is_whole() -> None:
    """It has each number from 1 to 173, and the classes that NVIDIA's catalog asks for."""
    table = default_table()
    assert sorted(table.rows) == list(range(1, 174))
    catalog = json.loads(pkgutil.get_data("nodeagent.health", "xid_table.json") or b"")["xids"]
    by_advice = {
        "RESTART_APP": XidClass.APPLICATION,
        "IGNORE": XidClass.INFORMATION,
        "RESET_GPU": XidClass.GPU_RESET,
        "RESTART_BM": XidClass.NODE_REBOOT,
        "RESTART_VM": XidClass.NODE_REBOOT,
        "CONTACT_SUPPORT": XidClass.SUPPORT,
        "WORKFLOW_NVLINK5_ERR": XidClass.NVLINK5,
    }
    for entry in catalog:
        if entry.get("nvidia_immediate") in by_advice:
            kind = by_advice[entry["nvidia_immediate"]]
            assert table.row(entry["xid"]).kind is kind, entry


def test_an_unknown_number_is_unclassified() -> None:
    """A driver newer than the table is no reason to fail."""
    row = default_table().row(4242)
    assert (row.kind, str(row)) == (XidClass.UNCLASSIFIED, "XID 4242")


def test_entries_are_laid_over_the_table() -> None:
    """One number or several, new ones too; the later entry wins, the rest stays."""
    table = read_xid_table(
        """
        version: v1
        xids:
          - {xid: 63, class: gpuReset}
          - {xid: [13, 31], class: information}
          - {xid: 31, class: support}
          - {xid: 999, name: our own, class: nodeReboot}
        """
    )
    assert table.row(63).kind is XidClass.GPU_RESET
    assert table.row(63).name == default_table().row(63).name
    assert [table.row(n).kind for n in (13, 31)] == [XidClass.INFORMATION, XidClass.SUPPORT]
    assert str(table.row(999)) == "XID 999 (our own)"
    assert table.row(79) == default_table().row(79)


def test_the_page_has_an_example() -> None:
    """The document that docs/health.md shows is accepted."""
    block = PAGE.split("```yml\n")[1].split("```")[0]
    assert read_xid_table(block).row(999).kind is XidClass.NODE_REBOOT


def test_every_fault_is_named_with_its_line() -> None:
    with pytest.raises(DocumentError) as caught:
        read_xid_table(
            "version: v1\n"
            "xid: []\n"
            "xids:\n"
            "  - {xid: 13, klass: support, class: gpu-reset}\n"
            "  - {xid: 0, class: information}\n"
            "  - {xid: [1, yes], class: information}\n"
            "  - {xid: 7, class: [a], name: 7}\n"
            "  - 13\n"
        )
    reported = {(p.path, p.remedy) for p in caught.value.problems}
    assert ("xid", "did you mean xids?") in reported
    assert ("xids[0].klass", "did you mean class?") in reported
    assert ("xids[0].class", "did you mean gpuReset?") in reported
    assert {p.path for p in caught.value.problems} >= {
        "xids[1].xid",
        "xids[2].xid[1]",
        "xids[3].class",
        "xids[3].name",
        "xids[4]",
    }
    assert all("(line " in p.message for p in caught.value.problems)


@pytest.mark.parametrize("text", ["[]", "version: v2\nxids: []", "version: v1", "xids: []"])
def test_another_document_is_refused(text: str) -> None:
    with pytest.raises(DocumentError):
        read_xid_table(text)


# --- the kernel log -------------------------------------------------------------------------------


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
