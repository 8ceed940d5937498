"""`nodeagent simulate`: the boards there are, and what happens to a simulated node."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable

from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.options import Options
from nodeagent.cli.output import Output
from nodeagent.cli.simulated_node import device_on, simulated_node
from nodeagent.errors import UsageError
from nodeagent.simulation import known_boards
from nodeagent.terminal.page import line
from nodeagent.text import did_you_mean


def run(options: Options, output: Output) -> ExitCode:
    """Do one thing to the node in the state file, or list the boards."""
    _COMMANDS[options.simulation](options, output)
    return ExitCode.DONE


def _boards(options: Options, output: Output) -> None:  # noqa: ARG001 - as all are called
    from nodeagent.terminal.boards_page import boards_page

    boards = known_boards()
    output.page(boards_page(boards))
    output.document(
        {
            "boards": [
                {
                    "name": board.name,
                    "product": board.product,
                    "memory": board.memory,
                    "profiles": [
                        {
                            "profile": profile.name,
                            "max": profile.max_instances,
                            "memory": profile.memory,
                            "evidence": profile.status,
                        }
                        for profile in board.profiles
                    ],
                    "assumed": list(board.assumed),
                }
                for board in boards
            ]
        }
    )


def _occupy(options: Options, output: Output) -> None:
    with simulated_node(options) as node:
        device = device_on(options.device, node)
        process = node.occupy(
            device,
            options.pid,
            command=options.process_command,
            memory=options.memory,
            follow=options.follow,
        )
    _print(
        output,
        f"pid {process.pid} ({process.command}) is on {device}",
        device=device,
        pid=process.pid,
        command=process.command,
    )


def _release(options: Options, output: Output) -> None:
    with simulated_node(options) as node:
        gone = node.release(
            device_on(options.device, node) if options.device else None, options.pid
        )
    where = f" from {options.device}" if options.device else ""
    _print(output, f"processes taken away{where}: {gone}", released=gone)


def _load(options: Options, output: Output) -> None:
    with simulated_node(options) as node:
        node.load(device_on(options.device, node), options.share)
    _print(
        output,
        f"{options.device} is busy for {options.share:.0%} of the time",
        device=options.device,
        share=options.share,
    )


def _xid(options: Options, output: Output) -> None:
    """Report an XID of a GPU or MIG device to the programs that listen now."""
    with simulated_node(options) as node:
        node.xid(device_on(options.device, node), options.xid)
    _print(
        output,
        f"{options.device} reported XID {options.xid}",
        device=options.device,
        xid=options.xid,
    )


def _sensor(options: Options, output: Output) -> None:
    """Let a sensor report a figure, let it follow the load again, or list the sensors there are."""
    from nodeagent.simulation.sensors import NAMES, NUMBERED, is_known

    if not options.device:
        names = [*sorted(NAMES), *NUMBERED]
        output.page(line(name) for name in names)
        output.document({"sensors": names})
        return
    if options.sensor is None or (options.figure is None) != options.clear:
        raise UsageError(
            "a device, a sensor and either a figure or --clear are needed",
            remedy="for example: nodeagent simulate sensor 0 temperature.gpu 95",
        )
    if not is_known(options.sensor):
        raise UsageError(
            f"no sensor is called {options.sensor!r}",
            remedy=did_you_mean(options.sensor, NAMES)
            or "nodeagent simulate sensor lists them all",
        )
    with simulated_node(options) as node:
        node.set_figures(device_on(options.device, node), {options.sensor: options.figure})
    what = "follows the load again" if options.clear else f"reports {options.figure:g}"
    _print(
        output,
        f"{options.sensor} of {options.device} {what}",
        device=options.device,
        sensor=options.sensor,
        figure=options.figure,
    )


def _fault(options: Options, output: Output) -> None:
    if sum([options.clear, options.lost is not None, options.function is not None]) > 1:
        raise UsageError(
            "FUNCTION, --lost and --clear are three different things",
            remedy="give them one after the other, in commands of their own",
        )
    if options.clear:
        with simulated_node(options) as node:
            node.clear_faults()
        _print(output, "no faults are left", cleared=True)
    elif options.lost is not None:
        with simulated_node(options) as node:
            node.lose(options.lost)
        _print(output, f"GPU {options.lost} is lost until a reset or reboot", lost=options.lost)
    else:
        _inject(options, output)


def _inject(options: Options, output: Output) -> None:
    if options.function is None:
        raise UsageError(
            "no function given", remedy="for example: nodeagent simulate fault 'nvml*' IN_USE"
        )
    _check_function(options.function)
    with simulated_node(options) as node:
        fault = node.inject(
            options.function,
            error=options.code or 0,
            times=options.count,
            gpu=options.gpu,
            delay=options.latency or 0.0,
            hang=options.hang,
        )
    _print(
        output,
        f"fault {fault.number}: {fault.function} will go wrong",
        number=fault.number,
        function=fault.function,
    )


def _check_function(pattern: str) -> None:
    """Whether the simulated driver has such a function; raises UsageError."""
    from nodeagent.simulation.functions import FUNCTIONS

    if fnmatch.filter(FUNCTIONS, pattern):
        return
    raise UsageError(
        f"the simulated driver has no function {pattern!r}",
        remedy=did_you_mean(pattern, FUNCTIONS) or "for example 'nvmlDevice*'",
    )


def _reboot(options: Options, output: Output) -> None:
    with simulated_node(options) as node:
        node.reboot()
    _print(output, "the simulated node was rebooted", rebooted=True)


def _client(options: Options, output: Output) -> None:
    from nodeagent.cli.simulate.client import run_client

    run_client(options, output)


def _mps(options: Options, output: Output) -> None:
    from nodeagent.cli.simulate.mps import turn_knob

    turn_knob(options, output)


def _print(output: Output, sentence: str, **facts: object) -> None:
    output.page([line(sentence)])
    output.document(facts)


_COMMANDS: dict[str, Callable[[Options, Output], None]] = {
    "boards": _boards,
    "occupy": _occupy,
    "release": _release,
    "load": _load,
    "client": _client,
    "mps": _mps,
    "xid": _xid,
    "sensor": _sensor,
    "fault": _fault,
    "reboot": _reboot,
}
