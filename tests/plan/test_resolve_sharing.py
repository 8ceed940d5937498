"""What `mps` and `timeSlice` of a document mean on the node's cards, and why they are refused."""

import pytest

from nodeagent.documents.reading import read_document
from nodeagent.errors import DocumentError
from nodeagent.plan import desired
from nodeagent.plan.observed import Access, Memory, ObservedNode
from nodeagent.plan.plan import Verdict
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.resolve import resolve, verdict_of
from nodeagent.plan.shares import Account, Host, Share, TimeSlice, WantedMps
from nodeagent.structs import replace
from tests.plan.cards import card, with_instances
from tests.plan.daemons import without_mig

H100 = replace(card("h100-80gb"), index=0, uuid="GPU-a")
BARE = without_mig(replace(H100, index=1, uuid="GPU-b"))
T4 = replace(card("t4"), index=2, uuid="GPU-c")
P100 = replace(T4, index=3, uuid="GPU-d", name="Tesla P100", compute_capability=(6, 0))
NODE = ObservedNode((H100, BARE, T4, P100))
ALICE = Account(1042, 100, (44,))


def answer(entry: str, host: Host | None = None, node: ObservedNode = NODE) -> desired.DesiredNode:
    """What a plan with this one entry comes to; raises DocumentError."""
    text = f"version: v1\ngpus:\n- {{{entry}}}\n"
    return resolve(read_document(text.encode()), node, host or Host())


def resolved(entry: str, host: Host | None = None, node: ObservedNode = NODE) -> desired.DesiredGpu:
    (gpu,) = answer(entry, host, node).gpus.values()
    return gpu


def refused(entry: str, host: Host | None = None, node: ObservedNode = NODE) -> Problem:
    with pytest.raises(DocumentError) as caught:
        answer(entry, host, node)
    (problem,) = caught.value.problems
    return problem


def whole(entry: str, host: Host | None = None) -> WantedMps:
    mps = resolved(entry, host).mps
    assert mps is not None
    return mps


