"""`nodeagent bundle`: one archive of the agent's answers, what commands print, and its files."""

import contextlib
import io
import json
import os
import platform
import re
import subprocess
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

from nodeagent import __version__
from nodeagent.claims.offering.planned import FILE_NAME as PLACES
from nodeagent.claims.records import FOLDER as CLAIMS
from nodeagent.cli.agent_client import AgentAddress, AgentUnreachable, agent_address, get_text
from nodeagent.cli.bundle.archive import MAX_FILE, BundleFile, bounded, new_file, write
from nodeagent.cli.bundle.withheld import Withheld, shown_settings
from nodeagent.cli.command_settings import command_settings
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.node import is_simulated, kept_file, run_dir, state_dir
from nodeagent.cli.output import Output, formatted
from nodeagent.cli.program import main
from nodeagent.documents.bounded_yaml import MAX_TEXT, read_tree
from nodeagent.documents.reading import read_document
from nodeagent.errors import DocumentError, NodeagentError
from nodeagent.files.state import read_own_file, read_regular_file
from nodeagent.gpu.original_settings import FILE_NAME as MODES
from nodeagent.health.state_file import FILE_NAME as HEALTH
from nodeagent.mps.files.records import FOLDER as DAEMONS
from nodeagent.reconcile.plan_update import FILE_NAME as PLAN
from nodeagent.reconcile.plan_update import last_good_plan
from nodeagent.settings import PlanSettings, Settings
from nodeagent.settings.sources import setting_names, variable_of
from nodeagent.terminal.page import Span, Tone, line
from nodeagent.text import quantity

_ANSWERS = {  # of the agent, by the file that each becomes
    "status.json": ("/v1/status", "the agent's picture of the node"),
    "plan.json": ("/v1/plan", "the plan in force, its source, and the steps that remain"),
    "mps.json": ("/v1/mps", "MPS daemons with their servers and clients"),
    "advice.json": ("/v1/advice", "which slice would do for whom, and why"),
    "events.json": ("/v1/events", "the last events, with their reasons"),
    "metrics.txt": ("/metrics", "what Prometheus gets"),
    "healthz.json": ("/healthz", "whether the agent's loops run"),
    "readyz.json": ("/readyz", "whether it is ready, else why not"),
}
_MAX_RECORDS = 200  # claims, or MPS daemons
_DRIVER = Path("/proc/driver/nvidia/version")
_JOURNALCTL = Path("/usr/bin/journalctl")
_UNIT = "nodeagent.service"
_JOURNAL_LINES = 2000
_JOURNAL_TIMEOUT = 20.0  # seconds
# Checks of the machine. The others look into files, and may quote them: only how they end is shown.
_OF_THE_MACHINE = re.compile(
    r"gpus|gpu \d+|driver|permission|nvidia-smi|persistence mode|fabric manager|(run|state)\.dir"
    r"|writer|mps( .+)?|other owners|kernel log|kubelet|plan on this node|Node('s changes)?|limits"
    r"|rights"
)


def run_bundle(options: Namespace, output: Output) -> ExitCode:
    """Write it, whatever is missing; raises UsageError for bad settings, NodeagentError where the
    file cannot be made.
    """
    settings = command_settings(options)
    withheld = Withheld(settings)
    with new_file(options.archive) as file:
        parts = [_clean(part, withheld) for part in _gather(options, settings)]
        parts = list(bounded(parts))
        write(file, parts)
    there = [part for part in parts if not part.missing]
    missing = [part for part in parts if part.missing]
    title = Span(f"{options.archive}: {quantity(len(there), 'file')}", Tone.GOOD)
    without = (line(f"  not in it: {part.name}: {part.missing}") for part in missing)
    advice = line(f"Read it before you pass it on: tar -xzf {options.archive}")
    output.page([line(title), *without, advice])
    reasons = [{"name": part.name, "reason": part.missing} for part in missing]
    names = [part.name for part in there]
    output.document({"file": str(options.archive), "files": names, "missing": reasons})
    return ExitCode.DONE


def _clean(part: BundleFile, withheld: Withheld) -> BundleFile:
    missing = withheld.taken_out(part.missing.encode(errors="replace")).decode(errors="replace")
    return part._replace(content=withheld.taken_out(part.content), missing=missing)


def _gather(options: Namespace, settings: Settings) -> Iterator[BundleFile]:
    yield BundleFile("version.txt", "program, Python, packages, kernel and driver", _versions())
    shown = formatted(shown_settings(settings), "yaml").encode()
    yield BundleFile("settings.yaml", "the settings that were given, without their secrets", shown)
    yield BundleFile("environment.txt", "names of the agent's environment variables", _variables())
    yield from _answers(agent_address(options))
    yield from _commands(options)
    yield from _files(options, settings)
    yield _journal(simulated=is_simulated(options))


def _versions() -> bytes:
    rows = [f"nodeagent {__version__}", f"Python {platform.python_version()}"]
    system = os.uname()
    rows.append(f"{system.sysname} {system.release} {system.version} {system.machine}")
    with contextlib.suppress(metadata.PackageNotFoundError):
        for requirement in metadata.requires("nodeagent") or ():
            name = re.split(r"[^\w.-]", requirement)[0]
            with contextlib.suppress(metadata.PackageNotFoundError):
                rows.append(f"{name} {metadata.version(name)}")
    with contextlib.suppress(OSError):
        rows.append(read_regular_file(_DRIVER, 4096).decode(errors="replace").strip())
    return "".join(f"{row}\n" for row in rows).encode()


def _variables() -> bytes:
    names = {"NODE_NAME", *map(variable_of, setting_names())} & os.environ.keys()
    return "".join(f"{name}\n" for name in sorted(names)).encode()


