"""How often a property test draws."""

from __future__ import annotations

import os


def draws(often: int) -> int:
    """So often in the long run, `make test-full`; a quarter of it in the normal one."""
    return often if os.environ.get("NODEAGENT_TEST_FULL") else often // 4
