"""The plan that survives a restart."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from nodeagent.documents.reading import read_document
from nodeagent.errors import NodeagentError
from nodeagent.plan.numbers import NumberedGpu
from nodeagent.reconcile.plan_update import FILE_NAME, KeptPlan, PlanText, last_good_plan

GPUS = (NumberedGpu(0, "GPU-0", "00000000:1A:00.0"), NumberedGpu(1, "GPU-1", "00000000:1B:00.0"))
PLAN = KeptPlan(PlanText(b"version: v1\n\xff", "balanced"), GPUS)


def test_comes_back_as_it_was(tmp_path: Path) -> None:
    """Every byte and the configuration's name survive; no other user may read them."""
    last_good_plan(tmp_path / "new" / FILE_NAME).save(PLAN)
    assert last_good_plan(tmp_path / "new" / FILE_NAME).load() == PLAN
    assert stat.S_IMODE((tmp_path / "new" / FILE_NAME).stat().st_mode) == 0o600


def test_the_newer_replaces_the_older(tmp_path: Path) -> None:
    """There is one last good plan, and no file beside it."""
    kept = last_good_plan(tmp_path / FILE_NAME)
    kept.save(PLAN)
    kept.save(KeptPlan(PlanText(b"other")))
    assert kept.load() == KeptPlan(PlanText(b"other"))
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_none_was_kept_yet(tmp_path: Path) -> None:
    """A first start is no error."""
    assert last_good_plan(tmp_path / FILE_NAME).load() is None


def test_a_damaged_file_is_not_believed(tmp_path: Path) -> None:
    """What is not whole is never acted upon; the problem says what follows."""
    for damage in (b"", b"{", b"[]", b'{"text": 1}', b"\xff\xfe", b"null"):
        (tmp_path / FILE_NAME).write_bytes(damage)
        kept = last_good_plan(tmp_path / FILE_NAME)
        assert kept.load() is None, damage
        assert kept.problem is not None, damage
        assert "only the plan's own source counts" in kept.problem.message


def test_people_can_read_it(tmp_path: Path) -> None:
    """It is a plan, with comments of the agent's."""
    text = b"version: v1\ngpus: [{devices: [0], mig: enabled}]\n"
    last_good_plan(tmp_path / FILE_NAME).save(KeptPlan(PlanText(text), GPUS))
    assert read_document((tmp_path / FILE_NAME).read_bytes()).entries == read_document(text).entries


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """The reader learns which file and why."""
    (tmp_path / "file").touch()
    with pytest.raises(NodeagentError, match=r"cannot be kept in .*last-good-plan"):
        last_good_plan(tmp_path / "file" / FILE_NAME).save(PLAN)


def test_nothing_is_kept_where_there_is_no_place() -> None:
    """A simulated node without a folder of its own keeps nothing, and that is no error."""
    last_good_plan(None).save(PLAN)
    assert last_good_plan(None).load() is None
