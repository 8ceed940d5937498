from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.mps.clients.assess import ENDED_FOR, ClientFacts, OffenceKind, assess
from nodeagent.mps.clients.limits import (
    ClientLimits,
    limits_in_force,
    own_limits,
    own_memory_limit,
    own_threads,
)
from nodeagent.mps.shares import client_environment
from nodeagent.plan.shares import MIB, Share, WantedMps
from nodeagent.views.shapes import MpsClient
from tests.mps.plans import GPU, LARGE, MIG, SMALL, facts, memory_of, spec_of, wanted
from tests.views.daemons import mps_client

GIB = 1024 * MIB
PLAN = wanted()
OPEN = wanted(Share("clients", None, 10240, 25.0))


def of_slot(number: int, plan: WantedMps = PLAN, *, without: str = "") -> dict[str, str]:
    """The environment that the plan's slot gives: small-0, small-1, large-0."""
    given = client_environment(spec_of(plan), plan.sharing.slots[number])
    return {name: value for name, value in given.items() if name != without}


def states_of(clients: Sequence[ClientFacts], plan: WantedMps = PLAN) -> list[MpsClient]:
    return [found.state for found in assess(clients, plan, GPU)]


def only(client: ClientFacts, plan: WantedMps = PLAN) -> MpsClient:
    [state] = states_of([client], plan)
    return state


def kinds(*clients: ClientFacts, plan: WantedMps = PLAN) -> dict[int, list[str]]:
    found = assess(clients, plan, GPU)
    return {j.state.pid: [o.kind.value for o in j.offences] for j in found if j.offences}


# --- whose share it is ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "share", "slot", "memory", "threads"),
    [
        (0, "small", "small-0", 8 * GIB, 15.0),
        (1, "small", "small-1", 8 * GIB, 15.0),
        (2, "large", "large-0", 40 * GIB, 40.0),
    ],
)
def test_slot_environments(number: int, share: str, slot: str, memory: int, threads: float) -> None:
    assert only(facts(environment=of_slot(number), memory_used=5, container="ab")) == mps_client(
        pid=100,
        command="python",
        uid=1000,
        share=share,
        slot=slot,
        memory_used=5,
        memory_limit=memory,
        threads=threads,
        container="ab",
    )


def test_by_its_limits() -> None:
    state = only(facts(environment=of_slot(0, without="NODEAGENT_MPS_SLOT")))
    assert (state.share, state.slot, state.findings) == ("small", "", ())


def test_without_any_limits_of_its_own() -> None:
    """It has the daemon's, which are those of the only share; of several, it was given none, even
    if the daemon grants what the largest one has.
    """
    plan = wanted(Share("replica", 4, 8192, 25.0))
    assert only(facts(), plan).share == "replica"
    assert kinds(facts()) == {100: ["noShare"]}
    assert memory_of(only(facts())).limit == 40 * GIB


@pytest.mark.parametrize(
    "environment",
    [{}, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}, {"NODEAGENT_MPS_SLOT": f"{GPU}/clients-0"}],
)
def test_a_share_for_all(environment: Mapping[str, str]) -> None:
    """Takes any number, whatever they say, since the daemon's own limits are the share's."""
    clients = [facts(pid, environment=environment) for pid in range(1, 100)]
    states = states_of(clients, OPEN)
    assert {(s.share, s.slot, s.findings) for s in states} == {("clients", "clients-0", ())}


def test_no_share() -> None:
    environment = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}
    state = only(facts(environment=environment))
    assert state.share == ""
    [finding] = state.findings
    assert finding.endswith(
        "it has no slot, and its limits (1Gi of the memory, 40% of the threads) are those of no "
        "share"
    )


@pytest.mark.parametrize("named", [f"{GPU}/small-9", f"{MIG}/small-0", "small-0", "", "a\n\x1b[2J"])
def test_a_slot_that_there_is_not(named: str) -> None:
    found = kinds(facts(environment=of_slot(0) | {"NODEAGENT_MPS_SLOT": named}))
    assert found == {100: ["unknownSlot"]}
    state = only(facts(environment=of_slot(0) | {"NODEAGENT_MPS_SLOT": named}))
    assert (state.share, state.slot) == ("small", "")
    assert state.findings == (f"names the slot {named!a}, which this device does not have",)
    assert all(c.isprintable() for c in state.findings[0])
    found = kinds(facts(environment={"NODEAGENT_MPS_SLOT": named}))
    assert found == {100: ["unknownSlot", "noShare"]}


