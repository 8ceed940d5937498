"""MPS daemons and their clients as tables, drawn from the JSON of the agent's `/v1/mps`."""

from collections.abc import Iterator, Mapping, Sequence

from nodeagent.terminal.page import (
    Json,
    Line,
    Span,
    Tone,
    dim,
    indent,
    joined,
    line,
    remark,
    table,
    toned,
)
from nodeagent.text import gibibytes, quantity

_UNKNOWN = "-"

_DAEMONS = ("DEVICE", "STATE", ">PID", "USER", ">RESTARTS", ">CLIENTS", "SHARES", "UUID")
_CLIENTS = ("DEVICE", ">PID", "COMMAND", "USER", "SHARE", ">USED", ">LIMIT", ">THREADS", "POD")


def daemons_page(answer: Json) -> tuple[Line, ...]:
    """One row for each daemon; below the table, why some are not Ready and who waits."""
    daemons: Sequence[Json] = answer.get("daemons", ())
    if not daemons:
        return (line("No device has MPS."),)
    rows = table(_DAEMONS, map(_daemon_row, daemons))
    notes = [note for daemon in daemons for note in _notes(daemon, _place(daemon))]
    return joined(rows, notes)


def clients_page(answer: Json) -> tuple[Line, ...]:
    """One row for each client; below the table, what is wrong with some, and who waits."""
    daemons: Sequence[Json] = answer.get("daemons", ())
    clients = [(daemon, client) for daemon in daemons for client in daemon.get("clients", ())]
    waiting = [note for daemon in daemons for note in _waiting_notes(daemon, _place(daemon))]
    if not clients:
        return (line("No client uses a device through MPS."), *waiting)
    rows = table(_CLIENTS, (_client_row(*pair) for pair in clients))
    findings = (note for d, client in clients for note in _finding_notes(client, _place(d)))
    notes = [*findings, *waiting]
    return joined(rows, notes)


def daemon_lines(daemon: Json, what: str) -> tuple[Line, ...]:
    """One daemon within a larger page, with its clients; `what` names its device there."""
    clients = (_client_line(client) for client in daemon.get("clients", ()))
    return (daemon_line(daemon, what), *indent((*_notes(daemon, ""), *clients), 2))


def daemon_line(daemon: Json, what: str) -> Line:
    """State, user, pid and shares of one daemon, and how many clients it has."""
    what = daemon_place_words(daemon) if "gpus" in daemon else what
    facts = [f"{key} {daemon[key]}" for key in ("user", "pid") if key in daemon]
    facts += [f"restarts {daemon['restarts']}"] if daemon.get("restarts") else []
    facts += [shares_words(daemon)] if daemon.get("shares") else []
    clients = len(daemon.get("clients", ()))
    facts += [quantity(clients, "client")] if clients else []
    return line(f"MPS on {what}: ", toned(daemon.get("state", "?")), dim(f"  {', '.join(facts)}"))


def daemon_place_words(daemon: Json) -> str:
    """`GPU 0`, `GPU 0 + GPU 1`, `GPU 0 3g.40gb at 4`, or the UUID where no more is known."""
    if "gpus" in daemon:
        return " + ".join(f"GPU {index}" for index in daemon["gpus"])
    if "gpu" not in daemon:
        return str(daemon.get("device", "?"))
    part = f" {daemon['profile']} at {daemon['start']}" if "profile" in daemon else ""
    return f"GPU {daemon['gpu']}{part}"


def shares_words(daemon: Json) -> str:
    """`small 4 x 8 GiB 15 %, large 1 x 40 GiB 40 %`."""
    shares: Mapping[str, Json] = daemon.get("shares") or {}
    return ", ".join(_share_words(name, share) for name, share in shares.items()) or _UNKNOWN


def process_words(process: Json) -> str:
    """`4711 (python3 train.py)`."""
    command = command_words(process)
    return f"{process.get('pid', '?')} ({command})" if command else str(process.get("pid", "?"))


