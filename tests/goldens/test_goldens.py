import json
from pathlib import Path

import pytest

from tests.goldens.cases import RECORDED, Case, cases, difference
from tests.goldens.session import Session

CASES = cases()


@pytest.mark.timeout(400)  # an agent's states one after the other, on a busy machine
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_as_recorded(case: Case) -> None:
    """No character differs; if one shall, `make goldens` records it and git shows it."""
    if not case.comparable:
        pytest.skip(f"recorded with Python {case.python}")
    recorded = case.path.read_text(encoding="utf-8")
    differs = difference(recorded, case.record(recorded))
    assert not differs, differs


def test_nothing_is_recorded_without_a_case() -> None:
    """A file without a case would never be compared."""
    assert {case.path for case in CASES} == set(RECORDED.rglob("*.txt"))


def test_each_board_is_recorded(tmp_path: Path) -> None:
    _, out, _ = Session(tmp_path).run(["nodeagent", "simulate", "boards", "-o", "json"])
    named = {f"boards/{board['name']}" for board in json.loads(out)["boards"]}
    assert named == {case.name for case in CASES if case.name.startswith("boards/")}
