"""The last plan that was accepted, kept where it survives a restart.

When the agent starts and finds the plan's carrier empty, unreadable or wrong, this is the plan
that stays in force. Only root may read it: a plan can name users and limits of other people.
"""

from __future__ import annotations

import base64
import binascii
import json
from pathlib import Path

from nodeagent.documents.reading import digest_of
from nodeagent.errors import NodeagentError
from nodeagent.files import replace_file
from nodeagent.sources.plan_offer import PlanText

FILE_NAME = "last-good-plan"
_MOST_BYTES = 2 * 1024 * 1024  # more than any document that was ever accepted


class LastGoodPlan:
    """One file, or none: then nothing is kept. Its functions block: call them in a thread."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def load(self) -> PlanText | None:
        """The plan kept, None when there is none; raises NodeagentError when it is damaged."""
        if self._path is None:
            return None
        try:
            with self._path.open("rb") as file:
                kept = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NodeagentError(f"{self._path} cannot be read: {error.strerror}") from error
        try:
            fields = json.loads(kept)
            text = base64.b64decode(fields["text"], validate=True)
            configuration = fields["configuration"]
            intact = fields["digest"] == digest_of(text)
        except (ValueError, KeyError, TypeError, binascii.Error):
            intact, text, configuration = False, b"", None
        if not intact or not isinstance(configuration, str | None):
            raise NodeagentError(f"{self._path} is damaged and is not used")
        return PlanText(text, configuration)

    def save(self, plan: PlanText) -> None:
        """Keep `plan` instead of what was kept; raises NodeagentError when that cannot be done."""
        if self._path is None:
            return
        fields = {
            "digest": digest_of(plan.text),
            "configuration": plan.configuration,
            "text": base64.b64encode(plan.text).decode(),
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(fields).encode())
        except OSError as error:
            raise NodeagentError(
                f"the accepted plan cannot be kept in {self._path}: {error.strerror}",
                remedy="after a restart only the plan's own source will count",
            ) from error
