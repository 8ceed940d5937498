import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.documents.reading import read_document
from nodeagent.errors import DocumentError
from nodeagent.mps.commands import set_memory_limit
from nodeagent.mps.files.directories import spec_in
from nodeagent.mps.shares import MEMORY_VARIABLE, DaemonSpec, client_environment
from nodeagent.plan.desired import MpsEntry, Replicas, ShareEntry, Shares
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.resolve_mps import OnGpu, share_out
from nodeagent.plan.shares import (
    MIB,
    Account,
    Host,
    Share,
    Sharing,
    Slot,
    WantedMps,
    percentage_text,
)
from nodeagent.structs import replace
from tests.mps.plans import daemon_spec, with_account, with_limits

GIB = 1024**3
GPU = "GPU-00000000-0000-0000-0000-000000000001"
H100 = 81559 * MIB  # bytes, as NVML gives them for a card of 80 GB
PATH = "gpus[0].mps"


def kind(
    name: str, count: int, memory: int | None = None, threads: float | None = None
) -> ShareEntry:
    return ShareEntry(name, count, memory, threads, f"{PATH}.shares.{name}")


def shares(*entries: ShareEntry) -> Shares:
    return Shares(entries, f"{PATH}.shares")


def replicas(count: int) -> Replicas:
    return Replicas(count, f"{PATH}.replicas")


def sharing(entry: MpsEntry, memory: int = H100) -> Sharing:
    on = OnGpu(Gpu(0, GPU), Host(), [])
    found = share_out(on, entry, memory)
    assert found is not None, on.problems
    return found


def problems(entry: MpsEntry, memory: int = H100) -> tuple[Problem, ...]:
    on = OnGpu(Gpu(0, GPU), Host(), [])
    assert share_out(on, entry, memory) is None
    assert all(p.gpu == GPU and p.remedy for p in on.problems)
    return tuple(on.problems)


SPEC = with_limits(daemon_spec("/run/x/pipe", GPU), 40960, 40.0)


def test_named_shares() -> None:
    found = sharing(
        MpsEntry(PATH, shares(kind("small", 4, 8 * GIB, 15.0), kind("large", 1, 40 * GIB, 40.0)))
    )
    assert [s.name for s in found.slots] == ["small-0", "small-1", "small-2", "small-3", "large-0"]
    assert (found.memory_ceiling(GPU), found.thread_ceiling) == (40960, 40.0)
    assert [s.memory for s in found.shares] == [8192, 40960]


def test_replicas() -> None:
    found = sharing(MpsEntry(PATH, replicas(3), enforce="terminate"))
    assert found.shares == (Share("replica", 3, 27186, 33.33, f"{PATH}.replicas"),)
    assert found.enforce == "terminate"
    assert [s.name for s in found.slots] == ["replica-0", "replica-1", "replica-2"]


@given(count=st.integers(1, 128), memory=st.integers(128 * MIB, 300 * GIB))
def test_equal_shares_never_exceed_the_device(count: int, memory: int) -> None:
    [share] = sharing(MpsEntry(PATH, replicas(count)), memory).shares
    assert share.memory is not None
    assert share.threads is not None
    assert 0 <= memory - count * share.memory * MIB < (count + 1) * MIB
    assert 100 - count * 0.01 < count * share.threads <= 100 + 1e-9
    assert float(percentage_text(share.threads)) == share.threads


@pytest.mark.parametrize("memory", [0, 1, MIB - 1])
def test_less_than_a_mib(memory: int) -> None:
    """The daemon takes whole MiB, so less than one is no limit that it could be given."""
    [problem] = problems(MpsEntry(PATH, shares(kind("a", 1, memory))))
    assert (problem.code, problem.path) == (Code.INVALID_VALUE, f"{PATH}.shares.a.memory")
    assert problem.remedy == "write at least 1Mi"