def command_words(process: Json) -> str:
    """`python3 train.py`; empty where nothing is known."""
    return " ".join(str(process[key]) for key in ("command", "script") if process.get(key))


def pod_words(process: Json) -> str:
    """`namespace/name` of the process' pod; empty where it is not known."""
    pod: Json = process.get("pod") or {}
    return f"{pod.get('namespace', '')}/{pod['name']}" if pod.get("name") else ""


def _place(daemon: Json) -> str:
    return f"{daemon_place_words(daemon)}: "


def _share_words(name: str, share: Json) -> str:
    memory = gibibytes(int(share["memory"])) if "memory" in share else "all memory"
    threads = f"{share['threads']:g} %" if "threads" in share else "all threads"
    count = f"{share['count']} x " if "count" in share else "each "
    return f"{name} {count}{memory} {threads}"


def _daemon_row(daemon: Json) -> list[str | Span]:
    return [
        daemon_place_words(daemon),
        toned(daemon.get("state", "?")),
        *(str(daemon.get(key, _UNKNOWN)) for key in ("pid", "user", "restarts")),
        str(len(daemon.get("clients", ()))),
        shares_words(daemon),
        dim(str(daemon.get("device", _UNKNOWN))),
    ]


def _client_row(daemon: Json, client: Json) -> list[str | Span]:
    memory: Json = client.get("memory") or {}
    share = client.get("slot") or client.get("share")
    none = Span("none", Tone.WARNING) if client.get("findings") else _UNKNOWN
    return [
        daemon_place_words(daemon),
        str(client.get("pid", _UNKNOWN)),
        command_words(client) or _UNKNOWN,
        str(client.get("user", _UNKNOWN)),
        str(share) if share else none,
        *(gibibytes(int(memory[k])) if k in memory else _UNKNOWN for k in ("used", "limit")),
        f"{client['threads']:g} %" if "threads" in client else _UNKNOWN,
        pod_words(client) or _UNKNOWN,
    ]


def _client_line(client: Json) -> Line:
    memory: Json = client.get("memory") or {}
    share = client.get("slot") or client.get("share") or "no share"
    pod = f" of pod {pod_words(client)}" if client.get("pod") else ""
    used = f", {gibibytes(int(memory['used']))} used" if "used" in memory else ""
    limit = f" of {gibibytes(int(memory['limit']))}" if "limit" in memory else ""
    tone = Tone.WARNING if client.get("findings") else Tone.IN_USE
    return line(Span(f"{share}: ", tone), f"pid {process_words(client)}{pod}", dim(used + limit))


def _notes(daemon: Json, place: str) -> Iterator[Line]:
    """What is not as it should be; `place` stands in front of each note."""
    state, why, trouble = (daemon.get(key) for key in ("state", "why", "trouble"))
    if why and state != "Ready":
        yield from remark(f"{place}{why}", tone=toned(state, Tone.WARNING).tone)
        for printed in daemon.get("lastLines", ()):
            yield line(dim(f"    {printed}"))
    if trouble and trouble != why:
        yield from remark(f"{place}{trouble}")
    for client in daemon.get("clients", ()):
        yield from _finding_notes(client, place)
    yield from _waiting_notes(daemon, place)


def _finding_notes(client: Json, place: str) -> Iterator[Line]:
    for finding in client.get("findings", ()):
        yield from remark(f"{place}pid {process_words(client)}: {finding}")


def _waiting_notes(daemon: Json, place: str) -> Iterator[Line]:
    server: Json = daemon.get("server") or {}
    holder = f"; server {server['pid']} serves user {server['user']}" if "user" in server else ""
    for client in daemon.get("waiting", ()):
        who = f"pid {process_words(client)} of user {client.get('user', '?')} waits"
        yield from remark(f"{place}{who}{holder}", tone=Tone.BAD)
