"""State files whose content is one checked type."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest
from msgspec import Meta

from nodeagent.files.json_state import Stored, json_format
from nodeagent.files.state import StateUnusable, read_state, write_state


class Slices(Stored, frozen=True, array_like=True):
    """Where a device lies."""

    start: Annotated[int, Meta(ge=0)]
    size: int


class Kept(Stored, frozen=True):
    """A state file's content."""

    device: str
    was_ready: bool = False
    slices: Slices | None = None
    watts: float | None = None


FORM = json_format("kept", 1, 1 << 20, Kept)


def test_a_value_comes_back_as_it_was(tmp_path: Path) -> None:
    """Keys in camelCase; keys that a later release of the same version added are ignored."""
    path, value = tmp_path / "kept", Kept(device="GPU-1", was_ready=True, slices=Slices(4, 2))
    write_state(path, FORM, value)
    content = path.read_bytes().partition(b"\n")[2]
    assert content == b'{"device":"GPU-1","wasReady":true,"slices":[4,2],"watts":null}'
    assert read_state(path, FORM) == value
    path.write_bytes(b'{"device": "GPU-1", "later": {}}')
    assert read_state(path, FORM) == Kept(device="GPU-1")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 100_000,
        b'{"device": "a" * 2}',
        b'{"device": 1}',
        b'{"wasReady": true}',
        b'{"device": "a", "wasReady": 1}',
        b'{"device": "a", "slices": [4]}',
        b'{"device": "a", "slices": [-1, 2]}',
        b'{"device": "a", "watts": NaN}',
        b'{"device": "a", "watts": 1e999}',
    ],
)
def test_what_is_not_such_a_value_is_unusable(tmp_path: Path, content: bytes) -> None:
    """Also where another reader would make infinity of it, or run out of stack."""
    path = tmp_path / "kept"
    path.write_bytes(content)
    with pytest.raises(StateUnusable):
        read_state(path, FORM)
