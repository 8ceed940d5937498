"""The last plan that was accepted, kept where it survives a restart.

When the agent starts and finds the plan's carrier empty, unreadable or wrong, this is the plan
that stays in force. Only root may read it: a plan can name users and limits of other people. The
file is itself a plan that `nodeagent plan -f` reads: what the agent adds are comments.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Final

from nodeagent.documents.reading import digest_of
from nodeagent.files.state import StateFile, StateFormat
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
        remedy="check with nodeagent status that the plan in force is the one you want",
    )


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
