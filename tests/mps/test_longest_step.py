"""How long a step with a daemon may take, before the agent counts as stuck."""

from __future__ import annotations

import pytest

from nodeagent.mps.context import START_PATIENCE
from nodeagent.mps.setup import longest_step
from nodeagent.settings import MpsSettings


@pytest.mark.parametrize("patient", ["quit_deadline", "kill_deadline", "answer_deadline", "grace"])
def test_no_patience_is_cut_short(patient: str) -> None:
    """With more time for daemons to end, the agent waits for that, and is not replaced."""
    settings = MpsSettings(**{patient: 1000.0})  # type: ignore[arg-type]  # all of these are durations
    assert longest_step(settings) > 1000.0
    assert longest_step(MpsSettings()) >= START_PATIENCE
