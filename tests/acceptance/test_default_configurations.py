import csv
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.draws import long_run
from tools.try_default_configurations import SIGNS, configurations, try_all

TABLE = Path(__file__).parents[1] / "data" / "default_configurations.csv"


@pytest.mark.parametrize(
    "board",
    [
        pytest.param("h100-80gb", marks=pytest.mark.full),
        "a30",
        pytest.param("t4", marks=pytest.mark.full),
    ],
)
def test_each_ends_as_before(board: str) -> None:
    """None is ever half-done, and each ends as in the table; the normal run tries every eighth."""
    tried = configurations()[:: 1 if long_run() else 8]
    with ProcessPoolExecutor(1) as second_process:
        trials = try_all(board, tried, second_process)
    signs = {t.configuration: SIGNS[t.result] for t in trials}
    rows = csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines())
    assert signs == {r["configuration"]: r[board] for r in rows if r["configuration"] in tried}
