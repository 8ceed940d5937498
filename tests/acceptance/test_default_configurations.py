from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.draws import long_run
from tools.try_default_configurations import SIGNS, configurations, try_all

PAGE = Path(__file__).parents[2] / "docs" / "default-configurations.md"


def documented(board: str) -> dict[str, str]:
    rows = [
        [cell.strip() for cell in line.strip("|\n ").split("|")]
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ")
    ]
    column = rows[0].index(board)
    return {row[0]: row[column] for row in rows[1:]}


@pytest.mark.parametrize(
    "board",
    [
        pytest.param("h100-80gb", marks=pytest.mark.full),
        "a30",
        pytest.param("t4", marks=pytest.mark.full),
    ],
)
def test_as_documented(board: str) -> None:
    """None is ever half-done, and each ends as the page says; the normal run tries every eighth."""
    tried = configurations()[:: 1 if long_run() else 8]
    with ProcessPoolExecutor(1) as second_process:
        trials = try_all(board, tried, second_process)
    signs = {t.configuration: SIGNS[t.result] for t in trials}
    assert signs == {name: documented(board)[name] for name in tried}
