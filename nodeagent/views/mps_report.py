"""MPS on the node as answers show it: daemons, their servers, clients with limits and use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from nodeagent.plan.observed import Device, Gpu, ObservedNode
from nodeagent.plan.shares import MIB, Account, Share, Sharing
from nodeagent.views import shapes
from nodeagent.views.devices import device_words, devices_named, located
from nodeagent.views.mps_state import ClientState, DaemonState
from nodeagent.views.node_state import NodeState
from nodeagent.views.shapes import Json, as_json
from nodeagent.views.text import time_json


def daemon_shapes(
    daemons: Sequence[DaemonState], observed: ObservedNode | None = None
) -> list[shapes.MpsDaemon]:
    """Each daemon with its server and clients; with `observed` also where its device is, in the
    order of the devices.
    """
    where = located(observed) if observed else {}
    order = {device: number for number, device in enumerate(where)}  # what is gone comes last
    ordered = sorted(daemons, key=lambda daemon: order.get(daemon.device, len(order)))
    return [_daemon(daemon, where.get(daemon.device)) for daemon in ordered]


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
        chosen = tuple(daemon for daemon in chosen if daemon.device in named)
    answer = shapes.Mps(
        node=state.node,
        observed_at=time_json(state.observed_at) if state.observed_at else "",
        daemons=daemon_shapes(chosen, state.observed),
    )
    return as_json(answer)


def done_json(daemon: DaemonState, done: str, observed: ObservedNode) -> Json:
    """The answer to a request that was carried out; `done` is `restarted` or `drained`."""
    where = located(observed)
    name = device_words(daemon.device, where)
    answer = shapes.MpsDone(
        device=daemon.device,
        done=done,
        message=f"the MPS daemon of {name} was {done}; it is {daemon.phase} now",
        daemon=_daemon(daemon, where.get(daemon.device)),
    )
    return as_json(answer)


def user_id(account: Account) -> int | Literal["any"]:
    """The user's id; `any` where clients of every user are taken."""
    return "any" if account.any_user else account.uid


def share_shapes(sharing: Sharing) -> dict[str, shapes.MpsShare]:
    """The shares by name; what is not limited is absent."""
    return {share.name: _share(share) for share in sharing.shares}


def _daemon(daemon: DaemonState, place: tuple[Gpu, Device] | None) -> shapes.MpsDaemon:
    wanted = daemon.wanted
    lies = place[1].placement if place else None  # on its GPU
    return shapes.MpsDaemon(
        device=daemon.device,
        gpu=place[0].index if place else None,
        profile=place[1].profile if place else "",
        start=lies.start if lies else None,
        size=lies.size if lies else None,
        state=daemon.phase,
        why=daemon.why,
        trouble=daemon.trouble,
        since=time_json(daemon.since) if daemon.since else "",
        pid=daemon.pid,
        user=user_id(wanted.account) if wanted else None,
        restarts=daemon.restarts,
        pipe_directory=daemon.pipe_directory,
        enforce=wanted.sharing.enforce if wanted else "",
        shares=share_shapes(wanted.sharing) if wanted else None,
        server=daemon.server,
        clients=[_client(client) for client in daemon.clients],
        waiting=list(daemon.waiting) or None,
        last_lines=list(daemon.last_lines) or None,
    )


def _client(client: ClientState) -> shapes.MpsClient:
    used, limit = client.memory_used, client.memory_limit
    return shapes.MpsClient(
        pid=client.pid,
        command=client.command,
        script=client.script,
        user=client.uid,
        share=client.share,
        slot=client.slot,
        memory=shapes.MpsMemory(used=used, limit=limit) if (used, limit) != (None, None) else None,
        threads=None if client.threads is None else _plain(client.threads),
        pod=shapes.Pod(namespace=client.namespace, name=client.pod, container=client.container)
        if client.pod
        else None,
        findings=list(client.findings) or None,
    )


def _share(share: Share) -> shapes.MpsShare:
    return shapes.MpsShare(
        count=share.count,
        memory=None if share.memory is None else share.memory * MIB,
        threads=None if share.threads is None else _plain(share.threads),
    )


def _plain(number: float) -> float:
    """15 where it is 15.0, as the plan has it."""
    return int(number) if number == int(number) else number
