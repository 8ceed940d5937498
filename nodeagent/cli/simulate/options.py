"""The commands below `nodeagent simulate`: what each does in a line, and its options."""

from typing import Any

from nodeagent.cli.declarations import (
    Command,
    Option,
    duration,
    figure,
    flag,
    index,
    option,
    path,
    positive,
    share,
    size,
)

_SPELLINGS = (
    "a GPU by index, UUID or PCI address, or a MIG device by UUID, by GPU:SLICE (0:4) or by "
    "GPU/GI/CI (0/1/0)"
)
_DEVICE = option("device", metavar="DEVICE", help=_SPELLINGS)


def _optional(name: str, meaning: str, **details: Any) -> Option:
    """An argument that may be left out."""
    return option(name, nargs="?", metavar=name.upper(), help=meaning, **details)


_AGENT_PLACES = (
    path("--settings", "the agent's settings"),
    path(
        "--run-dir",
        "the agent's run.dir, if it was given one (default: the setting run.dir where it is "
        "set, else beside the state file)",
        metavar="DIR",
    ),
)

_OCCUPY = (
    _DEVICE,
    option("--pid", metavar="N", type=positive, help="its process id"),
    flag(
        "--follow", "the process is one of this machine; when it ends, it is gone from the device"
    ),
    option(
        "--command",
        metavar="NAME",
        dest="process_command",
        default="python",
        help="what it is called (default: python)",
    ),
    option(
        "--memory",
        metavar="SIZE",
        type=size,
        default=256 << 20,
        help="how much memory it holds, such as 2Gi (default: 256Mi)",
    ),
)

_CLIENT_OF = (
    option(
        "--slot",
        metavar="DEVICE/SLOT",
        help="with the environment that the agent published for it, such as 1/small-0",
    ),
    path("--env", "with the environment in an env file"),
    option(
        "--device",
        metavar="DEVICE",
        dest="on_device",
        help="as a client without a share, that knows only the daemon's pipe directory",
    ),
)
_CLIENT = (
    option("--allocate", metavar="SIZE", type=size, help="how much memory it takes, such as 2Gi"),
    option("--uid", metavar="N", type=index, help="as this user (default: the daemon's)"),
    duration("--seconds", "how long it stays (default: until Ctrl-C)", metavar="N"),
    *_AGENT_PLACES,
)

_MPS = (
    _optional("knob", "what goes wrong; without one, all are listed"),
    _optional("value", "for the knobs that take one"),
    option(
        "--device", metavar="DEVICE", dest="on_device", help="only of this device (default: all)"
    ),
    flag("--clear", "turn this knob back, or without one, all"),
    *_AGENT_PLACES,
)

_FAULT = (
    _optional("function", "such as nvmlDeviceCreateGpuInstance*"),
    _optional("code", "its answer, by name or number: IN_USE, 19"),
    option("--count", metavar="N", type=positive, help="so many times (default: always)"),
    flag("--hang", "it never returns"),
    duration("--latency", "it takes so long, then goes on"),
    option("--gpu", metavar="N", type=index, help="only on this GPU"),
    option("--lost", metavar="GPU", type=index, help="this GPU falls off the bus, by its index"),
    flag("--clear", "take all faults away"),
)

SIMULATIONS = {
    "boards": Command("list the boards that --simulate knows"),
    "occupy": Command("put a process on a simulated device", _OCCUPY),
    "release": Command(
        "take it away again",
        (
            _optional("device", f"{_SPELLINGS} (default: all devices)", default=""),
            option("--pid", metavar="N", type=positive, help="only this process"),
        ),
    ),
    "load": Command(
        "let a simulated device be busy",
        (_DEVICE, option("share", metavar="SHARE", type=share, help="from 0 to 1; 0 ends it")),
    ),
    "client": Command(
        "run a simulated CUDA program under a simulated node's MPS", _CLIENT, one_of=_CLIENT_OF
    ),
    "mps": Command(
        "let something go wrong with the simulated node's MPS daemons and servers", _MPS
    ),
    "xid": Command(
        "let a simulated device report a driver error",
        (_DEVICE, option("xid", metavar="XID", type=positive, help="the number of the error")),
    ),
    "sensor": Command(
        "let a sensor of a simulated device report a figure",
        (
            _optional("device", _SPELLINGS, default=""),
            _optional("sensor", "which one; without a device, all are listed"),
            _optional("figure", "what it reports, in NVML's units", type=figure),
            flag("--clear", "let it follow the load again"),
        ),
    ),
    "fault": Command(
        "make a driver function fail, hang or slow down, or a GPU fall off the bus", _FAULT
    ),
    "reboot": Command("do to the simulated node what a reboot does"),
}
