#!/usr/bin/env python3
"""The kubectl plugin `kubectl nodeagent`: the nodes of a cluster, seen from a person's own machine.

Copied to a folder of PATH as kubectl-nodeagent it is the whole plugin: it needs kubectl, Python's
standard library and nothing of this package. What it says of a node is what the agent wrote there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

DONE, FAILED, USAGE, BLOCKED, INTERRUPTED = 0, 1, 2, 3, 130  # the agent's own exit codes

_STATUS, _LAYOUT = "nodeagent.io/status", "nodeagent.io/layout"
_PLAN = "nodeagent.io/plan"
_CONDITIONS = ("GPUHealthy", "GPUPartitionsReady")
_AGENTS = "app.kubernetes.io/name=nodeagent,app.kubernetes.io/component=agent"
_ALL_AGENTS = f"kubectl get pods -A -o wide -l {_AGENTS}"
_HEADER = ("NODE", "PHASE", "GPUS", "MIG USED", "IDLE", "FREE", "MPS READY", "AGE", "WORST")

_Kind = TypeVar("_Kind")
_Kubectl = Callable[..., Any]  # arguments of kubectl to its answer as JSON


class PluginError(Exception):
    """What ends the plugin: what was found, what mends it, and the exit code."""

    def __init__(self, message: str, remedy: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.message, self.remedy, self.code = message, remedy, code


class FleetTable(NamedTuple):
    """One row for each node with an agent, how many nodes are of each severity, and the others."""

    rows: list[tuple[str, ...]]
    severities: Counter[str]
    without: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the plugin; gives its exit code."""
    options, others = _parser().parse_known_args(arguments)
    if others and options.command not in {_exec_status, _exec_plan}:
        _complain(f"unknown argument {others[0]}", "see kubectl nodeagent --help")
        return USAGE
    options.others = others
    try:
        return int(options.command(options))
    except PluginError as error:
        _complain(error.message, error.remedy)
        return error.code
    except BrokenPipeError:  # as of head; what is left goes nowhere, at the interpreter's end too
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    cluster = argparse.ArgumentParser(add_help=False)
    for name in ("--context", "--kubeconfig"):
        cluster.add_argument(name, default=argparse.SUPPRESS, help="as of kubectl")
    words = "without a command: a table of the nodes with an agent, from their annotations"
    parser = argparse.ArgumentParser(
        "kubectl nodeagent", description=words, parents=[cluster], allow_abbrev=False
    )
    parser.set_defaults(command=_table)
    commands = parser.add_subparsers(metavar="COMMAND")
    own = "; further options are those of nodeagent {}"

    status = commands.add_parser(
        "status", parents=[cluster], help="what the node's agent shows" + own.format("status")
    )
    status.set_defaults(command=_exec_status)
    plan = commands.add_parser(
        "plan", parents=[cluster], help="what a plan would change there" + own.format("plan")
    )
    plan.set_defaults(command=_exec_plan)
    plan.add_argument("-f", "--file", required=True, help="the plan; - is standard input")
    wait = commands.add_parser(
        "wait", parents=[cluster], help="until the node is as a plan says: 0, else 1, 2 or 3"
    )
    wait.set_defaults(command=_wait)
    of_node = (
        "the plan's, or its first digits; default: that of the Node's annotation nodeagent.io/plan"
    )
    wait.add_argument("--digest", metavar="D", type=_digest, help=of_node)
    wait.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=300.0, help="default: 300"
    )
    for command in (status, plan, wait):
        command.add_argument("node", metavar="NODE")
    return parser


# --- kubectl --------------------------------------------------------------------------------------


def _kubectl(options: argparse.Namespace, *words: str) -> list[str]:
    chosen = (f"--{n}={getattr(options, n)}" for n in ("context", "kubeconfig") if n in options)
    return ["kubectl", *chosen, *words]


def _run(command: list[str], **streams: Any) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, check=False, stderr=subprocess.PIPE, **streams)
    except OSError as error:
        message = f"kubectl cannot be started: {error.strerror}"
        remedy = "have it in PATH: https://kubernetes.io/docs/tasks/tools/"
        raise PluginError(message, remedy) from None


def _asked(options: argparse.Namespace, *words: str) -> Any:
    """What kubectl answers in JSON; raises PluginError."""
    done = _run(_kubectl(options, *words, "-o", "json"), stdout=subprocess.PIPE)
    if done.returncode:
        said = done.stderr.decode(errors="replace").split("\n")
        last = next((line for line in reversed(said) if line.strip()), "it says nothing")
        words_said = last.removeprefix("error: ")
        raise PluginError(
            f"kubectl {words[0]} {words[1]} failed: {words_said}",
            "see that kubectl get nodes works, and with which context: kubectl config get-contexts",
        )
    try:
        return json.loads(done.stdout)
    except (ValueError, RecursionError):
        message = f"kubectl {words[0]} {words[1]} did not answer in JSON"
        raise PluginError(message, "see which kubectl that is: kubectl version") from None


