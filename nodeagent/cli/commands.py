"""The commands: what each does in a line, and the options that it takes."""

from collections.abc import Mapping
from pathlib import Path

from nodeagent import __version__
from nodeagent.cli.declarations import (
    HELP,
    Command,
    Option,
    choice,
    duration,
    flag,
    option,
    path,
    positive,
)
from nodeagent.settings.sources import choices


def _configuration(default: str) -> Option:
    meaning = f"which configuration of an nvidia-mig-parted file (default: {default})"
    return option("-c", "--configuration", "--selected-config", metavar="NAME", help=meaning)


_FILE = option(
    "-f",
    "--file",
    "--config-file",
    metavar="FILE",
    help="the plan, or a file of nvidia-mig-parted; - reads standard input "
    "(default: $MIG_PARTED_CONFIG_FILE)",
)
_DOCUMENT = (_FILE, _configuration("$MIG_PARTED_SELECTED_CONFIG, else plan.name, the only one"))
_RESET = choice(
    "--reset",
    choices("reset"),
    "whether a GPU proven idle may be reset, where a mode change needs it (default: never)",
)
_PARALLEL = option(
    "--parallel",
    metavar="N",
    type=positive,
    help="how many GPUs are changed side by side (default: all)",
)
_SETTINGS = path("--settings", "the agent's settings")
_PLAN = option("-f", "--plan", metavar="FILE", type=Path, help="the plan file to follow")
_PLAN_NAME = _configuration("the only one")
_LISTEN = option("--listen", metavar="ADDRESS", help="the API's address (default: 127.0.0.1:9470)")
_RUN_DIR = path(
    "--run-dir", "where sockets and the lock are (default: /run/nodeagent)", metavar="DIR"
)
_STATE_DIR = path(
    "--state-dir",
    "where state that must survive a restart is kept (default: /var/lib/nodeagent)",
    metavar="DIR",
)
_DIRECTORIES = (_RUN_DIR, _STATE_DIR)
_AGENT = (_SETTINGS, _LISTEN, _RUN_DIR)
_CLUSTER = (
    choice(
        "--source",
        choices("plan.source"),
        "where the plan comes from (auto: the Node's annotation in a cluster, else the file)",
    ),
    path("--kubeconfig", "the cluster that the node belongs to"),
    option("--node-name", metavar="NAME", help="the name of this node"),
)
_RECONCILING = (
    choice(
        "--drift", choices("drift"), "what to do about changes by other programs (default: mend)"
    ),
    _RESET,
    _PARALLEL,
    duration("--resync", "how often to look at the GPUs when nothing happens (default: 60)"),
)
_SHELL = choice("shell", ("bash", "zsh", "fish"), "for which shell")
_ARCHIVE = path("archive", "the archive to write (tar.gz); it must not exist")
_WAIT = duration("--wait", "how long to wait for users of what has to go (default: 0)", default=0.0)
_DRY_RUN = flag("--dry-run", "only show them, as plan does")
_FORMAT = choice(
    "--format",
    ("plan", "mig-parted"),
    "which kind of document (default: plan)",
    dest="export_format",
    default="plan",
)
_SUBJECT = choice(
    "subject", ("plan", "settings"), "of what (default: plan)", nargs="?", default="plan"
)
_ONE_GPU = option("--gpu", dest="one_gpu", metavar="GPU", help="one in full: an index or a UUID")
_CODES = option(
    "codes",
    nargs="*",
    metavar="CODE",
    help="such as InUse, ecc, Blocked or XID 79; case does not matter (default: list all)",
)
_NAMESPACE = option("-n", "--namespace", metavar="N", help="only the holders of this namespace")
_WORKLOAD = option(
    "workload", nargs="?", help="only of this workload, unit or user, and why of every advice"
)
_WORDS = option("words", nargs="*", metavar="COMMAND", help="such as status, or mps restart")


def _simulations() -> Mapping[str, Command]:
    from nodeagent.cli.simulate.options import SIMULATIONS

    return SIMULATIONS


