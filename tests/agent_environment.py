"""What an agent in a process of its own has in its environment."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def agent_environment(**more: str) -> dict[str, str]:
    """Nothing of the developer's own but where programs are."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(_ROOT),
        # Nothing in the tests trusts the system's authorities, and aiohttp loads them for 60 ms.
        "SSL_CERT_FILE": os.devnull,
        **more,
    }