# --- in the agent's pod ---------------------------------------------------------------------------


def _exec_status(options: argparse.Namespace) -> int:
    return _in_pod(options, "status", *options.others)


def _exec_plan(options: argparse.Namespace) -> int:
    if options.file == "-":
        return _in_pod(options, "plan", "-f", "-", *options.others, stdin=sys.stdin)
    try:
        with open(options.file, "rb") as file:  # noqa: PTH123 - pathlib takes time to import
            return _in_pod(options, "plan", "-f", "-", *options.others, stdin=file)
    except OSError as error:
        message = f"{options.file} cannot be read: {error.strerror}"
        raise PluginError(message, "name a readable file with -f", USAGE) from None


def _in_pod(options: argparse.Namespace, *words: str, stdin: Any = subprocess.DEVNULL) -> int:
    """Run the agent's command beside it; its exit code. Raises PluginError."""
    where = f"spec.nodeName={options.node}"
    pods = _asked(options, "get", "pods", "-A", "-l", _AGENTS, "--field-selector", where)["items"]
    running = [pod["metadata"] for pod in pods if pod["status"].get("phase") == "Running"]
    if not running:
        state = "does not run" if pods else "is not there"
        raise PluginError(f"the agent's pod on node {options.node} {state}", f"see {_ALL_AGENTS}")
    pod = running[-1]
    keep_open = [] if stdin == subprocess.DEVNULL else ["-i"]
    inside = ["-n", pod["namespace"], "-c", "nodeagent", pod["name"], "--", "nodeagent", *words]
    done = _run(_kubectl(options, "exec", *keep_open, *inside), stdin=stdin)
    said = done.stderr.decode(errors="replace").splitlines()
    ended = "command terminated with exit code"  # kubectl's own word; the code is handed on
    sys.stderr.writelines(f"{_escaped(line)}\n" for line in said if not line.startswith(ended))
    return done.returncode


# --- waiting for a plan ---------------------------------------------------------------------------


def _digest(text: str) -> str:
    digits = text.removeprefix("sha256:").lower()
    if not re.fullmatch("[0-9a-f]{12,64}", digits):
        raise argparse.ArgumentTypeError(f"{_escaped(text)} is not 12 to 64 hexadecimal digits")
    return f"sha256:{digits}"


def _wait(options: argparse.Namespace) -> int:
    """Ask once a second until the plan is in force, refused, or the time is over."""
    end = time.monotonic() + options.timeout
    while True:
        node = _asked(options, "get", "node", options.node)
        annotations = node["metadata"].get("annotations") or {}
        wanted = options.digest
        if wanted is None:
            if _PLAN not in annotations:
                message = f"node {options.node} has no annotation {_PLAN}"
                raise PluginError(message, "name the plan with --digest", USAGE)
            wanted = f"sha256:{hashlib.sha256(annotations[_PLAN].encode()).hexdigest()}"
        phase, digest, refused, said = _progress(annotations.get(_STATUS))
        if refused["digest"].startswith(wanted):
            message = f"plan {wanted} is refused: {refused['path']}: {refused['message']}"
            raise PluginError(message, f"see kubectl nodeagent status {options.node}", USAGE)
        if digest.startswith(wanted) and phase == "InSync":
            print(_escaped(f"node {options.node} is as plan {digest} says"))  # noqa: T201
            return DONE
        if time.monotonic() >= end:
            state = f"{phase}: {said}" if digest.startswith(wanted) else f"at {digest or 'no plan'}"
            raise PluginError(
                f"node {options.node} is not as plan {wanted} says: {state}",
                f"see kubectl nodeagent status {options.node}",
                BLOCKED if digest.startswith(wanted) and phase == "Blocked" else FAILED,
            )
        time.sleep(min(1.0, max(0.0, end - time.monotonic())))


def _progress(text: str | None) -> tuple[str, str, dict[str, str], str]:
    """Phase, digest in force, the refused plan, and what the agent says, as far as known."""
    nothing = {"digest": "", "path": "", "message": ""}
    try:
        status = _a(dict, json.loads(text or "{}"))
        refused = nothing | _a(dict, status.get("rejected", {}))
        said = _a(dict, status.get("headline", {})).get("text")
    except (ValueError, TypeError, RecursionError):
        return "unknown", "", nothing, f"annotation {_STATUS} is damaged"
    words = (status.get("phase"), status.get("digest", ""), status.get("message") or said)
    phase, digest, message = map(str, words)
    return phase, digest, {key: str(value) for key, value in refused.items()}, message


# --- the table ------------------------------------------------------------------------------------


