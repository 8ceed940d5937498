"""Problems of MPS that need a person, and why the node is not ready for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.plan.remedies import end_commands
from nodeagent.views.devices import device_words, gpu_of, located, place_words
from nodeagent.views.shapes import MpsClient, MpsDaemon, MpsWaiting

_ON_ITS_WAY = frozenset({"Starting", "Limiting", "Backoff"})


def on_its_way(daemons: Iterable[MpsDaemon]) -> bool:
    """Whether some wanted daemon is not there yet, or not there again, and mends itself."""
    return any(d.is_wanted and d.state in _ON_ITS_WAY for d in daemons)


def not_ready_reasons(daemons: Iterable[MpsDaemon], observed: ObservedNode) -> tuple[str, ...]:
    """Each wanted daemon that is not Ready, in a sentence."""
    where = located(observed)
    return tuple(
        f"the MPS daemon of {device_words(daemon.device, where)} ({daemon.device}) is "
        f"{daemon.state}{_because(daemon.why)}"
        for daemon in daemons
        if daemon.is_wanted and not daemon.is_ready
    )


def unready_daemons(gpu: Gpu) -> tuple[Problem, ...]:
    """Each daemon on the GPU that is not Ready, for those who look only once and not again."""
    return tuple(
        Problem(
            code=Code.MPS,
            message=f"the MPS daemon of {place_words(gpu, device)} is {device.mps.state}"
            f"{_because(device.mps.why)}",
            remedy=_remedy(device.uuid, device.mps.state),
            gpu=gpu.uuid,
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
    where = located(observed)
    return tuple(
        Problem(code=code, message=message, remedy=remedy, gpu=gpu_of(daemon.device, where))
        for daemon in daemons
        for code, message, remedy in _problems_of(daemon, device_words(daemon.device, where))
    )


def _problems_of(daemon: MpsDaemon, where: str) -> Iterator[tuple[Code, str, str]]:
    """Each with its message and remedy."""
    clients = ", ".join(map(client_words, daemon.clients))
    if daemon.state == "Fault":
        message = f"the MPS daemon of {where} takes no new clients{_because(daemon.why)}"
        remedy = f"end its clients ({clients})" if clients else "wait; it is restarted"
        yield Code.MPS, message, _with_commands(remedy, daemon.clients)
    elif daemon.state == "Failed":
        message = f"the MPS daemon of {where} does not stay up{_because(daemon.why)}"
        said = f"; its last message: {daemon.last_lines[-1]}" if daemon.last_lines else ""
        yield Code.MPS, message + said, _remedy(daemon.device, "Failed")
    for waiting in daemon.waiting:
        yield Code.MPS_CLIENT, *_waiting(daemon, waiting, where, clients)
    for client in daemon.clients:
        # A client that ends by a signal may take others along (NVIDIA's MPS documents).
        remedy = _with_commands("start it with the environment of a free slot, or end it", [client])
        remedy = (
            ""
            if daemon.enforce == "terminate"
            else f"{remedy} (`enforce: terminate` has MPS end it first)"
        )
        for finding in client.findings:
            message = f"MPS client {client_words(client)} on {where}: {finding}"
            yield Code.MPS_CLIENT, message, remedy


def _waiting(daemon: MpsDaemon, waiting: MpsWaiting, where: str, clients: str) -> tuple[str, str]:
    command = f" ({waiting.command})" if waiting.command else ""
    server = daemon.server
    holder = f"; server {server.pid} serves user {server.user}" if server else ""
    used = f", now {clients}" if clients else ""
    run_as = f"run it as user {daemon.user}, " if daemon.user is not None else ""
    message = (
        f"pid {waiting.pid}{command} of user {waiting.user} waits for MPS on {where} and may wait "
        f"for ever{holder}{used}"
    )
    remedy = f"end it: `kill {waiting.pid}`; {run_as}or set mps.user in the plan to {waiting.user}"
    return message, f"{remedy}, or to any"


def _with_commands(remedy: str, clients: Iterable[MpsClient]) -> str:
    commands = end_commands(client.end for client in clients)
    return f"{remedy}: {commands}" if commands else remedy


def client_words(client: MpsClient) -> str:
    """`4711 (python3 train.py) of pod ml/train-0`."""
    name = " ".join(filter(None, (client.command, client.script)))
    command = f" ({name})" if name else ""
    pod = f" of pod {client.pod.namespace}/{client.pod.name}" if client.pod else ""
    return f"{client.pid}{command}{pod}"


def _because(why: str) -> str:
    return f": {why}" if why else ""
