"""MPS on the node: the answer that shows daemons with their servers and clients, what of it needs a
person, and why the node is not ready for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from nodeagent.plan.observed import Access, Gpu, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.remedies import end_commands
from nodeagent.plan.shares import MIB, Account, Sharing
from nodeagent.structs import Struct, replace
from nodeagent.views import shapes
from nodeagent.views.devices import (
    DevicesByUuid,
    device_words,
    devices_by_uuid,
    devices_named,
    gpu_of,
    place_words,
)
from nodeagent.views.shapes import Json, MpsClient, MpsDaemon, as_json
from nodeagent.views.text import time_json

if TYPE_CHECKING:  # which asks this module what is wrong
    from nodeagent.views.node_state import NodeState


# --- the answer -----------------------------------------------------------------------------------


class MpsOverview(Struct, frozen=True):
    """All daemons of the node, and what is wrong with them or with what clients get."""

    daemons: tuple[MpsDaemon, ...] = ()
    problems: tuple[Problem, ...] = ()


def daemon_shapes(daemons: Sequence[MpsDaemon], observed: ObservedNode) -> list[MpsDaemon]:
    """The daemons with their devices' places, in the devices' order."""
    devices = devices_by_uuid(observed)
    order = {device: number for number, device in enumerate(devices)}  # what is gone comes last
    ordered = sorted(daemons, key=lambda d: (order.get(d.device, len(order)), d.device))
    return [_at(devices, daemon) for daemon in ordered]


def mps_answer(state: NodeState, device: str | None = None) -> Json | None:
    """What `GET /v1/mps` answers: all daemons, or those of one device and of the MIG devices on
    it; None when the node has no such device. `observedAt` is when the clients were looked at.
    """
    chosen = state.mps
    if device is not None:
        named = devices_named(device, state.observed)
        if named is None:
            # A device that is gone may still have its daemon.
            named = tuple(d.device for d in chosen if d.device.casefold() == device.casefold())
            if not named:
                return None
        chosen = tuple(daemon for daemon in chosen if not {*named}.isdisjoint(daemon.serves))
    answer = shapes.Mps(
        node=state.node,
        observed_at=time_json(state.observed_at) if state.observed_at else "",
        daemons=daemon_shapes(chosen, state.observed),
    )
    return as_json(answer)


def done_json(daemon: MpsDaemon, done: str, observed: ObservedNode) -> Json:
    """The answer to a request that was carried out; `done` is `restarted` or `drained`."""
    devices = devices_by_uuid(observed)
    name = daemon_words(daemon, devices)
    answer = shapes.MpsDone(
        device=daemon.device,
        done=done,
        message=f"the MPS daemon of {name} was {done}; it is {daemon.state} now",
        daemon=_at(devices, daemon),
    )
    return as_json(answer)


def _at(devices: DevicesByUuid, daemon: MpsDaemon) -> MpsDaemon:
    if daemon.device not in devices:
        return daemon
    gpu, device = devices[daemon.device]
    lies = device.placement
    return replace(
        daemon,
        gpu=gpu.index,
        gpus=tuple(devices[one][0].index for one in daemon.devices if one in devices),
        profile=device.profile,
        start=lies.start if lies else None,
        size=lies.size if lies else None,
    )


def daemon_words(daemon: MpsDaemon, devices: DevicesByUuid) -> str:
    """Name what a daemon serves: `GPU 0`, or `GPU 0 + GPU 1`."""
    return " + ".join(device_words(one, devices) for one in daemon.serves)


def user_id(account: Account) -> int | Literal["any"]:
    """The user's id; `any` where clients of every user are taken."""
    return "any" if account.any_user else account.uid


def share_shapes(sharing: Sharing) -> dict[str, shapes.MpsShare]:
    """The shares by name; what is not limited is absent."""
    return {
        share.name: shapes.MpsShare(
            count=share.count,
            memory=None if share.memory is None else share.memory * MIB,
            threads=None if share.threads is None else plain_number(share.threads),
        )
        for share in sharing.shares
    }


def plain_number(number: float) -> float:
    """15 where it is 15.0, as the plan has it."""
    return int(number) if number == int(number) else number


# --- what is wrong --------------------------------------------------------------------------------


_ON_ITS_WAY = frozenset({"Starting", "Limiting", "Backoff"})


def on_its_way(daemons: Iterable[MpsDaemon]) -> bool:
    """Whether some wanted daemon is not there yet, or not there again, and mends itself."""
    return any(d.is_wanted and d.state in _ON_ITS_WAY for d in daemons)


