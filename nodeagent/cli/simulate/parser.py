"""The options of `nodeagent simulate`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from nodeagent.cli.values import figure, index, positive, seconds, share, size

_Add = Callable[[argparse.ArgumentParser], None]


def add_simulation_options(name: str, parser: argparse.ArgumentParser) -> None:
    """What `simulate NAME` takes beside the options of every command."""
    _OPTIONS[name](parser)


_DEVICE = (
    "a GPU by index, UUID or PCI address, or a MIG device by UUID, by GPU:SLICE (0:4) or by "
    "GPU/GI/CI (0/1/0)"
)


def _nothing(parser: argparse.ArgumentParser) -> None:
    """Takes the options of every command alone."""


def _occupy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", help=_DEVICE)
    parser.add_argument("--pid", metavar="N", type=positive, help="its process id")
    parser.add_argument(
        "--follow",
        action="store_true",
        help="the process is one of this machine; when it ends, it is gone from the device",
    )
    parser.add_argument(
        "--command",
        metavar="NAME",
        dest="process_command",
        default="python",
        help="what it is called (default: python)",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        type=size,
        default=256 << 20,
        help="how much memory it holds, such as 2Gi (default: 256Mi)",
    )


def _release(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "device",
        nargs="?",
        default="",
        metavar="DEVICE",
        help=f"{_DEVICE} (default: all devices)",
    )
    parser.add_argument("--pid", metavar="N", type=positive, help="only this process")


def _load(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", help=_DEVICE)
    parser.add_argument("share", metavar="SHARE", type=share, help="from 0 to 1; 0 ends it")


def _xid(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", metavar="DEVICE", help=_DEVICE)
    parser.add_argument("xid", metavar="XID", type=positive, help="the number of the error")


def _sensor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("device", nargs="?", default="", metavar="DEVICE", help=_DEVICE)
    parser.add_argument(
        "sensor", nargs="?", metavar="SENSOR", help="which one; without a device, all are listed"
    )
    parser.add_argument(
        "figure", nargs="?", metavar="FIGURE", type=figure, help="what it reports, in NVML's units"
    )
    parser.add_argument("--clear", action="store_true", help="let it follow the load again")


def _fault(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "function", nargs="?", metavar="FUNCTION", help="such as nvmlDeviceCreateGpuInstance*"
    )
    parser.add_argument(
        "code", nargs="?", metavar="CODE", help="its answer, by name or number: IN_USE, 19"
    )
    parser.add_argument(
        "--count", metavar="N", type=positive, help="so many times (default: always)"
    )
    parser.add_argument("--hang", action="store_true", help="it never returns")
    parser.add_argument(
        "--latency", metavar="SECONDS", type=seconds, help="it takes so long, then goes on"
    )
    parser.add_argument("--gpu", metavar="N", type=index, help="only on this GPU")
    parser.add_argument(
        "--lost", metavar="GPU", type=index, help="this GPU falls off the bus, by its index"
    )
    parser.add_argument("--clear", action="store_true", help="take all faults away")


def _client(parser: argparse.ArgumentParser) -> None:
    whose = parser.add_mutually_exclusive_group(required=True)
    whose.add_argument(
        "--slot",
        metavar="DEVICE/SLOT",
        help="with the environment that the agent published for it, such as 1/small-0",
    )
    whose.add_argument(
        "--env", metavar="FILE", type=Path, help="with the environment in an env file"
    )
    whose.add_argument(
        "--device",
        metavar="DEVICE",
        dest="on_device",
        help="as a client without a share, that knows only the daemon's pipe directory",
    )
    parser.add_argument(
        "--allocate", metavar="SIZE", type=size, help="how much memory it takes, such as 2Gi"
    )
    parser.add_argument(
        "--uid", metavar="N", type=index, help="as this user (default: the daemon's)"
    )
    parser.add_argument(
        "--seconds", metavar="N", type=seconds, help="how long it stays (default: until Ctrl-C)"
    )
    _add_run_dir(parser)


def _mps(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "knob", nargs="?", metavar="KNOB", help="what goes wrong; without one, all are listed"
    )
    parser.add_argument("value", nargs="?", metavar="VALUE", help="for the knobs that take one")
    parser.add_argument(
        "--device", metavar="DEVICE", dest="on_device", help="only of this device (default: all)"
    )
    parser.add_argument(
        "--clear", action="store_true", help="turn this knob back, or without one, all"
    )
    _add_run_dir(parser)


def _add_run_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--settings", metavar="FILE", type=Path, help="the agent's settings")
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        type=Path,
        help="the agent's run.dir, if it was given one (default: the setting run.dir where it is "
        "set, else beside the state file)",
    )


_SIMULATIONS: dict[str, tuple[str, _Add]] = {
    "boards": ("list the boards that --simulate knows", _nothing),
    "occupy": ("put a process on a simulated device", _occupy),
    "release": ("take it away again", _release),
    "load": ("let a simulated device be busy", _load),
    "client": ("run a simulated CUDA program under a simulated node's MPS", _client),
    "mps": ("let something go wrong with the simulated node's MPS daemons and servers", _mps),
    "xid": ("let a simulated device report a driver error", _xid),
    "sensor": ("let a sensor of a simulated device report a figure", _sensor),
    "fault": ("make a driver function fail, hang or slow down, or a GPU fall off the bus", _fault),
    "reboot": ("do to the simulated node what a reboot does", _nothing),
}
SIMULATIONS = {name: words for name, (words, _) in _SIMULATIONS.items()}
_OPTIONS = {name: add for name, (_, add) in _SIMULATIONS.items()}
