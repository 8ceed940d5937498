"""The node as a document, and back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

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
from nodeagent.planning.desired import MigDisabled, MigLayout
from nodeagent.planning.observed import (
    Access,
    ComputeInstance,
    Gpu,
    GpuInstance,
    MigMode,
    ObservedNode,
    Placement,
)

ON = MigMode(current=True, pending=True)
OFF = MigMode(current=False, pending=False)
H100 = 0x233010DE
A100 = 0x20B010DE
T4 = 0x1EB810DE


def instance(start: int, *devices: str, gi: int = 1, size: int = 4) -> GpuInstance:
    """A GPU instance at `start` with these devices in it."""
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
    """A GPU with these instances."""
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
    """A node of these."""
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
# GPU 4: GPU instance 2 (3g.40gb at 4:4) has no compute instance, so it is no device and is left out
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
    mig: []  # MIG mode on, no instances
  - devices: [4]
    mig:
      - {profile: 1c.3g.40gb, start: 0, count: 2}
"""
    )


def test_mig_parted() -> None:
    """mig-parted's form: counts, filters where the node has several kinds of GPU."""
    assert (
        mig_parted_document(MIXED)
        == """\
# GPU 4: GPU instance 2 (3g.40gb at 4:4) has no compute instance, so it is no device and is left out
# GPU 5 (Tesla T4) has no MIG
version: v1
mig-configs:
  current:
  - device-filter: 0x233010DE
    devices: [0, 3]
    mig-enabled: true
    mig-devices:
      1g.10gb: 1
      3g.40gb: 1
  - device-filter: [0x1EB810DE, 0x233010DE]
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
    mig-devices:
      1c.3g.40gb: 2
""".replace("0x233010DE", '"0x233010DE"').replace("0x1EB810DE", '"0x1EB810DE"')
    )


def test_mig_parted_merges() -> None:
    """One entry for all needs no filter; one for all of a kind has the kind and `all`."""
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
    """A GPU that does not answer is named, left out, and never included in `all`."""
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


@pytest.mark.parametrize("label", ["current", "all-1g.10gb", "on", "7", "0x1", "ä b", 'a"b', "~"])
def test_labels(label: str) -> None:
    """Any label can be written and selected."""
    text = mig_parted_document(node(gpu(0)), label)
    assert read_document(text, configuration=label).entries
    assert yaml.safe_load(text) == mig_parted_data(node(gpu(0)), label)


def test_no_gpus() -> None:
    """A node without GPUs has valid documents, too."""
    assert read_document(plan_document(node())).entries == ()
    assert read_document(mig_parted_document(node())).entries[0].devices == ()


def test_text_and_data_agree() -> None:
    """The YAML is the data, also for readers that know YAML 1.1 only."""
    assert yaml.safe_load(plan_document(MIXED)) == plan_data(MIXED)
    assert yaml.safe_load(mig_parted_document(MIXED)) == mig_parted_data(MIXED)


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
    placed: dict[int, Counter[tuple[str, int | None]] | None] = {}
    for entry in read_document(plan_document(observed)).entries:
        for device in entry.devices or ():
            assert device.index is not None
            placed[device.index] = None
            if isinstance(entry.mig, MigLayout):
                placed[device.index] = Counter()
                for item in entry.mig.instances:
                    placed[device.index] += Counter({(item.profile, item.start): item.count})  # type: ignore[operator]  # not None: set just above
    counted: dict[int, dict[str, int] | None] = {}
    for entry in read_document(mig_parted_document(observed)).entries:
        indices = range(len(gpus)) if entry.devices is None else [d.index for d in entry.devices]
        for index in indices:
            assert index is not None
            counted[index] = None
            if isinstance(entry.mig, MigLayout):
                counted[index] = {item.profile: item.count for item in entry.mig.instances}
    for g in gpus:
        devices = [(c.profile, i.placement.start) for i in g.instances for c in i.compute]
        if g.mig is not None:
            assert placed[g.index] == (Counter(devices) if g.mig.current else None)
        names = Counter(name for name, _ in devices)
        assert counted[g.index] == (dict(names) if g.mig and g.mig.current else None)
