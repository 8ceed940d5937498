"""What the long run does more often than the normal one."""

import os


def long_run() -> bool:
    return bool(os.environ.get("NODEAGENT_TEST_FULL"))


def draws(often: int) -> int:
    """So many examples of a property in the long run, a quarter of them in the normal one."""
    return often if long_run() else often // 4
