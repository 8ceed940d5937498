"""The terms that plans and mig-parted files share: how GPUs and profiles are named, how many
instances there may be.
"""

import re
from collections.abc import Mapping

from nodeagent.documents.grammar import DocumentValue, Rule
from nodeagent.plan.desired import DeviceSelector, InstanceEntry, MigLayout, PciFilter
from nodeagent.plan.names import ProfileName
from nodeagent.plan.problems import Code
from nodeagent.text import quote

MAX_INDEX = 1023  # far beyond any node; keeps a slip of the finger from looking sensible

_HEX = "[0-9a-fA-F]"
# Compiled when a document has something like it, as `re` keeps what it compiled.
_UUID = rf"(?i:gpu)-({_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}})"
_PCI_ADDRESS = (
    rf"(?:(?P<domain>{_HEX}{{4}}|{_HEX}{{8}}):)?"
    rf"(?P<bus>{_HEX}{{2}}):(?P<device>[01]{_HEX})(?:\.(?P<function>[0-7]))?"
)
_PCI_FILTER = rf"0[xX]({_HEX}{{8}})(?::0[xX]({_HEX}{{8}}))?"
_NVIDIA = 0x10DE

# Both spellings of a device that is no index, for JSON Schema (which knows no (?i)).
JSON_SCHEMA_PATTERN = (
    rf"^([Gg][Pp][Uu]-{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
    rf"|({_HEX}{{4}}({_HEX}{{4}})?:)?{_HEX}{{2}}:[01]{_HEX}(\.[0-7])?)$"
)

ACCEPTED = "an index such as 0, a UUID (GPU-...) or a PCI address (0000:1a:00.0)"


def canonical_device(value: object) -> int | str:
    """An item of `devices` in canonical spelling.

    Raises ValueError with a sentence that names what would be accepted.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value <= MAX_INDEX:
            raise ValueError(f"an index is a number from 0 to {MAX_INDEX}")
        return value
    text = value if isinstance(value, str) else ""
    if uuid := re.fullmatch(_UUID, text):
        return f"GPU-{uuid[1].lower()}"
    if address := re.fullmatch(_PCI_ADDRESS, text):
        return _canonical_address(address)
    raise ValueError(_why_not(text))


def _canonical_address(match: re.Match[str]) -> str:
    """Spell the address as NVML does: `00000000:1A:00.0`."""
    domain = (match["domain"] or "").rjust(8, "0")
    function = match["function"] or "0"
    return f"{domain}:{match['bus']}:{match['device']}.{function}".upper()


def _why_not(text: str) -> str:
    if text.lower() == "all":
        return "`all` stands alone, not in a list: devices: all"
    if text.isdecimal():
        return f"an index is written without quotes: {text[:8]}"
    if text.lower().startswith("mig-"):
        return "this names a MIG device; a plan names the GPU that holds it"
    if text.lower().startswith("gpu-"):
        return "a UUID is GPU- and 8-4-4-4-12 hexadecimal digits, as `nvidia-smi -L` prints it"
    return f"expected {ACCEPTED}"


def read_pci_filter(text: str) -> PciFilter:
    """A mig-parted filter `0x<device><vendor>[:0x<sub-device><sub-vendor>]`.

    Raises ValueError with a sentence. mig-parted takes a malformed filter for one that matches
    nothing and reports success; so does it with one that names another vendor.
    """
    match = re.fullmatch(_PCI_FILTER, text)
    if match is None:
        raise ValueError(
            "a device filter is 0x and 8 hexadecimal digits, device then vendor, such as "
            "0x233010DE, optionally followed by :0x and those of the sub-system"
        )
    device = int(match[1], 16)
    if device & 0xFFFF != _NVIDIA:
        turned = (device & 0xFFFF) << 16 | device >> 16
        hint = f"; did you mean 0x{turned:08X}?" if turned & 0xFFFF == _NVIDIA else ""
        raise ValueError(f"the last four digits are the vendor and NVIDIA's are 10DE{hint}")
    return PciFilter(device=device, subsystem=int(match[2], 16) if match[2] else None)


# --- rules ------------------------------------------------------------------------------------

# Instances asked of one GPU. All cards known hold at most 7 at a time; twice that and a little
# leaves room for cards to come, and stops a slip such as 70 before anything is computed of it.
MAX_INSTANCES = 16

PROFILE_PATTERN = (
    r"^([0-9]{1,3}c\.)?[0-9]{1,3}g\.[0-9]{1,5}gb"
    r"([+-][A-Za-z][A-Za-z0-9.]*(,[A-Za-z][A-Za-z0-9.]*)*)?$"
)

# Names for which the parser's own message is more exact.
_LOOKS_LIKE_ONE = r"[\w.,+-]{0,40}gb[\w.,+-]{0,40}"


def read_profile(place: DocumentValue) -> str:
    """A profile's name as a value."""
    if not isinstance(place.value, str):
        raise place.unexpected("a profile such as 3g.40gb, 1g.10gb+me or 1c.3g.40gb")
    check_profile(place, place.value)
    return place.value


