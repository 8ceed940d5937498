"""A simulated CUDA program under the MPS of a simulated node: it comes, allocates and stays."""

import time
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

from nodeagent.catalogue import section
from nodeagent.cli.output import Output
from nodeagent.cli.simulated_node import device_named, pipes_of, state_file
from nodeagent.errors import NodeagentError, UsageError
from nodeagent.mps.files.client_files import NotPlain, file_name
from nodeagent.mps.files.publisher import ENV_DIRECTORY
from nodeagent.simulation.mps import clients
from nodeagent.text import gibibytes

_FOR_EVER = float("inf")
_CHECK_INTERVAL = 0.5  # seconds between two looks at the time
_MAX_FILE = 64 * 1024  # bytes of an env file
_PIPES, _DEVICES = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES"


def run_client(options: Namespace, output: Output) -> None:
    """Start a client, say what it was given, and keep it until its time is over or Ctrl-C."""
    state = state_file(options)
    device, pipes, environment = _place(options)
    until = time.monotonic() + (_FOR_EVER if options.seconds is None else options.seconds)
    uid = _owner(pipes) if options.uid is None else options.uid
    with clients.SimulatedClient(
        pipes, uid=uid, environment=environment, state=state, device=device
    ) as client:
        try:
            if not client.wait_until_connected():
                raise NodeagentError.of("noDaemonListens", pipes=pipes)
            who = f"pid {client.pid} of user {uid}"
            facts: dict[str, object] = {"pid": client.pid, "user": uid}
            terms = _accepted(client, until, who, output)
            if terms is None:
                output.document({**facts, "accepted": False})
                return
            limit, threads = terms.get("limit"), terms.get("percentage")
            memory = "no memory limit" if limit is None else f"{gibibytes(int(limit))} of memory"
            granted = f"{memory}, {threads:g} % of the threads"
            output.sentence(f"{who} is a client on {device}: {granted}")
            used = {"used": _allocated(client, options.allocate, output)}
            limits = used if limit is None else {**used, "limit": limit}
            facts |= {"accepted": True, "device": device, "memory": limits, "threads": threads}
            output.document(facts)
            _stay(client, until)
        except clients.ClientError as error:
            meaning = section("cuda").get(str(error.code), "unknown")
            message = f"the client ended with CUDA error {error.code} ({meaning})"
            raise NodeagentError(message) from error


def _accepted(
    client: clients.SimulatedClient, until: float, who: str, output: Output
) -> dict[str, float] | None:
    """What the client may use; None when its time was over before a server took it."""
    reported = False
    while time.monotonic() < until:
        try:
            return client.wait_until_accepted(_CHECK_INTERVAL)
        except TimeoutError:
            if not reported:
                output.sentence(f"{who} waits to be let in")
            reported = True
    return None


def _allocated(client: clients.SimulatedClient, size: int | None, output: Output) -> int:
    """Allocate memory; returns how many bytes the client has."""
    if size is None:
        return 0
    try:
        client.allocate(size)
    except clients.ClientError as error:
        if error.code != clients.OUT_OF_MEMORY:
            raise
        raise NodeagentError.of("outOfMemory", size=gibibytes(size), code=error.code) from error
    output.sentence(f"it allocated {gibibytes(size)}")
    return size


def _stay(client: clients.SimulatedClient, until: float) -> None:
    """Wait until the client's time is over; raises ClientError when server or agent end it."""
    while (left := until - time.monotonic()) > 0:
        with suppress(TimeoutError):
            client.next_answer(min(left, _CHECK_INTERVAL))


def _place(options: Namespace) -> tuple[str, Path, dict[str, str]]:
    """The UUID of the client's device, the pipe directory, and the client's environment."""
    if options.on_device is not None:
        device = device_named(options.on_device, options)
        return device, pipes_of(device, options), {}
    file: Path = options.env if options.env is not None else _slot_file(options)
    environment = _read_env(file)
    if not environment.get(_PIPES) or not environment.get(_DEVICES):
        raise UsageError.of("slotFile", file=file, names=f"{_PIPES} and {_DEVICES}")
    pipes = Path(environment.pop(_PIPES))
    return environment[_DEVICES], pipes, environment


def _slot_file(options: Namespace) -> Path:
    named, _, slot = str(options.slot).rpartition("/")
    remedy = "write DEVICE/SLOT, such as 1/small-0"
    if not named:
        raise UsageError(f"{options.slot!r} names no slot", remedy=remedy)
    pipes = pipes_of(device_named(named, options), options)
    try:
        return pipes.parent / ENV_DIRECTORY / file_name(slot)
    except NotPlain as error:
        raise UsageError(error.message, remedy=remedy) from error


def _read_env(file: Path) -> dict[str, str]:
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(_MAX_FILE)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text"
        slots = ", ".join(sorted(file.stem for file in file.parent.glob("*.env")))
        case = "otherSlots" if slots else "noSlots"
        raise UsageError.of(case, file=file, why=reason, slots=slots) from error
    pairs = (row.partition("=") for row in text.splitlines() if row and not row.startswith("#"))
    return {name: value for name, equals, value in pairs if equals}


def _owner(pipes: Path) -> int:
    """Whose daemon it is. The pipe directory is root's once that has answered, its log never."""
    log = pipes.with_name("log")
    try:
        return (log if log.exists() else pipes).stat().st_uid
    except OSError as error:
        raise UsageError.of("pipesUnread", pipes=pipes, why=error.strerror) from error
