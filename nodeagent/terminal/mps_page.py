"""MPS daemons and their clients as tables, drawn from the JSON of the agent's `/v1/mps`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nodeagent.terminal.page import BLANK, Line, Span, Tone, dim, gibibytes, indent, line, table

Json = Mapping[str, Any]

_STATE_TONES = {
    "Ready": Tone.GOOD,
    "Starting": Tone.NEW,
    "Limiting": Tone.NEW,
    "Draining": Tone.WARNING,
    "Backoff": Tone.WARNING,
    "Down": Tone.WARNING,
    "Fault": Tone.BAD,
    "Failed": Tone.BAD,
}
_UNKNOWN = "-"

_DAEMON_HEADER = ("DEVICE", "STATE", "PID", "USER", "RESTARTS", "CLIENTS", "SHARES", "UUID")
_CLIENT_HEADER = ("DEVICE", "PID", "COMMAND", "USER", "SHARE", "USED", "LIMIT", "THREADS", "POD")


def daemons_page(answer: Json) -> tuple[Line, ...]:
    """One row for each daemon; below the table, why some are not Ready and who waits."""
    daemons: Sequence[Json] = answer.get("daemons", ())
    if not daemons:
        return (line("No device has MPS."),)
    rows = table(_DAEMON_HEADER, map(_daemon_row, daemons), right=frozenset({2, 4, 5}))
    notes = [note for daemon in daemons for note in _notes(daemon)]
    return (*rows, BLANK, *notes) if notes else rows


def clients_page(answer: Json) -> tuple[Line, ...]:
    """One row for each client; below the table, what is wrong with some, and who waits."""
    daemons: Sequence[Json] = answer.get("daemons", ())
    clients = [(daemon, client) for daemon in daemons for client in daemon.get("clients", ())]
    waiting = [note for daemon in daemons for note in _waiting_notes(daemon)]
    if not clients:
        return (line("No client uses a device through MPS."), *waiting)
    rows = table(_CLIENT_HEADER, (_client_row(*pair) for pair in clients), right=_CLIENT_RIGHT)
    notes = [*(note for pair in clients for note in _finding_notes(*pair)), *waiting]
    return (*rows, BLANK, *notes) if notes else rows


_CLIENT_RIGHT = frozenset({1, 5, 6, 7})


def daemon_lines(daemon: Json, what: str) -> tuple[Line, ...]:
    """One daemon within a larger page; `what` names its device there."""
    state = str(daemon.get("state", "?"))
    facts = [f"user {daemon['user']}"] if "user" in daemon else []
    facts += [f"pid {daemon['pid']}"] if "pid" in daemon else []
    facts += [f"restarts {daemon['restarts']}"] if daemon.get("restarts") else []
    facts += [shares_words(daemon)] if daemon.get("shares") else []
    clients = (_client_line(client) for client in daemon.get("clients", ()))
    return (
        line(f"MPS on {what}: ", _state_span(state), dim(f"  {', '.join(facts)}")),
        *indent((*_notes(daemon, named=False), *clients), 2),
    )


def device_words(daemon: Json) -> str:
    """`GPU 0`, `GPU 0 3g.40gb at 4`, or the UUID where no more is known."""
    if "gpu" not in daemon:
        return str(daemon.get("device", "?"))
    part = f" {daemon['profile']} at {daemon['start']}" if "profile" in daemon else ""
    return f"GPU {daemon['gpu']}{part}"


def shares_words(daemon: Json) -> str:
    """`small 4 x 8 GiB 15 %, large 1 x 40 GiB 40 %`."""
    shares: Mapping[str, Json] = daemon.get("shares") or {}
    return ", ".join(_share_words(name, share) for name, share in shares.items()) or _UNKNOWN


def _share_words(name: str, share: Json) -> str:
    memory = gibibytes(int(share["memory"])) if "memory" in share else "all memory"
    threads = f"{share['threads']:g} %" if "threads" in share else "all threads"
    count = f"{share['count']} x " if "count" in share else "each "
    return f"{name} {count}{memory} {threads}"


def _state_span(state: str) -> Span:
    return Span(state, _STATE_TONES.get(state, Tone.PLAIN))


def _daemon_row(daemon: Json) -> list[str | Span]:
    return [
        device_words(daemon),
        _state_span(str(daemon.get("state", "?"))),
        str(daemon.get("pid", _UNKNOWN)),
        str(daemon.get("user", _UNKNOWN)),
        str(daemon.get("restarts", _UNKNOWN)),
        str(len(daemon.get("clients", ()))),
        shares_words(daemon),
        dim(str(daemon.get("device", _UNKNOWN))),
    ]


def _client_row(daemon: Json, client: Json) -> list[str | Span]:
    memory: Json = client.get("memory") or {}
    share = client.get("slot") or client.get("share")
    none = Span("none", Tone.WARNING) if client.get("findings") else _UNKNOWN
    return [
        device_words(daemon),
        str(client.get("pid", _UNKNOWN)),
        str(client.get("command", _UNKNOWN)),
        str(client.get("user", _UNKNOWN)),
        str(share) if share else none,
        gibibytes(int(memory["used"])) if "used" in memory else _UNKNOWN,
        gibibytes(int(memory["limit"])) if "limit" in memory else _UNKNOWN,
        f"{client['threads']:g} %" if "threads" in client else _UNKNOWN,
        _pod_words(client) or _UNKNOWN,
    ]


def _client_line(client: Json) -> Line:
    memory: Json = client.get("memory") or {}
    share = client.get("slot") or client.get("share") or "no share"
    pod = f" of pod {_pod_words(client)}" if client.get("pod") else ""
    used = f", {gibibytes(int(memory['used']))} used" if "used" in memory else ""
    limit = f" of {gibibytes(int(memory['limit']))}" if "limit" in memory else ""
    tone = Tone.WARNING if client.get("findings") else Tone.IN_USE
    return line(Span(f"{share}: ", tone), f"pid {_who(client)}{pod}", dim(used + limit))


def _notes(daemon: Json, *, named: bool = True) -> Iterator[Line]:
    """What is not as it should be; `named`: with the device in front."""
    where = f"{device_words(daemon)}: " if named else ""
    if daemon.get("why") and daemon.get("state") != "Ready":
        tone = _STATE_TONES.get(str(daemon.get("state")), Tone.WARNING)
        yield line(Span(f"! {where}{daemon['why']}", tone))
        for said in daemon.get("lastLines", ()):
            yield line(dim(f"    {said}"))
    if daemon.get("trouble") and daemon["trouble"] != daemon.get("why"):
        yield line(Span(f"! {where}{daemon['trouble']}", Tone.WARNING))
    for client in daemon.get("clients", ()):
        yield from _finding_notes(daemon, client, named=named)
    yield from _waiting_notes(daemon, named=named)


def _finding_notes(daemon: Json, client: Json, *, named: bool = True) -> Iterator[Line]:
    where = f"{device_words(daemon)}: " if named else ""
    for finding in client.get("findings", ()):
        yield line(Span(f"! {where}pid {_who(client)}: {finding}", Tone.WARNING))


def _waiting_notes(daemon: Json, *, named: bool = True) -> Iterator[Line]:
    where = f"{device_words(daemon)}: " if named else ""
    server: Json = daemon.get("server") or {}
    holder = f"server {server['pid']} serves user {server['user']}" if "user" in server else ""
    for client in daemon.get("waiting", ()):
        who = f"pid {_who(client)} of user {client.get('user', '?')} waits"
        yield line(Span(f"! {where}{who}{f'; {holder}' if holder else ''}", Tone.BAD))


def _who(client: Json) -> str:
    command = f" ({client['command']})" if client.get("command") else ""
    return f"{client.get('pid', '?')}{command}"


def _pod_words(client: Json) -> str:
    pod: Json = client.get("pod") or {}
    return f"{pod.get('namespace', '')}/{pod['name']}" if pod.get("name") else ""
