"""The keys and profile names of nos' protocol, exactly as nos itself reads them.

nos tests for a prefix and splits the whole key at each `-`. That accepts more than it should
(`spec-gpuX-0-1g.5gb`, index `00`) and less than a reader expects (no `-` in a profile); both are
kept, because a key that only one side understands is worse than a strange one. A `+` cannot stand
in an annotation's key: like the device plugin, nos writes `1g.10gb.me` for `1g.10gb+me`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import chain, islice

from nodeagent.documents.findings import path_text
from nodeagent.documents.terms import MAX_INSTANCES
from nodeagent.plan.names import ProfileName, device_name, find
from nodeagent.plan.observed import Gpu
from nodeagent.plan.problems import Code, Problem
from nodeagent.structs import Struct
from nodeagent.text import quote

_DOTTED = re.compile(r"([^+]*?gb)\.(.+)")
_IN_A_KEY = re.compile(r"[A-Za-z0-9._]+")  # `-` may stand in a key, but nos splits it there


def mig_profile(text: str) -> ProfileName | None:
    """The MIG profile that nos means, None when it is none."""
    dotted = _DOTTED.fullmatch(text)
    try:
        return ProfileName.parse(f"{dotted[1]}+{dotted[2]}" if dotted else text)
    except ValueError:
        return None


def nos_spelling(device: str) -> str | None:
    """A MIG device's profile as nos spells it; None when no key of nos' can hold it."""
    text = device.replace("+", ".")
    return text if _IN_A_KEY.fullmatch(text) else None


def requested_names(gpu: Gpu, asked: Iterable[str]) -> dict[str, str]:
    """Map each device that was asked for, by its name on this GPU, to its name in the request.

    Drivers and nos' own tables disagree on names such as 7g.79gb and 7g.80gb, and nos sees a spec
    as fulfilled only when the status repeats it letter for letter.
    """
    texts = sorted(set(asked))
    if len(texts) > MAX_INSTANCES:
        return {}  # no GPU can be that
    names: dict[str, str] = {}
    for text in texts:
        device = _device_on(gpu, text)
        spelling = None if device is None else nos_spelling(device)
        if device and spelling and (device not in names or text == spelling):
            names[device] = text
    return names


def _device_on(gpu: Gpu, text: str) -> str | None:
    """The name that a requested device has on this GPU; None when it has none or several."""
    name = mig_profile(text)
    found = find(name, gpu.profiles) if name else ()
    if name is None or len(found) != 1:
        return None
    profile = found[0]
    # A part of an instance has the requested slices, a whole one all that this card's profile has.
    compute = profile.slices if name.compute == name.slices else name.compute
    return device_name(profile.name, profile.slices, compute)


class DeviceRequest(Struct, frozen=True):
    """`count` devices of `profile`, as nos spells it, on the GPU with this NVML index.

    `where` is the path of the annotation that requests them.
    """

    index: int
    profile: str
    count: int
    where: str

    def fault(self, code: Code, what: str, remedy: str, *, gpu: str = "") -> Problem:
        """A problem of this request, of the GPU with the UUID `gpu`."""
        return Problem(
            code=code, message=f"{self.where} {what}", remedy=remedy, gpu=gpu, path=self.where
        )


class Requests(Struct, frozen=True):
    """What annotations request. If anything is `wrong`, none of it may be acted upon.
    What is `ignored` nos ignores, too, but without a word.
    """

    devices: tuple[DeviceRequest, ...] = ()
    wrong: tuple[Problem, ...] = ()
    ignored: tuple[Problem, ...] = ()


_PREFIX = "nos.nebuly.com/"
MODE_LABEL = f"{_PREFIX}gpu-partitioning"
BY_MIG = "mig"
SPEC_PLAN = f"{_PREFIX}spec-partitioning-plan"
STATUS_PLAN = f"{_PREFIX}status-partitioning-plan"
SPEC = f"{_PREFIX}spec-gpu"  # without a final `-`, as nos tests for it; below too
STATUS = f"{_PREFIX}status-gpu"

_INTEGER = re.compile(r"([+-]?)(?=[0-9])0*+([0-9]{0,19})")  # as Go reads one; at most 64 bits
_MAX_INTEGER = 2**63 - 1
_MAX_WORDED = 200  # of thousands; each takes some 30 µs
_SPEC_PARTS = 4
_STATUS_PARTS = 5


class NosDeviceUse(StrEnum):
    """Whether devices are in use."""

    FREE = "free"
    USED = "used"
    UNKNOWN = "unknown"  # nos reads it and never writes it


class StatusKey(Struct, frozen=True, order=True):
    """What a status annotation counts: devices of `profile` on the GPU with this index."""

    index: int
    profile: str
    use: NosDeviceUse

    def __str__(self) -> str:
        return f"{STATUS}-{self.index}-{self.profile}-{self.use}"


def is_divided(labels: Mapping[str, str]) -> bool:
    """Whether nos divides this node by MIG. By MPS it asks the device plugin, not the node's agent;
    `hybrid` is no more than a name.
    """
    return labels.get(MODE_LABEL) == BY_MIG


def _path(key: str) -> str:
    return path_text(("metadata", "annotations", key))


# --- spec annotations -----------------------------------------------------------------------------


def read_spec(annotations: Mapping[str, str]) -> Requests:
    """All that the spec annotations ask for, in the order of their keys; of what is wrong or
    ignored the first 200.

    Two keys for the same GPU and profile (`gpu-0-`, `gpu-00-`) both count, as for nos.
    """
    asked: list[DeviceRequest] = []
    wrong: list[Problem] = []
    ignored: list[Problem] = []
    for key, value in _with_prefix(annotations, SPEC):
        match _spec(key, value):
            case DeviceRequest(count=count) as request if count > 0:
                asked.append(request)
            case DeviceRequest(count=count) if count < 0 and len(wrong) < _MAX_WORDED:
                wrong.append(
                    Problem.of(
                        Code.INVALID_VALUE,
                        "nosNegative",
                        path=_path(key),
                        name=quote(key),
                        count=count,
                    )
                )
            case DeviceRequest(count=0) if len(ignored) < _MAX_WORDED:
                ignored.append(
                    Problem.of(Code.INVALID_VALUE, "nosNothing", path=_path(key), name=quote(key))
                )
            case str(why) if len(ignored) < _MAX_WORDED:
                ignored.append(
                    Problem.of(
                        Code.INVALID_VALUE, "nosIgnored", path=_path(key), name=quote(key), why=why
                    )
                )
    said = islice(chain(ignored, _duplicates(asked)), _MAX_WORDED)
    return Requests(tuple(asked), tuple(wrong), tuple(said))


def requested_profiles(annotations: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """The GPUs and profiles that are asked for; without the faults, which cost time to word."""
    for key, value in annotations.items():
        parts = key.split("-") if key.startswith(SPEC) else []
        if len(parts) == _SPEC_PARTS and (_integer(value) or 0) > 0:
            index = _integer(parts[2])
            if index is not None:
                yield index, parts[3]


def _spec(key: str, value: str) -> DeviceRequest | str:
    """What one annotation asks for, or why nos does not see it."""
    parts = key.split("-")
    if len(parts) != _SPEC_PARTS:
        missing = len(parts) < _SPEC_PARTS
        return "parts of it are missing" if missing else "its profile has a -"
    index = _integer(parts[2])
    if index is None:
        return f"{quote(parts[2])} is not a GPU index"
    count = _integer(value)
    if count is None:
        return f"its value {quote(value)} is not a whole number"
    return DeviceRequest(index, parts[3], count, _path(key))


def _duplicates(asked: list[DeviceRequest]) -> Iterator[Problem]:
    first: dict[tuple[int, str], DeviceRequest] = {}
    for one in asked:
        other = first.setdefault((one.index, one.profile), one)
        if other is not one:
            yield Problem.of(
                Code.DUPLICATE_DEVICE, "nosTwice", path=one.where, one=other.where, other=one.where
            )


# --- status annotations ---------------------------------------------------------------------------


def read_status(key: str) -> StatusKey | None:
    """What a status annotation counts, None when nos would pass it over."""
    parts = key.split("-")
    if not key.startswith(STATUS) or len(parts) != _STATUS_PARTS:
        return None
    index = _integer(parts[2])
    use = next((use for use in NosDeviceUse if use.value == parts[4].lower()), None)
    return None if index is None or use is None else StatusKey(index, parts[3], use)


def status_keys(annotations: Mapping[str, str]) -> Iterator[str]:
    """Every key that nos' own reporters would replace, well-formed or not."""
    return (key for key, _ in _with_prefix(annotations, STATUS))


def _with_prefix(annotations: Mapping[str, str], prefix: str) -> Iterator[tuple[str, str]]:
    return ((key, annotations[key]) for key in sorted(annotations) if key.startswith(prefix))


def _integer(text: str) -> int | None:
    match = _INTEGER.fullmatch(text)
    if match is None:
        return None
    number = int(match[1] + (match[2] or "0"))
    return number if -_MAX_INTEGER - 1 <= number <= _MAX_INTEGER else None
