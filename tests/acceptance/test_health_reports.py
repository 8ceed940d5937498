"""What is said of findings on a simulated node: one thing once, in its place, not contradicted."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.health.findings import Severity
from nodeagent.health.reporting import condition, sentence
from nodeagent.simulation.node import XID
from tests.acceptance.health_rig import World, world


def said(w: World) -> list[str]:
    """Each finding as the headline says it."""
    return [sentence(finding, w.part.state.gpus) for finding in w.part.state.findings]


@pytest.mark.parametrize(
    ("degrees", "evidence"),
    [(90, "90 °C, at the limit"), (95, "95 °C, 5 °C above the limit")],
)
async def test_how_far_it_is_to_the_limit(tmp_path: Path, degrees: int, evidence: str) -> None:
    """A GPU may be beyond it."""
    async with world("h100-80gb:1", tmp_path) as w:
        figures = {"temperature.slowdown": 90, "temperature.gpu": degrees, "temperature.memory": 40}
        w.node.set_figures(0, figures)
        for _ in range(4):
            await w.look(after=15.0)
        finding = w.found("tooHot")
        assert finding is not None
        assert finding.evidence == evidence


async def test_the_links_of_a_gpu_are_one_finding(tmp_path: Path) -> None:
    """Whatever takes them down takes many; it is reported once more when it takes more."""
    async with world("h100-80gb:1", tmp_path) as w:
        for numbers, evidence in (
            ((3,), "link 3 is down, was up"),
            (range(18), "links 0-17 are down, were up"),
        ):
            w.node.set_figures(0, {f"link.{number}.up": 0 for number in numbers})
            await w.look()
            await w.look()
            (finding,) = w.part.state.findings
            assert (finding.evidence, finding.parts) == (evidence, tuple(numbers))
        assert [e.type for e in w.events.events] == ["GpuDegraded"] * 2
        w.node.set_figures(0, {f"nvlink.replay.{number}": 2 for number in range(18)})
        await w.look()
        assert [f.evidence for f in w.part.state.findings if f.cause == "nvlinkErrors"] == [
            "links 0-17: 36 replays and recoveries in 600 s"
        ]


async def test_an_instance_of_a_gpu_that_has_none_is_not_believed(tmp_path: Path) -> None:
    """Drivers that leave its number at 0 mean the GPU."""
    async with world("h100-80gb:1", tmp_path) as w:
        w.node.report(0, XID, 95, (0, 0))
        w.node.report(0, 0x1000, 0, (0, 0))
        await w.look()
        assert {f.cause: f.place.ids for f in w.part.state.findings} == {
            "xidReset": (w.gpu, -1, -1),
            "poison": (w.gpu, -1, -1),
        }
        assert [(c.xid, c.instance) for c in w.part.state.xids] == [(95, None)]
        assert "GPU 0 reported an error that needs a GPU reset (XID 95)" in said(w)


@pytest.mark.parametrize(
    ("recovery", "words"),
    [(0, "needs no recovery"), (1, "needs a GPU reset"), (2, "needs a reboot")],
)
async def test_what_an_xid_needs_is_the_driver_s_word(
    tmp_path: Path, recovery: int, words: str
) -> None:
    """Once it was asked, the table of XIDs is not quoted beside it."""
    async with world("h100-80gb:1", tmp_path) as w:
        w.node.xid(0, 95)
        w.node.set_figures(0, {"recovery": recovery})
        await w.look()
        await w.look(after=11.0)
        assert f"GPU 0 reported an error that {words} (XID 95)" in said(w)
        (finding,) = [f for f in w.part.state.findings if f.cause == "xidReset"]
        assert (finding.severity is Severity.HEALTHY) is (recovery == 0)
        assert (condition(w.part.state).status == "True") is (recovery == 0)