def check_profile(place: DocumentValue, name: str) -> None:
    """A profile's name, as a value or as a key of the map at `place`."""
    try:
        ProfileName.parse(name)
    except ValueError as error:
        is_key = isinstance(place.value, dict)
        likely = _likely_profile(name)
        message = str(error)
        if likely or not re.fullmatch(_LOOKS_LIKE_ONE, name):
            accepted = "a profile such as 3g.40gb, 1g.10gb+me or 1c.3g.40gb"
            message = f"found {quote(name)}, expected {accepted}"
        raise place.refuse(
            message,
            code=Code.UNKNOWN_PROFILE,
            remedy=f"did you mean {likely}?" if likely else "",
            below=(name,) if is_key else (),
            of_key=is_key,
        ) from error


PROFILE = Rule(read_profile, {"type": "string", "pattern": PROFILE_PATTERN})


def _likely_profile(text: str) -> str | None:
    """The well-formed name that was probably meant: capitals, blanks, `.me` for `+me`."""
    loose = re.sub(r"[\s_]", "", text[:40].lower())
    match = re.fullmatch(
        r"(?:([0-9]+)c[.-]?)?([0-9]+)g[.-]?([0-9]+)(?:gi?b?|bg)?([.+-][a-z.,]+)?", loose
    )
    if match is None:
        return None
    compute, slices, gigabytes, suffix = match.groups()
    suffix = f"+{suffix[1:]}" if suffix and suffix[0] == "." else suffix or ""
    name = (f"{compute}c." if compute else "") + f"{slices}g.{gigabytes}gb{suffix}"
    try:
        ProfileName.parse(name)
    except ValueError:
        return None
    return name


def _device(place: DocumentValue) -> DeviceSelector:
    try:
        device = canonical_device(place.value)
    except ValueError as error:
        raise place.refuse(f"found {quote(place.value)}: {error}") from error
    return DeviceSelector(str(place.value), place.path_below(), device)


DEVICE = Rule(
    _device,
    {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": MAX_INDEX},
            {"type": "string", "pattern": JSON_SCHEMA_PATTERN},
        ]
    },
)


def hint_devices(value: object) -> str:
    """What to write where `devices` is neither `all` nor a list."""
    if value == "all" or isinstance(value, list):
        return ""
    if isinstance(value, str) and value.strip().lower() == "all":
        return "write all"
    try:
        canonical_device(value)
    except ValueError:
        return ""
    return f"write [{value}]"


def layout_of_counts(place: DocumentValue, counts: Mapping[str, int]) -> MigLayout:
    """The layout that the map of profiles at `place` asks for."""
    check_total(place, sum(counts.values()))
    entries = (InstanceEntry(name, n, place.path_below(name)) for name, n in counts.items() if n)
    return MigLayout(tuple(entries), place.path_below())


def check_total(place: DocumentValue, count: int) -> None:
    """No GPU is asked for more instances than any could hold."""
    if count > MAX_INSTANCES:
        raise place.refused("instances", found=count, most=MAX_INSTANCES)
