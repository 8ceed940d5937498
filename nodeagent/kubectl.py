#!/usr/bin/env python3
"""The kubectl plugin `kubectl nodeagent`: the nodes of a cluster, seen from a person's own machine.

Copied to a folder of PATH as kubectl-nodeagent it is the whole plugin: it needs kubectl, Python's
standard library from 3.9 on (people's own machines have what their system brings) and nothing of
this package. What it says of a node is what the agent wrote there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from argparse import SUPPRESS
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timezone
from itertools import chain
from typing import Any, TypeVar

DONE, FAILED, USAGE, BLOCKED, INTERRUPTED = 0, 1, 2, 3, 130  # the agent's own exit codes

_STATUS, _LAYOUT, _PLAN = (f"nodeagent.io/{key}" for key in ("status", "layout", "plan"))
_CONDITIONS = ("GPUHealthy", "GPUPartitionsReady")
_AGENTS = "app.kubernetes.io/name=nodeagent,app.kubernetes.io/component=agent"
_SEE_AGENTS = f"see kubectl get pods -A -o wide -l {_AGENTS}"
_ADVICE = "WORKLOAD", "CARD", "HAS", "NODES", "HELD", "PEAK", "FREES", "ADVICE"
_HEADER = "NODE", "PHASE", "GPUS", "MIG USED", "IDLE", "FREE", "MPS READY", "CLAIMS WAIT"
_DAMAGE = (ValueError, TypeError, OverflowError, RecursionError)  # of what an annotation holds
_NEEDS = {"notEnough": 0, "smaller": 1, "keep": 2}  # more than these: larger, or what is newer
_AT_ONCE = 8  # agents that are asked side by side
_OUTAGE = re.compile("(?i)connect|timed? ?out|deadline|handshake|eof|unable to|etcd|no json")

_Kind = TypeVar("_Kind")


class PluginError(Exception):
    """What ends the plugin: what was found, what mends it, and the exit code if not FAILED."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the plugin; gives its exit code."""
    parser = _parser()
    options, others = parser.parse_known_args(arguments)
    options.others = others  # of the agent's command
    if others and options.command is not _in_pod:
        parser.error(f"unknown argument: {others[0]!r}")
    try:
        return int(options.command(options))
    except PluginError as error:
        found, remedy, code = (*error.args, FAILED)[:3]
        print(f"nodeagent: {_escaped(found)}\n  {_escaped(remedy)}", file=sys.stderr)
        return int(code)
    except BrokenPipeError:  # as of head; what is left goes nowhere, at the interpreter's end too
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return DONE
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    cluster = argparse.ArgumentParser(add_help=False)
    for name in ("--context", "--kubeconfig"):
        cluster.add_argument(name, default=SUPPRESS, help="as of kubectl")
    words = "without a command: a table of the nodes with an agent, from their annotations"
    parser = argparse.ArgumentParser("kubectl nodeagent", description=words, parents=[cluster])
    parser.set_defaults(command=_table)
    commands = parser.add_subparsers(metavar="COMMAND")

    def command(name: str, words: str, run: object) -> argparse.ArgumentParser:
        added = commands.add_parser(name, parents=[cluster], help=words, allow_abbrev=False)
        added.set_defaults(command=run, page=name, file=None, given=[])
        if run is not _advise:
            added.add_argument("node", metavar="POD" if run is _why else "NODE")
        if run is _in_pod:  # with a value, which is not NODE; flags may come as they are
            for names in (("-o", "--output"), ("--gpu",), ("-c", "--configuration"), ("--reset",)):
                taken = f"{names[-1]}={{}}".format
                added.add_argument(*names, action="append", type=taken, dest="given", help=SUPPRESS)
        return added

    advise = command("advise", "which slices would do for whom, over all nodes", _advise)
    advise.add_argument("-n", "--namespace", help="only the holders of this namespace")
    advise.add_argument("-o", "--output", choices=("text", "json"), help="json: of each node")
    why = command("why", "what keeps a pod: its claims, its Events, its node", _why)
    why.add_argument("-n", "--namespace", help="of the pod")
    command("status", "the agent's page; options of nodeagent status may follow", _in_pod)
    plan = command("plan", "what a plan would change there; options may follow", _in_pod)
    plan.add_argument("-f", "--file", required=True, help="the plan; - is standard input")
    wait = command("wait", "until the node is as its plan says", _wait)
    wait.add_argument("--digest", metavar="D", help=f"default: of the Node's annotation {_PLAN}")
    wait.add_argument("--timeout", type=float, default=300.0, help="seconds; default: 300")
    return parser


