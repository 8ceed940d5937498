"""The plan that survives a restart."""

from __future__ import annotations

import stat
from pathlib import Path

from nodeagent.documents.reading import read_document
from nodeagent.plan.numbers import NumberedGpu
from nodeagent.reconcile.plan_update import FILE_NAME, KeptPlan, PlanText, last_good_plan

GPUS = (NumberedGpu(0, "GPU-0", "00000000:1A:00.0"), NumberedGpu(1, "GPU-1", "00000000:1B:00.0"))
PLAN = KeptPlan(PlanText(b"version: v1\n\xff", "balanced"), GPUS)


def test_comes_back_as_it_was(tmp_path: Path) -> None:
    """Every byte and the configuration's name survive; no other user may read them."""
    last_good_plan(tmp_path / "new" / FILE_NAME).save(PLAN)
    assert last_good_plan(tmp_path / "new" / FILE_NAME).load() == PLAN
    assert stat.S_IMODE((tmp_path / "new" / FILE_NAME).stat().st_mode) == 0o600


def test_people_can_read_it(tmp_path: Path) -> None:
    """It is a plan, with comments of the agent's."""
    text = b"version: v1\ngpus: [{devices: [0], mig: enabled}]\n"
    last_good_plan(tmp_path / FILE_NAME).save(KeptPlan(PlanText(text), GPUS))
    assert read_document((tmp_path / FILE_NAME).read_bytes()).entries == read_document(text).entries