@pytest.mark.parametrize("threads", [0.05, -1.0, 100.01, float("nan")])
def test_threads_out_of_range(threads: float) -> None:
    [problem] = problems(MpsEntry(PATH, shares(kind("a", 1, None, threads))))
    assert problem.path == f"{PATH}.shares.a.threads"
    assert problem.remedy == "write a number from 0.1 to 100"


def test_threads_with_too_many_decimals() -> None:
    [problem] = problems(MpsEntry(PATH, shares(kind("a", 3, None, 33.333))))
    assert "33.333" in problem.message
    assert problem.remedy == "write 33.33"


@pytest.mark.parametrize("oversubscribe", [False, True])
def test_one_share_above_the_device(oversubscribe: bool) -> None:
    found = problems(MpsEntry(PATH, shares(kind("a", 1, 96 * GIB)), oversubscribe=oversubscribe))
    assert found[0].code is Code.DOES_NOT_FIT
    assert found[0].message == "found 96Gi, but the device has 81559Mi"
    assert found[0].remedy == "write at most 81559Mi"


def test_sums_above_the_device() -> None:
    entry = MpsEntry(PATH, shares(kind("s", 4, 16 * GIB, 20.0), kind("l", 1, 40 * GIB, 33.5)))
    memory, threads = problems(entry)
    assert memory.path == threads.path == f"{PATH}.shares"
    assert "add up to 104Gi of memory (4 × 16Gi + 1 × 40Gi)" in memory.message
    assert "113.5% of the threads (4 × 20% + 1 × 33.5%)" in threads.message
    assert sharing(replace(entry, oversubscribe=True)).memory_ceiling(GPU) == 40960


def test_sums_are_exact() -> None:
    found = sharing(MpsEntry(PATH, shares(kind("a", 1000, MIB, 0.1))), 1000 * MIB)
    assert found.shares[0].count == 1000


@pytest.mark.parametrize(("count", "memory"), [(4, 3 * MIB), (1001, H100)])
def test_too_many_replicas(count: int, memory: int) -> None:
    """A share of no MiB, or of no thread the daemon can tell from none, is no share."""
    [problem] = problems(MpsEntry(PATH, replicas(count)), memory)
    assert (problem.code, problem.path) == (Code.DOES_NOT_FIT, f"{PATH}.replicas")


def test_a_device_of_unknown_memory() -> None:
    [problem] = problems(MpsEntry(PATH, replicas(1)), 0)
    assert problem.code is Code.GPU_UNKNOWN


def slot(memory: int | None, threads: float | None) -> Slot:
    return Share("small", 4, memory, threads, "").slots[1]


def test_what_a_client_gets() -> None:
    """The device is ordinal 0 in limits and always a UUID where it is made visible; no limit, no
    variable; and nothing that would make a container runtime give the whole GPU.
    """
    always = {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/x/pipe",
        "CUDA_VISIBLE_DEVICES": GPU,
        "NODEAGENT_MPS_SLOT": f"{GPU}/small-1",
    }
    assert client_environment(SPEC, slot(None, None)) == always
    assert client_environment(SPEC, slot(8192, 33.3)) == always | {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=8192M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "33.3",
    }


