"""What records and advice cost: memory, a file, and series of a scrape."""

import gc
import tracemalloc
from pathlib import Path

import pytest

from bench.side_by_side import make
from nodeagent.app.use_service import use_file
from nodeagent.cluster.kubelet.processes import Owner
from nodeagent.metrics.agent_metrics import AgentSample
from nodeagent.metrics.selection import default_selection
from nodeagent.simulation import simulated
from nodeagent.structs import replace
from nodeagent.telemetry.exporter import Exporter
from nodeagent.telemetry.sampler import Intervals, Sampler
from nodeagent.use.advice import advise
from nodeagent.use.records import MOST, Digest, Grant, Holder, KeptRecords, Measured, Records, Use
from nodeagent.views.node_state import NodeState
from tests.plan.cards import Multiset
from tests.rig import open_driver
from tests.use.full_node import GIB, NODES, full_accounts
from tests.use.test_advice import H100, one, use

GRANT = Grant("1g.10gb", "NVIDIA H100 80GB HBM3", 10 * GIB)


def test_two_weeks_of_five_hundred_workloads_take_less_than_two_mebibytes(tmp_path: Path) -> None:
    full_accounts()  # what is loaded for it once
    tracemalloc.start()
    try:
        accounts, file = full_accounts(), use_file(tmp_path / "use.json")
        file.save(accounts.records.kept(0.0))  # of which it keeps a copy
        advice = [advise(use, NODES[0].gpus) for use in accounts.records.uses()]
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(advice) == 500
    kept = accounts.records.kept(0.0)
    assert (len(kept.newer), len(kept.older)) == (500, 500)
    assert taken < 2 << 20


def _add(records: Records, name: str, passed: float = 1.0) -> None:
    measured = Measured(float(GIB), 10.0, 5.0, 3.0)
    holder = Holder("workload", name, "namespace", "main")
    records.add((holder, GRANT), measured, passed=passed, active=0.1, sharing=1)


def test_pods_of_random_names_displace_each_other_alone(tmp_path: Path) -> None:
    """A tenant may make thousands of them; each is there for a few samples."""
    records = Records()
    _add(records, "nightly", passed=3600.0)  # and is not there any more
    for number in range(5000):
        if number >= 1000:  # comes later, and stays
            _add(records, "server")
        for _ in range(3):
            _add(records, f"{number:06}" * 10, passed=5.0)
    found = {use.holder.name: use.held for use in records.uses()}
    assert len(found) == MOST
    assert (found["nightly"], found["server"]) == (3600.0, 4000.0)
    file = use_file(tmp_path / "use.json")
    file.save(records.kept(0.0))
    assert (tmp_path / "use.json").stat().st_size < 1 << 20
    assert _uses(file.load()) == list(records.uses())


def _uses(kept: KeptRecords | None) -> list[Use]:
    return list(Records(14, kept, 0.0).uses())


def test_what_is_written_is_a_copy() -> None:
    """It is written in a thread, while more is added."""
    records = Records()
    _add(records, "server")
    kept = records.kept(0.0)
    before = _uses(kept)
    for _ in range(2):
        _add(records, "server")
        assert _uses(kept) == before != list(records.uses())
    with pytest.raises(ValueError, match="bins of another number"):  # as of another version
        Digest(bins=bytearray(4))


# --- a scrape -------------------------------------------------------------------------------------


async def _pages(boards: str, layout: Multiset, pods: int, passed: int) -> list[str]:
    """What is scraped before and after less is advised for as many workloads as `passed`, of which
    so many have a pod on each device now.
    """
    with simulated(boards) as node:
        async with open_driver() as driver:
            if layout:
                await make(driver, layout)
            parts = [(card.index, part.id) for card in node.cards for part in card.state.instances]
            owners: dict[int, Owner] = {}
            for device in [f"{gpu}/{part}/0" for gpu, part in parts] or range(len(node.cards)):
                for _ in range(pods):
                    name = f"inference-{passed - len(owners)}-7d9f8bcdf4-x2k4z"
                    owners[node.occupy(device).pid] = Owner("team-a", name, "main")
            state = NodeState("node-a", "file", observed=await driver.observe())
            selection = default_selection()
            exporter = Exporter(
                selection,
                host=(("Hostname", "node-a"),),
                build=AgentSample("nodeagent_build_info", 1, ("0.1.0", "3.11")),
                clock=lambda: 1000.0,
                current=lambda: state,
            )
            exporter.put_owners(owners)
            patient = Intervals(patience=60)
            sampler = Sampler(driver, selection.fields, selection.texts, intervals=patient)
            for _ in range(2):
                exporter.take(await sampler.round())
    pages = [exporter.scrape(False).decode()]
    device = layout[0][0] if layout else "gpu"
    less = replace(one(H100, use(H100, "3g.40gb", 3, 3)), device=device)
    names = (f"inference-{number}" for number in range(1, passed + 1))
    exporter.accounts.advice = tuple(replace(less, workload=name) for name in names)
    exporter.changed()
    return [*pages, exporter.scrape(False).decode()]


@pytest.mark.parametrize(
    ("boards", "layout", "pods", "passed", "series"),
    [
        ("h100-80gb:8", (("1g.10gb", 7),), 1, 56, 56),
        ("t4:1", (), 1, 1, 1),
        ("h100-80gb:2", (), 24, 48, 2),
        ("t4:2", (), 24, 500, 2),
        ("h100-80gb:1", (("1g.10gb", 7),), 1, 500, 7),
        ("t4:1", (), 0, 500, 0),
    ],
)
async def test_a_scrape_is_at_most_a_twentieth_larger(
    boards: str, layout: Multiset, pods: int, passed: int, series: int
) -> None:
    before, after = await _pages(boards, layout, pods, passed)
    assert after.count("\nnodeagent_advice_info{") == series
    assert len(after) <= 1.05 * len(before)
