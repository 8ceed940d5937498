"""XIDs that both sources report, twice or late, and what each is worth."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.health.findings import Action, Severity, rank, worst
from nodeagent.health.kernel_log import pci_address
from nodeagent.health.readings import (
    GpuEventKind,
    InstanceReading,
    LinkReading,
    XidEvent,
    XidSource,
)
from tests.health.rig import GPU, LEFT, LOG, Node, counts, gpu, known


@pytest.fixture
def node() -> Node:
    return known()


@pytest.mark.parametrize("first", XidSource)
def test_an_xid_of_both_sources_counts_once(node: Node, first: XidSource) -> None:
    """Either source may be first; the finding has NVML's instance and the kernel log's process."""
    reports: dict[XidSource, dict[str, Any]] = {
        XidSource.NVML: {"instance": 2},
        LOG: {"pid": 4711, "process": "python", "message": "MMU Fault"},
    }
    second = LOG if first is XidSource.NVML else XidSource.NVML
    node.xid(31, source=first, **reports[first])
    evaluation = node.xid(31, source=second, **reports[second])
    assert evaluation.xids == ()
    assert counts(node) == {31: 1}
    finding = node.one("xidApplication")
    assert (finding.count, finding.pid, finding.place.instance) == (1, 4711, 2)
    assert "MMU Fault" in finding.evidence


@pytest.mark.parametrize(("pci", "says"), [("0000:1b:00", True), ("", False)])
def test_an_xid_of_a_gpu_that_is_not_known_has_its_address(pci: str, says: bool) -> None:
    """As far as the source gave one."""
    node = Node()
    node.xid(95, gpu="", pci=pci)
    assert (f", PCI {pci}" in node.one("xidReset").evidence) is says


@pytest.mark.parametrize("first", XidSource)
@pytest.mark.parametrize(
    ("number", "other", "place"),
    [
        (109, 109, {"gpu": "GPU-2"}),
        (109, 62, {"gpu": GPU}),
        (109, 109, {"gpu": GPU, "instance": 2}),
        (109, 109, {"gpu": GPU, "instance": 1, "compute": 1}),
    ],
)
def test_two_alike_stay_two(
    node: Node, first: XidSource, number: int, other: int, place: dict[str, Any]
) -> None:
    """The second source's report of one adds to that one, and takes nothing from the other."""
    second = LOG if first is XidSource.NVML else XidSource.NVML
    one = {"gpu": GPU, "instance": 1, "compute": 0}
    for source in (first, second):
        pids = (4711, 4712) if source is LOG else (0, 0)
        node.xid(number, source=source, pid=pids[0], after=0.1, **one)
        node.xid(other, source=source, pid=pids[1], after=0.1, **place)
    found = {(f.place.ids, f.code, f.pid, f.count) for f in node.state.findings}
    where = (place["gpu"], place.get("instance", -1), place.get("compute", -1))
    assert found == {((GPU, 1, 0), number, 4711, 1), (where, other, 4712, 1)}


def test_an_xid_is_no_link(node: Node) -> None:
    """A finding of the link with the XID's number is another one."""
    node.read(gpu(nvlinks=(LinkReading(13, up=True),)))
    node.xid(13)
    node.read(gpu(nvlinks=(LinkReading(13, up=False),)))
    node.xid(13, source=LOG, pid=4711)
    assert {(f.cause, f.pid) for f in node.state.findings} == {
        ("nvlinkDown", 0), ("xidApplication", 4711),
    }  # fmt: skip


def test_the_newest_is_what_a_report_without_a_place_is_of(node: Node) -> None:
    """An earlier one elsewhere is not."""
    for instance in (1, 2):
        node.xid(109, instance=instance, after=60.0)
    node.xid(109, source=LOG, pid=4711)
    assert [(f.place.instance, f.pid) for f in node.state.findings] == [(1, 0), (2, 4711)]


