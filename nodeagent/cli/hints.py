"""For who starts the agent by hand: is its address free, and where to look once it is ready."""

from __future__ import annotations

import errno
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from nodeagent.errors import NodeagentError
from nodeagent.processes import listeners
from nodeagent.settings import Address


def hints(listen: Address, state: Path | None) -> str:
    """Commands for another terminal in this folder, and last the page's address; each can be pasted
    as it is. `state` is the file of a simulated node. Empty where the port is not known.
    """
    return "".join(f"{row}\n" for row in _hints(listen, state)) if listen.port else ""


def _hints(listen: Address, state: Path | None) -> Iterator[str]:
    address = Address(listen.host or "127.0.0.1", listen.port)
    yield f"{program()} status --watch --listen {address}"
    if state is not None:
        yield f"{program()} simulate xid 0 79 --state {shlex.quote(str(state))}"
    yield f"http://{address}/"


def program() -> str:
    """The program as it can be called from this folder."""
    name = sys.argv[0]
    if Path(name).name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m nodeagent"
    return Path(name).name if shutil.which(Path(name).name) == name else shlex.quote(name)


def check_free(listen: Address) -> None:
    """Raises NodeagentError where another program listens at the API's address already.

    What else is wrong with the address is found when the API starts.
    """
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    try:
        socket.create_server((listen.host, listen.port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            there = listeners(listen.port)
            found = [f"process {pid} ({name})" for pid, name in there.items()]
            end = f": `kill {' '.join(map(str, there))}`" if there else ""
            raise NodeagentError(
                f"the API cannot listen on {listen}: {' and '.join(found) or 'another program'} "
                "already does",
                remedy="choose another address, by the setting api.listen or `--listen "
                f"{Address(listen.host, listen.port + 1)}`, or end it{end}",
            ) from error
