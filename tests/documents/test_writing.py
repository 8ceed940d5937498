from collections import Counter

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.documents.reading import read_document
from nodeagent.documents.writing import (
    export_notes,
    mig_parted_data,
    mig_parted_document,
    plan_data,
    plan_document,
)
from nodeagent.plan.desired import DesiredNode, MigDisabled, MigLayout
from nodeagent.plan.observed import (
    Access,
    ComputeInstance,
    DeviceDaemon,
    Gpu,
    GpuInstance,
    MigMode,
    ObservedNode,
    Placement,
)
from nodeagent.plan.plan import Verdict
from nodeagent.plan.planner import plan
from nodeagent.plan.resolve import resolve
from nodeagent.plan.shares import Account, ComputeMode, Host, Share, Sharing, TimeSlice, WantedMps
from nodeagent.structs import replace
from tests.plan.cards import card, with_instances

ON = MigMode(current=True, pending=True)
OFF = MigMode(current=False, pending=False)
H100 = 0x233010DE
A100 = 0x20B010DE
T4 = 0x1EB810DE


def instance(start: int, *devices: str, gi: int = 1, size: int = 4) -> GpuInstance:
    return GpuInstance(
        id=gi,
        profile_id=0,
        profile=devices[0].split("c.")[-1] if devices else "3g.40gb",
        placement=Placement(start, size),
        compute=tuple(
            ComputeInstance(n, name, 1, f"MIG-{gi}-{n}") for n, name in enumerate(devices)
        ),
    )


def gpu(
    index: int,
    *instances: GpuInstance,
    mig: MigMode | None = ON,
    device: int = H100,
    **more: object,
) -> Gpu:
    known = Gpu(
        index=index,
        uuid=f"GPU-{index}",
        name="NVIDIA H100 80GB HBM3" if device == H100 else "Tesla T4",
        pci_device_id=device,
        mig=mig,
        instances=instances,
    )
    return replace(known, **more)  # type: ignore[arg-type]  # keys of Gpu, by name


def node(*gpus: Gpu) -> ObservedNode:
    return ObservedNode(gpus)


MIXED = node(
    gpu(0, instance(4, "3g.40gb"), instance(0, "1g.10gb", size=1)),
    gpu(1, mig=OFF),
    gpu(2),
    gpu(3, instance(4, "3g.40gb"), instance(0, "1g.10gb", size=1)),
    gpu(4, instance(0, "1c.3g.40gb", "1c.3g.40gb"), instance(4, gi=2)),
    gpu(5, mig=None, device=T4),
)


def test_plan() -> None:
    """Layouts with their places, modes, and what no document can say as comments."""
    assert (
        plan_document(MIXED)
        == """\
# GPU 4: GPU instance 2 (3g.40gb at 4:4) has no compute instance, so it is left out
# GPU 5 (Tesla T4) has no MIG
version: v1
gpus:
- devices: [0, 3]
  mig:
  - {profile: 1g.10gb, start: 0}
  - {profile: 3g.40gb, start: 4}
- devices: [1]
  mig: disabled
- devices: [2]
  mig: []
- devices: [4]
  mig:
  - {profile: 1c.3g.40gb, start: 0, count: 2}
"""
    )


def test_mig_parted() -> None:
    """mig-parted's form: counts, filters where the node has several kinds of GPU. The YAML of both
    is the data, also for readers that know YAML 1.1 only.
    """
    assert yaml.safe_load(plan_document(MIXED)) == plan_data(MIXED)
    assert yaml.safe_load(mig_parted_document(MIXED)) == mig_parted_data(MIXED)
    assert (
        mig_parted_document(MIXED)
        == """\
# GPU 4: GPU instance 2 (3g.40gb at 4:4) has no compute instance, so it is left out
# GPU 5 (Tesla T4) has no MIG
version: v1
mig-configs:
  current:
  - device-filter: 0x233010DE
    devices: [0, 3]
    mig-enabled: true
    mig-devices: {1g.10gb: 1, 3g.40gb: 1}
  - device-filter:
    - 0x1EB810DE
    - 0x233010DE
    devices: [1, 5]
    mig-enabled: false
    mig-devices: {}
  - device-filter: 0x233010DE
    devices: [2]
    mig-enabled: true
    mig-devices: {}
  - device-filter: 0x233010DE
    devices: [4]
    mig-enabled: true
    mig-devices: {1c.3g.40gb: 2}
""".replace("0x233010DE", '"0x233010DE"').replace("0x1EB810DE", '"0x1EB810DE"')
    )


def test_mig_parted_merges() -> None:
    seven = [instance(n, "1g.10gb", gi=n, size=1) for n in range(7)]
    same = {"mig-enabled": True, "mig-devices": {"1g.10gb": 7}}
    off = {"mig-enabled": False, "mig-devices": {}}

    def entries(*gpus: Gpu) -> object:
        return mig_parted_data(node(*gpus), "x")["mig-configs"]["x"]

    assert entries(gpu(0, *seven), gpu(1, *seven, device=A100)) == [{"devices": "all", **same}]
    assert entries(gpu(0, *seven), gpu(1, *seven), gpu(2, mig=None, device=T4)) == [
        {"device-filter": "0x233010DE", "devices": "all", **same},
        {"device-filter": "0x1EB810DE", "devices": "all", **off},
    ]
    assert entries(gpu(0, *seven), gpu(1, mig=OFF)) == [
        {"devices": [0], **same},
        {"devices": [1], **off},
    ]


