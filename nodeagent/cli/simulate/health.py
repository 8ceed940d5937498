"""What makes a simulated GPU look sick: XIDs, and figures of its sensors."""

from __future__ import annotations

from nodeagent.cli.options import Options
from nodeagent.cli.output import Output
from nodeagent.cli.simulated_node import device_on, simulated_node
from nodeagent.errors import UsageError
from nodeagent.simulation.sensors import NAMES, NUMBERED, is_known
from nodeagent.terminal.page import line
from nodeagent.text import did_you_mean


def raise_xid(options: Options, output: Output) -> None:
    """Report an XID of a GPU or MIG device to the programs that listen now."""
    with simulated_node(options) as node:
        node.xid(device_on(options.device, node), options.xid)
    output.page([line(f"{options.device} reported XID {options.xid}")])
    output.document({"device": options.device, "xid": options.xid})


def set_sensor(options: Options, output: Output) -> None:
    """Let a sensor report a figure, let it follow the load again, or list the sensors there are."""
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
    output.page([line(f"{options.sensor} of {options.device} {what}")])
    output.document({"device": options.device, "sensor": options.sensor, "figure": options.figure})
