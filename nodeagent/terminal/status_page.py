"""The running agent's picture of the node on one screen, from the JSON of its `/v1/status`.

The worst comes first: the headline, what needs a hand and what mends it, then the GPUs, a row each,
then who uses them and the rest. What does not fit is left out of the middle of the rest, with a
line that says so; the rows of GPUs go last of all. What room is left shows the last decisions.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import starmap

from nodeagent.terminal import status_words
from nodeagent.terminal.claims_page import claim_lines, claims_without_device
from nodeagent.terminal.events_page import last_event_lines
from nodeagent.terminal.gpu_table import gpu_table, legend, model_lines
from nodeagent.terminal.mps_page import daemon_line, daemon_place_words
from nodeagent.terminal.page import (
    Json,
    Line,
    Span,
    Tone,
    at_most,
    dim,
    joined,
    line,
    remark,
    row_count,
    toned,
)
from nodeagent.text import alike, gpus_words, listed, quantity

_DIGEST_SHOWN = 19  # columns: "sha256:" and twelve digits
_IN_FULL = "nodeagent status --gpu N shows one GPU in full"
_NOT_SHOWN = "the rest does not fit: see nodeagent status --gpu N, or -o json"
_MAX_NAMED = 4  # users of a GPU in one line
_MAX_RESERVED = 4  # rows for the last events; they get more where there is room


def status_page(
    status: Json, width: int, height: int, events: Sequence[Json] = (), *, over: int = 0
) -> tuple[Line, ...]:
    """The whole page in at most `height` rows of `width` columns, long lines wrapped; keys that are
    absent are not known and left out. `events` are those of the last hour, in none of the last
    `over` rows.
    """
    gpus: Sequence[Json] = status.get("gpus", ())
    headline, others = headline_lines(status), other_troubles(status)
    message = _message(status, (*headline, *trouble_lines(*others)))
    top = [*headline, *title_lines(status, message)]
    more = _explained(status)
    rows = gpu_table(gpus, status.get("mps", ()), status.get("claims", ()), width) if gpus else ()
    table = [*model_lines(gpus), *rows, legend(rows)] if rows else []

    def spare(*parts: Sequence[Line]) -> int:
        """How many rows are left beside these parts."""
        return height - row_count(joined(*parts), width)

    if spare(top, table) < 0:  # a very low terminal
        end = (*rows, line(dim(_NOT_SHOWN)))
        fits = (n for n in range(len(top), 0, -1) if row_count((*top[:n], *end), width) <= height)
        return at_most((*top[: next(fits, 1)], *end), height, width, keep=2, more=_IN_FULL)
    if spare(top, more, table) < 0:
        more = ()
    # However much needs a hand, a third of the room says who has the GPUs, and a few rows what
    # happened.
    room = spare(top, more, table)
    reserved = 0 if over else min(room // 4, _MAX_RESERVED)
    newest = last_event_lines(status, events, reserved, width)
    least = _details(status, room // 3 - 1, width)
    hand = [*_first_that_fit(others, spare(top, more, table, least, newest) - 1, width), *more]
    rest = _details(status, spare(top, hand, table, newest) - 1, width)
    last = last_event_lines(status, events, spare(top, hand, table, rest) - 1 - over, width)
    return joined(top, hand, table, rest, last)


def problems_page(status: Json) -> tuple[Line, ...]:
    """All that needs a hand, the worst first; where that is nothing, the headline says so."""
    troubles = trouble_lines(*_remedies_once(status.get("troubles", ())))
    return (*(troubles or headline_lines(status)), *_explained(status))


# --- what the node is at --------------------------------------------------------------------------


def title_lines(status: Json, message: str = "") -> tuple[Line, ...]:
    """Node, phase, with a message, plan and cluster."""
    phase = str(status.get("phase", "unknown"))
    node = Span(f"node {status.get('node', '?')}", Tone.TITLE)
    digest = str(status.get("digest") or "")
    source = status.get("source", "?")
    name = f" ({status['configuration']})" if status.get("configuration") else ""
    plan = f"plan {digest[:_DIGEST_SHOWN]}{name} from {source}" if digest else "no plan"
    seen = f", seen {status['observedAt']}" if status.get("observedAt") else ""
    severity = (status.get("headline") or {}).get("severity")
    praised = phase != "InSync" or severity not in ("warning", "error")  # never green beside these
    return (
        line(node, "  ", toned(phase) if praised else Span(phase), message),
        line(dim(f"{plan}{seen}")),
        *_cluster_lines(status),
    )


def _message(status: Json, said: Iterable[Line]) -> str:
    """The phase's message, where it is not `said` already."""
    message = str(status.get("message") or "")
    text = "\n".join("".join(span.text for span in spans) for spans in said)
    first = message.partition(" (and ")[0]
    problems, silent = status.get("problems", ()), ("GpuLost", "GpuUnknown")  # health reports them
    lost = {p["message"] for p in problems if p.get("code") in silent}
    no_more = not message or message.lower() == str(status.get("phase", "")).lower()
    known = first in lost or first[1:] in text  # its first letter may be a capital there
    return "" if no_more or known else f": {message}"


def _cluster_lines(status: Json) -> tuple[Line, ...]:
    """Whether what the agent asks and says reaches the cluster; nothing for a node without one."""
    cluster: Json | None = status.get("cluster")
    if not cluster:
        return ()
    server, reachable = cluster.get("server", "?"), cluster.get("reachable")
    since = f" since {cluster['since']}" if cluster.get("since") else ""
    silent = f"not reachable{since}" if cluster.get("problem") else "not reached yet"
    seen = dim(f"reachable{since}") if reachable else Span(silent, Tone.BAD)
    return (line(dim(f"cluster {server}  "), seen),)


