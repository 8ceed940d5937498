"""`nodeagent status`: the running agent's picture of the node, or of one GPU in full, and what it
decided in the last hour.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from nodeagent.cli.agent_client import (
    AgentAddress,
    AgentUnreachable,
    agent_address,
    get,
    get_list,
)
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output
from nodeagent.errors import NodeagentError, UsageError
from nodeagent.terminal.events_page import events_page
from nodeagent.terminal.gpu_page import gpu_page
from nodeagent.terminal.page import Line, Span, Tone, at_most, line, wrapped
from nodeagent.terminal.status_page import status_page
from nodeagent.text import listed, shown

Json = Mapping[str, Any]

_PATH = "/v1/status"
_LAST_HOUR = "/v1/events?within=3600"
_PACE = 1.0  # seconds between two requests while watching
_SAMPLED = frozenset({"utilization", "temperature", "power", "memory"})  # of a GPU


def run(options: Namespace, output: Output) -> ExitCode:
    """Show it once, or follow it until Ctrl-C."""
    if options.watch and options.events:
        raise UsageError("--events shows past events, --watch new ones", remedy="give one")
    address = agent_address(options)
    if options.watch:
        _watch(address, options.one_gpu, output)
        return ExitCode.DONE
    status = _ask(address, options.one_gpu)
    if options.events:
        events = _of_gpu(get_list(address, _LAST_HOUR), status, options.one_gpu)
        output.page(events_page(status, events))
        output.document({"events": events})
        return ExitCode.DONE
    if output.is_text:
        width, height = output.width, output.page_height
        output.page(_page(address, status, options.one_gpu, width, height))
    output.document(status)
    return ExitCode.DONE


def _ask(address: AgentAddress, gpu: str | None) -> Json:
    """The agent's status, of one GPU alone if it is named. Raises as `get` does, and UsageError."""
    status = get(address, _PATH)
    return status if gpu is None else _of_one(status, gpu)


def _page(
    address: AgentAddress, status: Json, gpu: str | None, width: int, height: int
) -> tuple[Line, ...]:
    """The status of all GPUs or of one, with the events of the last hour, where the agent still
    answers.
    """
    events: Sequence[Json] = ()
    with suppress(NodeagentError):
        events = _of_gpu(get_list(address, _LAST_HOUR), status, gpu)
    if gpu is None:
        return status_page(status, width, height, events)
    return gpu_page(status, width, events)


def _of_gpu(events: Sequence[Json], status: Json, gpu: str | None) -> Sequence[Json]:
    """Those that concern the GPU that is left in the status, if one is meant."""
    if gpu is None:
        return events
    [one] = status["gpus"]
    return [event for event in events if event.get("gpu") == one.get("uuid", "")]


def _of_one(status: Json, name: str) -> Json:
    """The status with the GPU of this index or UUID alone, and what concerns no single GPU."""
    gpus: list[Json] = status.get("gpus", [])
    wanted = name.casefold()
    known = ((str(gpu["index"]), str(gpu.get("uuid", "")).casefold()) for gpu in gpus)
    gpu = next((gpu for gpu, names in zip(gpus, known, strict=True) if wanted in names), None)
    if gpu is None:
        there = listed(str(g["index"]) for g in gpus) or "none"
        raise UsageError(f"this node has no GPU {shown(name)}", remedy=f"its GPUs: {there}")
    uuid = gpu.get("uuid", "")
    devices = {uuid, *(i.get("uuid") for i in gpu.get("instances", ()))}
    found = {
        **status,
        "gpus": [gpu],
        "mps": [daemon for daemon in status.get("mps", ()) if daemon.get("device") in devices],
        "problems": [p for p in status.get("problems", ()) if p.get("gpu", "") in ("", uuid)],
    }
    if "claims" in status:
        held = (c for c in status["claims"] if any(d.get("gpu") == uuid for d in c["devices"]))
        found["claims"] = list(held)
    if "lessOffered" in status:
        found["lessOffered"] = [one for one in status["lessOffered"] if one.get("gpu") == uuid]
    return found


def _watch(address: AgentAddress, gpu: str | None, output: Output) -> None:
    """Every new picture; one JSON document a line where a program reads."""
    if output.is_text and output.painted:
        _redraw(address, gpu, output)
        return
    last: object = None
    for status, failure in _answers(address, gpu):
        if (known := _lasting(status)) == last:
            continue
        last = known
        if output.is_text:
            width, height = output.width, output.page_height
            page = failure or _page(address, status, gpu, width, height)
            output.page((*page, ()))
        elif output.format == "json":
            output.text(json.dumps(status, ensure_ascii=False) + "\n")
        else:
            output.text("---\n")
            output.document(status)
        if output.closed:
            return


def _redraw(address: AgentAddress, gpu: str | None, output: Output) -> None:
    """The page on the whole terminal, drawn anew when anything on it changes, or the terminal."""
    from nodeagent.terminal.colour import screen

    last: object = None
    more = f"nodeagent status --gpu {gpu} shows all"
    with screen() as show:
        for status, failure in _answers(address, gpu):
            width, height = output.width, output.height
            page = failure or _page(address, status, gpu, width, height)
            if (page, width, height) != last:
                last = page, width, height
                fitting = at_most(page, height, width, keep=2, more=more)
                show(output.drawable(wrapped(fitting, width)))


def _answers(address: AgentAddress, gpu: str | None) -> Iterator[tuple[Json, tuple[Line, ...]]]:
    """The agent's status again and again; while it is away, after the first answer, also the lines
    that say so.
    """
    first = True
    while True:
        try:
            answer: tuple[Json, tuple[Line, ...]] = _ask(address, gpu), ()
        except AgentUnreachable as error:
            if first:
                raise
            status = {"phase": "unknown", "problems": [{"message": error.message}]}
            answer = status, (line(Span(error.message, Tone.BAD)), line(f"  {error.remedy}"))
        first = False
        yield answer
        time.sleep(_PACE)


def _lasting(status: Json) -> Json:
    """Without the time and what is read anew every few seconds, which alone are no change."""
    return {
        **{key: value for key, value in status.items() if key != "observedAt"},
        "gpus": [
            {
                **{key: value for key, value in gpu.items() if key not in _SAMPLED},
                "instances": [
                    {key: value for key, value in device.items() if key != "utilization"}
                    for device in gpu.get("instances", ())
                ],
            }
            for gpu in status.get("gpus", ())
        ],
    }
