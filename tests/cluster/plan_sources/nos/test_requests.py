from nodeagent.cluster.plan_sources.nos import grammar
from nodeagent.plan.problems import Code
from tests.plan.cards import card

SPEC = "nos.nebuly.com/spec-gpu"


def asked(annotations: dict[str, str]) -> list[tuple[int, str, int]]:
    found = [(a.index, a.profile, a.count) for a in grammar.read_spec(annotations).devices]
    assert sorted(grammar.requested_profiles(annotations)) == sorted(
        (index, name) for index, name, _ in found
    )
    return found


def test_strange_but_read() -> None:
    cases: list[tuple[str, str, tuple[int, str, int]]] = [
        (f"{SPEC}X-0-1g.5gb", "1", (0, "1g.5gb", 1)),  # nothing is asked of what follows `gpu`
        (f"{SPEC}-00-1g.5gb", "1", (0, "1g.5gb", 1)),
        (f"{SPEC}-0-1g.5gb", "+2", (0, "1g.5gb", 2)),
        (f"{SPEC}-0-1g.5gb", "007", (0, "1g.5gb", 7)),
        (f"{SPEC}-0-1g.5gb", "0" * 5000 + "1", (0, "1g.5gb", 1)),
        (f"{SPEC}-0-anything", "1", (0, "anything", 1)),
        (f"{SPEC}-0-1g.5gb", str(2**63 - 1), (0, "1g.5gb", 2**63 - 1)),
    ]
    for key, value, expected in cases:
        assert asked({key: value}) == [expected]


def test_passed_over() -> None:
    """What nos ignores in silence is ignored, and said: which key, why, and what would be right."""
    cases: list[tuple[str, str, str]] = [
        (f"{SPEC}-0-1g.10gb-me", "1", "its profile has a -"),
        (f"{SPEC}-0", "1", "parts of it are missing"),
        (SPEC, "1", "parts of it are missing"),
        (f"{SPEC}-x-1g.5gb", "1", '"x" is not a GPU index'),
        (f"{SPEC}-\u0660-1g.5gb", "1", "not a GPU index"),  # a digit to Python, not to Go
        (f"{SPEC}-99999999999999999999-1g.5gb", "1", "not a GPU index"),
        (f"{SPEC}-0-1g.5gb", "", "not a whole number"),
        (f"{SPEC}-0-1g.5gb", "1\n", "not a whole number"),
        (f"{SPEC}-0-1g.5gb", "1_0", "not a whole number"),
        (f"{SPEC}-0-1g.5gb", str(2**63), "not a whole number"),
        (f"{SPEC}-0-1g.5gb", "9" * 5000, "not a whole number"),
    ]
    for key, value, why in cases:
        reading = grammar.read_spec({key: value})
        assert not reading.devices
        assert not reading.wrong
        assert not list(grammar.requested_profiles({key: value}))
        (problem,) = reading.ignored
        assert why in problem.message
        assert problem.path.startswith("metadata.annotations[")
        assert "spec-gpu-<index>-<profile>" in problem.remedy


def test_counts_that_are_none() -> None:
    """A negative count, which nos takes for a number, is refused; 0 is as if it were not there."""
    for count in ("-1", "0", "-0", "+0", "000"):
        reading = grammar.read_spec({f"{SPEC}-0-1g.5gb": count})
        assert reading.devices == ()
        (problem,) = (*reading.wrong, *reading.ignored)
        assert bool(reading.wrong) == (count == "-1")
        assert problem.code is Code.INVALID_VALUE
        assert f"{SPEC}-0-1g.5gb" in problem.path
        assert ("-1" if count == "-1" else "which has no effect") in problem.message


def test_thousands() -> None:
    """The first of each kind are worded, which takes long, and nothing wrong is passed over."""
    reading = grammar.read_spec(
        {f"{SPEC}-{n}-1g.5gb": "x" for n in range(1000)}
        | {f"{SPEC}-{n}-2g.10gb": "-1" for n in range(1000)}
        | {f"{SPEC}-{'0' * n}-3g.20gb": "1" for n in range(1, 301)}
    )
    assert [len(reading.devices), len(reading.wrong), len(reading.ignored)] == [300, 200, 200]


def test_twice() -> None:
    """Two keys for the same GPU and profile both count, as for nos, and that is said."""
    annotations = {f"{SPEC}-0-1g.5gb": "1", f"{SPEC}-00-1g.5gb": "2"}
    assert sorted(asked(annotations)) == [(0, "1g.5gb", 1), (0, "1g.5gb", 2)]
    (problem,) = grammar.read_spec(annotations).ignored
    assert "both count" in problem.message


def test_status_in_any_case() -> None:
    found = grammar.StatusKey(1, "10gb", grammar.NosDeviceUse.USED)
    assert grammar.read_status("nos.nebuly.com/status-gpu-1-10gb-USED") == found


# --- names of profiles ----------------------------------------------------------------------------


def test_mig_profile() -> None:
    """The device plugin's dot in the place of a plus is undone. nos' own test is not anchored and
    lets names through that no card has.
    """
    cases: list[tuple[str, str]] = [
        ("1g.5gb", "1g.5gb"),
        ("1g.10gb.me", "1g.10gb+me"),
        ("1g.10gb+me", "1g.10gb+me"),
        ("2g.48gb.me.all", "2g.48gb+me.all"),
    ]
    for text, name in cases:
        assert str(grammar.mig_profile(text)) == name
    for text in ("", "10gb", "x1g.5gb", "1g.5gbx", "0g.5gb", "1g.5gb.", "9" * 5000 + "g.1gb"):
        assert grammar.mig_profile(text) is None


def test_asked_words() -> None:
    """A card's profile is called as it was asked for, by its own name where that was used too."""
    gpu = card("a100-80gb")
    assert grammar.requested_names(gpu, ["7g.79gb", "1g.10gb"]) == {
        "7g.80gb": "7g.79gb",
        "1g.10gb": "1g.10gb",
    }
    assert grammar.requested_names(gpu, ["7g.79gb", "7g.80gb"]) == {"7g.80gb": "7g.80gb"}
    assert grammar.requested_names(gpu, ["7g.81gb", "7g.79gb"]) == {"7g.80gb": "7g.79gb"}
    assert grammar.requested_names(gpu, ["1g.10gb.me"]) == {"1g.10gb+me": "1g.10gb.me"}
    assert grammar.requested_names(gpu, ["1c.3g.39gb", "nonsense", "9g.10gb"]) == {
        "1c.3g.40gb": "1c.3g.39gb"
    }


def test_too_many_words() -> None:
    """No GPU has so many kinds of devices, and a hostile node must not cost time."""
    assert grammar.requested_names(card("a100-80gb"), [f"1g.{n}gb" for n in range(1, 20)]) == {}
