"""The plan that survives a restart."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from nodeagent.errors import NodeagentError
from nodeagent.reconciling.last_good_plan import FILE_NAME, LastGoodPlan
from nodeagent.sources.plan_offer import PlanText

PLAN = PlanText(b"version: v1\n\xff", "balanced")


def test_comes_back_as_it_was(tmp_path: Path) -> None:
    """Every byte and the configuration's name survive; nobody else may read them."""
    LastGoodPlan(tmp_path / "new" / FILE_NAME).save(PLAN)
    assert LastGoodPlan(tmp_path / "new" / FILE_NAME).load() == PLAN
    assert stat.S_IMODE((tmp_path / "new" / FILE_NAME).stat().st_mode) == 0o600


def test_the_newer_replaces_the_older(tmp_path: Path) -> None:
    """There is one last good plan, and no file beside it."""
    kept = LastGoodPlan(tmp_path / FILE_NAME)
    kept.save(PLAN)
    kept.save(PlanText(b"other"))
    assert kept.load() == PlanText(b"other")
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_none_was_kept_yet(tmp_path: Path) -> None:
    """A first start is no error."""
    assert LastGoodPlan(tmp_path / FILE_NAME).load() is None


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"text": 1}', b"\xff\xfe", b"null"])
def test_a_damaged_file_is_not_believed(tmp_path: Path, damage: bytes) -> None:
    """What is not whole is never acted upon."""
    (tmp_path / FILE_NAME).write_bytes(damage)
    with pytest.raises(NodeagentError, match="damaged"):
        LastGoodPlan(tmp_path / FILE_NAME).load()


def test_another_text_under_the_same_digest_is_not_believed(tmp_path: Path) -> None:
    """The digest is checked."""
    kept = LastGoodPlan(tmp_path / FILE_NAME)
    kept.save(PLAN)
    fields = json.loads((tmp_path / FILE_NAME).read_text())
    fields["text"] = "AAAA"
    (tmp_path / FILE_NAME).write_text(json.dumps(fields))
    with pytest.raises(NodeagentError, match="damaged"):
        kept.load()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """The reader learns which file and why."""
    (tmp_path / "file").touch()
    with pytest.raises(NodeagentError, match=r"cannot be kept in .*last-good-plan"):
        LastGoodPlan(tmp_path / "file" / FILE_NAME).save(PLAN)


def test_nothing_is_kept_where_there_is_no_place() -> None:
    """A simulated node without a folder of its own keeps nothing, and that is no error."""
    LastGoodPlan(None).save(PLAN)
    assert LastGoodPlan(None).load() is None
