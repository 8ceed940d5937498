"""nos' keys as nos reads them, with every trap that is in that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.cluster.plan_sources.nos.grammar import (
    MODE_LABEL,
    NosDeviceUse,
    PartitioningKind,
    StatusKey,
    mig_profile,
    mode_of,
    read_spec,
    read_status,
    requested_names,
    requested_profiles,
    share_size,
    spelled,
    status_keys,
)
from nodeagent.plan.problems import Code
from tests.plan.cards import card

SPEC = "nos.nebuly.com/spec-gpu"
STATUS = "nos.nebuly.com/status-gpu"


def asked(annotations: dict[str, str]) -> list[tuple[int, str, int]]:
    """Index, profile and count of all that is asked."""
    found = [(a.index, a.profile, a.count) for a in read_spec(annotations).devices]
    assert sorted(requested_profiles(annotations)) == sorted(
        (index, name) for index, name, _ in found
    )
    return found


def test_spec() -> None:
    """A well-formed key is a count of a profile on a GPU; other keys are ignored."""
    annotations = {
        f"{SPEC}-0-1g.5gb": "3",
        f"{SPEC}-11-3g.20gb": "1",
        "nos.nebuly.com/spec-partitioning-plan": "1714000000",
        f"{STATUS}-0-1g.5gb-free": "3",
        "example.com/spec-gpu-0-1g.5gb": "1",
    }
    reading = read_spec(annotations)
    assert asked(annotations) == [(0, "1g.5gb", 3), (11, "3g.20gb", 1)]
    assert reading.wrong == reading.ignored == ()
    assert reading.devices[0].where == f'metadata.annotations["{SPEC}-0-1g.5gb"]'


def test_strange_but_read() -> None:
    """What nos accepts against all expectation is accepted."""
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
        (f"{SPEC}-0x0-1g.5gb", "1", "not a GPU index"),
        (f"{SPEC}-\u0660-1g.5gb", "1", "not a GPU index"),  # a digit to Python, not to Go
        (f"{SPEC}-99999999999999999999-1g.5gb", "1", "not a GPU index"),
        (f"{SPEC}-0-1g.5gb", "", "not a whole number"),
        (f"{SPEC}-0-1g.5gb", " 1", "not a whole number"),
        (f"{SPEC}-0-1g.5gb", "1\n", "not a whole number"),
        (f"{SPEC}-0-1g.5gb", "2.0", "not a whole number"),
        (f"{SPEC}-0-1g.5gb", "1_0", "not a whole number"),
        (f"{SPEC}-0-1g.5gb", "two", "not a whole number"),
        (f"{SPEC}-0-1g.5gb", str(2**63), "not a whole number"),
        (f"{SPEC}-0-1g.5gb", "9" * 5000, "not a whole number"),
    ]
    for key, value, why in cases:
        reading = read_spec({key: value})
        assert not reading.devices
        assert not reading.wrong
        assert not list(requested_profiles({key: value}))
        (problem,) = reading.ignored
        assert why in problem.message
        assert problem.path.startswith("metadata.annotations[")
        assert "spec-gpu-<index>-<profile>" in problem.remedy


def test_negative() -> None:
    """A negative count, which nos takes for a number, is refused."""
    reading = read_spec({f"{SPEC}-0-1g.5gb": "-1"})
    (problem,) = reading.wrong
    assert reading.devices == ()
    assert problem.code is Code.INVALID_VALUE
    assert f"{SPEC}-0-1g.5gb" in problem.path
    assert "-1" in problem.message


def test_zero() -> None:
    """A count of 0 is as if the key were not there, and that is said."""
    cases: list[str] = ["0", "-0", "+0", "000"]
    for zero in cases:
        reading = read_spec({f"{SPEC}-0-1g.5gb": zero})
        assert not reading.devices
        assert not reading.wrong
        assert "which has no effect" in reading.ignored[0].message


def test_twice() -> None:
    """Two keys for the same GPU and profile both count, as for nos, and that is said."""
    annotations = {f"{SPEC}-0-1g.5gb": "1", f"{SPEC}-00-1g.5gb": "2"}
    assert sorted(asked(annotations)) == [(0, "1g.5gb", 1), (0, "1g.5gb", 2)]
    (problem,) = read_spec(annotations).ignored
    assert "both count" in problem.message


def test_status() -> None:
    """Status keys are read as nos reads them, in any case of the last word."""
    cases: list[tuple[str, StatusKey | None]] = [
        (f"{STATUS}-0-1g.5gb-free", StatusKey(0, "1g.5gb", NosDeviceUse.FREE)),
        (f"{STATUS}-0-10gb-used", StatusKey(0, "10gb", NosDeviceUse.USED)),
        (f"{STATUS}-1-10gb-USED", StatusKey(1, "10gb", NosDeviceUse.USED)),
        (f"{STATUS}Y-01-1g.5gb-Unknown", StatusKey(1, "1g.5gb", NosDeviceUse.UNKNOWN)),
        (f"{STATUS}-0-1g.5gb", None),
        (f"{STATUS}-0-1g.5gb-busy", None),
        (f"{STATUS}-x-1g.5gb-free", None),
        (f"{STATUS}-0-1g.10gb-me-free", None),
        ("nos.nebuly.com/status-partitioning-plan", None),
        ("example.com/status-gpu-0-1g.5gb-free", None),
    ]
    for key, expected in cases:
        assert read_status(key) == expected


@given(
    st.builds(
        StatusKey,
        st.integers(0, 1023),
        st.from_regex(r"[A-Za-z0-9._]+", fullmatch=True),
        st.sampled_from(NosDeviceUse),
    )
)
def test_status_round_trip(key: StatusKey) -> None:
    """Every status key that is written is read back as what was meant."""
    assert read_status(str(key)) == key


def test_status_keys() -> None:
    """nos' reporters replace whatever begins like a status key; the plan's id is no such key."""
    keys = [f"{STATUS}-0-1g.5gb-free", f"{STATUS}X", f"{STATUS}-0-1g.10gb-me-free"]
    others = ["nos.nebuly.com/status-partitioning-plan", f"{SPEC}-0-1g.5gb", "a/b"]
    assert set(status_keys(dict.fromkeys([*keys, *others], "1"))) == set(keys)


def test_mode() -> None:
    """The label's three words, exactly."""
    cases: list[tuple[dict[str, str], PartitioningKind | None]] = [
        ({MODE_LABEL: "mig"}, PartitioningKind.MIG),
        ({MODE_LABEL: "mps"}, PartitioningKind.MPS),
        ({MODE_LABEL: "hybrid"}, PartitioningKind.HYBRID),
        ({MODE_LABEL: "MIG"}, None),
        ({MODE_LABEL: ""}, None),
        ({}, None),
    ]
    for labels, mode in cases:
        assert mode_of(labels) is mode


