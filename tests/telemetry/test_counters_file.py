import os
from pathlib import Path

import pytest

from nodeagent.errors import NodeagentError
from nodeagent.telemetry.counters_file import counters_text


def test_its_text(tmp_path: Path) -> None:
    """As it is; bytes that are not a text do not hide the rest."""
    (tmp_path / "c").write_bytes(b"A,gauge,\xff\n")
    assert counters_text(tmp_path / "c") == "A,gauge,\ufffd\n"


def test_what_is_no_such_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"#" * ((1 << 20) + 1))
    os.mkfifo(tmp_path / "pipe")
    for name, reported in {"none": "No such file", "large": "1 MiB", "pipe": "regular"}.items():
        with pytest.raises(NodeagentError, match=reported):
            counters_text(tmp_path / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read the kernel's log")
def test_a_file_that_would_have_to_be_waited_for(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc/kmsg")
    with pytest.raises(NodeagentError, match="would wait"):
        all(counters_text(tmp_path / "link") is not None for _ in range(1000))
