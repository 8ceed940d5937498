"""Claims as a table, and as lines of larger pages, drawn from the JSON of the agent's status."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from nodeagent.terminal.page import Json, Line, Span, Tone, dim, joined, line, remark, table, toned
from nodeagent.text import gibibytes

_UNKNOWN = "-"
_NONE = "No claim uses this node."
_HEADER = ("CLAIM", "PHASE", ">AGE", "PODS", ">GPU", "DEVICE", "UUID", "CLAIM UID")
_AGES = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_MIN_UNITS = 2  # of a unit, so that 90 s are not 1m


def claims_page(
    claims: Sequence[Json], now: datetime, less_offered: Sequence[Json] = ()
) -> tuple[Line, ...]:
    """One row for each device of each claim; below the table, what is in the way, and why GPUs
    offer less than they could, as far as a claim does not say that already.
    """
    cells = (row for claim in claims for row in _rows(claim, now))
    rows = table(_HEADER, cells) if claims else (line(_NONE),)
    notes = [note for claim in claims for note in _notes(claim)]
    said = {problem.get("message") for claim in claims for problem in _problems(claim)}
    for reason in less_offered:
        if reason.get("message") not in said:
            less = f"less is offered to claims: {reason.get('message')}"
            notes += remark(less, str(reason.get("remedy", "")))
    return joined(rows, notes)


def claim_lines(claims: Sequence[Json], gpu: str) -> Iterator[Line]:
    """One line for each device of this GPU (a UUID) that a claim has."""
    for claim in claims:
        for device in claim.get("devices", ()):
            if device.get("gpu") == gpu:
                yield line(Span(f"{_device_words(device)}: ", Tone.IN_USE), *_words(claim))


def claims_without_device(claims: Sequence[Json]) -> Iterator[Line]:
    """One line for each claim that has nothing of any GPU yet."""
    for claim in claims:
        if not claim.get("devices"):
            yield line(*_words(claim))


def age_words(since: str, now: datetime) -> str:
    """`90s`, `5m`, `3h`; `-` where it is not known."""
    try:
        seconds = max(0, int((now - datetime.fromisoformat(since)).total_seconds()))
    except (TypeError, ValueError):
        return _UNKNOWN
    size, unit = next((s, u) for s, u in _AGES if seconds >= _MIN_UNITS * s or s == 1)
    return f"{seconds // size}{unit}"


def _words(claim: Json) -> tuple[str | Span, ...]:
    """`claim team/trainer Ready, pod trainer-0`, and the first of what is in its way."""
    pods = [str(pod.get("name")) for pod in claim.get("pods", ())]
    whose = f", pod {', '.join(pods)}" if pods else ""
    reason = next((f": {one['message']}" for one in _problems(claim) if one.get("message")), "")
    return f"claim {_title(claim)} ", toned(claim.get("phase", "?")), whose, reason


def _title(claim: Json) -> str:
    """`namespace/name`, or the uid where no more can be read."""
    if claim.get("name"):
        return f"{claim.get('namespace', '')}/{claim['name']}"
    return str(claim.get("uid") or _UNKNOWN)


def _device_words(device: Json) -> str:
    """What a device is called below its GPU, as in `nodeagent status`."""
    share = device.get("share")
    part = f"share of {_share_words(share)}" if share else ""
    if device.get("profile"):
        return ", ".join(filter(None, [f"{device['profile']} at {device.get('start')}", part]))
    if part:
        return part
    return "GPU" if device.get("device") == "gpu" else str(device.get("device"))


def _share_words(share: Json) -> str:
    """`8 GiB, 17.78%`; with what is used of it where that is known. Where claims take turns,
    nothing holds them to their memory.
    """
    used = f"{gibibytes(share['used'])} of " if "used" in share else ""
    threads = f", {share['threads']:g}%" if "threads" in share else ", not enforced"
    return f"{used}{gibibytes(share['memory'])}{threads}"


def _rows(claim: Json, now: datetime) -> Iterator[list[str | Span]]:
    """The claim's own cells stand in the first of its rows alone."""
    pods = [str(pod.get("name")) for pod in claim.get("pods", ())]
    age = age_words(str(claim.get("since", "")), now)
    phase = toned(claim.get("phase", "?"))
    own: list[str | Span] = [_title(claim), phase, age, ", ".join(pods) or _UNKNOWN]
    uid = dim(str(claim.get("uid") or _UNKNOWN))
    devices: Sequence[Json] = claim.get("devices", ())
    for device in devices or ({},):
        yield [*own, *_device_cells(device), uid]
        own, uid = [""] * len(own), dim("")


def _device_cells(device: Json) -> list[str | Span]:
    if not device:
        return [_UNKNOWN] * 3
    names = [f"{device['profile']}@{device.get('start')}"] if device.get("profile") else []
    names += [_share_words(device["share"])] if "share" in device else []
    name = ", ".join(names) or str(device.get("device"))
    if several := device.get("daemon"):
        name += f" (MPS of {len(several)} GPUs)"
    uuid = device.get("uuid") or (_UNKNOWN if device.get("profile") else device.get("gpu"))
    return [str(device.get("index", _UNKNOWN)), name, dim(str(uuid))]


def _problems(claim: Json) -> list[Json]:
    refusal = claim.get("refusal")
    return [*([refusal] if refusal else []), *claim.get("problems", ())]


def _notes(claim: Json) -> Iterator[Line]:
    """Print each message once, after the claim's name where it does not have that."""
    title = _title(claim)
    found = {str(one.get("message", "")): str(one.get("remedy", "")) for one in _problems(claim)}
    for message, remedy in found.items():
        yield from remark(message if title in message else f"{title}: {message}", remedy)
