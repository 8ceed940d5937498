"""What is advised is given, and the same load runs on it: no allocation is refused, its activity
has room, and it is advised no more.
"""

import random
from pathlib import Path

import pytest

from nodeagent.simulation.boards import Board, load_board
from tests.draws import draws
from tests.use.replay import Load, Replay, a_load, some_device

BOARDS = ("h100-80gb", "h100-pcie", "a100-40gb", "a30", "b200", "h200", "rtx-pro-6000", "t4")
LOADS = 8
_ROUNDS = 8  # of loads that grow on ever larger devices


@pytest.mark.parametrize("board", BOARDS)
async def test_a_load_runs_on_what_was_advised(board: str, tmp_path: Path) -> None:
    for seed in range(draws(8)):
        chance, kind = random.Random(f"{board} {seed}"), load_board(board, {})
        loads = [a_load(f"load{n}x", kind, some_device(kind, chance), chance) for n in range(LOADS)]
        await _replayed(Replay(board, tmp_path), kind, loads)


async def _replayed(replay: Replay, board: Board, loads: list[Load]) -> None:
    before: dict[str, str] = {}
    for _ in range(_ROUNDS):
        await replay.run(loads)
        for load in loads:
            _judge(load, board, before.get(load.name))
        before = {load.name: load.advice.verdict for load in loads if load.advice}
        loads = [load for load in loads if load.next_device]
        if not loads:
            return
        for load in loads:
            load.has = load.next_device or load.has
    raise AssertionError(f"still advised: {loads}")


def _judge(load: Load, board: Board, before: str | None) -> None:
    advice, given = load.advice, load.next_device
    assert advice
    match advice.verdict:
        case "larger":  # or the card has nothing larger
            assert before in {None, "larger"}, load
        case "smaller":
            assert before in {None, "smaller"}, load
            assert not load.refused, load
            assert given
            _, multiprocessors, slices = given.size(board)
            # Of a slice that is shared it is not known; what was not measured is said.
            if advice.why[1].endswith("%") or (advice.activity and not load.has.profile):
                assert load.at_p95[0] <= multiprocessors, load
                fine = board.compute_capability >= (9, 0) and not any(load.beside)
                assert not fine or load.at_p95[1] <= slices, load
            else:
                assert given.threads in {None, load.has.threads, 100.0}, load
        case _:
            assert advice.verdict == "keep", load
            assert not load.refused, load
