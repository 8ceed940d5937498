"""Knobs of the stand-ins for MPS on a simulated node: what is to go wrong."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable

from nodeagent.cli.output import Output
from nodeagent.cli.simulated_node import device_named, pipes_of, simulated_node, state_file
from nodeagent.errors import UsageError
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
        _print(output, f"{knob or 'every knob'}{of} is turned back")
        output.document({"cleared": [knob] if knob else sorted(KNOBS)})
        return
    value = _value(str(knob), options.value)
    knobs.turn(str(knob), value)
    _print(output, f"{knob}{of} is turned: {KNOBS[str(knob)]}")
    output.document({"turned": knob, "value": value})


def _knob(name: str) -> str:
    found = name.replace("-", "_")
    if found not in KNOBS:
        raise UsageError(
            f"no knob is called {name!r}", remedy="nodeagent simulate mps lists them all"
        )
    return found


def _knobs(options: Namespace) -> Knobs:
    """Of the whole installation, which is made if no agent has made it yet, or of one device."""
    state = state_file(options)
    with simulated_node(options):  # it must be there
        programs = programs_in(directory_beside(state))
    if not (programs / CONTROL_PROGRAM).exists():
        install(programs)
    if options.on_device is None:
        return Knobs(programs)
    return Knobs(programs, pipes_of(device_named(options.on_device, options), options))


def _nothing(value: str | None) -> object:
    if value is not None:
        raise ValueError("no value")
    return True


def _seconds(value: str | None) -> object:
    number = float(value or "")
    if not 0 <= number < float("inf"):
        raise ValueError("seconds")
    return number


def _whole(value: str | None) -> object:
    return int(value or "")


def _some_text(value: str | None) -> object:
    return value or ""


def _one_of(*words: str) -> Callable[[str | None], object]:
    def check(value: str | None) -> object:
        if value not in words:
            raise ValueError(value)
        return value

    return check


def _held(value: str | None) -> object:
    return True if value is None else _one_of("hold")(value)


def _process(value: str | None) -> object:
    given = json.loads(value or "")
    return {"pid": int(given["pid"]), "uid": int(given["uid"])}


# What each takes, in words and as a check; those that are not here take nothing.
_VALUES: dict[str, tuple[str, Callable[[str | None], object]]] = {
    "die_after": ("seconds", _seconds),
    "slow_start": ("seconds", _seconds),
    "server_slow": ("seconds", _seconds),
    "busy": ("error or empty", _one_of("error", "empty")),
    "start_error": ("a text, or nothing", _some_text),
    "stray_client": ('{"pid": N, "uid": N}', _process),
    "server_exit": ("an exit status", _whole),
    "server_uid": ("a user id", _whole),
    "terminate_code": ("a whole number", _whole),
    "fault": ("nothing, or hold", _held),
}


def _value(knob: str, given: str | None) -> object:
    words, check = _VALUES.get(knob, ("no value", _nothing))
    try:
        return check(given)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{knob}: found {'nothing' if given is None else repr(given)}",
            remedy=f"it takes {words}",
        ) from error


def _print(output: Output, sentence: str) -> None:
    output.page([line(sentence)])
