"""`nodeagent simulate`: the boards there are, and what happens to a simulated node."""

import fnmatch
from argparse import Namespace

from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.output import Output
from nodeagent.cli.simulated_node import device_on, simulated_node
from nodeagent.errors import UsageError
from nodeagent.simulation import SimulatedNode, known_boards
from nodeagent.simulation.boards import Board
from nodeagent.terminal.page import line
from nodeagent.terminal.profiles_page import boards_page
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
            if name == "sensor":
                _check_sensor(options)
            elif name == "fault":
                _check_fault(options)
            with simulated_node(options) as node:
                sentence, facts = _act(node, options)
            output.sentence(sentence)
            output.document(facts)
    return ExitCode.DONE


def _boards(output: Output) -> None:
    boards = known_boards()
    output.page(boards_page(boards))
    output.document({"boards": [_board_json(board) for board in boards]})


def _board_json(board: Board) -> dict[str, object]:
    profiles = [
        {
            "profile": one.name,
            "max": one.max_instances,
            "memory": one.memory,
            "evidence": one.status,
        }
        for one in board.profiles
    ]
    facts = {"name": board.name, "product": board.product, "memory": board.memory}
    return {**facts, "profiles": profiles, "assumed": list(board.assumed)}


def _sensors(output: Output) -> None:
    from nodeagent.simulation.sensors import NAMES, NUMBERED

    names = [*sorted(NAMES), *NUMBERED]
    output.page(line(name) for name in names)
    output.document({"sensors": names})


# --- what can happen to the node: a sentence about it, and the same for programs ------------------

_Done = tuple[str, dict[str, object]]


def _act(node: SimulatedNode, options: Namespace) -> _Done:
    named = options.device if "device" in options else ""
    device = device_on(named, node) if named else ""
    match options.subcommand:
        case "occupy":
            return _occupy(node, device, options)
        case "release":
            gone = node.release(device or None, options.pid)
            where = f" from {named}" if named else ""
            return f"processes taken away{where}: {gone}", {"released": gone}
        case "load":
            node.load(device, options.share)
            facts = {"device": named, "share": options.share}
            return f"{named} is busy for {options.share:.0%} of the time", facts
        case "xid":  # for the programs that listen now
            node.xid(device, options.xid)
            return f"{named} reported XID {options.xid}", {"device": named, "xid": options.xid}
        case "sensor":  # without a figure it follows the load again
            sensor, figure = options.sensor, options.figure
            node.set_figures(device, {sensor: figure})
            what = "follows the load again" if figure is None else f"reports {figure:g}"
            facts = {"device": named, "sensor": sensor, "figure": figure}
            return f"{sensor} of {named} {what}", facts
        case "fault":
            return _fault(node, options)
    from nodeagent.cli.simulate.mps import end_daemons

    end_daemons(options)
    node.reboot()
    return "the simulated node was rebooted", {"rebooted": True}


def _occupy(node: SimulatedNode, device: str, options: Namespace) -> _Done:
    command, memory, follow = options.process_command, options.memory, options.follow
    process = node.occupy(device, options.pid, command=command, memory=memory, follow=follow)
    facts = {"device": device, "pid": process.pid, "command": process.command}
    return f"pid {process.pid} ({process.command}) is on {options.device}", facts


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
        raise UsageError.of("sensorMissing")
    if not is_known(options.sensor):
        near = did_you_mean(options.sensor, NAMES) or "nodeagent simulate sensor lists them all"
        raise UsageError(f"no sensor is called {options.sensor!r}", remedy=near)


def _check_fault(options: Namespace) -> None:
    if sum([options.clear, options.lost is not None, options.function is not None]) > 1:
        raise UsageError.of("threeThings")
    if options.clear or options.lost is not None:
        return
    if options.function is None:
        raise UsageError.of("noFunction")
    from nodeagent.simulation.functions import FUNCTIONS

    if not fnmatch.filter(FUNCTIONS, options.function):
        near = did_you_mean(options.function, FUNCTIONS) or "for example 'nvmlDevice*'"
        what = f"the simulated driver has no function {options.function!r}"
        raise UsageError(what, remedy=near)