def test_gpus_that_do_not_answer() -> None:
    lost = gpu(1, access=Access.LOST, access_reason="fell off the bus", pci_device_id=0)
    observed = node(gpu(0), lost)
    assert export_notes(observed) == ["GPU 1 does not answer and is left out: fell off the bus"]
    assert plan_data(observed)["gpus"] == [{"devices": [0], "mig": []}]
    assert mig_parted_data(observed)["mig-configs"]["current"][0]["devices"] == [0]


def test_pending_mode() -> None:
    """A mode change that waits for a reset is a comment; the document says what is."""
    observed = node(gpu(0, mig=MigMode(current=False, pending=True)))
    assert plan_document(observed).startswith("# GPU 0: MIG mode will be on after a GPU reset\n")
    assert isinstance(read_document(plan_document(observed)).entries[0].mig, MigDisabled)


@pytest.mark.parametrize("label", ["all-1g.10gb", "on", "y", "7", "007", "1e3", "0x1", 'ä b"', "~"])
def test_labels(label: str) -> None:
    text = mig_parted_document(node(gpu(0)), label)
    assert read_document(text, configuration=label).entries
    assert yaml.safe_load(text) == mig_parted_data(node(gpu(0)), label)


# --- MPS and time slices ----------------------------------------------------------------------

BIG = Share("big", 1, 40 * 1024, 40.0)
SMALL = Share("small", 4, 8 * 1024, 15.5)
HUGE = 80 << 30


def mps_of(*shares: Share, account: Account | None = None, enforce: str = "report") -> DeviceDaemon:
    who = account or Account(1000, 1000, (27,))
    return DeviceDaemon(WantedMps(Sharing(shares, enforce), who), "Ready")


def test_sharing() -> None:
    shared = instance(4, "3g.40gb", gi=2)
    device = replace(shared.compute[0], mps=mps_of(Share("clients", None, 512, None)))
    parts = instance(0, "1c.3g.40gb", "1c.3g.40gb")
    both = tuple(replace(c, mps=mps_of(Share("replica", 2, 1000, 50.0))) for c in parts.compute)
    observed = node(
        gpu(0, mig=OFF, memory=HUGE, mps=mps_of(SMALL, BIG, enforce="terminate")),
        gpu(1, replace(parts, compute=both), replace(shared, compute=(device,))),
        gpu(2, mig=None, device=T4, time_slice=TimeSlice.LONG),
    )
    assert (
        plan_document(observed)
        == """\
# GPU 2 (Tesla T4) has no MIG
version: v1
gpus:
- devices: [0]
  mig: disabled
  mps:
    user: 1000
    shares:
      small: {count: 4, memory: 8Gi, threads: 15.5}
      big: {count: 1, memory: 40Gi, threads: 40}
    enforce: terminate
    oversubscribe: true
- devices: [1]
  mig:
  - profile: 1c.3g.40gb
    start: 0
    count: 2
    mps:
      user: 1000
      shares:
        replica: {count: 2, memory: 1000Mi, threads: 50}
      oversubscribe: true
  - profile: 3g.40gb
    start: 4
    mps:
      user: 1000
      clients: {memory: 512Mi}
- devices: [2]
  timeSlice: long
"""
    )
    assert yaml.safe_load(plan_document(observed)) == plan_data(observed)
    assert len(read_document(plan_document(observed)).entries) == 3


def test_what_claims_share() -> None:
    """The daemon comes and goes with them: a plan that had it would be blocked by them."""
    shares = (Share(name, None, 8192, 10.0, total=8192) for name in ("share-1", "share-2"))
    theirs, split = mps_of(*shares), instance(0, "3g.40gb")
    split = replace(split, compute=(replace(split.compute[0], mps=theirs),))
    observed = node(gpu(0, mig=OFF, memory=HUGE, mps=theirs), gpu(1, split))
    whole, parts = plan_data(observed)["gpus"]
    assert whole == {"devices": [0], "mig": "disabled"}
    assert parts == {"devices": [1], "mig": [{"profile": "3g.40gb", "start": 0}]}
    assert export_notes(observed) == [
        f"GPU {number} has MPS for shares that claims have, which are not the plan's"
        for number in (0, 1)
    ]


def test_what_a_mig_parted_file_leaves_out_is_noted() -> None:
    mps = mps_of(Share("clients", None, 1024, None))
    shared = instance(4, "3g.40gb")
    shared = replace(shared, compute=tuple(replace(c, mps=mps) for c in shared.compute))
    observed = node(
        gpu(0, mig=OFF, mps=mps),
        gpu(1, shared, instance(0, "1g.10gb", size=1)),
        gpu(2, mig=OFF, time_slice=TimeSlice.LONG),
        gpu(3),
    )
    end = "which a mig-parted file cannot express; --format plan has it"
    said = [f"# {line}, {end}" for line in (
        "GPU 0 has MPS",
        "GPU 1 has MPS on 3g.40gb at 4",
        "GPU 2 has the time slice long",
    )]  # fmt: skip
    lines = mig_parted_document(observed).splitlines()
    assert [line for line in lines if line.startswith("#")] == said
    assert export_notes(observed) == []


