"""MPS on the node as answers show it: daemons, their servers, clients with limits and use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from nodeagent.plan.observed import Device, Gpu, ObservedNode
from nodeagent.plan.problems import Problem
from nodeagent.plan.shares import MIB, Account, Share, Sharing
from nodeagent.structs import Struct, replace
from nodeagent.views import shapes
from nodeagent.views.devices import device_words, devices_named, located
from nodeagent.views.node_state import NodeState
from nodeagent.views.shapes import Json, MpsDaemon, as_json
from nodeagent.views.text import time_json


class MpsOverview(Struct, frozen=True):
    """All daemons of the node, and what is wrong with them or with what clients get."""

    daemons: tuple[MpsDaemon, ...] = ()
    problems: tuple[Problem, ...] = ()


def daemon_shapes(
    daemons: Sequence[MpsDaemon], observed: ObservedNode | None = None
) -> list[MpsDaemon]:
    """With `observed` also where the device of each is, in the order of the devices."""
    where = located(observed) if observed else {}
    order = {device: number for number, device in enumerate(where)}  # what is gone comes last
    ordered = sorted(daemons, key=lambda daemon: order.get(daemon.device, len(order)))
    return [_at(where.get(daemon.device), daemon) for daemon in ordered]


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


def done_json(daemon: MpsDaemon, done: str, observed: ObservedNode) -> Json:
    """The answer to a request that was carried out; `done` is `restarted` or `drained`."""
    where = located(observed)
    name = device_words(daemon.device, where)
    answer = shapes.MpsDone(
        device=daemon.device,
        done=done,
        message=f"the MPS daemon of {name} was {done}; it is {daemon.state} now",
        daemon=_at(where.get(daemon.device), daemon),
    )
    return as_json(answer)


def _at(place: tuple[Gpu, Device] | None, daemon: MpsDaemon) -> MpsDaemon:
    if place is None:
        return daemon
    gpu, device = place
    lies = device.placement
    return replace(
        daemon,
        gpu=gpu.index,
        profile=device.profile,
        start=lies.start if lies else None,
        size=lies.size if lies else None,
    )


def user_id(account: Account) -> int | Literal["any"]:
    """The user's id; `any` where clients of every user are taken."""
    return "any" if account.any_user else account.uid


def share_shapes(sharing: Sharing) -> dict[str, shapes.MpsShare]:
    """The shares by name; what is not limited is absent."""
    return {share.name: _share(share) for share in sharing.shares}


def _share(share: Share) -> shapes.MpsShare:
    return shapes.MpsShare(
        count=share.count,
        memory=None if share.memory is None else share.memory * MIB,
        threads=None if share.threads is None else plain_number(share.threads),
    )


def plain_number(number: float) -> float:
    """15 where it is 15.0, as the plan has it."""
    return int(number) if number == int(number) else number
