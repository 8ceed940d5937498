"""Problems of MPS that need a person, and why the node is not ready for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from nodeagent.plan.observed import Gpu, ObservedNode
from nodeagent.plan.problems import Code, Problem
from nodeagent.views.devices import device_words, places
from nodeagent.views.mps_state import ClientState, DaemonState, WaitingClient

_ON_ITS_WAY = frozenset({"Starting", "Limiting", "Backoff"})
_USELESS = frozenset({"Failed", "Fault"})


def on_its_way(daemons: Iterable[DaemonState]) -> bool:
    """Whether some wanted daemon is not there yet, or not there again, and mends itself."""
    return any(d.wanted is not None and d.phase in _ON_ITS_WAY for d in daemons)


def not_ready_reasons(daemons: Iterable[DaemonState], observed: ObservedNode) -> tuple[str, ...]:
    """Each wanted daemon that is not Ready, in a sentence."""
    return tuple(
        f"the MPS daemon of {device_words(daemon.device, observed)} ({daemon.device}) is "
        f"{daemon.phase}{f': {daemon.why}' if daemon.why else ''}"
        for daemon in daemons
        if daemon.wanted is not None and not daemon.is_ready
    )


def unready_daemons(gpu: Gpu) -> tuple[Problem, ...]:
    """Each daemon on the GPU that is not Ready, for those who look only once and not again."""
    seen = ObservedNode((gpu,))
    daemons = {gpu.uuid: gpu.mps, **{c.uuid: c.mps for i in gpu.instances for c in i.compute}}
    return tuple(
        Problem(
            Code.MPS,
            f"the MPS daemon of {device_words(device, seen)} is {daemon.state}"
            f"{f': {daemon.why}' if daemon.why else ''}",
            _remedy(device, daemon.state),
            gpu=gpu.uuid,
        )
        for device, daemon in daemons.items()
        if daemon is not None and daemon.state != "Ready"
    )


def _remedy(device: str, state: str) -> str:
    match state:
        case "Down":  # drained
            return f"start it again: nodeagent mps restart {device}, or nodeagent apply"
        case "Failed":
            return f"mend the cause; to try at once: nodeagent mps restart {device}"
        case _:
            return "see its log; an agent starts it again by itself, and so does `nodeagent apply`"


def mps_problems(daemons: Iterable[DaemonState], observed: ObservedNode) -> tuple[Problem, ...]:
    """What of MPS needs a person: daemons that are of no use (Mps), and clients that will never
    get anywhere or have what they should not (MpsClient, which does not change the phase).

    A daemon that is being started again mends itself, and is only shown.
    """
    gpus = {place.device: place.gpu.uuid for place in places(observed)}
    return tuple(
        problem
        for daemon in daemons
        for problem in _problems_of(
            daemon, device_words(daemon.device, observed), gpus.get(daemon.device, "")
        )
    )


def _problems_of(daemon: DaemonState, where: str, gpu: str) -> Iterator[Problem]:
    if daemon.phase in _USELESS:
        yield _daemon_problem(daemon, where, gpu)
    for waiting in daemon.waiting:
        yield _waiting_problem(daemon, waiting, where, gpu)
    for client in daemon.clients:
        for finding in client.findings:
            yield Problem(
                Code.MPS_CLIENT,
                f"MPS client {client_words(client)} on {where}: {finding}",
                "" if _terminates(daemon) else "give it the environment of a free share, or end it",
                gpu=gpu,
            )


def _daemon_problem(daemon: DaemonState, where: str, gpu: str) -> Problem:
    why = f": {daemon.why}" if daemon.why else ""
    if daemon.phase == "Fault":
        clients = ", ".join(map(client_words, daemon.clients))
        return Problem(
            Code.MPS,
            f"the MPS daemon of {where} is of no use to new clients{why}",
            f"end its clients ({clients})" if clients else "wait; it is started anew",
            gpu=gpu,
        )
    said = f"; the last it said: {daemon.last_lines[-1]}" if daemon.last_lines else ""
    return Problem(
        Code.MPS,
        f"the MPS daemon of {where} does not stay up{why}{said}",
        f"mend the cause; to try at once: nodeagent mps restart {daemon.device}",
        gpu=gpu,
    )


def _waiting_problem(daemon: DaemonState, waiting: WaitingClient, where: str, gpu: str) -> Problem:
    command = f" ({waiting.command})" if waiting.command else ""
    server = daemon.server
    holder = f"; server {server.pid} serves user {server.uid}" if server else ""
    holders = [client_words(client) for client in daemon.clients]
    used = f", now {', '.join(holders)}" if holders else ""
    planned = daemon.wanted.account.uid if daemon.wanted else None
    run_as = f"run it as user {planned}" if planned is not None else "end it"
    return Problem(
        Code.MPS_CLIENT,
        f"pid {waiting.pid}{command} of user {waiting.uid} waits for MPS on {where} and may wait "
        f"for ever{holder}{used}",
        f"{run_as}, or set mps.user in the plan to {waiting.uid}, or to any",
        gpu=gpu,
    )


def client_words(client: ClientState) -> str:
    """`4711 (python) of pod ml/train-0`."""
    command = f" ({client.command})" if client.command else ""
    pod = f" of pod {client.namespace}/{client.pod}" if client.pod else ""
    return f"{client.pid}{command}{pod}"


def _terminates(daemon: DaemonState) -> bool:
    return daemon.wanted is not None and daemon.wanted.sharing.enforce == "terminate"