COMMANDS = {
    "run": Command(
        "the agent: keep the node as the plan says",
        (_SETTINGS, _PLAN, _PLAN_NAME, *_CLUSTER, _LISTEN, *_DIRECTORIES, *_RECONCILING),
    ),
    "plan": Command(
        "show the steps to the plan, with their reasons; touches nothing",
        (*_DOCUMENT, _RESET, _SETTINGS, *_DIRECTORIES),
    ),
    "apply": Command(
        "take these steps once, without an agent",
        (*_DOCUMENT, _DRY_RUN, _RESET, _PARALLEL, _WAIT, _SETTINGS, *_DIRECTORIES),
    ),
    "assert": Command("is the node as the document says?", (*_DOCUMENT, _SETTINGS, *_DIRECTORIES)),
    "export": Command(
        "write the node as it is, as a document", (_FORMAT, _SETTINGS, *_DIRECTORIES)
    ),
    "profiles": Command("what each GPU offers and how many more fit now", (_SETTINGS,)),
    "status": Command(
        "the running agent's picture of the node",
        (
            flag("--watch", "follow the changes"),
            _ONE_GPU,
            flag("--problems", "every problem, the worst first, each with its remedy"),
            flag("--exit-code", "end with 0 (well), 1 (degraded), 2 (broken) or 3 (no agent)"),
            *_AGENT,
        ),
    ),
    "events": Command("the events of the last hour, with their reasons", (_ONE_GPU, *_AGENT)),
    "logs": Command("the agent's log, as systemd keeps it", (flag("--follow", "and what comes"),)),
    "mps": Command(
        "the MPS daemons of the running agent: show, restart, drain them",
        subcommands=lambda: MPS_COMMANDS,
    ),
    "claims": Command(
        "the resource claims that the running agent serves: state, pods, devices, what is wrong",
        _AGENT,
    ),
    "advise": Command(
        "which slice or share would do for whom, by what they were seen to need; changes nothing",
        (_WORKLOAD, _NAMESPACE, *_AGENT),
    ),
    "check": Command(
        "preflight: what would keep the agent from working on this node, with a remedy for each",
        (_SETTINGS, _PLAN, *_CLUSTER, *_DIRECTORIES),
    ),
    "explain": Command(
        "what a code, check, phase, alert or XID means, and the commands that mend it", (_CODES,)
    ),
    "schema": Command("JSON Schema of the plan or of the settings", (_SUBJECT,)),
    "bundle": Command(
        "one archive for a report of a fault, without secrets",
        (_ARCHIVE, _SETTINGS, _LISTEN, *_DIRECTORIES),
    ),
    "completion": Command("print a shell script that completes this command line", (_SHELL,)),
    "help": Command("the options of the program, or of a command", (_WORDS,)),
    "version": Command("the version of the program"),
    "demo": Command("a guided tour on a simulated node, in seconds"),
    "simulate": Command(
        "boards that can be simulated; processes, MPS clients, faults, reboots of a node",
        subcommands=_simulations,
    ),
}

_DEVICE_SPELLINGS = "a GPU by index or UUID, or a MIG device by UUID or by GPU:SLICE (0:4)"
_DEVICE = option("device", metavar="DEVICE", help=_DEVICE_SPELLINGS)
_ANY_DEVICE = option(
    "device", nargs="?", default="", metavar="DEVICE", help=f"{_DEVICE_SPELLINGS} (default: all)"
)
_LOSS = "even if clients lose their work"

MPS_COMMANDS: dict[str, Command] = {
    "status": Command("the daemons: state, user, restarts, shares", (_ANY_DEVICE, *_AGENT)),
    "clients": Command(
        "who uses a device through MPS, with limits and use", (_ANY_DEVICE, *_AGENT)
    ),
    "restart": Command(
        "restart the daemon of a device", (_DEVICE, flag("--force", _LOSS), _SETTINGS, _RUN_DIR)
    ),
    "drain": Command(
        "admit no new clients, wait for the present ones, then end the daemon",
        (
            _DEVICE,
            duration("--timeout", "how long to wait for the clients (default: without a limit)"),
            flag("--force", f"at the end of the time, {_LOSS}"),
            _SETTINGS,
            _RUN_DIR,
        ),
    ),
}

GLOBAL_OPTIONS = (
    option(
        "--simulate",
        metavar="BOARDS",
        help="simulated GPUs instead of the driver, such as h100-80gb:8 or a100-40gb:2,t4:1",
    ),
    path("--state", "keep the simulated node in FILE, between commands and for a running agent"),
    option(
        "-o",
        "--output",
        choices=("text", "json", "yaml"),
        default="text",
        help="format of the answer (default: text)",
    ),
    flag("--no-color", "no colours"),
)

_VERSION = option(
    "--version",
    action="version",
    version=f"nodeagent {__version__}",
    help="show program's version number and exit",
)

PROGRAM = Command(
    "partitions the NVIDIA GPUs of this node",
    general=(HELP, _VERSION),
    subcommands=lambda: COMMANDS,
)
