import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.cluster.plan_sources.nos.grammar import (
    NosDeviceUse,
    StatusKey,
    mig_profile,
    read_spec,
    read_status,
    requested_names,
    requested_profiles,
)
from nodeagent.cluster.plan_sources.nos.requested_devices import (
    MEMORY_LABEL,
    card_memory,
    read_configuration,
    share_memory,
)
from nodeagent.documents.mps import read_quantity
from nodeagent.plan.problems import Code
from nodeagent.plan.shares import MIB
from tests.cluster.plan_sources.nos.rig import gpu
from tests.plan.cards import card

SPEC = "nos.nebuly.com/spec-gpu"


def asked(annotations: dict[str, str]) -> list[tuple[int, str, int]]:
    found = [(a.index, a.profile, a.count) for a in read_spec(annotations).devices]
    assert sorted(requested_profiles(annotations)) == sorted(
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
        reading = read_spec({key: value})
        assert not reading.devices
        assert not reading.wrong
        assert not list(requested_profiles({key: value}))
        (problem,) = reading.ignored
        assert why in problem.message
        assert problem.path.startswith("metadata.annotations[")
        assert "spec-gpu-<index>-<profile>" in problem.remedy


def test_counts_that_are_none() -> None:
    """A negative count, which nos takes for a number, is refused; 0 is as if it were not there."""
    for count in ("-1", "0", "-0", "+0", "000"):
        reading = read_spec({f"{SPEC}-0-1g.5gb": count})
        assert reading.devices == ()
        (problem,) = (*reading.wrong, *reading.ignored)
        assert bool(reading.wrong) == (count == "-1")
        assert problem.code is Code.INVALID_VALUE
        assert f"{SPEC}-0-1g.5gb" in problem.path
        assert ("-1" if count == "-1" else "which has no effect") in problem.message


def test_thousands() -> None:
    """The first of each kind are worded, which takes long, and nothing wrong is passed over."""
    reading = read_spec(
        {f"{SPEC}-{n}-1g.5gb": "x" for n in range(1000)}
        | {f"{SPEC}-{n}-2g.10gb": "-1" for n in range(1000)}
        | {f"{SPEC}-{'0' * n}-3g.20gb": "1" for n in range(1, 301)}
    )
    assert [len(reading.devices), len(reading.wrong), len(reading.ignored)] == [300, 200, 200]


def test_twice() -> None:
    """Two keys for the same GPU and profile both count, as for nos, and that is said."""
    annotations = {f"{SPEC}-0-1g.5gb": "1", f"{SPEC}-00-1g.5gb": "2"}
    assert sorted(asked(annotations)) == [(0, "1g.5gb", 1), (0, "1g.5gb", 2)]
    (problem,) = read_spec(annotations).ignored
    assert "both count" in problem.message


def test_status_in_any_case() -> None:
    found = StatusKey(1, "10gb", NosDeviceUse.USED)
    assert read_status("nos.nebuly.com/status-gpu-1-10gb-USED") == found


# --- names of profiles and shares -----------------------------------------------------------------


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
        assert str(mig_profile(text)) == name
    for text in ("", "10gb", "x1g.5gb", "1g.5gbx", "0g.5gb", "1g.5gb.", "9" * 5000 + "g.1gb"):
        assert mig_profile(text) is None


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


# --- nos' gigabytes, and its configuration of the device plugin ---------------------------------


def test_share_memory() -> None:
    """So many parts of the card as nos counts it; without knowing the card, what the name says."""
    cases: list[tuple[int, int, str]] = [
        (10, 40960, "9990Mi"),  # A100: 41 of nos' gigabytes
        (41, 40960, "40960Mi"),
        (10, 81559, "9946Mi"),  # H100: 82
        (82, 81559, "81559Mi"),
        (4, 15360, "3840Mi"),  # T4: 16
        (10, 0, "10G"),
    ]
    for size, whole, memory in cases:
        assert share_memory(size, whole) == memory


@given(
    st.integers(1, 10**6).flatmap(
        lambda card: st.tuples(
            st.just(card), st.lists(st.integers(1, -(-card // 1000)), min_size=1, max_size=60)
        )
    )
)
def test_what_nos_fits_in_fits(drawn: tuple[int, list[int]]) -> None:
    """Shares that add up to no more than nos' gigabytes of a card are no more than the card."""
    card, sizes = drawn
    while sum(sizes) > -(-card // 1000):
        sizes.pop()
    assert sum(read_quantity(share_memory(size, card)) for size in sizes) <= card * MIB


def test_card_memory() -> None:
    """The driver's word comes first, the label's second; nonsense on the label is not a word."""
    known, unknown = gpu(0), gpu(0, memory=0)
    assert card_memory(known, {MEMORY_LABEL: "1"}) == 40960
    assert card_memory(unknown, {MEMORY_LABEL: "40960"}) == 40960
    assert card_memory(None, {MEMORY_LABEL: "40960"}) == 40960
    for nonsense in ("", "-1", "4e4", "\u0664\u0660", "9" * 5000, " 40960"):
        assert card_memory(None, {MEMORY_LABEL: nonsense}) == 0


# --- the device plugin's configuration ------------------------------------------------------------

TEN: dict[str, Any] = {
    "name": "nvidia.com/gpu",
    "rename": "gpu-10gb",
    "memoryGB": 10,
    "replicas": 2,
    "devices": ["0"],
}


def written(*resources: object) -> str:
    return json.dumps({"version": "v1", "sharing": {"mps": {"resources": list(resources)}}})


def test_shares() -> None:
    """Each resource is so many shares on each of its devices."""
    two = {**TEN, "rename": "gpu-5gb", "memoryGB": 5, "replicas": 3, "devices": ["1", 2]}
    reading = read_configuration(written(TEN, two))
    found = [(a.index, a.profile, a.count) for a in reading.devices]
    assert found == [(0, "10gb", 2), (1, "5gb", 3), (2, "5gb", 3)]
    assert reading.devices[0].where == "sharing.mps.resources[0].devices"
    assert reading.wrong == ()


def test_no_shares() -> None:
    """A configuration of another kind asks for no shares, and that is no fault of it."""
    cases: list[str] = [
        "version: v1\n",
        "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n",
        "sharing: {mps: {}}\n",
        "sharing: []\n",
        "[]",
        "",
        written({**TEN, "replicas": 0}),
    ]
    for text in cases:
        reading = read_configuration(text)
        assert not reading.devices
        assert not reading.wrong


def test_wrong() -> None:
    """What cannot be meant is refused, with its place and what would be right there."""
    cases: list[tuple[str, str, str]] = [
        (written({**TEN, "rename": "shared"}), "resources[0].rename", "gpu-<N>gb"),
        (written({**TEN, "rename": "10gb"}), "resources[0].rename", "gpu-<N>gb"),
        (written({**TEN, "rename": None}), "resources[0].rename", "gpu-<N>gb"),
        (written({**TEN, "memoryGB": 20}), "resources[0].memoryGB", "10, as in rename"),
        (written({**TEN, "replicas": "2"}), "resources[0].replicas", "a number from 0"),
        (written({**TEN, "replicas": -1}), "resources[0].replicas", "a number from 0"),
        (written({**TEN, "replicas": True}), "resources[0].replicas", "a number from 0"),
        (written({**TEN, "devices": "all"}), "resources[0].devices", "a list of GPU indices"),
        (written(TEN, {**TEN, "devices": ["GPU-1"]}), "resources[1].devices[0]", "index of a GPU"),
        (written({**TEN, "devices": ["99999"]}), "resources[0].devices[0]", "the index of a GPU"),
        (written("x"), "resources[0]", "a map"),
        ("sharing: {mps: {resources: x}}", "resources", "a list"),
    ]
    for text, path, right in cases:
        (problem,) = read_configuration(text).wrong
        assert problem.path == f"sharing.mps.{path}"
        assert right in problem.remedy


def test_unreadable() -> None:
    """What is no YAML, or hostile, is refused like any document."""
    cases: list[str] = ["{", "a: &b 1\nc: *b\n", "\x00", "x" * (1 << 21)]
    for text in cases:
        assert read_configuration(text).wrong
