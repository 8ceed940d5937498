"""`nodeagent status`, `events`, `logs`, `claims`, `advise`, `mps`: what the running agent says."""

import os
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from nodeagent.cli.agent_client import (
    AgentAddress,
    AgentRefused,
    AgentUnreachable,
    agent_address,
    get,
    get_list,
    post,
)
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import MIN_HEIGHT, Output, complain, json_text
from nodeagent.cli.watch import INTERVAL, answers, watch
from nodeagent.errors import NodeagentError, UsageError
from nodeagent.terminal.advice_page import advice_page
from nodeagent.terminal.claims_page import claims_page
from nodeagent.terminal.events_page import events_page
from nodeagent.terminal.gpu_page import gpu_page
from nodeagent.terminal.mps_page import clients_page, daemons_page
from nodeagent.terminal.page import Json, Line, line
from nodeagent.terminal.status_page import problems_page, status_page
from nodeagent.text import listed, quote

_STATUS = "/v1/status"
_ADVICE = "/v1/advice"
_LAST_HOUR = "/v1/events?within=3600"
_SAMPLED = frozenset((
    *("observedAt", "utilization", "temperature", "power", "memory"),
    *("smClock", "memoryClock", "clockReasons"),
))  # fmt: skip

_PROBLEMS = ("node", "observedAt", "headline", "troubles")  # of the status
# With --exit-code, by the worst that needs a hand; these mean something else than elsewhere.
_CODES = {"error": ExitCode(2), "warning": ExitCode(1)}
_NO_AGENT = ExitCode(3)

_NO_CLAIMS = "This agent serves no claims: dra.mode is off, or the node is in no cluster."
_CLAIMS = ("node", "observedAt", "claims", "lessOffered")  # of the status

_MPS = "/v1/mps"
_RESTART_TIMEOUT = 300.0  # seconds: an end, a start and the limits, each with its own deadline
_MARGIN = 120.0  # seconds beyond the time to drain: the end itself has deadlines too
_BAD_USAGE = frozenset({400, 404})
_IN_USE = frozenset({409, 504})


def run_status(options: Namespace, output: Output) -> ExitCode:
    """Show it once, or follow it until Ctrl-C."""
    if options.watch and (options.problems or options.exit_code):
        message = "--watch shows the whole picture again and again"
        raise UsageError(message, remedy="leave it out, or --problems and --exit-code")
    address = agent_address(options)
    if options.watch:
        _watch(address, options.one_gpu, output)
        return ExitCode.DONE
    try:
        status = _ask(address, options.one_gpu)
    except NodeagentError as error:
        if not options.exit_code or isinstance(error, UsageError):
            raise
        complain(error)
        return _NO_AGENT
    if options.problems:
        output.page(problems_page(status))
        output.document({key: status[key] for key in _PROBLEMS if key in status})
    else:
        if output.is_text:
            output.page(_page(address, status, options.one_gpu, output))
        output.document(status)
    severities = {trouble["severity"] for trouble in status.get("troubles", ())}
    code = next((code for worst, code in _CODES.items() if worst in severities), ExitCode.DONE)
    return code if options.exit_code else ExitCode.DONE


def run_events(options: Namespace, output: Output) -> ExitCode:
    """Show the events of the last hour."""
    address = agent_address(options)
    status = _ask(address, options.one_gpu)
    events = _of_gpu(get_list(address, _LAST_HOUR), status, options.one_gpu)
    output.page(events_page(status, events))
    output.document({"events": events})
    return ExitCode.DONE


def run_logs(options: Namespace, _: Output) -> ExitCode:
    """Become journalctl, if it has a log of an agent that systemd starts."""
    from subprocess import run

    words = ["journalctl", "--unit", "nodeagent"]
    more = ["--follow"] if options.follow else []
    more += ["--output=json"] if options.output != "text" else []  # JSON is YAML, too
    with suppress(OSError):
        found = run([*words, "--quiet", "--lines=1"], capture_output=True, check=False)
        if found.stdout or found.returncode:
            os.execvp(words[0], [*words, *more])  # noqa: S606 - no shell is wanted
    raise NodeagentError.of("noJournal")


def _ask(address: AgentAddress, gpu: str | None) -> Json:
    """The agent's status, of one GPU alone if it is named. Raises as `get` does, and UsageError."""
    status = get(address, _STATUS)
    if gpu is None:
        return status
    gpus: list[Json] = status.get("gpus", [])
    names = ((str(one["index"]), str(one.get("uuid", "")).casefold()) for one in gpus)
    at = next((n for n, known in enumerate(names) if gpu.casefold() in known), None)
    if at is None:
        there = listed(str(one["index"]) for one in gpus) or "none"
        raise UsageError(f"this node has no GPU {quote(gpu)}", remedy=f"its GPUs: {there}")
    found = get(address, f"{_STATUS}?{urlencode({'gpu': gpus[at].get('uuid', '')})}")
    # Several may have no UUID, as those that never answered.
    one = [one for one in found.get("gpus", ()) if one["index"] == gpus[at]["index"]]
    return {**found, "gpus": one}


