"""A tenant's program that takes the place of its own MPS daemon and names others as its clients,
the agent that asks among them.

As `python mps_impostor.py PIPE_DIRECTORY PID...`, under the daemon's user: it moves the daemon's
sockets away, listens in their place, and gives the answers of a healthy control daemon with one
server. Prints one line once it listens; ends with status 3 where it may not move them.
"""

import os
import select
import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from nodeagent.simulation.mps import protocol

_SERVER = "4194000"  # of no process: the kernel's numbers may end before it


def _answer(line: str, clients: list[str]) -> str:
    word = line.split(maxsplit=1)[0]
    if word.startswith("__"):
        return f'Unknown command "{word}"\n'
    if word == "get_server_list":
        return f"{_SERVER}\n"
    if word == "get_server_status":
        return "ACTIVE\n"
    if word == "get_client_list":
        return "".join(f"{pid}\n" for pid in clients)
    if word == "terminate_client":
        return "0\n"
    if "percentage" in word:
        return "15.0\n"
    return "8G\n" if word.startswith("get_") and "mem_limit" in word else ""


def _parent(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    except OSError:
        return ""


def main(pipes: Path, clients: list[str]) -> int:
    listeners = {}
    for name in (protocol.PRIVILEGED, protocol.CONTROL):
        try:
            (pipes / name).rename(pipes / f".{name}")
        except PermissionError:
            return 3
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(pipes / name))
        (pipes / name).chmod(0o666)
        listener.listen(128)
        listeners[listener.fileno()] = listener
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    peers: dict[int, socket.socket] = {}
    agent = ""
    while True:
        ready, _, _ = select.select([*listeners, *peers], [], [])
        for descriptor in ready:
            if descriptor in listeners:
                peer, _ = listeners[descriptor].accept()
                peers[peer.fileno()] = peer
                agent = _parent(protocol.peer(peer)[0])  # of the front-end that asks
                continue
            message = protocol.receive(peers[descriptor])
            if message is None:
                peers.pop(descriptor).close()
            elif "hello" in message:
                protocol.send(peers[descriptor], {"welcome": True})
            else:
                answer = _answer(str(message.get("command", "?")), [*clients, agent])
                protocol.send(peers[descriptor], {"reply": answer})


if __name__ == "__main__":
    os._exit(main(Path(sys.argv[1]), sys.argv[2:]))
