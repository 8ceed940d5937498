"""A simulated CUDA program under the MPS of a simulated node: it comes, allocates and stays."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nodeagent.cli.output import Output
from nodeagent.cli.simulated_node import device_named, pipes_of, state_file
from nodeagent.errors import NodeagentError, UsageError
from nodeagent.mps.files.client_files import NotPlain, file_name
from nodeagent.mps.files.publisher import ENV_DIRECTORY
from nodeagent.simulation.mps.clients import (
    DEVICES_UNAVAILABLE,
    OUT_OF_MEMORY,
    ClientError,
    SimulatedClient,
)
from nodeagent.terminal.page import gibibytes

_FOR_EVER = float("inf")
_LOOK = 0.5  # seconds between two looks at the time
_LARGEST_FILE = 64 * 1024  # bytes of an env file
_PIPES, _DEVICES = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES"

_MEANINGS = {
    OUT_OF_MEMORY: "out of memory",
    DEVICES_UNAVAILABLE: "the device's compute mode keeps it out",
    805: "connection failed",
    806: "the server is gone",
    807: "the server takes no clients now",
    810: "it was terminated",
}


class _Role(NamedTuple):
    """As what a client starts: on which device (a UUID), with which environment."""

    device: str
    pipes: Path
    environment: dict[str, str]


def run_client(options: Namespace, output: Output) -> None:
    """Start a client, say what it was given, and keep it until its time is over or Ctrl-C."""
    state = state_file(options)
    role = _role(options)
    until = time.monotonic() + (_FOR_EVER if options.seconds is None else options.seconds)
    uid = _owner(role.pipes) if options.uid is None else options.uid
    with SimulatedClient(
        role.pipes, uid=uid, environment=role.environment, state=state, device=role.device
    ) as client:
        try:
            _live(client, role, output, uid=uid, until=until, size=options.allocate)
        except ClientError as error:
            raise NodeagentError(
                f"the client ended with CUDA error {error.code} "
                f"({_MEANINGS.get(error.code, 'unknown')})"
            ) from error


def _live(
    client: SimulatedClient,
    role: _Role,
    output: Output,
    *,
    uid: int,
    until: float,
    size: int | None,
) -> None:
    if not client.wait_until_connected():
        raise NodeagentError(
            f"no MPS daemon listens in {role.pipes}: a CUDA program would run without MPS here",
            remedy="see nodeagent mps status",
        )
    who = f"pid {client.pid} of user {uid}"
    terms = _accepted(client, until, lambda: output.sentence(f"{who} waits to be let in"))
    if terms is None:
        output.document({"pid": client.pid, "user": uid, "accepted": False})
        return
    limit, threads = terms.get("limit"), terms.get("percentage")
    memory = "no memory limit" if limit is None else f"{gibibytes(int(limit))} of memory"
    output.sentence(f"{who} is a client on {role.device}: {memory}, {threads:g} % of the threads")
    used = 0 if size is None else _allocated(client, size, output)
    output.document(
        {
            "pid": client.pid,
            "user": uid,
            "accepted": True,
            "device": role.device,
            "memory": {"used": used, **({} if limit is None else {"limit": limit})},
            "threads": threads,
        }
    )
    _stay(client, until)


def _accepted(
    client: SimulatedClient, until: float, waits: Callable[[], None]
) -> dict[str, float] | None:
    """What it may use; None when its time was over before a server took it."""
    reported = False
    while time.monotonic() < until:
        try:
            return client.wait_until_accepted(_LOOK)
        except TimeoutError:
            if not reported:
                waits()
            reported = True
    return None


def _allocated(client: SimulatedClient, size: int, output: Output) -> int:
    try:
        client.allocate(size)
    except ClientError as error:
        if error.code != OUT_OF_MEMORY:
            raise
        raise NodeagentError(
            f"{gibibytes(size)} cannot be allocated: CUDA error {error.code} (out of memory)",
            remedy="allocate less; its limit is what its share has",
        ) from error
    output.sentence(f"it allocated {gibibytes(size)}")
    return size


def _stay(client: SimulatedClient, until: float) -> None:
    """Until its time is over; raises ClientError when the server or the agent ends it."""
    while (left := until - time.monotonic()) > 0:
        try:
            client.next_answer(min(left, _LOOK))
        except TimeoutError:
            continue


def _role(options: Namespace) -> _Role:
    if options.env is not None:
        return _role_of(_read_env(options.env), options.env)
    if options.on_device is not None:
        device = device_named(options.on_device, options)
        return _Role(device, pipes_of(device, options), {})
    named, _, slot = str(options.slot).rpartition("/")
    if not named:
        raise UsageError(
            f"{options.slot!r} names no slot", remedy="write DEVICE/SLOT, such as 1/small-0"
        )
    device = device_named(named, options)
    try:
        file = pipes_of(device, options).parent / ENV_DIRECTORY / file_name(slot)
    except NotPlain as error:
        raise UsageError(error.message, remedy="write DEVICE/SLOT, such as 1/small-0") from error
    return _role_of(_read_env(file), file)


def _role_of(environment: dict[str, str], file: Path) -> _Role:
    if not environment.get(_PIPES) or not environment.get(_DEVICES):
        raise UsageError(
            f"{file} says not both of {_PIPES} and {_DEVICES}",
            remedy="use a file that the agent published, in run.dir",
        )
    pipes = Path(environment.pop(_PIPES))
    return _Role(environment[_DEVICES], pipes, environment)


def _read_env(file: Path) -> dict[str, str]:
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(_LARGEST_FILE)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text"
        raise UsageError(
            f"{file} cannot be read: {reason}", remedy=_slots_in_words(file.parent)
        ) from error
    pairs = (row.partition("=") for row in text.splitlines() if row and not row.startswith("#"))
    return {name: value for name, equals, value in pairs if equals}


def _slots_in_words(directory: Path) -> str:
    """What could have been named instead."""
    slots = sorted(file.stem for file in directory.glob("*.env"))
    if slots:
        return f"the slots there are {', '.join(slots)}"
    return (
        "an agent publishes one for each slot of a device with MPS: nodeagent mps status names "
        "those devices; if the agent was given a --run-dir, give the same one here"
    )


def _owner(pipes: Path) -> int:
    """Whose daemon it is. The pipe directory is root's once that has answered, its log never."""
    log = pipes.with_name("log")
    try:
        return (log if log.exists() else pipes).stat().st_uid
    except OSError as error:
        raise UsageError(
            f"{pipes} cannot be read: {error.strerror}",
            remedy="an agent makes it when the plan gives this device MPS; if the agent was given "
            "a --run-dir, give the same one here",
        ) from error