@pytest.mark.parametrize(
    ("number", "mig", "instance"), [(0, False, None), (0, True, 0), (2, False, 2)]
)
def test_only_the_number_0_may_mean_none(number: int, mig: bool, instance: int | None) -> None:
    """Outside MIG mode; it may have been enabled since the last look, and 2 is of an instance."""
    node = Node()
    node.read(gpu(mig=mig))
    node.xid(109, instance=number)
    assert node.one("xidReset").place.instance == instance


@pytest.mark.parametrize("number", [0, 1])
def test_the_narrower_place_counts(node: Node, number: int) -> None:
    """Ids begin with 0."""
    node.xid(109, source=LOG, instance=2)
    node.xid(109, instance=2, compute=number)
    assert node.one("xidReset").place.compute == number


def test_a_place_that_is_known_later_joins_what_is_there(node: Node) -> None:
    """It is that finding once more, and what was known of it stays."""
    node.xid(123, instance=1)
    since = node.one("xidSupport").since
    node.xid(123, source=LOG, after=60.0)
    node.xid(123, instance=1)
    finding = node.one("xidSupport")
    assert (finding.place.instance, finding.count, finding.since) == (1, 2, since)
    assert finding.action is Action.INSPECT_HARDWARE


def test_each_word_of_one_source_takes_one_of_the_other(node: Node) -> None:
    """Three errors that both sources tell are three; a fourth of one source is one more."""
    for source in (LOG, XidSource.NVML):
        for _ in range(3):
            node.xid(31, source=source, after=0.1)
    assert counts(node) == {31: 3}
    node.xid(31, source=LOG, after=0.1)
    assert counts(node) == {31: 4}
    assert node.one("xidApplication").count == 4


def test_far_apart_or_elsewhere_is_another_one(node: Node) -> None:
    """The same number counts again later, or in another GPU instance."""
    node.xid(31, source=LOG, instance=1)
    node.xid(31, instance=2)
    node.xid(31, source=LOG, instance=2, after=60.0)
    assert sum(count.count for count in node.state.xids) == 3


@pytest.mark.parametrize("first", XidSource)
def test_a_driver_that_hangs_reports_late_what_is_known(node: Node, first: XidSource) -> None:
    """Its event comes when it answers again: the error was at any time since the wait began, and
    the kernel log has when. Another one of the log, after that, is another one.
    """
    node.xid(62, source=LOG, after=1.0)
    began = node.now
    if first is LOG:
        node.xid(119, source=LOG, after=3.0)
        node.xid(62, after=20.0, since=began)
        node.xid(119, after=0.1, since=began)
    else:
        node.xid(62, after=23.0, since=began)
        node.xid(119, after=0.1, since=began)
        node.xid(119, source=LOG, after=0.1, at=began + 3.0)
    assert counts(node) == {62: 1, 119: 1}
    node.xid(119, source=LOG, after=10.0)
    assert counts(node) == {62: 1, 119: 2}


def test_a_kernel_log_that_is_read_late_reports_what_is_known(node: Node) -> None:
    """A line bears its own time, however many errors the driver has reported since."""
    first = node.now + 1.0
    node.xid(31)
    node.xid(13, after=30.0)
    node.xid(31, source=LOG, at=first, after=1.0)
    assert counts(node) == {31: 1, 13: 1}


def test_a_gpu_falls_off_the_bus_once(node: Node) -> None:
    """However many lines and sources say so."""
    for _ in range(3):
        node.xid(79, source=LOG, after=0.1)
    node.xid(79, after=0.1)
    assert counts(node) == {79: 1}


def test_the_kernel_log_read_again_reports_nothing(node: Node) -> None:
    """An agent that starts anew may read the log from its beginning; after a reboot it is new."""
    node.xid(31, source=LOG, sequence=7)
    node.xid(31, source=LOG, sequence=7, after=100.0)
    assert counts(node) == {31: 1}
    node.reboot()
    node.read(gpu())
    node.xid(31, source=LOG, sequence=3)
    assert counts(node) == {31: 2}


