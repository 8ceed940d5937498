"""Every row of the check table: raised by a reading, ended by what the row says."""

from collections.abc import Callable
from typing import Any

import pytest

from nodeagent.health.findings import Action, End, Severity
from nodeagent.health.readings import (
    Answer,
    Fabric,
    GpuEventKind,
    GpuReading,
    LinkReading,
    ModeReading,
    RemappedRows,
    RetiredPages,
    Silence,
    XidSource,
)
from nodeagent.health.table import BY_CAUSE, ROWS, Check, advice
from nodeagent.plan.observed import Gpu, ObservedNode
from tests.health.rig import GPU, Node, gpu

Step = Callable[[Node], Any]
_JOINED = Fabric(3)


def _steady(reading: GpuReading, *, seconds: float = 0.0) -> Step:
    """The same reading until it has lasted so long."""

    def step(node: Node) -> None:
        node.read(reading)
        for _ in range(int(seconds // 10)):
            node.read(reading, after=10.0)

    return step


def _flag(bad: dict[str, Any], good: dict[str, Any], *, seconds: float = 0.0) -> tuple[Step, Step]:
    return _steady(gpu(**bad), seconds=seconds), _steady(gpu(**good), seconds=seconds)


def _counter(make: Callable[[int], dict[str, Any]], rate: float, seconds: int) -> tuple[Step, Step]:
    """Raised by a counter that grows by `rate` a second, ended when it grows no more."""
    count = [0.0]

    def run(node: Node, speed: float) -> None:
        for _ in range(seconds // 10 + 1):
            count[0] += speed * 10
            node.read(gpu(**make(int(count[0]))), after=10.0)

    return (lambda node: run(node, rate)), (lambda node: run(node, 0.0))


def _rows(**values: Any) -> dict[str, Any]:
    given = {"correctable": 0, "uncorrectable": 0, "pending": False, "failed": False, **values}
    return {"rows": RemappedRows(**given)}


def _pages(single: int = 0, double: int = 0, *, pending: bool = False) -> dict[str, Any]:
    return {"pages": RetiredPages(single, double, pending)}


def _silent(silence: Silence) -> tuple[Step, Step]:
    return _flag({"answer": Answer(silence)}, {"answer": Answer()}, seconds=10.0)


def _of_node(what: str, silence: Silence) -> tuple[Step, Step]:
    bad, good = {what: Answer(silence)}, {what: Answer()}
    return (lambda node: node.read(**bad)), (lambda node: node.read(**good))


def _fabric(*, good: Fabric = _JOINED, **bad: int) -> tuple[Step, Step]:
    seconds = 300.0 if bad.get("state") in (1, 2) else 0.0
    return _flag({"fabric": Fabric(**{"state": 3, **bad})}, {"fabric": good}, seconds=seconds)


def _reasons(bit: int) -> tuple[Step, Step]:
    return _flag({"clock_reasons": bit}, {"clock_reasons": 0}, seconds=310)


def _nanoseconds(name: str, share: float) -> tuple[Step, Step]:
    return _counter(lambda n: {name: n}, share * 1e9, 320)


def _link_down() -> tuple[Step, Step]:
    up, down = gpu(nvlinks=(LinkReading(3, up=True),)), gpu(nvlinks=(LinkReading(3, up=False),))

    def lose(node: Node) -> None:
        node.read(up)
        node.read(down)

    return lose, lambda node: node.read(up)


def _xid(number: int, **values: Any) -> Step:
    return lambda node: node.xid(number, **values)


def _event(kind: GpuEventKind) -> Step:
    return lambda node: node.event(kind)


def _gpu_missing() -> tuple[Step, Step]:
    def step(node: Node, known: frozenset[str]) -> None:
        node.read(gpu(), known=frozenset({GPU}))
        node.read(known=known)
        node.read(known=known, after=30.0)

    return (lambda node: step(node, frozenset())), (lambda node: step(node, frozenset({GPU})))


def _unlike(figures: dict[str, Any], usual: dict[str, Any]) -> tuple[Step, Step]:
    """Beside a GPU of the same model, for long enough."""

    def look(node: Node, mine: dict[str, Any], seconds: int) -> None:
        names = (GPU, "GPU-2")
        node.observed = ObservedNode(tuple(Gpu(n, uuid, "H100") for n, uuid in enumerate(names)))
        pair = (gpu(complete=True, **mine), gpu(uuid=names[1], complete=True, **usual))
        for _ in range(seconds // 30):
            node.read(*pair, after=30.0)

    return (lambda node: look(node, figures, 90)), (lambda node: look(node, usual, 30))


_UP, _DOWN = ((LinkReading(2, up=True), LinkReading(3, up=up)) for up in (True, False))

# What is measured: what raises it and what ends it.
MEASURED: dict[str, tuple[Step, Step]] = {
    "recoveryAction": _flag({"recovery_action": 1}, {"recovery_action": 0}),
    "gpuLost": _silent(Silence.LOST),
    "gpuResetRequired": _silent(Silence.RESET_REQUIRED),
    "gpuUnknown": _silent(Silence.FAILS),
    "gpuHangs": _silent(Silence.HANGS),
    "gpuUnbound": _silent(Silence.UNBOUND),
    "eccUncorrected": _flag({"ecc_uncorrected": 1}, {"ecc_uncorrected": 0}),
    "eccModePending": _flag(
        {"ecc_mode": True, "ecc_pending_mode": False}, {"ecc_mode": True, "ecc_pending_mode": True}
    ),
    "sramThreshold": _flag({"sram_threshold_exceeded": True}, {"sram_threshold_exceeded": False}),
    "rowRemapPending": _flag(_rows(pending=True), _rows()),
    "rowRemapFailed": _flag(_rows(failed=True), _rows()),
    "rowRemapMany": _flag(_rows(uncorrectable=512), _rows(uncorrectable=511)),
    "rowRemapSpent": _flag({"banks_without_spare_row": 1}, {"banks_without_spare_row": 0}),
    "bankRemapPending": _flag({"bank_remap_pending": True}, {"bank_remap_pending": False}),
    "memoryUnrepairable": _flag({"memory_unrepairable": True}, {"memory_unrepairable": False}),
    "repairPending": _flag(
        {"tpc_repair_pending": True}, {"channel_repair_pending": False, "tpc_repair_pending": False}
    ),
    "retiredPagesMany": _flag(_pages(60, 3), _pages(60, 2)),
    "retiredPagesDoubleBit": _flag(_pages(0, 15), _pages(0, 14)),
    "retiredPagesPending": _flag(_pages(pending=True), _pages()),
    "throttledByHeat": _nanoseconds("held_by_heat", 0.2),
    "throttledByPower": _nanoseconds("held_by_power", 0.8),
    "tooHot": _flag(
        {"temperature": 90, "slowdown_temperature": 90},
        {"temperature": 80, "slowdown_temperature": 90},
        seconds=30,
    ),
    "memoryTooHot": _flag(
        {"memory_temperature": 105, "memory_temperature_max": 105},
        {"memory_temperature": 90, "memory_temperature_max": 105},
        seconds=30,
    ),
    "hwSlowdown": _reasons(0x8),
    "hwThermalSlowdown": _reasons(0x40),
    "hwPowerBrake": _nanoseconds("held_by_power_brake", 0.2),
    # 16 lanes of generation 5 bear 1.92 * 16 = 30.7 replays a minute, half of one a second
    "pcieReplays": _counter(
        lambda n: {"pcie_replays": n, "pcie_generation_max": 5, "pcie_width": 16}, 0.6, 620
    ),
    "pcieLink": _flag(
        {"pcie_width": 8, "pcie_width_max": 16, "under_load": True},
        {"pcie_width": 16, "pcie_width_max": 16, "under_load": True},
        seconds=60,
    ),
    "pcieUnlike": _unlike(
        {"pcie_width_max": 8, "pcie_generation_max": 5},
        {"pcie_width_max": 16, "pcie_generation_max": 5},
    ),
    "pcieIdleUnlike": _unlike(
        {"pcie_width": 8, "under_load": False}, {"pcie_width": 16, "under_load": False}
    ),
    "powerLimitUnlike": _unlike({"power_limit": 350_000}, {"power_limit": 700_000}),
    "eccUnlike": _unlike({"ecc_mode": False}, {"ecc_mode": True}),
    "nvlinkMissing": _unlike({"nvlinks": _DOWN}, {"nvlinks": _UP}),
    "nvlinkDown": _link_down(),
    "nvlinkErrors": _counter(lambda n: {"nvlinks": (LinkReading(2, replays=n),)}, 0.1, 620),
    "nvlinkCrc": _counter(lambda n: {"nvlinks": (LinkReading(2, crc_errors=n),)}, 120, 70),
    "fabricNotReady": _fabric(state=2),
    "fabricFailed": _fabric(status=999),
    "fabricDegraded": _fabric(health_mask=0x1, good=Fabric(3, health_mask=0x1AA)),
    "modeDrift": _flag(
        {"modes": (ModeReading("compute mode", "off", "on"),)},
        {"modes": (ModeReading("compute mode", "on", "on"),)},
        seconds=30,
    ),
    "inforomCorrupt": _flag({"inforom_corrupt": True}, {"inforom_corrupt": False}),
    "gpuMissing": _gpu_missing(),
    "driverHangs": _of_node("answer", Silence.HANGS),
    "driverMissing": _of_node("answer", Silence.NO_LIBRARY),
    "driverNotLoaded": _of_node("answer", Silence.NOT_LOADED),
    "eventsUnheard": _of_node("listener", Silence.HANGS),
}

# What is reported once: what raises it.
REPORTED: dict[str, Step] = {
    "xidApplication": _xid(31),
    "xidReset": _xid(95),
    "xidReboot": _xid(151),
    "fallenOffBus": _xid(79, source=XidSource.KERNEL_LOG),
    "xidHardware": _xid(54),
    "xidSoftware": _xid(78),
    "xidSupport": _xid(123),
    "xidUnclassified": _xid(5000),
    "xidNvlink": _xid(149),
    "gpuUnavailable": _event(GpuEventKind.UNAVAILABLE),
    "eccDoubleBit": _event(GpuEventKind.DOUBLE_BIT),
    "eccStorm": _event(GpuEventKind.SINGLE_BIT_STORM),
    "retirementFailed": _event(GpuEventKind.RETIREMENT_FAILED),
    "poison": _event(GpuEventKind.POISON),
    "poisonFatal": _event(GpuEventKind.FATAL_POISON),
    "migChanged": _event(GpuEventKind.FOREIGN_MIG_CHANGE),
}

RAISING = {**{cause: steps[0] for cause, steps in MEASURED.items()}, **REPORTED}


def _raised(cause: str) -> Node:
    node = Node()
    node.read(gpu(), known=frozenset({GPU}))
    assert node.causes() == set()
    RAISING[cause](node)
    assert node.causes() == {cause}
    return node


def test_every_row_has_its_reading() -> None:
    """No row of the table goes without a test, and none is tested that does not exist."""
    assert set(RAISING) == set(BY_CAUSE)
    assert len(ROWS) == len(BY_CAUSE)


@pytest.mark.parametrize("cause", MEASURED)
def test_ended_by_a_reading(cause: str) -> None:
    node = _raised(cause)
    MEASURED[cause][1](node)
    assert node.causes() == set()
    assert node.ended == [(cause, End.GONE)]


@pytest.mark.parametrize("cause", RAISING)
def test_what_ends_it(cause: str) -> None:
    """A reboot or an administrator's word, a reset of some; a value that was not read keeps it."""
    node = _raised(cause)
    key = node.one(cause).key
    assert node.read(gpu()).ended == ()
    raised = node.state
    ways: dict[End, Step] = {
        End.REBOOT: Node.reboot,
        End.CLEARED: lambda node: node.read(cleared=frozenset({key})),
        End.RESET: lambda node: node.read(resets=frozenset({GPU})),
    }
    for end, read in ways.items():
        node.state, node.boot, node.ended = raised, "boot-1", []
        node.now = max(node.now, raised.at.uptime if raised.at else 0.0)
        read(node)
        assert node.ended == ([(cause, end)] if end in BY_CAUSE[cause].ends else [])
        mended = end in (End.RESET, End.REBOOT) and bool(node.ended)
        xid = BY_CAUSE[cause].check is Check.XID and BY_CAUSE[cause].severity is Severity.UNHEALTHY
        assert bool(node.state.repairs) is (mended and xid), "of XIDs they are counted"


@pytest.mark.parametrize("cause", REPORTED)
def test_time_ends_what_lapses(cause: str) -> None:
    """What did not come back is forgotten, if its row says so; the rest waits for its repair."""
    node = _raised(cause)
    assert BY_CAUSE[cause].check.value in node.state.gpus[GPU].checked
    node.read(gpu(), after=599.0)
    assert node.causes() == {cause}
    node.read(gpu(), after=4000.0)
    assert node.ended == ([(cause, End.LAPSED)] if End.LAPSED in BY_CAUSE[cause].ends else [])


def test_severity_and_action_belong_together() -> None:
    """What is unhealthy asks for a repair; what is healthy asks for none of the hardware."""
    repairs = (Action.RESET_GPU, Action.REBOOT, Action.INSPECT_HARDWARE)
    for row in ROWS:
        if row.severity is Severity.UNHEALTHY:
            assert row.action in repairs, row.cause
        if row.severity is Severity.HEALTHY:
            assert row.action not in repairs, row.cause


def test_the_advice_fits_the_action() -> None:
    """A cause's own words count for its usual action; for another action, what that one is."""
    assert advice("xidReset", Action.RESET_GPU) == "Drain the GPU, then reset it."
    assert advice("xidReset", Action.RESET_GPU, reset="So.") == "So."
    assert "reset" not in advice("xidReset", Action.RESTART_APPLICATION)
    assert "diagnostic" in advice("xidReset", Action.INSPECT_HARDWARE)
    assert advice("xidReset", Action.NONE) == ""
