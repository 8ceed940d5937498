"""Which settings a bundle shows; the values of all others are in none of its files."""

import json
from collections.abc import Iterator

from nodeagent.settings import Settings
from nodeagent.settings.sources import schema_of, setting_names, value_of, written
from nodeagent.text import MAX_QUOTED

# Of those that can hold any text. Numbers, durations, switches and choices can hold no secret.
_SHOWN = frozenset(
    {
        "node_name",
        *("api.listen", "metrics.listen"),
        *("run.dir", "state.dir", "cdi.dir", "plan.file"),
        *("mps.user", "kubelet.socket", "kubelet.dir", "health.kernel_log"),
    }
)
_MIN_LENGTH = 4  # characters of a value that is looked for: `1` would be found in every number


def shown_settings(settings: Settings) -> dict[str, object]:
    """What the file, the environment and the flags set, as a settings file would have it."""
    found: dict[str, object] = {}
    for name in _given(settings):
        group, _, key = name.rpartition(".")
        value = written(settings, name) if _is_shown(name) else _placeholder(name)
        inner = found.setdefault(group, {}) if group else found
        if isinstance(inner, dict):
            inner[key] = value
    return found


class Withheld:
    """The values that are not shown, wherever else they appear."""

    def __init__(self, settings: Settings) -> None:
        found: dict[bytes, bytes] = {}
        for name in _given(settings):
            if not _is_shown(name):
                for value in _forms(settings, name):
                    found[value] = _placeholder(name).encode()
        self._found = dict(sorted(found.items(), key=lambda pair: -len(pair[0])))

    def taken_out(self, content: bytes) -> bytes:
        """The content with a placeholder for each of them."""
        for value, placeholder in self._found.items():
            content = content.replace(value, placeholder)
        return content


def _forms(settings: Settings, name: str) -> Iterator[bytes]:
    """The value and, where it is a list, its words; each as it is, as messages cut it, and as JSON
    has it.
    """
    value = value_of(settings, name)
    words = {str(written(settings, name)), *(value if isinstance(value, tuple) else ())}
    for word in words | {word[:MAX_QUOTED] for word in words}:
        if len(word) >= _MIN_LENGTH:
            yield word.encode("utf-8", "surrogateescape")
            yield json.dumps(word)[1:-1].encode()
            yield json.dumps(word, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape")


def _placeholder(name: str) -> str:
    return f"<{name} is not shown>"


def _given(settings: Settings) -> list[str]:

    def is_given(name: str) -> bool:
        group, _, key = name.rpartition(".")
        return key in (getattr(settings, group) if group else settings).given

    return [name for name in setting_names() if is_given(name)]


def _is_shown(name: str) -> bool:
    return name in _SHOWN or _is_closed(schema_of(name))


def _is_closed(schema: object) -> bool:
    """Whether a setting takes a number, a switch or one of some words, and no other text."""
    match schema:
        case {"enum": _} | {"type": "boolean" | "integer" | "number"}:
            return True
        case {"anyOf": [first, *_]}:  # a duration's other form is a number with a unit
            return _is_closed(first)
    return False
