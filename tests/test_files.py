"""Files that are replaced whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.files import replace_file


def test_the_new_content_for_the_owner_alone(tmp_path: Path) -> None:
    """Whatever was there, and however it could be read; nothing else is left."""
    path = tmp_path / "kept"
    path.write_bytes(b"old")
    path.chmod(0o644)
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_replaced_leaves_nothing(tmp_path: Path) -> None:
    """A directory in its place: the error is told, and no temporary file stays."""
    path = tmp_path / "kept"
    path.mkdir()
    with pytest.raises(OSError, match="kept"):
        replace_file(path, b"new")
    assert list(tmp_path.iterdir()) == [path]
