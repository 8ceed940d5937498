"""MPS on the node as JSON: daemons, their servers, and the clients with their limits and use.

Keys are camelCase, sizes bytes; a key that is absent is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.shares import MIB, Account, Share, Sharing, WantedMps
from nodeagent.views.devices import Place, device_words, devices_named, places
from nodeagent.views.mps_state import ClientState, DaemonState, ServerState, WaitingClient
from nodeagent.views.times import time_json

Json = dict[str, Any]


def mps_json(daemons: Sequence[DaemonState], observed: ObservedNode | None = None) -> list[Json]:
    """Each daemon with its server and clients; with `observed` also where its device is, in the
    order of the devices.
    """
    where = {place.device: place for place in places(observed)} if observed else {}
    found = [(where.get(daemon.device), daemon) for daemon in daemons]
    return [daemon_json(daemon, place) for place, daemon in sorted(found, key=_by_place)]


def _by_place(found: tuple[Place | None, DaemonState]) -> tuple[bool, int, int]:
    """Those whose device is gone come last."""
    place = found[0]
    return (True, 0, 0) if place is None else (False, place.gpu.index, place.start)


def mps_answer(
    daemons: Sequence[DaemonState],
    *,
    node: str,
    observed: ObservedNode,
    observed_at: datetime | None = None,
    device: str | None = None,
) -> Json | None:
    """What `GET /v1/mps` answers: all daemons, or those of one device and of the MIG devices on
    it; None when the node has no such device. `observed_at` is when the clients were looked at.
    """
    chosen = tuple(daemons)
    if device is not None:
        named = devices_named(device, observed)
        if named is None:
            # A device that is gone may still have its daemon.
            named = tuple(d.device for d in daemons if d.device.casefold() == device.casefold())
            if not named:
                return None
        chosen = tuple(daemon for daemon in daemons if daemon.device in named)
    report: Json = {"node": node}
    if observed_at is not None:
        report["observedAt"] = time_json(observed_at)
    return {**report, "daemons": mps_json(chosen, observed)}


def daemon_json(daemon: DaemonState, place: Place | None = None) -> Json:
    """One daemon. `gpu` is the index of its GPU; `profile` and `start` are a MIG device's."""
    report: Json = {
        "device": daemon.device,
        **_place_json(place),
        "state": daemon.phase,
        "why": daemon.why or None,
        "trouble": daemon.trouble or None,
        "since": time_json(daemon.since) if daemon.since else None,
        "pid": daemon.pid,
        "user": user_json(daemon.wanted.account) if daemon.wanted else None,
        "restarts": daemon.restarts,
        "pipeDirectory": daemon.pipe_directory or None,
        **_sharing_json(daemon.wanted),
        "server": _server_json(daemon.server) if daemon.server else None,
        "clients": [client_json(client) for client in daemon.clients],
        "waiting": [_waiting_json(client) for client in daemon.waiting] or None,
        "lastLines": list(daemon.last_lines) or None,
    }
    return _known(report)


def client_json(client: ClientState) -> Json:
    """One client: what it was given, and what it really has and uses."""
    pod = {"namespace": client.namespace, "name": client.pod, "container": client.container}
    report: Json = {
        "pid": client.pid,
        "command": client.command or None,
        "user": client.uid,
        "share": client.share or None,
        "slot": client.slot or None,
        "memory": _known({"used": client.memory_used, "limit": client.memory_limit}) or None,
        "threads": None if client.threads is None else _plain(client.threads),
        "pod": pod if client.pod else None,
        "findings": list(client.findings) or None,
    }
    return _known(report)


def user_json(account: Account) -> int | str:
    """The user's id; `any` where clients of every user are taken."""
    return "any" if account.any_user else account.uid


def _place_json(place: Place | None) -> Json:
    if place is None:
        return {}
    part = {"profile": place.profile, "start": place.start, "size": place.size}
    return {"gpu": place.gpu.index, **(part if place.profile else {})}


def _sharing_json(wanted: WantedMps | None) -> Json:
    if wanted is None:
        return {}
    return {"enforce": wanted.sharing.enforce, "shares": shares_json(wanted.sharing)}


def shares_json(sharing: Sharing) -> Json:
    """The shares by name; what is not limited is absent."""
    return {share.name: _share_json(share) for share in sharing.shares}


def _share_json(share: Share) -> Json:
    return _known(
        {
            "count": share.count,
            "memory": None if share.memory is None else share.memory * MIB,
            "threads": None if share.threads is None else _plain(share.threads),
        }
    )


def _server_json(server: ServerState) -> Json:
    return _known({"pid": server.pid, "user": server.uid, "status": server.status})


def _waiting_json(client: WaitingClient) -> Json:
    return _known({"pid": client.pid, "user": client.uid, "command": client.command or None})


def _known(report: Json) -> Json:
    return {key: value for key, value in report.items() if value is not None}


def _plain(number: float) -> float:
    """15 where it is 15.0, as the plan has it."""
    return int(number) if number == int(number) else number


def done_json(daemon: DaemonState, done: str, observed: ObservedNode) -> Json:
    """The answer to a request that was carried out; `done` is `restarted` or `drained`."""
    where = device_words(daemon.device, observed)
    place = next((p for p in places(observed) if p.device == daemon.device), None)
    return {
        "device": daemon.device,
        "done": done,
        "message": f"the MPS daemon of {where} was {done}; it is {daemon.phase} now",
        "daemon": daemon_json(daemon, place),
    }
