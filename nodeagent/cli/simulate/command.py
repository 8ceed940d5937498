"""`nodeagent simulate`: the boards there are, and what happens to a simulated node."""

from __future__ import annotations

import fnmatch
from argparse import Namespace
from collections.abc import Callable

from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output
from nodeagent.cli.simulated_node import device_on, simulated_node
from nodeagent.errors import UsageError
from nodeagent.simulation import SimulatedNode, known_boards
from nodeagent.terminal.page import line
from nodeagent.text import did_you_mean


def run_simulate(options: Namespace, output: Output) -> ExitCode:
    """Do one thing to the node in the state file, or list the boards."""
    match options.subcommand:
        case "boards":
            _boards(output)
        case "client":
            from nodeagent.cli.simulate.client import run_client

            run_client(options, output)
        case "mps":
            from nodeagent.cli.simulate.mps import turn_knob

            turn_knob(options, output)
        case "sensor" if not options.device:
            _sensors(output)
        case name:
            if check := _CHECKS.get(name):
                check(options)
            with simulated_node(options) as node:
                sentence, facts = _ACTS[name](node, options)
            output.page([line(sentence)])
            output.document(facts)
    return ExitCode.DONE


def _boards(output: Output) -> None:
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


def _sensors(output: Output) -> None:
    """List the sensors there are."""
    from nodeagent.simulation.sensors import NAMES, NUMBERED

    names = [*sorted(NAMES), *NUMBERED]
    output.page(line(name) for name in names)
    output.document({"sensors": names})


# --- what can happen to the node: a sentence about it, and the same for programs ------------------

_Done = tuple[str, dict[str, object]]


def _occupy(node: SimulatedNode, options: Namespace) -> _Done:
    device = device_on(options.device, node)
    process = node.occupy(
        device,
        options.pid,
        command=options.process_command,
        memory=options.memory,
        follow=options.follow,
    )
    return f"pid {process.pid} ({process.command}) is on {options.device}", {
        "device": device,
        "pid": process.pid,
        "command": process.command,
    }


def _release(node: SimulatedNode, options: Namespace) -> _Done:
    named = options.device
    gone = node.release(device_on(named, node) if named else None, options.pid)
    where = f" from {named}" if named else ""
    return f"processes taken away{where}: {gone}", {"released": gone}


def _load(node: SimulatedNode, options: Namespace) -> _Done:
    named, share = options.device, options.share
    node.load(device_on(named, node), share)
    return f"{named} is busy for {share:.0%} of the time", {"device": named, "share": share}


def _xid(node: SimulatedNode, options: Namespace) -> _Done:
    """Report an XID of a GPU or MIG device to the programs that listen now."""
    named, xid = options.device, options.xid
    node.xid(device_on(named, node), xid)
    return f"{named} reported XID {xid}", {"device": named, "xid": xid}


def _reboot(node: SimulatedNode, _: Namespace) -> _Done:
    node.reboot()
    return "the simulated node was rebooted", {"rebooted": True}


def _sensor(node: SimulatedNode, options: Namespace) -> _Done:
    """Let a sensor report a figure, or follow the load again."""
    named, sensor, figure = options.device, str(options.sensor), options.figure
    node.set_figures(device_on(named, node), {sensor: figure})
    what = "follows the load again" if figure is None else f"reports {figure:g}"
    facts: dict[str, object] = {"device": named, "sensor": sensor, "figure": figure}
    return f"{sensor} of {named} {what}", facts


def _fault(node: SimulatedNode, options: Namespace) -> _Done:
    if options.clear:
        node.clear_faults()
        return "no faults are left", {"cleared": True}
    if options.lost is not None:
        node.lose(options.lost)
        return f"GPU {options.lost} is lost until a reset or reboot", {"lost": options.lost}
    fault = node.inject(
        str(options.function),
        error=options.code or 0,
        times=options.count,
        gpu=options.gpu,
        delay=options.latency or 0.0,
        hang=options.hang,
    )
    facts: dict[str, object] = {"number": fault.number, "function": fault.function}
    return f"fault {fault.number}: {fault.function} will go wrong", facts


# --- what has to be right before the node is opened; these raise UsageError -----------------------


def _check_sensor(options: Namespace) -> None:
    from nodeagent.simulation.sensors import NAMES, is_known

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


def _check_fault(options: Namespace) -> None:
    if sum([options.clear, options.lost is not None, options.function is not None]) > 1:
        raise UsageError(
            "FUNCTION, --lost and --clear are three different things",
            remedy="give them one after the other, in commands of their own",
        )
    if options.clear or options.lost is not None:
        return
    if options.function is None:
        raise UsageError(
            "no function given", remedy="for example: nodeagent simulate fault 'nvml*' IN_USE"
        )
    from nodeagent.simulation.functions import FUNCTIONS

    if not fnmatch.filter(FUNCTIONS, options.function):
        raise UsageError(
            f"the simulated driver has no function {options.function!r}",
            remedy=did_you_mean(options.function, FUNCTIONS) or "for example 'nvmlDevice*'",
        )


_ACTS: dict[str, Callable[[SimulatedNode, Namespace], _Done]] = {
    "occupy": _occupy,
    "release": _release,
    "load": _load,
    "xid": _xid,
    "sensor": _sensor,
    "fault": _fault,
    "reboot": _reboot,
}
_CHECKS = {"sensor": _check_sensor, "fault": _check_fault}