@pytest.mark.parametrize(
    ("by_device", "visible", "limits"),
    [
        ((), "GPU-a,GPU-b,GPU-c", "0=8192M,1=8192M,2=8192M"),
        ((("GPU-a", 10),), "GPU-a", "0=10M,1=1M,2=1M"),
        # Its ordinal 0 may be the daemon's or the client's own.
        ((("GPU-c", 10),), "GPU-c", "0=10M,1=1M,2=10M"),
        ((("GPU-a", 10), ("GPU-c", 20)), "GPU-a,GPU-c", "0=10M,1=20M,2=20M"),
        ((("GPU-b", 10), ("GPU-c", 20)), "GPU-b,GPU-c", "0=10M,1=10M,2=20M"),
        ((("GPU-c", 10), ("GPU-b", 20)), "GPU-b,GPU-c", "0=20M,1=10M,2=10M"),
    ],
)
def test_a_client_of_several_devices(
    by_device: tuple[tuple[str, int], ...], visible: str, limits: str
) -> None:
    """Whichever way CUDA counts its devices, no limit is looser than its share's."""
    group = replace(SPEC.wanted, devices=("GPU-a", "GPU-b", "GPU-c"))
    amounts = tuple((device, limit, None) for device, limit in by_device)
    share = Share("small", 1, 8192, None, by_device=amounts)
    found = client_environment(replace(SPEC, device="GPU-a", wanted=group), share.slots[0])
    assert found == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/x/pipe",
        "CUDA_VISIBLE_DEVICES": visible,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limits,
        "NODEAGENT_MPS_SLOT": "GPU-a/small-0",
    }


@pytest.mark.parametrize(
    ("written", "mebibytes"),
    [
        ("1.5G", 1430),  # which the daemon would take for 1 MB
        ("1.5Gi", 1536),
        ("0.05T", 47683),  # T also
        ("1500M", 1430),
        ("1024Ki", 1),  # K is 1G to it
        (8 * GIB, 8192),  # a bare number is MB to it, bytes here
        ("0G", None),  # takes the limit away
        ("-1G", None),  # is huge
        ("1M", None),  # less than 1 MiB
        ("abc", None),  # takes the limit away
        (f"{GPU}=1G", None),  # wipes the limit of device 0
        ("0=1G", None),
        ("1G\nquit", None),
    ],
)
def test_from_the_document_to_what_is_said(written: object, mebibytes: int | None) -> None:
    document = {
        "version": "v1",
        "gpus": [{"devices": [0], "mps": {"clients": {"memory": written}}}],
    }
    try:
        entry = read_document(json.dumps(document)).entries[0].mps
    except DocumentError:
        assert mebibytes is None
        return
    assert entry is not None
    found = share_out(OnGpu(Gpu(0, GPU), Host(), []), entry, H100)
    if mebibytes is None:
        assert found is None
        return
    assert found is not None
    wanted = WantedMps(found, Account(1000, 1000))
    daemon = spec_in(Path("/run/x"), GPU, wanted)
    [limit] = daemon.limits.memory
    assert limit is not None
    said = set_memory_limit(limit).line
    assert said == f"set_default_device_pinned_mem_limit 0 {mebibytes}M"
    [client] = found.slots
    assert client_environment(daemon, client)[MEMORY_VARIABLE] == f"0={mebibytes}M"


@pytest.mark.parametrize(
    ("memory", "threads"),
    [
        (0, None),  # takes a limit away
        (1.5, None),  # is 1 MB
        (2**24, None),  # 16 TiB
        (None, 0.04),  # reads back as none
        (None, 33.333),
        (None, "25"),
    ],
)
def test_limits_that_a_driver_misreads_reach_no_client(memory: object, threads: object) -> None:
    share = slot(memory, threads)  # type: ignore[arg-type]  # wrong types are among what is tried
    with pytest.raises(ValueError, match="expected"):
        client_environment(SPEC, share)


@pytest.mark.parametrize(
    ("other", "restart"),
    [
        (SPEC, False),
        (with_limits(SPEC, 1024, 5.0), False),
        (with_limits(SPEC, None, 40.0), True),
        (with_account(SPEC, uid=1001), True),
        (with_account(SPEC, groups=(44,)), True),
        (with_account(SPEC, any_user=True), True),
        (replace(SPEC, pipe_directory="/run/y"), True),
        (replace(SPEC, wanted=replace(SPEC.wanted, devices=(SPEC.device, "GPU-2"))), True),
    ],
)
def test_what_needs_another_process(other: DaemonSpec, restart: bool) -> None:
    assert SPEC.needs_restart_for(other) is restart
    assert other.needs_restart_for(SPEC) is (restart and other.limits.memory != (None,))
