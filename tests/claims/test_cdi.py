"""A claim's CDI document and its file: valid, complete, repaired, swept; and the toolkit's."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from nodeagent.claims.model import ClaimedDevice, ClaimRecord, FileState, RecordPhase, Result
from nodeagent.claims.records import UnreadableRecord
from nodeagent.claims.serving import cdi
from nodeagent.claims.serving.daemons import MpsEdits
from nodeagent.claims.serving.toolkit import TOOLKIT_DIRS, NoToolkitEdits, ToolkitEdits
from nodeagent.errors import NodeagentError
from nodeagent.files.cdi import Edits
from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.shares import Share
from tests.cdi_schema import valid_names
from tests.claims.machine import claim_files
from tests.claims.samples import GPU, MIG_DEVICE, UID, mig_device, mig_result, record
from tests.mps.plans import spec_of, wanted

TOOLKIT: dict[str, Any] = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
    "containerEdits": {
        "env": ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_CTK=1"],
        "deviceNodes": [
            {"path": "/dev/nvidia-modeset"},
            {"path": "/dev/nvidiactl", "hostPath": "/run/nvidia/driver/dev/nvidiactl"},
        ],
        "hooks": [
            {
                "hookName": "createContainer",
                "path": "/usr/bin/nvidia-cdi-hook",
                "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64"],
            }
        ],
        "mounts": [
            {
                "hostPath": "/usr/lib64/libcuda.so.570.1",
                "containerPath": "/usr/lib64/libcuda.so.570.1",
                "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
            }
        ],
    },
}
COMMON = convert(TOOLKIT["containerEdits"], Edits)


def claimed(result: Result) -> ClaimedDevice:
    return mig_device(result=result, cdi_id=cdi.device_id(UID, result))


def mig(**changes: Any) -> cdi.ContainerDevice:
    return cdi.ContainerDevice(claimed(mig_result(**changes)), (1,), (12, 13))


def shared(share: Share) -> cdi.ContainerDevice:
    daemon = spec_of(wanted())
    client = MpsEdits(daemon, share.slots[0])
    return cdi.ContainerDevice(claimed(mig_result(device="gpu")), (0,), mps=client)


def document(*devices: cdi.ContainerDevice, common: Edits = COMMON) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cdi.claim_document(devices, common))
    return found


def device_edits(*devices: cdi.ContainerDevice) -> dict[str, Any]:
    found: dict[str, Any] = document(*devices)["devices"][0]["containerEdits"]
    return found


# --- the document ---------------------------------------------------------------------------------


def test_it_is_valid() -> None:
    """Against the CDI project's own schema, with names of its grammar."""
    devices = (mig(), mig(share_id=UID), shared(Share("a", None, 8192, 25.0)))
    found = document(*devices)
    names = valid_names(found)
    assert (found["cdiVersion"], found["kind"]) == ("0.5.0", "nodeagent.io/claim")
    assert names == [one.claimed.cdi_id.partition("=")[2] for one in devices]
    pools = {cdi.device_id(UID, mig_result(pool=f"node-1/gpu-{number}")) for number in range(2)}
    assert len({*names, *pools}) == 5


def test_the_files_of_a_device() -> None:
    found = document(mig())
    assert found["devices"][0]["containerEdits"] == {
        "deviceNodes": [
            {"path": "/dev/nvidia1"},
            {"path": "/dev/nvidia-caps/nvidia-cap12"},
            {"path": "/dev/nvidia-caps/nvidia-cap13"},
        ]
    }
    edits = found["containerEdits"]
    assert edits["deviceNodes"] == [
        {"path": "/dev/nvidiactl", "hostPath": "/run/nvidia/driver/dev/nvidiactl"},
        {"path": "/dev/nvidia-uvm"},
        {"path": "/dev/nvidia-uvm-tools"},
        {"path": "/dev/nvidia-modeset"},
    ]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void", "NVIDIA_CTK=1"]
    assert edits["hooks"] == TOOLKIT["containerEdits"]["hooks"]
    assert edits["mounts"] == TOOLKIT["containerEdits"]["mounts"]


def test_containers_that_share_a_claims_slots() -> None:
    """Have the same environment, so that none of them can be named one slot."""
    edits = device_edits(shared(Share("replica", 4, 8192, 25.0)))
    assert not [text for text in edits["env"] if "SLOT" in text]


def test_groups_of_the_toolkits() -> None:
    """They need a newer version, which then is the lowest that has them."""
    found = document(mig(), common=cdi.merged(COMMON, Edits(additional_gids=(44, 44))))
    assert found["cdiVersion"] == "0.7.0"
    assert found["containerEdits"]["additionalGids"] == [44]


# --- files ----------------------------------------------------------------------------------------


HERE = ObservedNode((Gpu(0, GPU, minor=0),))
MADE = record(mig_device(instance=7, compute=0, uuid="MIG-7"))


