"""What the agent's process costs, as the kernel counts it."""

from __future__ import annotations

import os
import time

from nodeagent.telemetry.process_reader import process_cost


def test_it_is_this_process() -> None:
    """Its memory, its files and its start are plausible, and its time grows with work."""
    before = process_cost()
    assert before is not None
    assert 10 << 20 < before.resident < before.virtual
    assert 0 < before.open_files < before.most_files
    assert 0 <= time.time() - before.started < 24 * 3600
    own = os.times()
    assert abs(before.cpu_seconds - own.user - own.system) < 0.5
