"""Claims as every surface shows them: each struct is the JSON, and its schema."""

from collections import defaultdict
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from nodeagent.plan.problems import Problem
from nodeagent.plan.users import Pod
from nodeagent.structs import Shape, replace
from nodeagent.views.shapes import FirstSlice, MpsDaemon, Slices, Time


class ClaimPhase(StrEnum):
    """How far a claim has come on this node."""

    WAITING = "Waiting"  # it was refused; the kubelet asks again
    PREPARING = "Preparing"
    READY = "Ready"
    RELEASING = "Releasing"
    UNREADABLE = "Unreadable"  # its record cannot be used


class ClaimShare(Shape, frozen=True, kw_only=True):
    """The part of a GPU, or of a MIG device, that a claim has beside others."""

    memory: Annotated[int, Meta(description="bytes that it may use")]
    used: Annotated[int, Meta(description="bytes that its MPS clients use")] | None = None
    threads: Annotated[float, Meta(description="percent that each process may use")] | None = None
    reserved: Annotated[int, Meta(description="percent of the threads that it requested")] = 0
    clients: Annotated[int, Meta(description="places for MPS contexts that it requested")] = 0


class FreeShare(Shape, frozen=True, kw_only=True):
    """What of a GPU claims may still have beside those that share it."""

    memory: Annotated[int, Meta(description="bytes that claims could still have")]
    threads: Annotated[int, Meta(description="percent that claims could still have")] | None = None
    clients: Annotated[int, Meta(description="places for MPS contexts")] | None = None


class ClaimDevice(Shape, frozen=True, kw_only=True):
    """A device that a claim was allocated, with what was made for it."""

    request: Annotated[str, Meta(description="of the claim, main or main/sub")]
    pool: str
    device: Annotated[str, Meta(description="its name in the pool")]
    share_id: str = ""
    share: ClaimShare | None = None
    daemon: Annotated[
        tuple[str, ...], Meta(description="UUIDs of the GPUs that its MPS daemon serves together")
    ] = ()
    admin_access: Annotated[bool, Meta(description="looked at beside its holder")] = False
    gpu: Annotated[str, Meta(description="UUID of the GPU")]
    index: Annotated[int, Meta(description="index of the GPU")] | None = None
    profile: Annotated[str, Meta(description="of a MIG device")] = ""
    start: FirstSlice | None = None
    size: Slices | None = None
    gi: int | None = None
    ci: int | None = None
    uuid: Annotated[str, Meta(description="of a MIG device that was made")] = ""


class Claim(Shape, frozen=True, kw_only=True):
    """A claim that the kubelet asked for, or that has something of this node."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    phase: ClaimPhase
    since: Annotated[Time, Meta(description="when the phase began; absent: not known")] = ""
    pods: list[Pod]
    devices: list[ClaimDevice]
    refusal: Problem | None = None
    problems: Annotated[list[Problem], Meta(description="what else is wrong with it")]


def with_use(claims: Iterable[Claim], daemons: Iterable[MpsDaemon]) -> list[Claim]:
    """Add to the shares of GPUs what their MPS clients use. Where they have several GPUs, it is
    not known how much of which.
    """
    used: dict[tuple[str, str], int] = defaultdict(int)
    for daemon in daemons:
        for client in daemon.clients:
            if client.memory and client.memory.used is not None:
                used[daemon.device, client.share] += client.memory.used

    def known(device: ClaimDevice, claim: Claim) -> ClaimDevice:
        key = (*device.daemon, device.uuid or device.gpu)[0], device.share_id
        among = [one for one in claim.devices if device.daemon and one.daemon == device.daemon]
        if device.share is None or key not in used or len(among) > 1:
            return device
        return replace(device, share=replace(device.share, used=used[key]))

    return [replace(claim, devices=[known(d, claim) for d in claim.devices]) for claim in claims]
