"""What the agent's pages show and what it has the Node say, compared with cards and disk."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.admission import MPS_SERVER
from tests.campaign import processes

_MODES = {0: "default", 2: "prohibited", 3: "exclusiveProcess"}
_DEVICE = re.compile(r'^nodeagent_mig_device_info\{.*?mig_uuid="([^"]+)".*\} 1$', re.MULTILINE)
_MEMORY = re.compile(r'^DCGM_FI_DEV_FB_USED\{gpu="(\d+)",.*?UUID="([^"]+)"(.*)\}', re.MULTILINE)
_INSTANCE = re.compile(r'GPU_I_ID="(\d+)"')
_PHASE = re.compile(r'^nodeagent_phase\{phase="(\w+)"\} 1$', re.MULTILINE)


async def ask(socket: Path, path: str) -> tuple[str, str]:
    """The status of the answer and its text. Raises OSError."""
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        answer = (await reader.read(-1)).decode()
    finally:
        writer.close()
    return answer[9:12], answer.partition("\r\n\r\n")[2]


async def read(socket: Path) -> tuple[dict[str, Any], str]:
    """What `untrue` compares. Raises OSError."""
    _, status = await ask(socket, "/v1/status")
    _, metrics = await ask(socket, "/metrics")
    return json.loads(status), metrics


def untrue(
    node: SimulatedNode, folder: Path, status: Mapping[str, Any], metrics: str
) -> Iterator[str]:
    """What is shown and is not so, on a node where nothing has changed for a while."""
    gpus = {gpu["uuid"]: gpu for gpu in status.get("gpus", ())}
    if gpus.keys() != {card.identity.uuid for card in node.cards}:
        yield f"status shows the GPUs {sorted(gpus)}"
        return
    devices, memory = set[str](), set[tuple[str, str, str]]()
    for card in node.cards:
        uuid, shown = card.identity.uuid, gpus[card.identity.uuid]
        there = [
            (card.mig_uuid(i, c), card.profile(i.profile).name, i.start, _MODES[c.compute_mode])
            for i, c in card.mig_devices()
        ]
        devices |= {device for device, *_ in there}
        index = str(card.index)
        memory |= {(index, uuid, str(i.id)) for i in card.state.instances} or {(index, uuid, "")}
        parts = ("uuid", "profile", "start", "computeMode")
        instances = shown.get("instances", [])
        listed = [tuple(one.get(part) for part in parts) for one in instances]
        if sorted(listed) != sorted(there):
            yield f"status shows {listed} on GPU {card.index}, and there are {there}"
        if (shown.get("mig", {}).get("current") == "enabled") is not card.state.mig:
            yield f"status shows MIG as {shown.get('mig')} on GPU {card.index}"
        # A pod that has it by the kubelet's list is shown without a pid.
        users = [user.get("pid") for part in (shown, *instances) for user in part["users"]]
        # An MPS server goes with its daemon and is no user of its own.
        programs = {one.pid for one in card.state.processes if one.command != MPS_SERVER}
        if set(users) != programs:
            yield f"status shows the users {users} of GPU {card.index}"
    daemons = {one["device"]: [one["pid"]] for one in status.get("mps", ()) if one.get("pid")}
    if daemons != processes.daemons(folder):
        yield f"status shows the MPS daemons {daemons}"
    if (found := set(_DEVICE.findall(metrics))) != devices:
        yield f"metrics show the devices {found}, and there are {devices}"
    sampled = {(gpu, uuid, _instance(rest)) for gpu, uuid, rest in _MEMORY.findall(metrics)}
    if sampled != memory:
        yield f"metrics show memory of {sorted(sampled)}, and there are {sorted(memory)}"
    if (phases := _PHASE.findall(metrics)) != [status["phase"]]:
        yield f"metrics show the phase {phases}, and status {status['phase']}"


def not_ended(status: Mapping[str, Any], *, others_came: bool) -> Iterator[str]:
    """What is still called wrong on a node where nothing is. `others_came`: whether it may say that
    another program was at work. Files that were deleted are shown for a while, unusable ones until
    they are removed, and a plan that is none, or not there, until the next. That the agent is
    starved is true of the machine that plays the day.
    """
    for owner in (status, *status["gpus"]):
        for finding in owner["health"]["findings"]:
            if not (others_came and finding["cause"] == "migChanged"):
                yield f"status shows {finding}"
    if status["phase"] != "Rejected":
        for problem in status["problems"]:
            if problem["code"] not in {"RunDirectory", "StateFile", "SourceMissing", "Starved"}:
                yield f"status shows {problem}"


def _instance(labels: str) -> str:
    found = _INSTANCE.search(labels)
    return found[1] if found else ""


# --- the Node ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Published:
    """Of the Node its annotations and the states of its conditions; of its devices for claims the
    names of those that no new pod gets.
    """

    status: dict[str, Any]
    layout: dict[str, Any]
    conditions: dict[str, str]
    tainted: list[str]


def untrue_of_node(node: SimulatedNode, published: Published, *, unhealthy: bool) -> Iterator[str]:
    """What is published and is not so, on a node that is as its plan says and where no pod has
    anything. `unhealthy`: whether a GPU may be held for unhealthy.
    """
    status, layout = published.status["gpus"], published.layout["gpus"]
    if not len(status) == len(layout) == len(node.cards):
        yield f"the Node has GPUs {status} and {layout}"
        return
    for card in node.cards:
        uuid = card.identity.uuid
        (listed,) = (gpu.get("instances", ()) for gpu in status if gpu["uuid"] == uuid)
        (counted,) = (gpu.get("instances", {}) for gpu in layout if gpu["uuid"] == uuid)
        there = [
            (card.mig_uuid(i, c), card.profile(i.profile).name, i.start, False)
            for i, c in card.mig_devices()
        ]
        parts = ("uuid", "profile", "start", "used")
        if sorted(tuple(one[part] for part in parts) for one in listed) != sorted(there):
            yield f"the Node's status has {listed} on GPU {card.index}, and there are {there}"
        counts = Counter(profile for _, profile, *_ in there)
        if counted != {name: {"total": total, "used": 0} for name, total in counts.items()}:
            yield f"the Node's layout has {counted} on GPU {card.index}, and there are {counts}"
    well = {"GPUPartitionsReady"} if unhealthy else {"GPUPartitionsReady", "GPUHealthy"}
    if any(published.conditions.get(name) != "True" for name in well):
        yield f"the Node's conditions are {published.conditions}"
    if published.tainted and not unhealthy:
        yield f"no pod gets {published.tainted}"
