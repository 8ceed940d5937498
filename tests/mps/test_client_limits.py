"""A client's own limits are read as MPS documents them, and the tighter ones hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.mps.clients.assess import (
    ClientLimits,
    limits_in_force,
    own_memory_limit,
    own_threads,
)
from nodeagent.plan.shares import MIB, Share
from tests.mps.plans import GPU, MIG, SMALL, wanted

GIB = 1024 * MIB


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("0=1G", GIB),
        ("0=1GB", GIB),
        ("0=512M", 512 * MIB),
        ("0=512MB", 512 * MIB),
        ("0=512mb", 512 * MIB),
        ("0=1G,1=512MB", GIB),
        ("1=5M,0=7M", 7 * MIB),
        (f"{GPU}=3G", 3 * GIB),
        (f"{MIG}=1M,{GPU}=3G", 3 * GIB),
        ("0=1G,", GIB),
    ],
)
def test_documented_forms(text: str, limit: int) -> None:
    """By ordinal or by UUID, several devices in one."""
    assert own_memory_limit(text, GPU) == limit


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0=1.5G",  # 1 MB to the daemon
        "0=1T",  # the same
        "0=0G",  # takes the limit away
        "0=-1G",
        "0=",
        "0",
        "=1G",
        "1G",
        "0=1G2",
        "0=5",  # documented nowhere
        "0 = 1G",
        " 0=1G",
        "00=1G",
        "+0=1G",
        "0=1G;1=2G",
        "0=1G\n",
        "0=\u0661G",
        "0=9999999999999999999999G",
        f"{GPU[:12]}=1G",  # perhaps it is found by its beginning
        "1=5M",
        f"{MIG}=5M",
        "gpu=5M",
        "0=1G,0=abc",
        "x" * 100_000,
        "0=1G," * 2 + "0=" + "9" * 5000,
    ],
)
def test_what_is_no_certain_limit(text: str) -> None:
    """It counts as no limit, so a client that relies on it is found."""
    assert own_memory_limit(text, GPU) is None


@pytest.mark.parametrize("text", ["0=1G,0=4G", "0=4G,0=1G", f"0=1G,{GPU}=4G", f"{GPU}=4G,0=1G"])
def test_two_for_one_device(text: str) -> None:
    """The looser is taken."""
    assert own_memory_limit(text, GPU) == 4 * GIB


def test_kibibytes() -> None:
    """Are taken for what drivers up to 555 make of them, where 1024K is 1 GiB."""
    assert own_memory_limit("0=1024K", GPU) == own_memory_limit("0=1024KB", GPU) == GIB


@pytest.mark.parametrize(
    ("text", "threads"), [("25", 25.0), ("33.33", 33.33), ("100", 100.0), ("0.5", 0.5)]
)
def test_percentages(text: str, threads: float) -> None:
    """In all forms that a percentage has."""
    assert own_threads(text) == threads


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0.0",
        "-5",
        "100.1",
        "101",
        "1e1",
        "nan",
        "inf",
        "25%",
        " 25",
        "25\n",
        ".5",
        "5.",
        "\u0663",
    ],
)
def test_what_is_no_percentage(text: str) -> None:
    """The daemon ignores some of these, and what it makes of the others is not certain."""
    assert own_threads(text) is None


@given(st.text(), st.text())
def test_whatever_a_client_says(memory: str, threads: str) -> None:
    """It never has more than the daemon grants, and a number is always made of it."""
    plan = wanted()
    environment = {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": memory,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": threads,
    }
    found = limits_in_force(environment, plan.sharing, GPU)
    assert found.memory is not None
    assert 0 < found.memory <= 40960 * MIB
    assert 0 < found.threads <= 40.0


def test_the_tighter_holds() -> None:
    """Of its own and the daemon's; without either there is none."""
    environment = {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=80G",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "5",
    }
    assert limits_in_force(environment, wanted().sharing, GPU) == ClientLimits(40 * GIB, 5.0)
    assert limits_in_force({}, wanted().sharing, GPU) == ClientLimits(40 * GIB, 40.0)
    free = wanted(Share("a", 1, None, None)).sharing
    assert limits_in_force(None, free, GPU) == ClientLimits(None, 100.0)
    assert limits_in_force(environment, free, GPU) == ClientLimits(80 * GIB, 5.0)


def test_compared_with_a_share() -> None:
    """Equal, tighter, looser in one."""
    small, free = ClientLimits.of(SMALL.memory, SMALL.threads), ClientLimits.of(None, None)
    assert ClientLimits(8 * GIB, 15.0).equal(small)
    assert ClientLimits(4 * GIB, 15.0).within(small)
    assert not ClientLimits(4 * GIB, 15.0).equal(small)
    assert not ClientLimits(4 * GIB, 15.01).within(small)
    assert not ClientLimits(None, 15.0).within(small)
    assert ClientLimits(None, 100.0).equal(free)
    assert str(ClientLimits(None, 33.33)) == "all of the memory, 33.33% of the threads"
