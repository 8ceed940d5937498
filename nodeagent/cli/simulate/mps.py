"""Knobs of the stand-ins for MPS on a simulated node: what is to go wrong."""

import json
import math
import os
import signal
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

from nodeagent.cli.output import Output
from nodeagent.cli.simulated_node import (
    device_named,
    pipes_of,
    run_dir_of,
    simulated_node,
    state_file,
)
from nodeagent.errors import UsageError
from nodeagent.mps.processes import mps_processes
from nodeagent.simulation.mps.installation import CONTROL_PROGRAM, install, programs_in
from nodeagent.simulation.mps.knobs import KNOBS, Knobs
from nodeagent.simulation.state_file import directory_beside
from nodeagent.terminal.page import line


def turn_knob(options: Namespace, output: Output) -> None:
    """Turn one, turn one or all back, or list them."""
    if options.knob is None and not options.clear:
        width = max(map(len, KNOBS))
        output.page(line(f"{name:<{width}}  {meaning}") for name, meaning in KNOBS.items())
        output.document({"knobs": dict(KNOBS)})
        return
    knob = None if options.knob is None else _knob(options.knob)
    knobs = _knobs(options)
    of = f" of {options.on_device}" if options.on_device else ""
    if options.clear:
        knobs.clear(*([] if knob is None else [knob]))
        output.sentence(f"{knob or 'every knob'}{of} is turned back")
        output.document({"cleared": [knob] if knob else sorted(KNOBS)})
        return
    value = _value(str(knob), options.value)
    knobs.turn(str(knob), value)
    output.sentence(f"{knob}{of} is turned: {KNOBS[str(knob)]}")
    output.document({"turned": knob, "value": value})


def end_daemons(options: Namespace) -> None:
    """Kill the daemons and servers of the node, as a reboot does; their clients end with them."""
    run_dir = run_dir_of(options)
    for process in mps_processes():
        if Path(process.pipe_directory).is_relative_to(run_dir):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def _knob(name: str) -> str:
    found = name.replace("-", "_")
    if found not in KNOBS:
        raise UsageError.of("noKnob", name=repr(name))
    return found


def _knobs(options: Namespace) -> Knobs:
    """The knobs of one device, or of the installation, which is made where there is none."""
    state = state_file(options)
    with simulated_node(options):  # it must be there
        programs = programs_in(directory_beside(state))
    if not (programs / CONTROL_PROGRAM).exists():
        install(programs)
    if options.on_device is None:
        return Knobs(programs)
    return Knobs(programs, pipes_of(device_named(options.on_device, options), options))


# What knobs take, in words; those that are not here take nothing.
_TAKES = {
    "die_after": "seconds",
    "slow_start": "seconds",
    "server_slow": "seconds",
    "busy": "error or empty",
    "start_error": "a text, or nothing",
    "stray_client": '{"pid": N, "uid": N}',
    "server_exit": "an exit status",
    "server_uid": "a user id",
    "terminate_code": "a whole number",
    "fault": "nothing, or hold",
}


def _value(knob: str, given: str | None) -> object:
    try:
        return _read(knob, given)
    except (ValueError, KeyError, TypeError) as error:
        found = "nothing" if given is None else repr(given)
        takes = f"it takes {_TAKES.get(knob, 'no value')}"
        raise UsageError(f"{knob}: found {found}", remedy=takes) from error


def _read(knob: str, given: str | None) -> object:
    text = given or ""
    match knob:
        case "die_after" | "slow_start" | "server_slow" if 0 <= float(text) < math.inf:
            return float(text)
        case "server_exit" | "server_uid" | "terminate_code":
            return int(text)
        case "busy" if text in {"error", "empty"}:
            return text
        case "start_error":
            return text
        case "stray_client":
            process = json.loads(text)
            return {"pid": int(process["pid"]), "uid": int(process["uid"])}
        case "fault" if given in {None, "hold"}:
            return given or True
        case _ if given is None and knob not in _TAKES:
            return True
    raise ValueError(knob)