def _answers(address: AgentAddress) -> Iterator[BundleFile]:
    silence = ""
    for name, (path, about) in _ANSWERS.items():
        content, reason = b"", silence
        if not silence:
            try:
                content = get_text(address, path, MAX_FILE + 1)
            except AgentUnreachable as error:
                reason = silence = error.message
            except NodeagentError as error:
                reason = error.message
        yield BundleFile(name, about, content, reason)


# --- what commands print --------------------------------------------------------------------------


def _commands(options: Namespace) -> Iterator[BundleFile]:
    node = _words(options, "simulate", "state", "settings")
    directories = _words(options, "run_dir", "state_dir")
    words = ["export", *node, *directories]
    yield _printed("export.yaml", "the GPUs as they are, as a plan", words)
    yield _printed("profiles.txt", "what each GPU offers", ["profiles", *node])
    words = ["check", "-o", "json", *node, *directories]
    yield _without_secrets(_printed("check.json", "preflight of this machine", words))


def _words(options: Namespace, *names: str) -> list[str]:
    """The options that were given, as words of a command line."""
    given = ((name, getattr(options, name, None)) for name in names)
    return [f"--{name.replace('_', '-')}={value}" for name, value in given if value is not None]


def _printed(name: str, about: str, words: list[str]) -> BundleFile:
    """What a command line prints, run within this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        if main(words) == ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
    reason = "" if out.getvalue() else " ".join(err.getvalue().split())
    return BundleFile(name, about, out.getvalue().encode(), reason)


def _without_secrets(check: BundleFile) -> BundleFile:
    if check.missing:
        return check
    findings = json.loads(check.content)["findings"]
    shown = [
        f if _OF_THE_MACHINE.fullmatch(f["check"]) else {k: f[k] for k in ("check", "level")}
        for f in findings
    ]
    return check._replace(content=formatted({"findings": shown}, "json").encode())


# --- the agent's files ----------------------------------------------------------------------------


def _files(options: Namespace, settings: Settings) -> Iterator[BundleFile]:
    """Read the files by name, so that nothing else of these folders is in a bundle."""
    kept = partial(kept_file, options, settings)
    directory = state_dir(options, settings)
    yield _file("state/health.json", "findings of health", kept(HEALTH))
    yield _file("state/earlier-modes.json", "modes before the agent's changes", directory / MODES)
    yield _file("state/planned-places.json", "where the plan's instances lie", kept(PLACES))
    yield _last_good_plan(kept(PLAN))
    yield _plan_file(settings.plan)
    daemons = run_dir(options, settings) / DAEMONS
    yield from _records("claims", "record of a claim", directory / CLAIMS, "*.json")
    yield from _records("mps", "record of an MPS daemon", daemons, "*/record.json")


def _file(name: str, about: str, path: Path) -> BundleFile:
    try:
        return BundleFile(name, about, read_own_file(path, MAX_FILE))
    except OSError as error:
        return BundleFile(name, about, missing=f"{path}: {error.strerror or error}")


def _plan_file(plan: PlanSettings) -> BundleFile:
    """The file, if it is a plan: a path may lead to any file."""
    name, about = "plan-file.json", "the setting plan.file"
    try:
        text = read_regular_file(plan.file, MAX_TEXT)
        read_document(text, configuration=plan.name)
    except DocumentError:
        return BundleFile(name, about, missing=f"{plan.file} is not a plan; see check.json")
    except OSError as error:
        return BundleFile(name, about, missing=f"{plan.file}: {error.strerror or error}")
    return BundleFile(name, about, _values(text, plan.name))


def _values(text: bytes, configuration: str | None) -> bytes:
    """A document without its comments, which may say anything."""
    document = {"configuration": configuration, "document": read_tree(text).value}
    return formatted(document, "json").encode()


def _last_good_plan(path: Path) -> BundleFile:
    name, about = "state/last-good-plan.json", "the plan that was accepted last"
    file = last_good_plan(path)
    try:
        kept = file.read()
        if kept is None:
            return BundleFile(name, about, missing=file.problem.message if file.problem else "none")
        return BundleFile(name, about, _values(kept.plan.text, kept.plan.configuration))
    except NodeagentError as error:
        return BundleFile(name, about, missing=error.message)


def _records(name: str, about: str, folder: Path, pattern: str) -> Iterator[BundleFile]:
    found: Sequence[Path] = sorted(folder.glob(pattern))
    if not found:
        yield BundleFile(name, f"each {about}", missing=f"{folder} has none that can be seen")
    for path in found[:_MAX_RECORDS]:
        yield _file(f"{name}/{path.relative_to(folder)}", about, path)
    if len(found) > _MAX_RECORDS:
        yield BundleFile(
            name, f"{len(found) - _MAX_RECORDS} more", missing=f"{_MAX_RECORDS} are here"
        )


# --- the journal ----------------------------------------------------------------------------------


def _journal(*, simulated: bool) -> BundleFile:
    name, about = "journal.txt", f"the last {_JOURNAL_LINES} lines of {_UNIT}"
    if simulated or not _JOURNALCTL.exists():
        why = "the node is simulated" if simulated else f"there is no {_JOURNALCTL}"
        return BundleFile(name, about, missing=f"{why}; add the agent's log")
    command = (
        *(str(_JOURNALCTL), "--unit", _UNIT, "--lines", str(_JOURNAL_LINES)),
        *("--no-pager", "--quiet", "--output", "short-iso"),
    )
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            timeout=_JOURNAL_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return BundleFile(name, about, missing=f"{_JOURNALCTL} failed: {error}")
    nothing = "it has no lines that this user may read; in a pod, add its log"
    return BundleFile(name, about, done.stdout, "" if done.stdout else nothing)