def _page(address: AgentAddress, status: Json, gpu: str | None, output: Output) -> tuple[Line, ...]:
    """The status of all GPUs or of one; a terminal counts as MIN_HEIGHT rows high, at least."""
    events = _lately(address, status, gpu)
    if gpu is not None:
        return gpu_page(status, output.width, events)
    width, height = output.room
    over = max(MIN_HEIGHT - height + 1, 0)  # rows that the prompt or scrolling takes
    return status_page(status, width, max(height, MIN_HEIGHT), events, over=over)


def _lately(address: AgentAddress, status: Json, gpu: str | None) -> Sequence[Json]:
    """The events of the last hour, where the agent still answers."""
    with suppress(NodeagentError):
        return _of_gpu(get_list(address, _LAST_HOUR), status, gpu)
    return ()


def _of_gpu(events: Sequence[Json], status: Json, gpu: str | None) -> Sequence[Json]:
    """The events of the GPU that is asked for; all events if none is."""
    if gpu is None:
        return events
    [one] = status["gpus"]
    return [event for event in events if event.get("gpu") == one.get("uuid", "")]


def _watch(address: AgentAddress, gpu: str | None, output: Output) -> None:
    """Every new picture; one JSON document a line where a program reads."""
    if output.is_text and output.painted:
        watch(partial(_ask, address), partial(_lately, address), gpu, output)
        return
    last: object = None
    for status, failure in answers(lambda: _ask(address, gpu)):
        known = _lasting(status)
        if known == last:
            pass
        elif output.is_text:
            output.page((*(failure or _page(address, status, gpu, output)), ()))
        elif output.format == "json":
            output.text(json_text(status) + "\n")
        else:
            output.text("---\n")
            output.document(status)
        if output.closed:
            return
        last = known
        time.sleep(INTERVAL)


def _lasting(value: Any) -> Any:
    """Leave out what is read anew every few seconds, which alone is no change."""
    if isinstance(value, dict):
        return {key: _lasting(one) for key, one in value.items() if key not in _SAMPLED}
    return [*map(_lasting, value)] if isinstance(value, list) else value


def run_claims(options: Namespace, output: Output) -> ExitCode:
    """Show the resource claims that the agent serves, once."""
    answer = get(agent_address(options), _STATUS)
    if "claims" in answer:
        less_offered = answer.get("lessOffered", ())
        output.page(claims_page(answer["claims"], datetime.now(UTC), less_offered))
    else:
        output.sentence(_NO_CLAIMS)
    output.document({key: answer[key] for key in _CLAIMS if key in answer})
    return ExitCode.DONE


def run_advise(options: Namespace, output: Output) -> ExitCode:
    """Show what would do for each holder, or for the one that is named."""
    query = f"?{urlencode({'namespace': options.namespace})}" if options.namespace else ""
    answer, name = get(agent_address(options), _ADVICE + query), options.workload or ""
    found = [one for one in answer["advice"] if name in ("", one["workload"])]
    output.page(advice_page(found, options.namespace, name))
    output.document({**answer, "advice": found})
    return ExitCode.DONE


def run_mps(options: Namespace, output: Output) -> ExitCode:
    """Show the daemons or their clients, or have one restarted or drained."""
    address = agent_address(options)
    try:
        match options.subcommand:
            case "status" | "clients" as what:
                query = f"?{urlencode({'device': options.device})}" if options.device else ""
                answer = get(address, _MPS + query)
                page = (daemons_page if what == "status" else clients_page)(answer)
            case what:
                body = {"device": options.device, "force": options.force}
                patience: float | None = _RESTART_TIMEOUT
                if what == "drain":
                    body["timeout"] = options.timeout
                    patience = None if options.timeout is None else options.timeout + _MARGIN
                answer = post(address, f"{_MPS}/{what}", body, patience=patience)
                page = (line(str(answer.get("message", "done"))),)
    except AgentUnreachable as error:
        if options.state is None or options.subcommand in {"status", "clients"}:
            raise
        remedy = "an agent on simulated GPUs has that socket only with a --run-dir: run it with one"
        raise AgentUnreachable(
            error.message, remedy=f"{remedy}, and give the same one to nodeagent mps"
        ) from None
    except AgentRefused as refusal:
        if refusal.status in _BAD_USAGE:  # such as a device that is not there
            raise UsageError(refusal.message, remedy=refusal.remedy) from None
        if refusal.status not in _IN_USE:
            raise
        complain(refusal)
        return ExitCode.BLOCKED
    output.page(page)
    output.document(answer)
    return ExitCode.DONE