def test_two_shares_with_the_same_limits() -> None:
    plan = wanted(Share("a", 1, 8192, 25.0), Share("b", 1, 8192, 25.0))
    environment = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}
    assert kinds(facts(environment=environment), plan=plan) == {100: ["unclearShare"]}
    assert OffenceKind.UNCLEAR_SHARE not in ENDED_FOR


def test_an_environment_that_cannot_be_read() -> None:
    state = only(facts(environment=None))
    assert (state.share, memory_of(state).limit, state.threads) == ("", 40 * GIB, 40.0)
    assert kinds(facts(environment=None)) == {100: ["unreadable"]}
    assert OffenceKind.UNREADABLE not in ENDED_FOR
    assert kinds(facts(environment=None), plan=OPEN) == {}


# --- limits and use -------------------------------------------------------------------------------


def test_a_limit_that_is_not_set() -> None:
    environment = of_slot(0, without="CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
    environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = "0=1.5G"
    state = only(facts(environment=environment))
    assert (state.share, memory_of(state).limit, state.threads) == ("small", 40 * GIB, 40.0)
    memory, threads = state.findings
    assert memory == (
        "may use 40Gi of the memory, but its share small allows 8Gi "
        "(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is '0=1.5G')"
    )
    assert threads == (
        "may use 40% of the threads, but its share small allows 15% "
        "(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is not set)"
    )


def test_no_limit_of_memory_beside_a_share_without_one() -> None:
    plan = wanted(Share("small", 2, 8192, None), Share("all", 1, None, None))
    environment = of_slot(0, plan, without="CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
    assert kinds(facts(environment=environment), plan=plan) == {100: ["looserMemoryLimit"]}


@pytest.mark.parametrize(
    ("used", "over"), [(8194 * MIB, False), (8194 * MIB + 1, True), (None, False)]
)
def test_the_last_page(used: int | None, over: bool) -> None:
    """NVML counts pages of 2 MiB, so a limit of odd MiB may seem to be passed by one."""
    plan = wanted(Share("odd", 1, 8193, None))
    assert (kinds(facts(memory_used=used), plan=plan) != {}) is over


# --- how many -------------------------------------------------------------------------------------


def test_more_than_the_count() -> None:
    free = of_slot(0, without="NODEAGENT_MPS_SLOT")
    clients = [facts(pid, environment=free, start_time=1000 - pid) for pid in (1, 2, 3, 4)]
    assert kinds(*clients) == {1: ["count"], 2: ["count"]}
    state = states_of(clients)[0]
    assert state.findings == ("is one too many: the share small is for 2, and there are 4",)


def test_two_in_one_slot() -> None:
    clients = [facts(1, environment=of_slot(0)), facts(2, environment=of_slot(0))]
    assert kinds(*clients) == {2: ["slotTaken"]}
    assert states_of(clients)[1].findings == ("is in slot small-0, which pid 1 has already",)
    assert OffenceKind.SLOT_TAKEN not in ENDED_FOR


def test_a_client_that_forks_pushes_out_no_other() -> None:
    first = [facts(pid, environment=of_slot(0)) for pid in (1, 2, 3, 4)]
    last = facts(5, environment=of_slot(1))
    assert kinds(*first, last) == {
        2: ["slotTaken", "count"],
        3: ["slotTaken", "count"],
        4: ["slotTaken", "count"],
    }


def test_who_names_no_slot_gives_way() -> None:
    free = of_slot(0, without="NODEAGENT_MPS_SLOT")
    clients = [
        facts(1, environment=free),
        facts(2, environment=of_slot(0)),
        facts(3, environment=of_slot(1)),
    ]
    assert kinds(*clients) == {1: ["count"]}


def test_what_clients_have_together() -> None:
    """The newest are beyond the memory that they all have, until the others fit."""
    plan = wanted(Share("claim", None, 8192, 25.0, total=8192))
    amounts = {1: 5 * GIB, 2: 4 * GIB, 3: 3 * GIB, 4: 9 * GIB, 5: MIB}
    clients = [
        facts(pid, environment=of_slot(0, plan), start_time=pid, memory_used=used)
        for pid, used in amounts.items()
    ]
    assert kinds(*clients[:1], plan=plan) == {}
    assert kinds(*clients, plan=plan) == {2: ["memoryTogether"], 4: ["memory"]}
    [second] = states_of(clients[:2], plan)[1:]
    [finding] = second.findings
    assert finding.startswith("uses 4Gi of memory beside 5Gi of other clients of its share claim,")
    assert finding.endswith("which together may use 8Gi")
    lower = wanted(Share("claim", None, 6144, 25.0, total=12288))  # each, and all of them
    assert kinds(*clients[:3], plan=lower) == {}
    each = wanted(Share("claim", None, 8192, 25.0))
    assert kinds(*clients, plan=each) == {4: ["memory"]}
    assert OffenceKind.TOGETHER in ENDED_FOR


_ENVIRONMENTS = st.one_of(
    st.none(),
    st.dictionaries(
        st.sampled_from(
            [
                "NODEAGENT_MPS_SLOT",
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
            ]
        ),
        st.one_of(
            st.text(max_size=20),
            st.sampled_from([f"{GPU}/small-0", f"{GPU}/large-0", "0=8192M", "0=40G", "15", "40"]),
        ),
    ),
)


@given(st.lists(st.tuples(_ENVIRONMENTS, st.integers(0, 5), st.none() | st.integers(0, 2**40))))
def test_any_clients(clients: list[tuple[dict[str, str] | None, int, int | None]]) -> None:
    every = [
        facts(pid, environment=environment, start_time=start, memory_used=used)
        for pid, (environment, start, used) in enumerate(clients, 1)
    ]
    found = assess(every, PLAN, GPU)
    assert [j.state.pid for j in found] == [c.client.pid for c in every]
    for share in (SMALL, LARGE):
        mine = [j for j in found if j.state.share == share.name]
        over = [j for j in mine if any(o.kind is OffenceKind.COUNT for o in j.offences)]
        assert len(over) == max(0, len(mine) - (share.count or 0))
    for judged in found:
        assert judged.state.findings == tuple(o.message for o in judged.offences)
        assert all(text.isprintable() for text in judged.state.findings)


# --- a client's own limits ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("0=1G", GIB),
        ("0=1024K", GIB),  # as drivers up to 555 take it
        ("0=1GB", GIB),
        ("0=512mb", 512 * MIB),
        ("0=1G,1=512MB", GIB),
        ("1=5M,0=7M", 7 * MIB),
        (f"{GPU}=3G", 3 * GIB),
        (f"{MIG}=1M,{GPU}=3G", 3 * GIB),
        ("0=1G,", GIB),
        ("0=1G,0=4G", 4 * GIB),  # the looser of two for one device
        (f"{GPU}=4G,0=1G", 4 * GIB),
    ],
)
def test_documented_forms(text: str, limit: int) -> None:
    assert own_memory_limit(text, GPU) == limit


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0=1.5G",  # 1 MB to the daemon
        "0=1T",  # the same
        "0=0G",  # takes the limit away
        "0=-1G",
        "=1G",
        "1G",
        "0=5",  # documented nowhere
        "0 = 1G",
        " 0=1G",
        "0=1G\n",
        "0=\u0661G",
        "0=9999999999999999999999G",
        f"{GPU[:12]}=1G",  # perhaps it is found by its beginning
        f"{MIG}=5M",
        "gpu=5M",
        "0=1G,0=abc",
        "x" * 100_000,
        "0=1G," * 2 + "0=" + "9" * 5000,
    ],
)
def test_what_is_no_certain_limit(text: str) -> None:
    assert own_memory_limit(text, GPU) is None


