from pathlib import Path

import pytest

from tests.fuzz.parsers import all_parsers
from tests.fuzz.runs import input_of, run

SOME = 30  # of each parser
MANY = 3000


@pytest.mark.parametrize("name", all_parsers())
@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.full)])
def test_no_input_gets_past_its_reader(tmp_path: Path, name: str, many: bool) -> None:
    parser = all_parsers()[name]
    first = 0 if many else len(parser.seeds) + len(parser.large)
    found = run(parser, range(first, first + (MANY if many else SOME)), "1", tmp_path)
    assert {what: (fault.what, fault.text[:500]) for what, fault in found.faults.items()} == {}


@pytest.mark.parametrize("name", all_parsers())
def test_inputs_begin_with_some_that_are_accepted(tmp_path: Path, name: str) -> None:
    parser = all_parsers()[name]
    found = run(parser, range(len(parser.seeds)), "1", tmp_path)
    assert found.accepted > 0
    assert not found.faults
    assert input_of(parser, "1", 777) == input_of(parser, "1", 777) != input_of(parser, "2", 777)
