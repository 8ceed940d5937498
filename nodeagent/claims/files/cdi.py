"""The CDI document of a claim: what its containers get of the devices. Pure.

It has version 0.5.0, which every runtime with CDI reads, and 0.7.0 only where the toolkit's own
edits need that. What every GPU container needs besides (libraries, hooks) is taken over from the
CDI document that NVIDIA's toolkit generates.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from nodeagent.claims.model import UID, ClaimedDevice, Result
from nodeagent.files.cdi import CdiDevice, DeviceNode, Edits, cdi_specification
from nodeagent.mps.files.client_files import slot_device
from nodeagent.mps.shares import SLOT_VARIABLE, DaemonSpec
from nodeagent.plan.shares import Slot
from nodeagent.structs import replace

T = TypeVar("T")

KIND: Final = "nodeagent.io/claim"
MAX_BYTES: Final = 1 << 20  # bytes of a document; the toolkit's edits are some 20 KiB
_VERSION, _WITH_GROUPS = "0.5.0", "0.7.0"
_CONTROL: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_NO_OTHER_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES=void"  # the runtime's own injection stays off
CLAIM_FILE: Final = re.compile(rf"nodeagent\.io-claim_({UID.pattern})\.json")
UNFINISHED: Final = re.compile(rf"\.{CLAIM_FILE.pattern}\.new")

# --- names ----------------------------------------------------------------------------------------


def file_name(uid: str) -> str:
    """Of the claim's document."""
    return f"nodeagent.io-claim_{uid}.json"


def device_id(uid: str, result: Result) -> str:
    """What the kubelet hands to the runtime: `nodeagent.io/claim=...`.

    No two claims and no two GPUs have one in common, and none is used again. Once a claim's record
    has it, it stays.
    """
    pool = hashlib.sha256(result.pool.encode()).hexdigest()[:8]
    share = f"-{result.share_id}" if result.share_id else ""
    return f"{KIND}={uid}-{pool}-{result.device}{share}"


# --- the document ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MpsEdits:
    """The place of a claim's containers in the MPS daemon of their device."""

    daemon: DaemonSpec
    slot: Slot


@dataclass(frozen=True, slots=True)
class ContainerDevice:
    """A claim's device and its files: `minor` of /dev/nvidia<minor>, `capabilities` of
    /dev/nvidia-caps/nvidia-cap<n> for a MIG device's GPU instance and compute instance.
    """

    claimed: ClaimedDevice
    minor: int
    capabilities: tuple[int, ...] = ()
    mps: MpsEdits | None = None


def claim_document(devices: Sequence[ContainerDevice], common: Edits) -> bytes:
    """The text of a claim's file; `common` is what the toolkit gives every container.

    Raises NodeagentError and ValueError as `slot_device` does. The same devices make the same text.
    """
    control = Edits(
        env=(_NO_OTHER_DEVICES,), device_nodes=tuple(DeviceNode(path) for path in _CONTROL)
    )
    edits = merged(control, common)
    version = _WITH_GROUPS if edits.additional_gids else _VERSION
    named = [
        CdiDevice(name=one.claimed.cdi_id.partition("=")[2], container_edits=_edits(one))
        for one in devices
    ]
    return cdi_specification(version, KIND, named, edits)


def merged(first: Edits, second: Edits) -> Edits:
    """Both; a variable, device file or mount point that both have is as in the first.

    A device file that the second describes more closely, is as there.
    """
    described = {node.path: node for node in second.device_nodes}
    nodes = [described.get(node.path, node) for node in first.device_nodes]
    return Edits(
        env=_first_of((*first.env, *second.env), lambda text: text.partition("=")[0]),
        device_nodes=_first_of((*nodes, *second.device_nodes), lambda node: node.path),
        hooks=tuple(dict.fromkeys((*first.hooks, *second.hooks))),
        mounts=_first_of((*first.mounts, *second.mounts), lambda mount: mount.container_path),
        additional_gids=tuple(dict.fromkeys((*first.additional_gids, *second.additional_gids))),
    )


def _first_of(items: Iterable[T], key: Callable[[T], str]) -> tuple[T, ...]:
    """The first with each key."""
    found: dict[str, T] = {}
    for item in items:
        found.setdefault(key(item), item)
    return tuple(found.values())


def _edits(one: ContainerDevice) -> Edits:
    paths = [f"/dev/nvidia{one.minor}"]
    paths += [f"/dev/nvidia-caps/nvidia-cap{number}" for number in one.capabilities]
    nodes = Edits(device_nodes=tuple(map(DeviceNode, paths)))
    return nodes if one.mps is None else merged(nodes, _mps_edits(one.mps))


def _mps_edits(mps: MpsEdits) -> Edits:
    """As for a slot of a plan's. Where all containers of the claim take the slots of one share,
    none of them is named one.
    """
    edits = slot_device(mps.daemon, mps.slot).container_edits
    if mps.slot.share.count in (None, 1):
        return edits
    env = tuple(text for text in edits.env if not text.startswith(f"{SLOT_VARIABLE}="))
    return replace(edits, env=env)


# --- what is in the directory ---------------------------------------------------------------------


def claim_of(name: str) -> str | None:
    """The uid of the claim whose file this is, whole or unfinished; None for files of others."""
    match = CLAIM_FILE.fullmatch(name) or UNFINISHED.fullmatch(name)
    return match[1] if match else None
