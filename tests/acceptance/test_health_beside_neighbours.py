"""What never changed and is wrong all the same: beside like GPUs, and by the fabric's word."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nodeagent.gpu.driver import Driver
from nodeagent.gpu.topology import Topology
from nodeagent.metrics.agent_metrics import GPU_HEALTH
from nodeagent.metrics.node_metrics import health_samples
from nodeagent.simulation import simulated
from tests.acceptance.health_rig import PATIENT, World

LINKS = {f"link.{number}.up": 0 for number in range(18)}


@asynccontextmanager
async def installed(
    folder: Path, boards: str, *figures: Mapping[str, float]
) -> AsyncIterator[World]:
    """A node that was looked at for more than a minute, whose GPUs had such figures before."""
    with simulated(boards) as node:
        for index, found in enumerate(figures):
            node.set_figures(index, found)
        async with Driver(observe_deadline=30, step_deadline=30, topology=Topology()) as driver:
            w = World(node, driver, folder, PATIENT)
            await w.part.load()
            await w.observe()
            for _ in range(3):
                await w.look(after=31.0)
            yield w
            w.sampler.close()


def figures_of(w: World, check: str) -> tuple[float, ...]:
    """The check's figures, of the GPUs that have one."""
    samples = (s for s in health_samples(w.part.state) if s.metric is GPU_HEALTH)
    return tuple(s.value for _, s in sorted((s.labels, s) for s in samples if s.labels[0] == check))


ONE = {f"link.{number}.up": 0 for number in (3, 4)}
REDUCED = {"fabric.health": 1}
FULL = {"fabric.health": 2}


@pytest.mark.parametrize(
    ("boards", "figures", "evidence", "shown"),
    [
        # like GPUs have them up
        ("h100-80gb:3", [LINKS], "links 0-17, up on a GPU", (0.5, 1, 1)),
        ("a100-40gb:2", [{}, ONE], "links 3-4, up on a GPU", (1, 0.5)),
        # by the fabric's word, where all are alike
        ("h100-80gb:1", [LINKS], "links 0-17, though the fabric", (0.5,)),
        ("h100-80gb:1", [ONE | REDUCED], "links 3-4, though the fabric", (0.5,)),
        ("h100-80gb:1", [ONE | FULL], None, (1,)),
        # nobody knows
        ("h100-80gb:1", [ONE], None, ()),
        ("a100-40gb:2", [LINKS, LINKS], None, ()),
        ("h100-80gb:2", [LINKS | {"fabric.state": 1}] * 2, None, ()),
        ("h100-nvl:2", [], None, ()),
        # all are up, or none is there
        ("h100-80gb:2", [], None, (1, 1)),
        ("t4:2", [], None, ()),
    ],
)  # fmt: skip
async def test_links_that_never_came_up(
    tmp_path: Path,
    boards: str,
    figures: list[dict[str, float]],
    evidence: str | None,
    shown: tuple[float, ...],
) -> None:
    """They are missed where something shows that they should be up; else it is not known."""
    async with installed(tmp_path, boards, *figures) as w:
        found = w.found("nvlinkMissing")
        assert (found is None) if evidence is None else found and evidence in found.evidence
        assert figures_of(w, "nvlink") == shown


@pytest.mark.parametrize(
    ("cause", "check", "figure", "evidence"),
    [
        (
            "pcieUnlike", "pcie", {"pcie.widthMax": 8},
            "8 lanes of generation 5 at most; GPUs like it: 16 lanes of generation 5 at most",
        ),
        (
            "pcieIdleUnlike", "pcie", {"pcie.width": 8},
            "8 lanes while idle; GPUs like it: 16 lanes while idle",
        ),
        ("powerLimitUnlike", "power", {"power.limit": 350_000}, "350 W; GPUs like it: 700 W"),
        ("eccUnlike", "ecc", {"ecc.mode": 0}, "ECC off; GPUs like it: ECC on"),
    ],
)  # fmt: skip
async def test_a_gpu_unlike_its_neighbours(
    tmp_path: Path, cause: str, check: str, figure: dict[str, float], evidence: str
) -> None:
    """It is named with both figures; of another model, nothing follows from it."""
    idle = {"pstate": 8}
    boards = "h100-80gb:3,h100-pcie:1"
    async with installed(tmp_path, boards, idle, idle | figure, idle, idle) as w:
        (finding,) = w.part.state.findings
        hit = w.observed.gpus[1].uuid
        assert (finding.cause, finding.place.gpu, finding.evidence) == (cause, hit, evidence)
        assert w.is_reported(cause)
        assert figures_of(w, check)[:3] == (1, 0.5, 1)
        w.node.set_figures(0, figure)
        w.node.set_figures(2, figure)  # now it is one of most
        await w.look(after=31.0)
        assert w.is_reported(cause) is (cause == "pcieUnlike")  # which is read once
    async with installed(tmp_path / "alone", "h100-80gb:1,h100-pcie:1", idle | figure) as w:
        assert w.part.state.findings == ()