def test_written_read_back_repaired_and_deleted(tmp_path: Path) -> None:
    """Nothing is written where nothing differs; what another program changed is put right."""
    files = claim_files(tmp_path)
    path = files.directory / cdi.file_name(UID)
    assert files.names() == ()
    assert files.states([MADE], HERE) == {UID: FileState.MISSING}
    files.publish(MADE, HERE)
    content, number = path.read_bytes(), path.stat().st_ino
    assert path.stat().st_mode & 0o777 == 0o644
    assert files.states([MADE], HERE) == {UID: FileState.SAME}
    files.publish(MADE, HERE)
    assert path.stat().st_ino == number
    for damaged in (content[:-1], content + b"\n", b""):
        path.write_bytes(damaged)
        assert files.states([MADE], HERE) == {UID: FileState.DIFFERS}
        files.publish(MADE, HERE)
        assert path.read_bytes() == content
    files.withdraw([path.name, "nodeagent.io-claim_0.json"])
    assert files.names() == ()


def test_no_file_for_a_device_that_is_not_there(tmp_path: Path) -> None:
    """The card's own device file alone would be all of a card outside MIG mode."""
    files, lost = claim_files(tmp_path), record(mig_device())
    with pytest.raises(NodeagentError, match=f"{MIG_DEVICE} does not exist"):
        files.publish(lost, HERE)
    assert files.names() == ()
    files.publish(MADE, HERE)
    assert files.states([lost], HERE) == {UID: FileState.DIFFERS}


def unreadable(uid: str) -> UnreadableRecord:
    """A record that cannot be used, or with no uid all of them."""
    return UnreadableRecord(Path("/x"), uid, "damaged")


def test_stale_files(tmp_path: Path) -> None:
    """Those of the agent's own prefix alone, that no record stands for or that are half written."""
    own = [cdi.file_name(uid) for uid in ("1", "2", "3", "4")]
    others = ["nvidia.yaml", "nodeagent.io-mps.json", "nodeagent.io-claim_X.json"]
    unfinished = f".{own[0]}.new"
    files = claim_files(tmp_path)
    files.directory.mkdir()
    for name in (*own, *others, unfinished):
        (files.directory / name).touch()
    records: list[ClaimRecord | UnreadableRecord] = [
        record(uid="1"),
        record(uid="2", phase=RecordPhase.INTENT),
        unreadable("3"),
    ]
    there = files.names()
    assert cdi.stale(there, records) == [unfinished, own[3]]
    assert cdi.stale(there, [unreadable("")]) == [unfinished]
    assert [cdi.claim_of(name) for name in (unfinished, own[3], *others)] == ["1", "4", *[None] * 3]
    files.withdraw(cdi.stale(there, records))
    assert set(files.names()) == {*own[:3], *others}


# --- the toolkit's --------------------------------------------------------------------------------

YAML = """
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  deviceNodes:
  - path: /dev/nvidiactl
    fileMode: 438
  additionalGids: [44]
  futureField: {a: 1}
  mounts:
  - hostPath: /usr/bin/nvidia-smi
    containerPath: /usr/bin/nvidia-smi
    options: [ro, nosuid]
"""


def test_the_toolkits_edits(tmp_path: Path) -> None:
    first, second = tmp_path / "var/run/cdi", tmp_path / "etc/cdi"  # the older one, after an update
    toolkit = ToolkitEdits([tmp_path / folder.relative_to("/") for folder in TOOLKIT_DIRS])
    second.mkdir(parents=True)
    (second / "nvidia.yaml").write_text(YAML)
    edits = toolkit.read()
    assert (edits.env, edits.additional_gids) == (("NVIDIA_VISIBLE_DEVICES=void",), (44,))
    assert edits.device_nodes[0].file_mode == 438
    assert toolkit.read() is edits
    first.mkdir(parents=True)
    (first / cdi.file_name(UID)).write_text("{}")  # a claim's own is none of them
    assert toolkit.read() is edits
    (first / "a.json").write_text('{"kind": "example.com/nvidia.com/gpu"}')
    (first / "b.json").write_text(json.dumps(TOOLKIT | {"containerEdits": {}}))
    (first / "c.json").write_text(json.dumps(TOOLKIT))
    (first / "c.txt").write_text("?")
    assert toolkit.read() == COMMON
    (first / "c.json").unlink()
    assert toolkit.read() == edits


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "would get a GPU without its driver's libraries"),
        ("nvidia.com/gpu: [", "neither YAML nor JSON"),
        ("kind: nvidia.com/gpu\ncontainerEdits: []", "containerEdits: Expected `object`"),
        ("kind: nvidia.com/gpu\ncontainerEdits: {env: [A]}", r"containerEdits: .*\$.env\[0\]"),
        ("kind: nvidia.com/gpu\ncontainerEdits: {hooks: [{hookName: x, path: /}]}", "enum value"),
        ("kind: &a nvidia.com/gpu\nx: *a", "anchor"),
        ("#" * (1 << 20) + "#", "it has more than 1048576 bytes"),
    ],
)
def test_no_edits_of_the_toolkits(tmp_path: Path, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "nvidia.yaml").write_text(content)
    with pytest.raises(NoToolkitEdits, match=reason) as caught:
        ToolkitEdits([tmp_path, tmp_path / "none"]).read()
    assert caught.value.remedy.startswith("nvidia-ctk cdi generate --output=")


def test_files_that_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(YAML)
    (tmp_path / "a.yaml").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "b.yaml")
    (tmp_path / "c.yaml").mkdir()
    with pytest.raises(NoToolkitEdits, match=r"a\.yaml: it is a symbolic link.*b\.yaml: it is a "):
        ToolkitEdits([tmp_path]).read()