@pytest.mark.parametrize(
    "text", ["", "0.0", "-5", "100.1", "1e1", "nan", " 25", "25\n", ".5", "5.", "\u0663"]
)
def test_what_is_no_percentage(text: str) -> None:
    """The daemon ignores some of these, and what it makes of the others is not certain."""
    assert own_threads(text) is None


@given(st.text(), st.text())
def test_whatever_a_client_says(memory: str, threads: str) -> None:
    plan = wanted()
    environment = {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": memory,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": threads,
    }
    found = limits_in_force(own_limits(environment, GPU), plan.sharing, GPU)
    assert found.memory is not None
    assert 0 < found.memory <= 40960 * MIB
    assert 0 < found.threads <= 40.0


def test_the_tighter_holds() -> None:
    environment = {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=80G",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "5",
    }
    assert limits_in_force(own_limits(environment, GPU), wanted().sharing, GPU) == ClientLimits(
        40 * GIB, 5.0
    )
    assert limits_in_force(own_limits({}, GPU), wanted().sharing, GPU) == ClientLimits(
        40 * GIB, 40.0
    )
    free = wanted(Share("a", 1, None, None)).sharing
    assert limits_in_force(own_limits(None, GPU), free, GPU) == ClientLimits(None, 100.0)
    assert limits_in_force(own_limits(environment, GPU), free, GPU) == ClientLimits(80 * GIB, 5.0)