def not_ready_reasons(daemons: Iterable[MpsDaemon], observed: ObservedNode) -> tuple[str, ...]:
    """Name each wanted daemon that is not Ready, in a sentence."""
    devices = devices_by_uuid(observed)
    return tuple(
        f"the MPS daemon of {daemon_words(daemon, devices)} ({daemon.device}) is "
        f"{daemon.state}{f': {daemon.why}' if daemon.why else ''}"
        for daemon in daemons
        if daemon.is_wanted and not daemon.is_ready
    )


def unready_daemons(gpu: Gpu) -> tuple[Problem, ...]:
    """Report each daemon on the GPU that is not Ready, for callers that look only once."""
    return tuple(
        gpu.problem(
            Code.MPS,
            "notReady",
            device=place_words(gpu, device),
            state=device.mps.state,
            why=device.mps.why,
            remedy=_remedy(device.uuid, device.mps.state),
        )
        for device in gpu.devices()
        if device.mps is not None and device.mps.state != "Ready"
    )


def _remedy(device: str, state: str) -> str:
    match state:
        case "Down":  # drained
            return f"start it again: `nodeagent mps restart {device}`, or apply the plan again"
        case "Failed":
            return f"mend the cause; to restart it at once: `nodeagent mps restart {device}`"
        case _:
            return "read its log; an agent restarts it, and so does `nodeagent apply`"


def mps_problems(daemons: Iterable[MpsDaemon], observed: ObservedNode) -> tuple[Problem, ...]:
    """What of MPS needs a person: daemons that are of no use (Mps), and clients that will never
    get anywhere or have what they should not (MpsClient, which does not change the phase).

    A daemon that is being started again mends itself, and is only shown.
    """
    devices = devices_by_uuid(observed)
    present = without_lost_gpus(daemons, devices)
    return tuple(problem for daemon in present for problem in _problems_of(daemon, devices))


def without_lost_gpus(daemons: Iterable[MpsDaemon], devices: DevicesByUuid) -> Iterator[MpsDaemon]:
    """The daemons but those of lost GPUs, whose own finding says what all the rest follows from."""
    lost = {
        uuid
        for uuid, (gpu, _) in devices.items()
        if gpu.access is Access.LOST or gpu.health_limits.gone
    }
    return (daemon for daemon in daemons if lost.isdisjoint(daemon.serves))


def _problems_of(daemon: MpsDaemon, devices: DevicesByUuid) -> Iterator[Problem]:
    device, gpu = daemon_words(daemon, devices), gpu_of(daemon.device, devices)
    clients = ", ".join(map(client_words, daemon.clients))
    why = daemon.why
    if daemon.state == "Fault" and clients:
        end = _commands(daemon.clients)
        yield Problem.of(
            Code.MPS, "fault", gpu=gpu, device=device, why=why, clients=clients, end=end
        )
    elif daemon.state == "Fault":
        yield Problem.of(Code.MPS, "faultWithoutClients", gpu=gpu, device=device, why=why)
    elif daemon.state == "Failed":
        said, uuid = daemon.last_lines[-1] if daemon.last_lines else "", daemon.device
        yield Problem.of(Code.MPS, "failed", gpu=gpu, device=device, why=why, said=said, uuid=uuid)
    server = daemon.server
    for waiting in daemon.waiting:
        yield Problem.of(
            Code.MPS_CLIENT,
            "waits",
            gpu=gpu,
            device=device,
            pid=waiting.pid,
            command=f" ({waiting.command})" if waiting.command else "",
            user=waiting.user,
            holder=f"server {server.pid} serves user {server.user}" if server else "",
            clients=clients,
            run_as=f"run it as user {daemon.user}, " if daemon.user is not None else "",
        )
    # A client that ends by a signal may take others along (NVIDIA's MPS documents).
    terminates = daemon.enforce == "terminate"
    case = "endedByMps" if terminates else "finding"
    for client in daemon.clients:
        name, end = client_words(client), "" if terminates else _commands([client])
        for finding in client.findings:
            yield Problem.of(
                Code.MPS_CLIENT, case, gpu=gpu, device=device, client=name, finding=finding, end=end
            )


def _commands(clients: Iterable[MpsClient]) -> str:
    return end_commands(client.end for client in clients)


def client_words(client: MpsClient) -> str:
    """`4711 (python3 train.py) of pod ml/train-0`."""
    name = " ".join(filter(None, (client.command, client.script)))
    command = f" ({name})" if name else ""
    pod = f" of pod {client.pod.namespace}/{client.pod.name}" if client.pod else ""
    return f"{client.pid}{command}{pod}"
