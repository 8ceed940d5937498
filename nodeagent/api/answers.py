"""What the API can ask of the agent: plain functions and the event log, nothing more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from nodeagent.api.rendered_status import Rendered
from nodeagent.reconcile.event_log import EventLog
from nodeagent.reconcile.preview import Preview

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answers:
    """Every function answers from memory and at once, except `preview`, which computes.

    `status` takes a GPU's UUID or None for all, and gives None for a GPU that is not there.
    `preview` gives None as long as the node was never observed. `not_alive` and `not_ready` give
    the reasons, each a sentence; none when all is well.

    `mps` takes a device in any spelling or None for all, and gives None for one that is not there.
    `restart_mps` takes a device's UUID and whether its clients may be lost, `drain_mps` between
    them how many seconds to wait for the clients (None: however long it takes). They come back
    when it is done, and raise UnknownDevice, StillInUse, DrainTimedOut, or another NodeagentError
    when it failed. A drain that is cancelled is given up.

    `scrape` gives the metrics' text, compressed by gzip when told so.
    """

    status: Callable[[str | None], Rendered | None]
    plan: Callable[[], Json]
    preview: Callable[[bytes, str | None], Preview | None]
    not_alive: Callable[[], tuple[str, ...]]
    not_ready: Callable[[], tuple[str, ...]]
    events: EventLog
    mps: Callable[[str | None], Json | None]
    restart_mps: Callable[[str, bool], Awaitable[Json]]
    drain_mps: Callable[[str, float | None, bool], Awaitable[Json]]
    scrape: Callable[[bool], bytes]