def _run(options: argparse.Namespace, *words: str, **io: Any) -> subprocess.CompletedProcess[bytes]:
    chosen = (f"--{n}={getattr(options, n)}" for n in ("context", "kubeconfig") if n in options)
    command = ["kubectl", *chosen, *words]
    try:
        return subprocess.run(command, check=False, **{"stderr": subprocess.PIPE, **io})
    except OSError as error:
        message = f"kubectl cannot be started: {error.strerror}"
        remedy = "have it in PATH: https://kubernetes.io/docs/tasks/tools/"
        raise PluginError(message, remedy) from None


def _asked(options: argparse.Namespace, *words: str) -> Any:
    """What kubectl answers in JSON; raises PluginError."""
    done = _run(options, *words, "-o", "json", stdout=subprocess.PIPE)
    lines = done.stderr.decode(errors="replace").strip().split("\n")
    # What a command in a pod says comes before kubectl's own line.
    said = next((line for line in lines if line.startswith("nodeagent: ")), lines[-1])
    said = said.removeprefix("nodeagent: ").removeprefix("error: ")
    try:
        if done.returncode == 0:
            return json.loads(done.stdout)
    except (ValueError, RecursionError):
        said = "its answer is no JSON"
    remedy = "see that kubectl get nodes works; contexts: kubectl config get-contexts"
    raise PluginError(f"kubectl {' '.join(words[:2]).partition(' -')[0]} failed: {said}", remedy)


def _in_pod(options: argparse.Namespace) -> int:
    """Run the agent's command beside it; its exit code. Raises PluginError."""
    file = ("-f", "-") if options.file else ()
    try:
        stdin = 0 if options.file == "-" else os.open(options.file or os.devnull, os.O_RDONLY)
    except OSError as error:
        message = f"{options.file} cannot be read: {error.strerror}"
        raise PluginError(message, "name a readable file with -f", USAGE) from None
    where, node = f"spec.nodeName={options.node}", options.node
    pods = _asked(options, "get", "pods", "-A", "-l", _AGENTS, "--field-selector", where)["items"]
    running = [pod for pod in pods if pod["status"].get("phase") == "Running"]
    if not running:
        state = "does not run" if pods else "is not there"
        raise PluginError(f"the agent's pod on node {node} {state}", _SEE_AGENTS)
    metadata, containers = running[-1]["metadata"], running[-1]["spec"]["containers"]
    pod = ("-n", metadata["namespace"], "-c", "nodeagent", metadata["name"])
    args = [*chain(*(one.get("args", ()) for one in containers if one["name"] == "nodeagent"))]
    # Simulated GPUs are found by their file.
    cards = args[args.index("--state") :][:2] if options.file and "--state" in args else ()
    command = ("--", "nodeagent", options.page, *cards, *file, *options.given, *options.others)
    if "--watch" in options.others and os.isatty(0) and os.isatty(1):  # it has keys
        return _run(options, "exec", "-it", *pod, *command, stderr=None).returncode
    done = _run(options, "exec", *(file and ("-i",)), *pod, *command, stdin=stdin)
    for line in done.stderr.decode(errors="replace").splitlines():
        if not line.startswith("command terminated with exit code"):  # which is handed on
            print(_escaped(line), file=sys.stderr)
    return done.returncode


