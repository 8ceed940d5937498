"""The content of the annotation nodeagent.io/status: the node's state, small enough for a Node.

A Node's annotations share 256 KiB, so this one stays below 32 KiB whatever happens on the node:
texts are shortened, lists are cut, and `more` says how many entries of each were left out.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Problem
from nodeagent.plan.users import as_used
from nodeagent.views.claims import ClaimPhase
from nodeagent.views.devices import mig_devices
from nodeagent.views.mps import daemon_shapes
from nodeagent.views.node_state import NodeState, Phase
from nodeagent.views.shapes import Headline, Json, as_json
from nodeagent.views.text import MODE_WORD, compact_json, fitting, json_size, shortened, time_json

STATUS: Final = "nodeagent.io/status"
MAX_BYTES: Final = 32 << 10  # bytes, of the annotation's text

_TIME = 64  # bytes kept for observedAt and its key
_MORE = 64  # bytes kept for the numbers of what was left out
_PROBLEMS = 6 << 10  # bytes
_MAX_PROBLEMS = 20
_MESSAGE, _NAME = 320, 100  # characters
_COMMANDS = 640  # characters
_MAX_LENGTHS = {"code": _NAME, "gpu": _NAME, "path": 160, "message": _MESSAGE, "remedy": _MESSAGE}
_AHEAD = 60.0  # seconds that another clock may be ahead of this one


def status_content(state: NodeState, worst: Headline) -> Json:
    """The state without the moment, which is no part of what it says; `worst` is its headline."""
    content: Json = {
        "phase": state.phase.value,
        "headline": {
            key: shortened(text, most=_COMMANDS if key == "remedy" else _MESSAGE)
            for key, text in as_json(worst).items()
        },
    }
    if state.digest:
        content["digest"] = state.digest
    if state.configuration is not None:
        content["configuration"] = shortened(state.configuration, most=_NAME)
    content["source"] = state.source
    if state.phase is not Phase.IN_SYNC or state.note:
        content["message"] = shortened(state.sentence, most=_MESSAGE)
    if state.refusal:
        digest = {"digest": state.refusal.digest} if state.refusal.digest else {}
        first = _problem(state.refusal.problems[0]) if state.refusal.problems else {}
        content["rejected"] = digest | {k: first[k] for k in ("path", "message") if k in first}
    if state.claims is not None:
        # Those that wait for a hand, as may a release; an attempt that runs changes nothing.
        waiting = (c.refusal or c.phase is ClaimPhase.UNREADABLE for c in state.claims)
        content["claimsWaiting"] = sum(map(bool, waiting))
    content |= {"gpus": [], "mps": [], "problems": []}
    return content | _lists(state, MAX_BYTES - json_size(content) - _TIME - _MORE)


def status_text(content: Mapping[str, Any], observed_at: datetime) -> str:
    """The annotation: this content, first seen at that moment."""
    first = {
        "headline": content["headline"],
        "phase": content["phase"],
        "observedAt": time_json(observed_at.astimezone(UTC)),
    }
    return compact_json({**first, **content})


class StatusAnnotation:
    """The annotation over time: its text changes only when what it says does.

    That holds across a restart of the agent as well: a text of the same content that is already
    there stays, with its moment.
    """

    def __init__(self) -> None:
        self._content: Json | None = None
        self._since = datetime.min.replace(tzinfo=UTC)

    def text(self, content: Json, *, existing: str | None, now: datetime) -> str:
        """The annotation of this content; `existing` is what the Node has."""
        if content != self._content:
            kept = _moment_of(existing, content, now) if self._content is None else None
            self._content, self._since = content, kept or now
        return status_text(content, self._since)


def has_looked(state: NodeState) -> bool:
    """Whether the state says anything of the GPUs: they were looked at, or cannot be."""
    return state.observed_at is not None or bool(state.driver_error or state.problems)


def _moment_of(existing: str | None, content: Json, now: datetime) -> datetime | None:
    """The time since when an annotation has had this content; None if it has another."""
    try:
        kept = json.loads(existing or "")
        if not isinstance(kept, dict):
            return None
        written = datetime.fromisoformat(kept.pop("observedAt"))
        ahead = (written - now).total_seconds()
        moment = written.astimezone(UTC)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None  # not the agent's
    return moment if kept == content and ahead <= _AHEAD else None


# --- parts ----------------------------------------------------------------------------------------


def _lists(state: NodeState, room: int) -> Json:
    """What is wrong comes first, then the GPUs, then the daemons in what room is left."""
    shown = state.problems[:_MAX_PROBLEMS]
    problems, cut, size = fitting(map(_problem, shown), min(_PROBLEMS, room))
    cut += len(state.problems) - len(shown)
    gpus, gpus_cut, gpus_size = fitting(map(_gpu, map(as_used, state.observed.gpus)), room - size)
    daemons = (
        {"device": d.device}
        | ({"devices": list(d.devices)} if d.devices else {})
        | {"state": d.state, "clients": len(d.clients)}
        for d in daemon_shapes(state.mps, state.observed)
    )
    mps, mps_cut, _ = fitting(daemons, room - size - gpus_size)
    content: Json = {"gpus": gpus, "mps": mps, "problems": problems}
    left_out = {"gpus": gpus_cut, "mps": mps_cut, "problems": cut}
    if any(left_out.values()):
        content["more"] = {what: count for what, count in left_out.items() if count}
    return content


def _problem(problem: Problem) -> Json:
    found = as_json(problem)
    return {key: shortened(text, most=_MAX_LENGTHS[key]) for key, text in found.items()}


def _gpu(gpu: Gpu) -> Json:
    """A GPU as JSON. `mode` is of MIG, and absent without MIG. `used` is of the GPU itself if it
    has no instances; where the users are not known, it counts as used.
    """
    unknown = not gpu.answers
    report: Json = {"uuid": gpu.uuid} if gpu.uuid else {"index": gpu.index}
    if unknown:
        report["access"] = gpu.access.value
    if gpu.mig is not None:
        report["mode"] = MODE_WORD[gpu.mig.current]
        if gpu.mig.pending != gpu.mig.current:
            report["pending"] = MODE_WORD[gpu.mig.pending]
    if not gpu.in_mig_mode:
        report["used"] = unknown or gpu.usage.in_use
    report["instances"] = [
        ({"uuid": device.uuid} if device else {})
        | {
            "profile": device.profile if device else instance.profile,
            "start": instance.placement.start,
            "used": unknown or (device is not None and device.usage.in_use),
        }
        for instance, device in mig_devices(gpu)
    ]
    return report