def test_thousands_of_annotations_are_one_fault() -> None:
    """Who may annotate Nodes can write seven thousand, each of which costs time to word."""
    many = {f"nos.nebuly.com/spec-gpu-{number}-1g.10gb": "1" for number in range(7_000)}
    found = read_spec(many)
    assert [(one.message, one.path) for one in found.wrong] == [
        (
            "there are 7000 annotations nos.nebuly.com/spec-gpu..., at most 4096 are read",
            "metadata.annotations",
        )
    ]
    assert found.devices == ()


# --- names of profiles and shares -----------------------------------------------------------------


def test_mig_profile() -> None:
    """The device plugin's dot in the place of a plus is undone."""
    cases: list[tuple[str, str]] = [
        ("1g.5gb", "1g.5gb"),
        ("1g.10gb.me", "1g.10gb+me"),
        ("1g.10gb+me", "1g.10gb+me"),
        ("2g.48gb.me.all", "2g.48gb+me.all"),
        ("1c.3g.40gb", "1c.3g.40gb"),
        ("7g.79gb", "7g.79gb"),
    ]
    for text, name in cases:
        assert str(mig_profile(text)) == name


def test_no_mig_profile() -> None:
    """nos' own test is not anchored and lets such names through; no card has them."""
    cases: list[str] = [
        "",
        "10gb",
        "x1g.5gb",
        "1g.5gbx",
        "0g.5gb",
        "1g.5gb.",
        "1g.5gb+",
        "9" * 5000 + "g.1gb",
    ]
    for text in cases:
        assert mig_profile(text) is None


def test_share_size() -> None:
    """A share is its gigabytes, at least one, and nothing else."""
    cases: list[tuple[str, int | None]] = [
        ("10gb", 10),
        ("1gb", 1),
        ("99999gb", 99999),
        ("0gb", None),
        ("010gb", None),
        ("10GB", None),
        ("1g.10gb", None),
        ("10gb\n", None),
        ("100000gb", None),
        ("gb", None),
        ("", None),
    ]
    for text, size in cases:
        assert share_size(text) == size


def test_spelled() -> None:
    """What a key can hold is spelled for it; what it cannot, is not."""
    cases: list[tuple[str, str | None]] = [
        ("3g.20gb", "3g.20gb"),
        ("1g.10gb+me", "1g.10gb.me"),
        ("1c.3g.40gb", "1c.3g.40gb"),
        ("2g.48gb-me", None),  # nos would split the key there
        ("1g.24gb+gfx,me", None),
    ]
    for device, text in cases:
        assert spelled(device) == text


def test_asked_words() -> None:
    """A card's profile is called as it was asked for, by its own name where that was used too."""
    gpu = card("a100-80gb")
    assert requested_names(gpu, ["7g.79gb", "1g.10gb"]) == {
        "7g.80gb": "7g.79gb",
        "1g.10gb": "1g.10gb",
    }
    assert requested_names(gpu, ["7g.79gb", "7g.80gb"]) == {"7g.80gb": "7g.80gb"}
    assert requested_names(gpu, ["7g.81gb", "7g.79gb"]) == {"7g.80gb": "7g.79gb"}
    assert requested_names(gpu, ["1g.10gb.me"]) == {"1g.10gb+me": "1g.10gb.me"}
    assert requested_names(gpu, ["1c.3g.39gb", "nonsense", "9g.10gb"]) == {
        "1c.3g.40gb": "1c.3g.39gb"
    }


def test_too_many_words() -> None:
    """No GPU has so many kinds of devices, and a hostile node must not cost time."""
    assert requested_names(card("a100-80gb"), [f"1g.{n}gb" for n in range(1, 20)]) == {}
