"""Moments as text."""

from __future__ import annotations

from datetime import datetime


def time_json(moment: datetime) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