def test_an_xid_of_an_instance_that_is_gone_is_no_news_any_more(node: Node) -> None:
    """Nor is one of an earlier boot: it stays counted."""
    node.xid(31, instance=2)
    node.xid(31)
    assert [bool(count.last.uptime) for count in node.state.xids] == [True, True]
    node.read(gpu(instances=(InstanceReading(1, LEFT), InstanceReading(2, LEFT))))
    assert [bool(count.last.uptime) for count in node.state.xids] == [False, True]
    node.reboot()
    assert [bool(count.last.uptime) for count in node.state.xids] == [False, False]


def test_an_address_that_no_gpu_has(node: Node) -> None:
    node.read(xids=(XidEvent(79, node.now, LOG, pci="0000:99:00"),))
    finding = node.one("fallenOffBus")
    assert finding.place.gpu == ""
    assert "0000:99:00" in finding.evidence


@pytest.mark.parametrize("text", ["00000012:1A:1f.0", "0012:1a:1F", "PCI:0012:1a:1f.0"])
def test_addresses_are_alike(text: str) -> None:
    assert pci_address(text) == (0x12, 0x1A, 0x1F)


def test_a_known_nuisance_is_only_counted() -> None:
    """An XID of the class information makes no finding."""
    node = Node()
    evaluation = node.xid(43)
    assert counts(node) == {43: 1}
    assert [e.xid for e in evaluation.xids] == [43]
    assert node.causes() == set()


def test_a_fatal_nvlink_error(node: Node) -> None:
    """The kernel log says that it is fatal, after NVML reported it without."""
    node.xid(149)
    assert node.one("xidNvlink").severity is Severity.DEGRADED
    node.xid(149, source=LOG, fatal=True, detail=4)
    finding = node.one("xidNvlink")
    assert (finding.severity, finding.action) == (Severity.UNHEALTHY, Action.RESET_GPU)
    node.read(gpu(), after=90000.0)
    assert node.causes() == {"xidNvlink"}


_EVENTS = st.lists(
    st.tuples(st.sampled_from([13, 43, 63, 79, 95, 123, 149, 154, 700]), st.sampled_from(XidSource),
              st.floats(0, 30), st.sampled_from([None, 1, 2])),
    max_size=25,
)  # fmt: skip


@given(_EVENTS)
@settings(max_examples=60)
def test_counters_only_grow(events: list[tuple[int, XidSource, float, int | None]]) -> None:
    """Whatever is reported, a count of XIDs never falls, and each source's words suffice for it."""
    node = known()
    before: dict[tuple[int, int | None], int] = {}
    for number, source, after, instance in events:
        node.xid(number, source=source, after=after, instance=instance)
        after_it = {(c.xid, c.instance): c.count for c in node.state.xids}
        assert all(after_it[key] >= value for key, value in before.items())
        before = after_it
    for number in {e[0] for e in events}:
        reported = [sum(1 for e in events if e[:2] == (number, s)) for s in XidSource]
        counted = sum(count for (xid, _), count in before.items() if xid == number)
        assert counted <= sum(reported)
        if number != 79:
            assert counted >= max(reported)


@given(_EVENTS, st.lists(st.sampled_from(GpuEventKind), max_size=5))
@settings(max_examples=40)
def test_one_more_fault_is_never_better(
    events: list[tuple[int, XidSource, float, int | None]], more: list[GpuEventKind]
) -> None:
    """The status of a node to which more happened is at least as bad."""
    node, worse = known(), known()
    for number, source, after, instance in events:
        node.xid(number, source=source, after=after, instance=instance)
        worse.xid(number, source=source, after=after, instance=instance)
    for kind in more:
        node.read(gpu())
        worse.event(kind)
    statuses = [worst(f.severity for f in n.state.findings) for n in (node, worse)]
    assert rank(statuses[1]) >= rank(statuses[0])