def test_time_slices_that_are_not_written() -> None:
    for more in (
        {"time_slice": TimeSlice.DEFAULT},
        {"time_slice": None},
        {"time_slice": TimeSlice.LONG, "compute_mode": ComputeMode.EXCLUSIVE_PROCESS},
        {"time_slice": TimeSlice.LONG, "mig": ON},
    ):
        (entry,) = plan_data(node(gpu(0, **{"mig": OFF, **more})))["gpus"]  # type: ignore[arg-type]  # keys of Gpu
        assert "timeSlice" not in entry
    set_by_us: dict[str, object] = {
        "time_slice": TimeSlice.DEFAULT,
        "earlier_time_slice": TimeSlice.LONG,
    }
    (entry,) = plan_data(node(gpu(0, **{"mig": OFF, **set_by_us})))["gpus"]  # type: ignore[arg-type]  # keys of Gpu
    assert entry["timeSlice"] == "default"


LIMITS = st.tuples(
    st.none() | st.integers(1, 4000), st.none() | st.integers(10, 10_000).map(lambda n: n / 100)
)
SHARES = st.lists(st.tuples(st.integers(1, 4), LIMITS), min_size=1, max_size=3)


@given(
    SHARES,
    LIMITS,
    st.booleans(),
    st.sampled_from(["report", "terminate"]),
    st.sampled_from(
        [
            Account(1000, 1000, (27,)),
            Account(1000, 1000),
            Account(1001, 7),
            Account(0, 0, any_user=True),
        ]
    ),
)
def test_exported_mps_is_in_sync(
    counted: list[tuple[int, tuple[int | None, float | None]]],
    endless: tuple[int | None, float | None],
    counts: bool,
    enforce: str,
    account: Account,
) -> None:
    shares = [Share(f"s{n}", count, *limits) for n, (count, limits) in enumerate(counted)]
    running = mps_of(
        *(shares if counts else [Share("clients", None, *endless)]),
        account=account,
        enforce=enforce,
    )
    whole = replace(card("t4"), mps=running, compute_mode=ComputeMode.EXCLUSIVE_PROCESS)
    mig = with_instances(card("h100-80gb"), [("3g.40gb", 0)])
    parts = tuple(replace(c, mps=running) for c in mig.instances[0].compute)
    mig = replace(mig, index=1, instances=(replace(mig.instances[0], compute=parts),))
    observed = node(whole, mig)
    host = Host(accounts={"1000": Account(1000, 1000, (27,))})
    desired = resolve(read_document(plan_document(observed)), observed, host)
    assert isinstance(desired, DesiredNode), desired
    assert plan(desired, observed).verdict is Verdict.IN_SYNC


PROFILES = st.sampled_from(["1g.10gb", "1g.10gb+me", "3g.40gb", "1g.24gb-me", "1g.24gb+me.all"])
INSTANCES = st.builds(
    lambda start, profile, parts: instance(start, *([f"1c.{profile}"] * parts or [profile])),
    st.integers(0, 11),
    PROFILES,
    st.sampled_from([0, 0, 1]),
)
GPUS = st.tuples(
    st.sampled_from([ON, OFF, None]),
    st.lists(INSTANCES, max_size=7, unique_by=lambda instance: instance.placement.start),
)


@given(st.lists(GPUS, max_size=4))
def test_round_trip(found: list[tuple[MigMode | None, list[GpuInstance]]]) -> None:
    """Read back, both documents ask for just what is there; the plan with the places."""
    gpus = [gpu(n, *(i if mode == ON else []), mig=mode) for n, (mode, i) in enumerate(found)]
    observed = node(*gpus)
    placed: dict[int | str, Counter[tuple[str, int | None]] | None] = {}
    for entry in read_document(plan_document(observed)).entries:
        for device in entry.devices or ():
            placed[device.device] = None
            if isinstance(entry.mig, MigLayout):
                layout: Counter[tuple[str, int | None]] = Counter()
                for item in entry.mig.instances:
                    layout[item.profile, item.start] += item.count
                placed[device.device] = layout
    counted: dict[int | str, dict[str, int] | None] = {}
    for entry in read_document(mig_parted_document(observed)).entries:
        chosen = range(len(gpus)) if entry.devices is None else [d.device for d in entry.devices]
        for index in chosen:
            counted[index] = None
            if isinstance(entry.mig, MigLayout):
                counted[index] = {item.profile: item.count for item in entry.mig.instances}
    for g in gpus:
        devices = [(c.profile, i.placement.start) for i in g.instances for c in i.compute]
        if g.mig is not None:
            assert placed[g.index] == (Counter(devices) if g.mig.current else None)
        names = Counter(name for name, _ in devices)
        assert counted[g.index] == (dict(names) if g.mig and g.mig.current else None)
