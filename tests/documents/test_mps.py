import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.documents.mps import likely_quantity, read_quantity
from nodeagent.documents.reading import read_document
from nodeagent.errors import DocumentError
from nodeagent.plan.desired import MpsEntry, ShareEntry, Shares
from nodeagent.plan.problems import Problem
from tests.documents.test_schema import VALIDATOR

GIB = 1024**3


def mps(**keys: object) -> MpsEntry | None:
    plan = {"version": "v1", "gpus": [{"devices": [0], "mps": keys}]}
    return read_document(json.dumps(plan)).entries[0].mps


def fault_of(**keys: object) -> Problem:
    """The one fault of such an `mps`; the schema refuses it as well, but for fractions of bytes."""
    with pytest.raises(DocumentError) as caught:
        mps(**keys)
    [problem] = caught.value.problems
    plan = {"version": "v1", "gpus": [{"devices": [0], "mps": keys}]}
    assert "whole number of bytes" in problem.message or not VALIDATOR.is_valid(plan)
    return problem


def test_shares() -> None:
    shares = {"small": {"count": 4, "memory": "8Gi", "threads": 15}, "large": {"memory": "40Gi"}}
    assert mps(user=1000, shares=shares, enforce="terminate", oversubscribe=True) == MpsEntry(
        path="gpus[0].mps",
        clients=Shares(
            (
                ShareEntry("small", 4, 8 * GIB, 15.0, "gpus[0].mps.shares.small"),
                ShareEntry("large", 1, 40 * GIB, None, "gpus[0].mps.shares.large"),
            ),
            "gpus[0].mps.shares",
        ),
        user="1000",
        enforce="terminate",
        oversubscribe=True,
    )


@pytest.mark.parametrize(
    ("written", "user"),
    [
        (0, "0"),
        ("1000", "1000"),
        ("1000:100", "1000:100"),
        ("0100:01", "100:1"),
        ("mps-user", "mps-user"),
        ("svc@realm", "svc@realm"),
    ],
)
def test_users(written: object, user: str) -> None:
    found = mps(user=written, replicas=1)
    assert found is not None
    assert found.user == user


@pytest.mark.parametrize(
    "user", [-1, 2**32 - 1, "1:", ":1", "a b", "", True, 1.5, None, "1:x", "$"]
)
def test_no_users(user: object) -> None:
    assert fault_of(user=user, replicas=1).path == "gpus[0].mps.user"


@pytest.mark.parametrize("threads", [0, -1, 100.1, 101, True, "25", "25%", None])
def test_threads(threads: object) -> None:
    problem = fault_of(clients={"threads": threads})
    assert problem.path == "gpus[0].mps.clients.threads"
    assert "at most 100" in problem.message


@pytest.mark.parametrize(
    ("memory", "remedy"),
    [("8GB", "did you mean 8G?"), ("0.1Gi", ""), (-1, ""), (1.5, ""), (True, ""), (None, "")],
)
def test_memory(memory: object, remedy: str) -> None:
    problem = fault_of(clients={"memory": memory})
    assert (problem.path, problem.remedy) == ("gpus[0].mps.clients.memory", remedy)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ({}, "none of them"),
        ({"user": 1}, "none of them"),
        ({"replicas": 2, "clients": {}}, "replicas and clients"),
        ({"shares": {"a": {}}, "replicas": 2, "clients": {}}, "shares and replicas and clients"),
    ],
)
def test_exactly_one(keys: dict[str, object], found: str) -> None:
    problem = fault_of(**keys)
    assert problem.path == "gpus[0].mps"
    assert f"found {found}, expected exactly one" in problem.message


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"replicas": 0}, "gpus[0].mps.replicas"),
        ({"replicas": True}, "gpus[0].mps.replicas"),
        ({"shares": {}}, "gpus[0].mps.shares"),
        ({"shares": {"a": {"count": 0}}}, "gpus[0].mps.shares.a.count"),
        ({"shares": {"A B": {}}}, 'gpus[0].mps.shares["A B"]'),
        ({"shares": {"x" * 64: {}}}, f"gpus[0].mps.shares.{'x' * 64}"),
        ({"replicas": 1, "enforce": "kill"}, "gpus[0].mps.enforce"),
        ({"replicas": 1, "oversubscribe": "yes"}, "gpus[0].mps.oversubscribe"),
    ],
)
def test_refused(keys: dict[str, object], path: str) -> None:
    assert fault_of(**keys).path == path


# --- quantities -------------------------------------------------------------------------------

FACTORS = {
    "": Fraction(1),
    **{s: Fraction(1024**n) for n, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), 1)},
    **{s: Fraction(1000**n) for n, s in enumerate(("k", "M", "G", "T", "P"), 1)},
    "m": Fraction(1, 1000),
    "u": Fraction(1, 10**6),
    "e3": Fraction(1000),
    "E+2": Fraction(100),
    "e-1": Fraction(1, 10),
}


def test_quantities() -> None:
    values = {"8Gi": 8589934592, "512Mi": 536870912, "10G": 10_000_000_000, "1.5Gi": 1610612736}
    values |= {".5Ki": 512, "1.": 1, "+1k": 1000, "1e3": 1000, "1E": 10**18, "1000m": 1, "0001": 1}
    values["9223372036854775807"] = 2**63 - 1
    assert {text: read_quantity(text) for text in values} == values


def test_quantities_refused() -> None:
    none = ("1e999", "", ".", "8gi", "8 Gi", "8Gi\n", "1_000", "٣Gi", "1e3Gi", "9" * 1000)
    reasons = dict.fromkeys(none, "expected") | {"0.1Gi": "whole number of bytes"}
    reasons |= {"0Gi": "more than 0", "-1Gi": "negative", "1e99": "more than"}
    reasons["8Ei"] = "more than 9223372036854775807"
    for text, reason in reasons.items():
        with pytest.raises(ValueError, match=reason):
            read_quantity(text)


@given(st.integers(0, 10**9), st.integers(0, 999), st.sampled_from(sorted(FACTORS)))
def test_exact(whole: int, thousandths: int, suffix: str) -> None:
    exact = (whole + Fraction(thousandths, 1000)) * FACTORS[suffix]
    text = f"{whole}.{thousandths:03}{suffix}"
    if exact.denominator == 1 and 0 < exact < 2**63:
        assert read_quantity(text) == exact
    else:
        with pytest.raises(ValueError, match=r"bytes|more than"):
            read_quantity(text)


def test_likely_quantities() -> None:
    likely = {"8GB": "8G", "8 gi": "8Gi", "512mib": "512Mi", "8KB": "8k", "8": None, "x": None}
    assert {text: likely_quantity(text) for text in likely} == likely
    assert all(read_quantity(text) for text in likely.values() if text)
