"""The words that plans and mig-parted files share: profiles, devices, how many instances."""

from __future__ import annotations

import re
from dataclasses import replace

from nodeagent.documents import selectors
from nodeagent.documents.findings import shown
from nodeagent.documents.grammar import Place, Rule
from nodeagent.plan.desired import DeviceSelector
from nodeagent.plan.problems import Code
from nodeagent.plan.profiles import ProfileName

# Instances asked of one GPU. All cards known hold at most 7 at a time; twice that and a little
# leaves room for cards to come, and stops a slip such as 70 before anything is computed of it.
MOST_INSTANCES = 16

PROFILE_PATTERN = (
    r"^([0-9]{1,3}c\.)?[0-9]{1,3}g\.[0-9]{1,5}gb"
    r"([+-][A-Za-z][A-Za-z0-9.]*(,[A-Za-z][A-Za-z0-9.]*)*)?$"
)

# Names of which the parser's own sentence says more exactly what is wrong.
_LOOKS_LIKE_ONE = re.compile(r"[\w.,+-]{0,40}gb[\w.,+-]{0,40}")


def read_profile(place: Place) -> str:
    """A profile's name as a value."""
    if not isinstance(place.value, str):
        raise place.unexpected("a profile such as 3g.40gb, 1g.10gb+me or 1c.3g.40gb")
    check_profile(place, place.value)
    return place.value


def check_profile(place: Place, name: str) -> None:
    """A profile's name, as a value or as a key of the map at `place`."""
    try:
        ProfileName.parse(name)
    except ValueError as error:
        is_key = isinstance(place.value, dict)
        likely = _likely_profile(name)
        message = str(error)
        if likely or not _LOOKS_LIKE_ONE.fullmatch(name):
            accepted = "a profile such as 3g.40gb, 1g.10gb+me or 1c.3g.40gb"
            message = f"found {shown(name)}, expected {accepted}"
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


def read_device(place: Place) -> DeviceSelector:
    """One item of `devices`."""
    try:
        selector = selectors.read_selector(place.value)
    except ValueError as error:
        raise place.refuse(f"found {shown(place.value)}: {error}") from error
    return replace(selector, path=place.path_below())


DEVICE = Rule(
    read_device,
    {
        "anyOf": [
            {"type": "integer", "minimum": 0, "maximum": selectors.LARGEST_INDEX},
            {"type": "string", "pattern": selectors.JSON_SCHEMA_PATTERN},
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
        return f"write [{selectors.read_selector(value).text}]"
    except ValueError:
        return ""


def check_total(place: Place, count: int) -> None:
    """No GPU is asked for more instances than any could hold."""
    if count > MOST_INSTANCES:
        raise place.refuse(
            f"{count} instances are asked of each GPU; at most {MOST_INSTANCES} can be"
        )