def _explained(status: Json) -> tuple[Line, ...]:
    """The command that explains all codes of what is shown, once; nothing when all is well."""
    codes = dict.fromkeys(str(t["code"]) for t in status.get("troubles", ()) if t.get("code"))
    return (line(dim(f"more: nodeagent explain {' '.join(codes)}")),) if codes else ()


# --- what needs a hand ----------------------------------------------------------------------------


def headline_lines(status: Json) -> tuple[Line, ...]:
    """The worst thing, what mends it, what was read, and where in the plan it comes from."""
    headline: Json = status.get("headline") or {}
    if not headline:
        return ()
    text, remedy = str(headline.get("text", "")), headline.get("remedy")
    same: Json = next((t for t in status.get("troubles", ()) if t.get("text") == text), {})
    path = same.get("path", "")
    more = [same.get("evidence", ""), f"in the plan: {path}" if path and path not in text else ""]
    return (
        line(Span(text, toned(headline.get("severity", "")).tone)),
        *([line(f"  {remedy}")] if remedy else []),
        *(line(dim(f"  {said}")) for said in more if said),
    )


def other_troubles(status: Json) -> list[Json]:
    """All but that of the headline."""
    headline: Json = status.get("headline") or {}
    others = (t for t in status.get("troubles", ()) if t.get("text") != headline.get("text"))
    return list(_remedies_once(others, str(headline.get("remedy", ""))))


def _remedies_once(troubles: Iterable[Json], above: str = "") -> Iterator[Json]:
    """The troubles; the remedy that the one above begins with is not written again."""
    for trouble in troubles:
        remedy = str(trouble.get("remedy", ""))
        if remedy and above.startswith(remedy.rstrip(".")):
            yield {**trouble, "remedy": "do as above"}
        else:
            yield trouble
            above = remedy


def trouble_lines(*troubles: Json) -> list[Line]:
    """What is wrong, with what was read of it, and what mends it."""
    lines: list[Line] = []
    for trouble in troubles:
        text, evidence = str(trouble["text"]), trouble.get("evidence")
        said = f"{text.rstrip('.')}: {evidence}" if evidence else text
        tone = toned(trouble.get("severity", ""), Tone.WARNING).tone
        lines += remark(said, trouble.get("remedy", ""), path=trouble.get("path", ""), tone=tone)
    return lines


# --- what fits ------------------------------------------------------------------------------------


def _first_that_fit(found: Sequence[Json], room: int, width: int) -> list[Line]:
    """The first of the troubles, and how many are left out."""
    for left in range(len(found) + 1):
        shown = trouble_lines(*found[: len(found) - left])
        if left:
            shown.append(line(dim(f"and {left} more: nodeagent status --problems shows all")))
        if row_count(shown, width) <= room:
            return shown
    return []


# --- the rest -------------------------------------------------------------------------------------


def _details(status: Json, room: int, width: int) -> tuple[Line, ...]:
    """Who uses the GPUs, MPS, claims, and what else is to be said of them."""
    gpus: Sequence[Json] = status.get("gpus", ())
    daemons: Sequence[Json] = status.get("mps", ())
    claims: Sequence[Json] = status.get("claims", ())
    known = {name for gpu in gpus for name in status_words.device_names(gpu)}
    lost = [daemon for daemon in daemons if daemon.get("device") not in known]
    others = [
        *_by_gpu(gpus, lambda gpu: starmap(daemon_line, status_words.daemons_on(gpu, daemons))),
        *(daemon_line(daemon, daemon_place_words(daemon)) for daemon in lost),
        *_by_gpu(gpus, lambda gpu: claim_lines(claims, str(gpu.get("uuid")))),
        *claims_without_device(claims),
        *_by_gpu(gpus, status_words.mode_lines),
        *_by_gpu(gpus, _notices),
        *_by_gpu(gpus, status_words.room_lines),
    ]
    users = _by_gpu(gpus, status_words.user_lines)
    if row_count((*users, *others), width) > room:
        users = _by_gpu(gpus, _users_in_short)
    return at_most((*users, *others), room, width, more=_IN_FULL)


def _by_gpu(gpus: Sequence[Json], lines_of: Callable[[Json], Iterable[Line]]) -> list[Line]:
    """The lines with the GPU in front; those that several GPUs have alike once."""
    found = alike((spans, int(gpu["index"])) for gpu in gpus for spans in lines_of(gpu))
    return [(Span(f"{gpus_words(where)}  "), *spans) for spans, where in found.items()]


def _users_in_short(gpu: Json) -> Iterator[Line]:
    names = list(status_words.holders(gpu))
    used = sum(bool(device.get("inUse")) for device in gpu.get("instances", ()))
    if names:
        devices = f" on {quantity(used, 'MIG device')}" if used else ""
        yield line(Span("used by ", Tone.IN_USE), listed(names, _MAX_NAMED), dim(devices))


def _notices(gpu: Json) -> Iterator[Line]:
    """What a healthy GPU reported."""
    status, findings = status_words.health_of(gpu)
    for finding in findings if status == "healthy" else ():
        advice, said = status_words.finding_advice(finding), status_words.finding_said(finding)
        yield line(dim("healthy, though: "), said, dim(f" ({advice})" if advice else ""))
