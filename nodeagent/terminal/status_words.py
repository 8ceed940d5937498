"""What a GPU in the agent's status is called, who uses it, and what else is to be said of it."""

from collections.abc import Iterator, Sequence

from nodeagent.terminal.mps_page import pod_words, process_words
from nodeagent.terminal.page import Json, Line, Span, Tone, dim, line, toned
from nodeagent.terminal.slices import Cell
from nodeagent.text import alike, gibibytes, with_counts

_USUAL = "default"


def answers(gpu: Json) -> bool:
    """Whether the driver answers for it; else what is known of it is from before."""
    return "free" in gpu


def health_of(gpu: Json) -> tuple[str, Sequence[Json]]:
    """What the checks call it, `healthy` before there are any, and what they found."""
    health: Json = gpu.get("health") or {}
    return str(health.get("status", "healthy")), health.get("findings", ())


def device_name(device: Json) -> str:
    """`3g.40gb at 4`."""
    return f"{device.get('profile')} at {device.get('start')}"


def device_names(gpu: Json) -> dict[str, str]:
    """What each device of the GPU is called below it, by UUID."""
    names = {str(gpu["uuid"]): "the GPU"} if gpu.get("uuid") else {}
    devices = (i for i in gpu.get("instances", ()) if i.get("uuid"))
    return names | {str(device["uuid"]): device_name(device) for device in devices}


def daemons_on(gpu: Json, daemons: Sequence[Json]) -> Iterator[tuple[Json, str]]:
    """The MPS daemons of the GPU as a whole and of its MIG devices, and what these are called."""
    names = device_names(gpu)
    for daemon in daemons:
        devices = (daemon.get("device"), *daemon.get("devices", ()))
        if known := [names[device] for device in devices if device in names]:
            yield daemon, known[0]


def cells_of(gpu: Json) -> list[Cell]:
    """One box for each GPU instance, whatever compute instances it holds: their names and state."""
    devices = gpu.get("instances", ())  # a half-made instance has one entry
    found = alike(((int(one["start"]), int(one["size"])), one) for one in devices)
    return [_cell(place, devices, gpu) for place, devices in found.items()]


def _cell(place: tuple[int, int], devices: Sequence[Json], gpu: Json) -> Cell:
    name = with_counts(str(device.get("profile", "?")) for device in devices)
    state = "in use" if any(device.get("inUse") for device in devices) else "idle"
    if not any(device.get("uuid") for device in devices):
        state = "half made"
    state, tone = toned(state if answers(gpu) else "not known")
    return Cell(*place, (name, state), tone)


def mode_words(gpu: Json) -> str:
    """Why there is no instance to draw."""
    mig = gpu.get("mig")
    if not mig:
        return "no MIG on this card"
    now, then = mig.get("current"), mig.get("pending")
    if now != then:
        return f"MIG {now}, {then} after a reset"
    return f"MIG {now}{', no instances' if now == 'enabled' and not gpu.get('instances') else ''}"


# --- users ----------------------------------------------------------------------------------------


def user_lines(gpu: Json) -> Iterator[Line]:
    """One line for each user of each device; of a GPU that does not answer none is known."""
    if not answers(gpu):
        return
    for instance in gpu.get("instances", ()):
        yield from _users(device_name(instance), instance, instance.get("memory"))
    yield from _users("GPU", gpu, None)


def _users(what: str, holder: Json, memory_of_all: Json | None) -> Iterator[Line]:
    device, users = Span(f"{what}: ", Tone.IN_USE), holder.get("users", ())
    whole = memory_of_all if len(users) == 1 else None
    for user in users:
        memory = user.get("memory") or whole or {}
        used = f", {gibibytes(int(memory['used']))} used" if memory.get("used") else ""
        yield line(device, _user_words(user), dim(used))
    if holder.get("usersUnknown"):
        yield line(device, f"unknown users ({holder['usersUnknown']})")


def _user_words(user: Json) -> str:
    pod = f" of pod {pod_words(user)}" if pod_words(user) else ""
    if user.get("pid"):
        whose = f" of user {user['user']}" if "user" in user else ""
        return f"pid {process_words(user)}{whose}{pod}"
    unknown = "allocated" if user.get("source") == "kubelet" else "a process of unknown pid"
    command = f" ({user['command']})" if user.get("command") else ""
    return f"{unknown}{command}{pod}"


def holders(gpu: Json) -> dict[str, None]:
    """Whose the users are, each once: pods, or the scripts and commands of others."""
    devices = (*gpu.get("instances", ()), gpu)
    users = [user for device in devices for user in device.get("users", ())]
    names = (
        pod_words(user) or user.get("script") or user.get("command") or "a process"
        for user in users
    )
    return dict.fromkeys(map(str, names))


# --- the rest -------------------------------------------------------------------------------------


def mode_lines(gpu: Json) -> tuple[Line, ...]:
    """The compute mode and time slice of the GPU as a whole, where they are not the usual ones."""
    names = {"computeMode": "compute mode", "timeSlice": "time slice"}
    words = [f"{name} {gpu[key]}" for key, name in names.items() if gpu.get(key, _USUAL) != _USUAL]
    return (line(dim(", ".join(words))),) if words and answers(gpu) else ()


def room_lines(gpu: Json) -> tuple[Line, ...]:
    """What could still be made, and what claims could share; nothing of a sick GPU, on which
    nothing new is placed.
    """
    free = gpu.get("free", {})
    room = [f"{n} x {name}" for name, n in (free.get("creatable") or {}).items()]
    if (share := free.get("share")) and share["memory"]:
        threads = f" and {share['threads']}% of the threads" if "threads" in share else ""
        room.append(f"claims with {gibibytes(share['memory'])}{threads}")
    if not room or health_of(gpu)[0] == "unhealthy":
        return ()
    return (line(dim("room for " + " or ".join(room))),)


def finding_said(finding: Json) -> str:
    """`has uncorrected errors in slices 4-7`, and the evidence."""
    first, size = finding.get("start", 0), finding.get("size", 1)
    slices = f"slice {first}" if size == 1 else f"slices {first}-{first + size - 1}"
    place = f" in {slices}" if "start" in finding else ""
    words = f"{finding.get('message', '')}{place}".strip()
    return ": ".join(filter(None, (words, str(finding.get("evidence", "")))))


def finding_advice(finding: Json) -> str:
    """What would help; "" where nothing is to be done."""
    advice = finding.get("advice") or finding.get("suggestedAction", "none")
    return "" if advice == "none" else str(advice)
