"""`nodeagent run`: the agent, and hints for who starts it by hand."""

import errno
import os
import shlex
import shutil
import socket
import sys
from argparse import Namespace
from pathlib import Path

from nodeagent.app import process
from nodeagent.app.paths import Simulation
from nodeagent.app.plan_service import SettingsFile
from nodeagent.app.shared import source_of
from nodeagent.cli.command_settings import flags_of
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.node import SIMULATED_SMI, SimulatedGpus, is_simulated, is_throwaway, simulation
from nodeagent.cli.output import Output, write_to_stderr
from nodeagent.cluster.client.presence import runs_as
from nodeagent.cluster.plan_sources.registry import CARRIERS
from nodeagent.documents.bounded_yaml import MAX_TEXT
from nodeagent.errors import NodeagentError
from nodeagent.files.state import read_regular_file
from nodeagent.settings import DEFAULT_FILE, Address, Settings, load_settings


def run_run(options: Namespace, _: Output) -> ExitCode:
    """Run it until a signal; what it does is in its log, on standard error."""
    settings_file = SettingsFile(
        options.settings or DEFAULT_FILE,
        lambda: load_settings(options.settings, os.environ, _flags(options)),
    )
    settings = settings_file.load()
    carrier = _carrier(settings)
    check_free(settings.api.listen)
    by_hand = is_simulated(options) or (sys.stderr is not None and sys.stderr.isatty())
    with simulation(options, shared=_is_shared(options, settings)) as simulated:
        if by_hand:
            simulated_as = f"simulated {options.simulate or options.state}" if simulated else ""
            write_to_stderr(
                f"nodeagent keeps {simulated_as or 'the GPUs'} as {carrier} says; "
                "Ctrl-C stops it.\n"
            )
        process.run(
            settings,
            settings_file=settings_file,
            simulation=None if simulated is None else _for_the_agent(simulated, options, settings),
            on_ready=lambda: write_to_stderr(
                _hints(settings.api.listen, options.state) if by_hand else ""
            ),
        )
    return ExitCode.DONE


def _for_the_agent(simulated: SimulatedGpus, options: Namespace, settings: Settings) -> Simulation:
    from nodeagent.cli.simulated_node import simulated_places

    return Simulation(
        simulated.state,
        SIMULATED_SMI,
        simulated.directory,
        simulated_places(settings, simulated.directory),
        simulated.node.real_pids,
        simulated.node.capabilities,
        simulated.node.pcie_root,
        throwaway=is_throwaway(options),
    )


def _is_shared(options: Namespace, settings: Settings) -> bool:
    """Whether the stand-in for nvidia-smi, a process of its own, has to find the simulated node.

    Keeping that in a file costs a quarter of the time to a layout of eight GPUs.
    """
    if options.state is not None or settings.reset != "never":
        return True
    try:
        return b"timeSlice" in read_regular_file(settings.plan.file, MAX_TEXT)
    except OSError:
        return False


def _flags(options: Namespace) -> dict[str, object]:
    """The flags, with absolute paths because the settings are read again later."""
    flags = {**flags_of(options), "plan.name": options.configuration}
    return {k: v.absolute() if isinstance(v, Path) else v for k, v in flags.items()}


def _carrier(settings: Settings) -> str:
    in_cluster = bool(runs_as(settings.kubernetes))
    source = source_of(settings.plan, in_cluster=in_cluster)
    if source == "file":
        return str(settings.plan.file)
    return f"{CARRIERS[source].title} of Node {settings.node_name}"


def _hints(listen: Address, state: Path | None) -> str:
    """Commands for another terminal in this folder, and last the page's address; each can be pasted
    as it is. `state` is the file of a simulated node. Empty where the port is not known.
    """
    if not listen.port:
        return ""
    address = Address(listen.host or "127.0.0.1", listen.port)
    follow = f"{program()} status --watch --listen {address}\n"
    acts = ("xid 0 79", "reboot") if state else ()  # a fault, and what mends it
    simulate = (f"{program()} simulate {act} --state {shlex.quote(str(state))}\n" for act in acts)
    return f"{follow}{''.join(simulate)}http://{address}/\n"


def program() -> str:
    """The program as it can be called from this folder."""
    name = sys.argv[0]
    if Path(name).name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m nodeagent"
    return Path(name).name if shutil.which(Path(name).name) == name else shlex.quote(name)


def check_free(listen: Address) -> None:
    """Raise NodeagentError where another program listens at the API's address already.

    What else is wrong with the address is found when the API starts.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        socket.create_server((listen.host, listen.port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise NodeagentError.of(
                "apiTaken", address=listen, other=Address(listen.host, listen.port + 1)
            ) from error
