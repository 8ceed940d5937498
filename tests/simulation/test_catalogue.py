"""The list of boards for people to read."""

from __future__ import annotations

from nodeagent.simulation import known_boards


def test_boards_tell_their_profiles_and_evidence() -> None:
    """Memory in bytes, how many fit, and the weakest evidence of each profile."""
    boards = {board.name: board for board in known_boards()}
    h100 = boards["h100-80gb"]
    assert (h100.product, h100.memory) == ("NVIDIA H100 80GB HBM3", 81559 << 20)
    first = h100.profiles[0]
    assert (first.name, first.max_instances, first.memory) == ("1g.10gb", 7, 9984 << 20)
    assert boards["t4"].profiles == ()


def test_guesses_are_shown_as_guesses() -> None:
    """Where no figure is published, the profile says that it is assumed."""
    boards = {board.name: board for board in known_boards()}
    status = {profile.name: profile.status for profile in boards["b200"].profiles}
    assert status["3g.90gb"] == "assumed"
    assert status["1g.23gb"] != "assumed"
    assert "bar1_mib" in boards["h200"].assumed