def _table(options: argparse.Namespace) -> int:
    nodes = _asked(options, "get", "nodes")["items"]
    fleet = fleet_of(nodes, datetime.now(UTC))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in _aligned([_HEADER, *fleet.rows] if fleet.rows else []):
        print(line if width is None or len(line) <= width else line[: width - 1] + "…")  # noqa: T201
    counted = ", ".join(f"{count} {word}" for word, count in sorted(fleet.severities.items()))
    known = f"{len(fleet.rows)} nodes with an agent" + (f": {counted}" if counted else "")
    print(f"{known}; {fleet.without} without one are left out", flush=True)  # noqa: T201
    return DONE


def fleet_of(nodes: Iterable[Mapping[str, Any]], now: datetime) -> FleetTable:
    """The nodes by name, from their annotations and conditions alone."""
    fleet = FleetTable([], Counter(), 0)
    for node in sorted(nodes, key=lambda one: str(one["metadata"]["name"])):
        annotations = node["metadata"].get("annotations") or {}
        conditions = {one["type"]: one for one in node.get("status", {}).get("conditions") or ()}
        if _STATUS not in annotations and not any(name in conditions for name in _CONDITIONS):
            fleet = fleet._replace(without=fleet.without + 1)
            continue
        try:
            phase, gpus, used, idle, mps, age, severity, worst = _of_status(
                annotations.get(_STATUS), conditions, now
            )
        except (ValueError, TypeError, RecursionError, OverflowError):
            phase = gpus = used = idle = mps = age = "?"
            severity, worst = "damaged", f"annotation {_STATUS} is not what an agent writes"
        ready = conditions.get("Ready") or {}
        if ready.get("status") != "True":
            worst = f"the node is not Ready ({ready.get('reason', 'unknown')}), last known: {worst}"
            severity = "not Ready"
        free = _free(annotations.get(_LAYOUT))
        name = node["metadata"]["name"]
        row = (name, phase, gpus, used, idle, free, mps, age, worst)
        fleet.rows.append(tuple(map(_escaped, row)))
        fleet.severities[_escaped(severity)] += 1
    return fleet


def _of_status(
    text: str | None, conditions: Mapping[str, Any], now: datetime
) -> tuple[str, str, str, str, str, str, str, str]:
    """The cells that the status annotation has; raises ValueError or TypeError if it is damaged."""
    if text is None:  # before the agent's first look at the GPUs
        known = [conditions[name] for name in _CONDITIONS if name in conditions]
        bad = next((one for one in known if one.get("status") != "True"), known[-1])
        return "?", "?", "?", "?", "?", "?", "unknown", str(bad.get("message", ""))
    status = _a(dict, json.loads(text))
    cut = _a(dict, status.get("more", {}))
    gpus = _objects(status.get("gpus"))
    devices = [one for gpu in gpus for one in _objects(gpu.get("instances", [])) if "uuid" in one]
    used = sum(one.get("used") is not False for one in devices)  # not knowing counts as used
    daemons = _objects(status.get("mps"))
    ready = sum(daemon.get("state") == "Ready" for daemon in daemons)
    headline = _a(dict, status.get("headline", {}))
    severity = str(headline.get("severity", "unknown"))
    return (
        _a(str, status.get("phase")),
        _count(len(gpus), "gpus" in cut),
        _count(used, "gpus" in cut),
        _count(len(devices) - used, "gpus" in cut),
        (f"{ready}/" + _count(len(daemons), "mps" in cut)) if daemons or "mps" in cut else "-",
        _age(now - datetime.fromisoformat(_a(str, status.get("observedAt"))).astimezone(UTC)),
        severity,
        "-" if severity == "ok" else f"{severity}: {headline.get('text', '')}",
    )


def _free(text: str | None) -> str:
    """How many memory slices are free, from the layout annotation."""
    if text is None:
        return "-"
    try:
        layout = _a(dict, json.loads(text))
        slots = (_a(dict, gpu.get("slots", {})) for gpu in _objects(layout.get("gpus")))
        return _count(sum(len(_a(list, one.get("free", []))) for one in slots), "more" in layout)
    except (ValueError, TypeError, RecursionError):
        return "?"


def _a(kind: type[_Kind], value: object) -> _Kind:
    if not isinstance(value, kind):
        raise TypeError(f"no {kind.__name__}")
    return value


def _objects(value: object) -> list[dict[str, Any]]:
    return [_a(dict, one) for one in _a(list, value)]


def _count(number: int, at_least: bool) -> str:
    return f"{number}+" if at_least else str(number)


def _age(passed: Any) -> str:
    seconds = max(0, int(passed.total_seconds()))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _escaped(text: str) -> str:
    """What a terminal might act on is written as an escape."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def _complain(message: str, remedy: str) -> None:
    print(f"nodeagent: {_escaped(message)}\n  {_escaped(remedy)}", file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