def _advise(options: argparse.Namespace) -> int:
    """One row for each workload and what it has, joined over the nodes that it was on."""
    pods = _asked(options, "get", "pods", "-A", "-l", _AGENTS)["items"]
    if not pods:
        raise PluginError("no agent's pod is there", _SEE_AGENTS)
    there = [f"--namespace={options.namespace}"] if options.namespace else []

    def ask(pod: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        meta = pod["metadata"]
        node = pod["spec"].get("nodeName", meta["name"])
        where = ("-n", meta["namespace"], "-c", "nodeagent", meta["name"])
        try:
            answer = _asked(options, "exec", *where, "--", "nodeagent", "advise", *there)
            return [{"node": node, **one} for one in _objects(_a(dict, answer)["advice"])]
        except (PluginError, KeyError, *_DAMAGE) as error:
            print(_escaped(f"{node}: {error.args[0]}"), file=sys.stderr)
            return None

    with ThreadPoolExecutor(_AT_ONCE) as several:
        answers = list(several.map(ask, pods))
    found = [*chain(*filter(None, answers))]
    joined: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for one in found:
        whose = "/".join(filter(None, (one.get("namespace"), one["workload"])))
        container = f" ({one['container']})" if "container" in one else ""
        joined.setdefault((whose + container, one["model"], one["device"]), []).append(one)
    rows: list[Sequence[str]] = [_ADVICE]
    for key, ones in sorted(joined.items()):
        # What would do on each of the nodes: the one that needs most says it.
        worst = max(ones, key=lambda o: (_NEEDS.get(o["verdict"], 3), -o.get("freesPart", 0)))
        most = max(ones, key=lambda one: one.get("peak", 0))
        if (worst["verdict"], most["verdict"]) == ("smaller", "notEnough"):
            worst = most  # it was there for too short to be advised, but had more memory
        held = f"{sum(one['held'] for one in ones) / 3600:.0f}h"
        peak = f"{most['peak'] / 2**30:.1f}Gi" if "peak" in most else "-"
        memory = f"of {worst['memory'] / 2**30:g}Gi" if "memory" in worst else ""
        threads = f"{worst['threads']:g}%" if "threads" in worst else ""
        advice = " ".join(filter(None, (worst["verdict"], worst.get("advised"), memory, threads)))
        frees = f"{100 * worst.get('freesPart', 0):.0f}%"
        rows.append((*key, str(len(ones)), held, peak, frees, advice))
    if options.output == "json":
        print(json.dumps({"advice": found}, indent=2))
    elif found:
        _print(rows)
    elif None not in answers:
        of = f" in namespace {options.namespace}" if options.namespace else ""
        print(f"No holder{of} was seen yet")
    return FAILED if None in answers else DONE


def _wait(options: argparse.Namespace) -> int:
    """Ask once a second until the plan is in force, refused, or the time is over."""
    end = time.monotonic() + options.timeout
    see = f"see kubectl nodeagent status {options.node}"
    while True:
        left = end - time.monotonic()
        limit = f"--request-timeout={max(1, round(min(3600, left)))}s"
        try:
            node = _asked(options, "get", "node", options.node, limit)["metadata"]
        except PluginError as error:
            if left <= 0 or not _OUTAGE.search(error.args[0]):
                raise
            time.sleep(min(1.0, left))
            continue
        plan = _wanted(options, node.get("annotations", {}))
        status, refused, said = {}, {}, "the status annotation is damaged"
        with suppress(*_DAMAGE):
            status = _a(dict, json.loads(node.get("annotations", {}).get(_STATUS, "{}")))
            refused = _a(dict, status.get("rejected", {}))
            said = str(status.get("message") or _headline(status)[1])
        phase, digest = status.get("phase"), str(status.get("digest", ""))
        if str(refused.get("digest")).startswith(plan):
            why = f"{refused.get('path')}: {refused.get('message')}"
            raise PluginError(f"plan {plan} is refused: {why}", see, USAGE)
        ours = digest.startswith(plan)
        if ours and phase == "InSync":
            print(_escaped(f"node {options.node} is as plan {digest} says"))
            return DONE
        if left <= 0:
            state = f"{phase}: {said}" if ours else f"at {digest or 'no plan'}"
            code = BLOCKED if ours and phase == "Blocked" else FAILED
            raise PluginError(f"node {options.node} is not as plan {plan} says: {state}", see, code)
        time.sleep(min(1.0, left))


def _wanted(options: argparse.Namespace, annotations: Mapping[str, str]) -> str:
    plan = annotations.get(_PLAN)
    digest = options.digest or (plan and hashlib.sha256(plan.encode()).hexdigest()) or ""
    digits = digest.removeprefix("sha256:").lower()
    if not re.fullmatch("[0-9a-f]{12,64}", digits):
        found = f"{digest} is no digest" if digest else f"node {options.node} has no {_PLAN}"
        remedy = "name the plan with --digest: its SHA-256, or the first 12 digits or more"
        raise PluginError(found, remedy, USAGE)
    return f"sha256:{digits}"


def _why(options: argparse.Namespace) -> int:
    """What the cluster and the agent say of a pod, its claims and its node."""
    there = [f"--namespace={options.namespace}"] if options.namespace else []
    pod = _asked(options, "get", "pod", options.node, *there)
    spec, status = pod["spec"], pod["status"]
    there = [f"--namespace={pod['metadata']['namespace']}"]
    node = spec.get("nodeName")
    on = f" on node {node}" if node else ""
    lines = [f"pod {pod['metadata']['name']}: {status['phase']}{on}", *_untrue(status)]
    extended = status.get("extendedResourceClaimStatus", {})
    uses = [*spec.get("resourceClaims", ()), *status.get("resourceClaimStatuses", ()), extended]
    uids = {pod["metadata"]["uid"]}
    for name in sorted({use["resourceClaimName"] for use in uses if use.get("resourceClaimName")}):
        claim = _asked(options, "get", "resourceclaim", name, *there)
        uids.add(claim["metadata"]["uid"])
        allocated = claim.get("status", {}).get("allocation")
        results = allocated["devices"].get("results", ()) if allocated else ()
        devices = ", ".join(f"{one['pool']}/{one['device']}" for one in results)
        asked = claim.get("spec", {}).get("devices", {}).get("requests", ())
        each = (one.get("firstAvailable", [one.get("exactly", {})]) for one in asked)
        ways = ([f"{w.get('count', 1)} x {w.get('deviceClassName')}" for w in e] for e in each)
        why = ": ".join(filter(None, ("no device is allocated", ", ".join(map(" or ".join, ways)))))
        lines.append(f"claim {name}: {devices or why}")
        for device in claim.get("status", {}).get("devices", ()):
            lines += (f"  {device['device']}: {line.strip()}" for line in _untrue(device))
    events = _asked(options, "get", "events", *there)["items"]
    events.sort(key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime")))
    warnings = [one for one in events if one.get("type") == "Warning"]
    # What is tried again and again is said again with other names: the latest of each kind counts.
    latest = {(one["involvedObject"].get("uid"), one.get("reason")): one for one in warnings}
    for (uid, reason), event in latest.items():
        said = str(event.get("message")).split(": ", 1)[-1]  # without the device's name
        if uid in uids and not any(said in line for line in lines):
            about = event["involvedObject"]["kind"].lower()
            lines.append(f"{about} {reason}: {event.get('message')}")
    if node:
        annotations = _asked(options, "get", "node", node)["metadata"].get("annotations", {})
        with suppress(*_DAMAGE):
            said = _headline(_a(dict, json.loads(annotations.get(_STATUS, "{}"))))[1]
            if not any(said.partition(": ")[2].rstrip(".")[1:] in line for line in lines):
                lines.append(f"node {node}: {said}")
    print("\n".join(map(_escaped, lines)))
    return DONE


def _untrue(status: Mapping[str, Any]) -> list[str]:
    bad = [one for one in status.get("conditions", ()) if one["status"] != "True"]
    said = ((one["type"], one.get("reason"), one.get("message")) for one in bad)
    return [f"  not {': '.join(filter(None, words))}" for words in said]


def _table(options: argparse.Namespace) -> int:
    """One row for each node with an agent, by name, then how many there are of each severity."""
    rows: list[Sequence[str]] = [(*_HEADER, "AGE", "WORST")]
    severities, without, now = Counter[str](), 0, datetime.now(timezone.utc)
    nodes = _asked(options, "get", "nodes")["items"]
    for node in sorted(nodes, key=lambda one: str(one["metadata"]["name"])):
        annotations = node["metadata"].get("annotations", {})
        conditions = {one["type"]: one for one in node.get("status", {}).get("conditions", ())}
        if _STATUS not in annotations and not any(name in conditions for name in _CONDITIONS):
            without += 1
            continue
        try:
            *cells, severity, worst = _cells(annotations, conditions, now)
        except _DAMAGE:
            cells, severity = ["?"] * 8, "damaged"
            worst = f"{_STATUS} or {_LAYOUT} is not what an agent writes"
        ready = conditions.get("Ready", {})
        if ready.get("status") != "True":
            worst = f"the node is not Ready ({ready.get('reason', 'unknown')}), last known: {worst}"
            severity = "not Ready"
        rows.append((node["metadata"]["name"], *cells, worst))
        severities[_escaped(severity)] += 1
    _print(rows)
    counted = ", ".join(f"{count} {word}" for word, count in sorted(severities.items()))
    nodes = "1 node" if len(rows) == 2 else f"{len(rows) - 1} nodes"
    print(f"{nodes} with an agent ({counted}), {without} without", flush=True)
    return DONE


def _print(rows: Sequence[Sequence[str]]) -> None:
    escaped = [list(map(_escaped, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*escaped)]
    for row in escaped:
        print("  ".join(cell.ljust(most) for cell, most in zip(row, widths)).rstrip())


def _cells(annotations: Any, conditions: Mapping[str, Any], now: datetime) -> tuple[str, ...]:
    """The cells that the annotations have; raises an error of _DAMAGE if it is damaged."""
    if _STATUS not in annotations:  # before the agent's first look at the GPUs
        known = [conditions[name] for name in _CONDITIONS if name in conditions]
        bad = next((one for one in known if one.get("status") != "True"), known[-1])
        return *("?" * 8), "unknown", str(bad.get("message", ""))
    status = _a(dict, json.loads(annotations[_STATUS]))
    cut = _a(dict, status.get("more", {}))
    more, more_daemons = ("+" if name in cut else "" for name in ("gpus", "mps"))
    gpus, daemons = _objects(status.get("gpus")), _objects(status.get("mps"))
    devices = [one for gpu in gpus for one in _objects(gpu.get("instances", [])) if "uuid" in one]
    used = sum(one.get("used") is not False for one in devices)  # not knowing counts as used
    ready = sum(daemon.get("state") == "Ready" for daemon in daemons)
    layout = _a(dict, json.loads(annotations.get(_LAYOUT, "{}")))
    slots = [_a(dict, gpu.get("slots", {})) for gpu in _objects(layout.get("gpus", []))]
    free = sum(len(_a(list, one.get("free", []))) for one in slots)
    passed = now - datetime.fromisoformat(_a(str, status.get("observedAt")).replace("Z", "+00:00"))
    return (
        _a(str, status.get("phase")),
        f"{len(gpus)}{more}",
        f"{used}{more}",
        f"{len(devices) - used}{more}",
        f"{free}{'+' if 'more' in layout else ''}" if layout else "-",
        f"{ready}/{len(daemons)}{more_daemons}" if daemons or more_daemons else "-",
        str(_a(int, status["claimsWaiting"])) if "claimsWaiting" in status else "-",
        _age(int(passed.total_seconds())),
        *_headline(status),
    )


def _headline(status: Mapping[str, Any]) -> tuple[str, str]:
    """How bad the node is, and what is worst about it; raises an error of _DAMAGE."""
    headline = _a(dict, status.get("headline", {}))
    severity = str(headline.get("severity", "unknown"))
    return severity, "-" if severity == "ok" else f"{severity}: {headline.get('text', '')}"


def _a(kind: type[_Kind], value: object) -> _Kind:
    if not isinstance(value, kind):
        raise TypeError(f"no {kind.__name__}")
    return value


def _objects(value: object) -> list[dict[str, Any]]:
    return [_a(dict, one) for one in _a(list, value)]


def _age(seconds: int) -> str:
    units = (("d", 86400), ("h", 3600), ("m", 60))
    unit, size = next((one for one in units if seconds >= 2 * one[1]), ("s", 1))
    return f"{max(0, seconds) // size}{unit}"


def _escaped(text: str) -> str:
    """What a terminal might act on is written as an escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


if __name__ == "__main__":
    sys.exit(main())
