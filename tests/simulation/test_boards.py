import pytest

from nodeagent.errors import UsageError
from nodeagent.simulation.boards import board_names, load_board, parse_boards, read_board

REQUIRED = {
    "a30", "a100-40gb", "a100-80gb", "h100-80gb", "h100-pcie", "h100-nvl", "gh200", "h200",
    "b200", "gb200", "rtx-pro-6000", "t4", "l40s",
}  # fmt: skip


def test_the_boards_that_must_be_there() -> None:
    assert set(board_names()) >= REQUIRED


@pytest.mark.parametrize("name", board_names())
def test_figures_fit_together(name: str) -> None:
    board = load_board(name)
    assert board.name == name
    assert board.pci_device_id & 0xFFFF == 0x10DE
    assert 0 < board.reserved_mib < board.memory_mib
    assert board.nvlink_peer in {"none", "switch", "pair"}
    assert (board.nvlinks == 0) == (board.nvlink_peer == "none")
    assert len({p.id for p in board.profiles}) == len({p.kind for p in board.profiles})
    assert len({p.name for p in board.profiles}) == len(board.profiles)
    for profile in board.profiles:
        assert 0 < profile.memory_mib <= board.memory_mib
        assert 0 < profile.multiprocessors <= board.multiprocessors
        assert profile.max_instances <= len(profile.placements)
        assert len({place.size for place in profile.placements}) == 1
        for place in profile.placements:
            assert 0 <= place.start < place.start + place.size <= board.memory_slices
        for ids in ("id", "mirrored_id"):
            seen = [getattr(place, ids) for place in profile.placements]
            assert len(set(seen)) == len(seen)
        assert any(part.slices == profile.slices for part in profile.compute)
        for part in profile.compute:
            assert part.slices <= profile.slices
            assert part.multiprocessors <= profile.multiprocessors
            assert 0 < part.max_instances <= len(part.placements)
            assert all(p.start >= 0 and p.start + p.size <= 8 for p in part.placements)
    memories = [m for _, m in sorted((p.placements[0].size, p.memory_mib) for p in board.profiles)]
    assert memories == sorted(memories)
    assert not memories or memories[-1] > 0.95 * board.memory_mib


@pytest.mark.parametrize("name", board_names())
def test_every_field_says_where_it_comes_from(name: str) -> None:
    raw = read_board(name)
    rows = [raw, *raw["profiles"], *(c for p in raw["profiles"] for c in p["compute"])]
    for row in rows:
        fields = set(row) - {"board", "provenance", "profiles", "compute", "sources"}
        assert fields == set(row["provenance"])
        for field, known in row["provenance"].items():
            assert known["status"] in {"confirmed", "single-source", "inferred", "assumed"}
            if known["status"] == "assumed":
                assert known["note"], field
            assert set(known["sources"]) <= set(raw["sources"])


def test_boards_are_read_from_text() -> None:
    assert parse_boards("a100-40gb:2,t4:1") == ("a100-40gb", "a100-40gb", "t4")
    assert parse_boards(" H100-80GB ") == ("h100-80gb",)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("h100-80gp:8", "did you mean h100-80gb"),
        ("h100:8", "did you mean h100-80gb or h100-nvl or h100-pcie"),
        ("", "no board ''"),
        ("potato", "known: a100-40gb"),
        ("t4:0", "no valid number"),
        ("t4:two", "no valid number"),
        ("t4:65", "1 to 64"),
        ("t4:40,t4:40", "asks for 80 GPUs"),
        ("t4:1000000000000000000000", "no valid number"),
        ("../t4", "no board '../t4'"),
    ],
)
def test_bad_boards_are_refused_with_a_remedy(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        parse_boards(text)


def test_any_figure_can_be_overridden() -> None:
    overrides = {
        "b200": {
            "bar1_mib": 1024,
            "profiles": {"3g.90gb": {"memory_mib": 91000, "compute": {"2": {"max_instances": 1}}}},
        }
    }
    board = load_board("b200", overrides)
    assert board.bar1_mib == 1024
    profile = next(p for p in board.profiles if p.name == "3g.90gb")
    assert profile.memory_mib == 91000
    assert load_board("b200").bar1_mib != 1024
    assert load_board("t4", overrides) == load_board("t4")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"bar1": 1}, "b200.bar1 does not exist"),
        ({"bar1_mib": "much"}, "b200.bar1_mib cannot be 'much'"),
        ({"profiles": {"3g.91gb": {}}}, "did you mean 3g.90gb"),
        ({"profiles": 7}, "b200.profiles cannot be 7"),
        ({"profiles": {"3g.90gb": {"slice": 3}}}, "b200.profiles.3g.90gb.slice does not exist"),
        ({"profiles": {"3g.90gb": 5}}, "b200.profiles.3g.90gb cannot be 5"),
        ({"profiles": {"3g.90gb": {"placements": [{"start": 0}]}}}, "do not fit together"),
        ({"compute_capability": "ten"}, "do not fit together"),
    ],
)
def test_wrong_overrides_are_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        load_board("b200", {"b200": changes})
