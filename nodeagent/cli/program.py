"""Runs a command line: parses it, runs one command, reports errors, gives the exit code."""

import atexit
import gc
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from nodeagent.catalogue import learn_agent
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output, complain, complain_about, discard_standard_output
from nodeagent.cli.parser import parse
from nodeagent.errors import DocumentError, NodeagentError, UsageError

Run = Callable[[Namespace, Output], ExitCode]

# Where the command is, if not in a module of its name.
_MODULES = {
    "advise": "status",
    "assert": "plan",
    "bundle": "bundle.command",
    "claims": "status",
    "completion": "reference",
    "events": "status",
    "explain": "reference",
    "export": "observe",
    "help": "reference",
    "logs": "status",
    "mps": "status",
    "profiles": "observe",
    "schema": "reference",
    "simulate": "simulate.command",
    "version": "reference",
}


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit code; never raises. Without `argv` it runs that of the
    process, and ends the process.
    """
    code = _exit_code_of(argv)
    if argv is None:
        _end_process(code)
    return code


def _end_process(code: int) -> NoReturn:
    """End at once. Everything is done and written; to take all modules apart takes 7 ms."""
    atexit._run_exitfuncs()  # noqa: SLF001 - as Python would
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # there may be no stream, or no reader
            stream.flush()
    os._exit(code)


def _exit_code_of(argv: list[str] | None) -> int:
    try:
        return _main(argv)
    except DocumentError as error:
        complain_about(error.problems)
        return ExitCode.BAD_DOCUMENT
    except UsageError as error:
        complain(error)
        return ExitCode.BAD_DOCUMENT
    except NodeagentError as error:
        complain(error)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001  the outermost layer: a fault of ours, said in a line
        complain(f"internal error in {_where(error)}: {type(error).__name__}: {error}")
        return ExitCode.FAILED


def _main(argv: list[str] | None) -> int:
    learn_agent(os.environ)
    try:
        options = parse(argv)
    except SystemExit as end:  # after --help and --version
        _flush()
        return int(end.code or 0)
    output = Output(options.output, colour=not options.no_color)
    if argv is None:
        _begin_process(options.command)
    code = command(options.command)(options, output)
    if output.failure is not None:
        complain(f"the answer could not be written: {output.failure.strerror}")
        return max(code, ExitCode.FAILED)
    return code


def _begin_process(command: str) -> None:
    """Undo what `__main__` set up; the agent itself unblocks SIGTERM, once it can end well."""
    if command != "run":
        gc.set_threshold(200_000)  # a short command needs no collection
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    gc.enable()


def command(name: str) -> Run:
    """The command of that name; only its own modules are imported."""
    module = import_module(f"nodeagent.cli.{_MODULES.get(name, name)}")
    found: Run = getattr(module, f"run_{name}")
    return found


def _flush() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_standard_output()


def _where(error: Exception) -> str:
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "nodeagent" in Path(frame.filename).parts] or frames
    last = ours[-1]
    return f"{Path(last.filename).name}:{last.lineno}"
