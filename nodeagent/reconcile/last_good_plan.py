"""The last plan that was accepted, kept where it survives a restart.

When the agent starts and finds the plan's carrier empty, unreadable or wrong, this is the plan
that stays in force. Only root may read it: a plan can name users and limits of other people. The
file is itself a plan that `nodeagent plan -f` reads: what the agent adds are comments.
"""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Final

from nodeagent.documents.reading import digest_of
from nodeagent.errors import NodeagentError
from nodeagent.files.state import StateFile, StateFormat
from nodeagent.reconcile.active_plan import ActivePlan
from nodeagent.reconcile.event_reporter import EventReporter
from nodeagent.reconcile.plan_update import PlanText
from nodeagent.strict_json import parse_json

FILE_NAME: Final = "last-good-plan"
_LARGEST = 2 * 1024 * 1024  # bytes, more than any document that was ever accepted
_CONFIGURATION = b"# configuration: "


def last_good_plan(path: Path | None) -> StateFile[PlanText]:
    """The file; `path` None: nothing is kept."""
    return StateFile(
        path,
        _FORMAT,
        what="the accepted plan",
        lost="only the plan's own source counts after a restart",
        remedy="check with `nodeagent status` that the plan in force is the one you want",
    )


class PlanKeeper:
    """Saves each accepted plan, and restores the last one at the start.

    `unsaved` was accepted, but is not yet where it survives a restart.
    """

    def __init__(self, file: StateFile[PlanText], reporter: EventReporter) -> None:
        self._file = file
        self._reporter = reporter
        self.unsaved: PlanText | None = None

    async def restore(self, active: ActivePlan) -> None:
        """The plan kept is in force until its source reports another."""
        kept = await asyncio.to_thread(self._file.load)
        if self._file.problem:
            self._reporter.trouble(str(self._file.problem))
        try:
            if kept:
                await asyncio.to_thread(active.remember, kept)
        except NodeagentError as error:
            self._reporter.trouble(f"the last good plan cannot be used: {error}")

    async def save(self) -> None:
        """Save the plan that was accepted last, unless that is done."""
        if self.unsaved is None:
            return
        try:
            await asyncio.to_thread(self._file.save, self.unsaved)
            self.unsaved = None
        except NodeagentError as error:  # a full disk, say: the next round tries again
            self._reporter.trouble(str(error))


def _encoded(plan: PlanText) -> bytes:
    return _CONFIGURATION + json.dumps(plan.configuration).encode() + b"\n" + plan.text


def _decoded(content: bytes, version: int) -> PlanText:
    if version == 0:
        return _of_the_first_release(content)
    first, _, text = content.partition(b"\n")
    return PlanText(text, _name(parse_json(first.removeprefix(_CONFIGURATION))))


def _of_the_first_release(content: bytes) -> PlanText:
    fields = parse_json(content)
    text = base64.b64decode(fields["text"], validate=True)
    if fields["digest"] != digest_of(text):
        raise ValueError("its digest is not that of its text")
    return PlanText(text, _name(fields["configuration"]))


def _name(configuration: object) -> str | None:
    if not isinstance(configuration, str | None):
        raise TypeError(f"{configuration!r} is no name of a configuration")
    return configuration


_FORMAT: Final[StateFormat[PlanText]] = StateFormat(
    "last-good-plan", 2, _LARGEST, _encoded, _decoded
)
