"""Profiles as nos spells them, and as they are spelled here.

A `+` cannot stand in an annotation's key. The device plugin writes `1g.10gb.me` for `1g.10gb+me`,
and so does nos, which takes its names from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nodeagent.documents.terms import MOST_INSTANCES
from nodeagent.plan.observed import Gpu
from nodeagent.plan.profiles import ProfileName, device_name, find

_DOTTED = re.compile(r"([^+]*?gb)\.(.+)")
_SHARE = re.compile(r"([1-9][0-9]{0,4})gb")
_IN_A_KEY = re.compile(r"[A-Za-z0-9._]+")  # `-` may stand in a key, but nos splits it there


def mig_profile(text: str) -> ProfileName | None:
    """The MIG profile that nos means, None when it is none."""
    dotted = _DOTTED.fullmatch(text)
    try:
        return ProfileName.parse(f"{dotted[1]}+{dotted[2]}" if dotted else text)
    except ValueError:
        return None


def share_size(text: str) -> int | None:
    """The gigabytes of a share such as `10gb`, None when it is no share."""
    match = _SHARE.fullmatch(text)
    return int(match[1]) if match else None


def spelled(device: str) -> str | None:
    """A MIG device's profile as nos spells it; None when no key of nos' can hold it."""
    text = device.replace("+", ".")
    return text if _IN_A_KEY.fullmatch(text) else None


def asked_words(gpu: Gpu, asked: Iterable[str]) -> dict[str, str]:
    """The words of what was asked for, by the device that they mean on this GPU.

    Drivers and nos' own tables disagree on names such as 7g.79gb and 7g.80gb, and nos sees a spec
    as fulfilled only when the status repeats it letter for letter.
    """
    texts = sorted(set(asked))
    if len(texts) > MOST_INSTANCES:
        return {}  # no GPU can be that
    words: dict[str, str] = {}
    for text in texts:
        device = _meant(text, gpu)
        if device is not None and words.get(device) != spelled(device):
            words[device] = text if text == spelled(device) else words.get(device, text)
    return words


def _meant(text: str, gpu: Gpu) -> str | None:
    """The name that a device asked for in these words has on this GPU."""
    name = mig_profile(text)
    found = find(name, gpu.profiles) if name else ()
    if name is None or len(found) != 1:
        return None
    profile = found[0]
    # A part keeps its size; a whole instance is as large as the card's own.
    compute = profile.slices if name.compute == name.slices else name.compute
    return device_name(profile.name, profile.slices, compute)
