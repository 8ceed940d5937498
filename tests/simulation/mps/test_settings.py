"""How numbers are read, where no daemon has to be asked."""

from __future__ import annotations

import pytest

from nodeagent.simulation.mps import settings

DEVICES = ("GPU-1", "GPU-2")


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("0=1G", {0: 1 << 30}),
        ("0=1G,1=512MB", {0: 1 << 30, 1: 512 << 20}),
        ("GPU-2=3G", {1: 3 << 30}),
        ("GPU-9=3G", {}),
        ("0=0G", {}),
        ("0", {}),
        ("", {}),
    ],
)
def test_limits_in_a_clients_environment(text: str, limits: dict[int, int]) -> None:
    """By ordinal or UUID; what means nothing is no limit."""
    assert limits == settings.client_limits(text, DEVICES)


@pytest.mark.parametrize(
    ("size", "shown"),
    [(1 << 20, "1M"), ((1 << 30) - 1, "1023M"), (1 << 30, "1G"), (2 * (1 << 30) - 1, "1G")],
)
def test_limits_are_shown_rounded_down(size: int, shown: str) -> None:
    """To G from 1 G up."""
    assert shown == settings.shown_limit(size)


def test_a_huge_limit_wraps_around() -> None:
    """At 64 bits."""
    assert settings.shown_limit(settings.limit("99999999999999G")) == "13161349119G"