# --- for which devices ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [
        "devices: [1], mps: {replicas: 4}",
        "devices: [1], mig: disabled, mps: {replicas: 4}",
        "devices: [0], mig: disabled, mps: {replicas: 4}",
    ],
)
def test_a_whole_gpu(entry: str) -> None:
    mps = whole(entry)
    assert mps.sharing.shares == (Share("replica", 4, H100.memory // 2**20 // 4, 25.0),)
    assert mps.account == Account(1000, 1000)
    assert mps.path == "gpus[0].mps"


def test_each_instance_of_a_layout() -> None:
    """MPS beside a layout is for each instance that has none of its own, by its own memory."""
    gpu = resolved(
        "devices: [0], mps: {replicas: 2}, mig: [{profile: 3g.40gb, count: 1}, "
        "{profile: 1c.3g.40gb, count: 3, mps: {clients: {threads: 10}}}]"
    )
    assert gpu.mps is None
    assert isinstance(gpu.mig, desired.Layout)
    profile = H100.profile("3g.40gb")
    assert profile is not None
    first, *rest = gpu.mig.instances
    assert first.mps is not None
    assert first.mps.sharing.shares[0].memory == profile.memory // 2**20 // 2
    assert first.mps.path == "gpus[0].mps"
    assert len(rest) == 3
    assert {w.mps.path if w.mps else None for w in rest} == {"gpus[0].mig[1].mps"}


@pytest.mark.parametrize("mig", ["", "mig: enabled, "])
def test_the_devices_there_are(mig: str) -> None:
    """In MIG mode with the instances left alone, each there is gets it, by UUID."""
    held = with_instances(H100, [("3g.40gb", 0), ("1g.10gb", 4)])
    gpu = resolved(f"devices: [0], {mig}mps: {{replicas: 2}}", node=ObservedNode((held,)))
    assert gpu.mps is None
    memory = {uuid: m.sharing.shares[0].memory for uuid, m in gpu.mps_by_device.items()}
    sizes = [p.memory for p in H100.profiles if p.name in ("3g.40gb", "1g.10gb")]
    assert memory == {"MIG-0": max(sizes) // 2**21, "MIG-1": min(sizes) // 2**21}


def test_a_device_of_a_profile_that_is_not_listed() -> None:
    """Its own memory is shared out; where that is not known either, the plan is refused."""
    held = with_instances(H100, [("3g.40gb", 0)])
    (instance,) = held.instances
    (device,) = instance.compute
    entry = "devices: [0], mps: {replicas: 2}"

    def node(memory: Memory | None) -> ObservedNode:
        found = replace(instance, compute=(replace(device, memory=memory),))
        return ObservedNode((replace(held, profiles=(), instances=(found,)),))

    (mps,) = resolved(entry, node=node(Memory(used=0, total=8 << 30))).mps_by_device.values()
    assert mps.sharing.shares[0].memory == 4 << 10
    assert refused(entry, node=node(None)).code is Code.GPU_UNKNOWN


def test_a_silent_gpu_is_not_judged() -> None:
    """Nothing of its memory is known, and the planner says what is wrong."""
    mute = replace(BARE, access=Access.LOST, memory=0)
    assert resolved("devices: [1], mps: {replicas: 2}", node=ObservedNode((mute,))).mps is None


# --- whom it runs as --------------------------------------------------------------------------

HOST = Host("1000", {"alice": ALICE, "1000": Account(1000, 1000, (27,)), "root": Account(0, 0)})


@pytest.mark.parametrize(
    ("user", "account"),
    [
        ("", Account(1000, 1000, (27,))),
        ("user: alice, ", ALICE),
        ("user: 1001, ", Account(1001, 1001)),
        ("user: '1001:5', ", Account(1001, 5)),
        ("user: any, ", Account(0, 0, any_user=True)),
        ("user: 0, ", Account(0, 0)),
        ("user: root, ", Account(0, 0)),
    ],
)
def test_accounts(user: str, account: Account) -> None:
    assert whole(f"devices: [1], mps: {{{user}replicas: 2}}", HOST).account == account


def test_an_unknown_name() -> None:
    problem = refused("devices: [1], mps: {user: bob, replicas: 2}", HOST)
    assert (problem.code, problem.path) == (Code.INVALID_VALUE, "gpus[0].mps.user")
    assert "'bob'" in problem.message
    assert "uid" in problem.remedy


@pytest.mark.parametrize(("default", "write"), [("0", "0"), ("root", "0"), ("any", "any")])
def test_never_root_by_default(default: str, write: str) -> None:
    """A setting alone does not make MPS run as root; the plan has to say it in words."""
    host = replace(HOST, default_user=default)
    problem = refused("devices: [1], mps: {replicas: 2}", host)
    assert problem.code is Code.INVALID_VALUE
    assert problem.remedy.endswith(f"user: {write}")
    assert whole(f"devices: [1], mps: {{user: {write}, replicas: 2}}", host).account.uid == 0


def test_a_default_that_is_no_user() -> None:
    """A setting that names no user of the host is reported as that."""
    problem = refused("devices: [1], mps: {replicas: 2}", Host("nobody-here"))
    assert "mps.user" in problem.message
    assert problem.path == "gpus[0].mps"


# --- what cannot be ---------------------------------------------------------------------------


def test_limits_need_volta() -> None:
    """Older cards do not hold clients to limits; without limits they serve."""
    problem = refused("devices: [3], mps: {replicas: 2}")
    assert (problem.code, problem.path) == (Code.UNSUPPORTED, "gpus[0].mps.replicas")
    assert "6.0" in problem.message
    assert "clients: {}" in problem.remedy
    assert whole("devices: [3], mps: {clients: {}}").sharing.memory_ceiling("GPU-d") is None
    unknown = replace(P100, compute_capability=(0, 0))
    volta = replace(P100, compute_capability=(7, 0))
    for able in (unknown, volta):
        resolved("devices: [3], mps: {replicas: 2}", node=ObservedNode((able,)))


@pytest.mark.parametrize(
    ("entry", "most"),
    [
        ("devices: [1], mps: {shares: {a: {count: 40}, b: {count: 21}}}", 60),
        ("devices: [1], mps: {replicas: 61}", 60),
        ("devices: [0], mig: {1g.10gb: 1}, mps: {replicas: 9}", 8),
        ("devices: [0], mig: [{profile: 3g.40gb, mps: {replicas: 26}}]", 25),
        ("devices: [3], mps: {shares: {a: {count: 17}}}", 16),
    ],
)
def test_more_clients_than_a_device_serves(entry: str, most: int) -> None:
    """60 on a whole card, on a part in proportion to its compute slices, 16 before Volta."""
    problem = refused(entry)
    assert problem.code is Code.DOES_NOT_FIT
    assert f"at most {most} " in problem.message
    assert problem.remedy == f"write at most {most}"


def test_drivers_before_cuda_13_1_serve_fewer_clients() -> None:
    """48 on a whole card; an unknown version is taken for a new one."""
    older = replace(BARE, cuda_version=(13, 0))
    problem = refused("devices: [1], mps: {replicas: 49}", node=ObservedNode((older,)))
    assert "at most 48 " in problem.message


def test_everything_wrong_is_reported_at_once() -> None:
    with pytest.raises(DocumentError) as caught:
        answer(
            "devices: [0], mig: [{profile: 3g.40gb, mps: {user: bob, shares: {a: {memory: 80Gi}}}},"
            " {profile: 9g.1gb}, {profile: 1g.10gb, mps: {replicas: 9}}]"
        )
    assert Verdict.INVALID is verdict_of(caught.value)
    assert [p.path for p in caught.value.problems] == [
        "gpus[0].mig[0].mps.user",
        "gpus[0].mig[0].mps.shares.a.memory",
        "gpus[0].mig[1]",
        "gpus[0].mig[2].mps.replicas",
    ]


# --- time slices ------------------------------------------------------------------------------


@pytest.mark.parametrize("mig", ["", "mig: disabled, "])
def test_time_slice(mig: str) -> None:
    gpu = resolved(f"devices: [1], {mig}timeSlice: long")
    assert (gpu.time_slice, gpu.mps) == (TimeSlice.LONG, None)


@pytest.mark.parametrize(
    "entry",
    [
        "devices: [0], timeSlice: long",
        "devices: [1], mig: enabled, timeSlice: long",
        "devices: [1], mig: {1g.10gb: 1}, timeSlice: long",
        "devices: [0], mig: [{profile: 1g.10gb, mps: {replicas: 2}}], timeSlice: long",
    ],
)
def test_no_time_slice_with_mig(entry: str) -> None:
    """The interval is the whole GPU's, and in MIG mode it has none."""
    problem = refused(entry)
    assert (problem.code, problem.path) == (Code.INVALID_VALUE, "gpus[0].timeSlice")
    assert "MIG mode" in problem.message
    assert "mig: disabled" in problem.remedy


def test_mps_and_time_slice_exclude_each_other() -> None:
    """Also for a document that did not come through the reader."""
    entry = desired.PlanEntry(
        "gpus[0]",
        None,
        "gpus[0].devices",
        mps=desired.MpsEntry("gpus[0].mps", desired.Replicas(2, "gpus[0].mps.replicas")),
        time_slice="long",
    )
    with pytest.raises(DocumentError) as caught:
        resolve(desired.PlanDocument((entry,), "d"), ObservedNode((BARE,)))
    assert verdict_of(caught.value) is Verdict.INVALID
    assert caught.value.problems[0].path == "gpus[0].timeSlice"
