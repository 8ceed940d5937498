"""The names of MIG profiles: `3g.40gb`, `1g.10gb+me`, `1c.3g.40gb`, `2g.48gb-me`.

A name is a request. Which profile of a card it means is decided by `find`, because drivers
spell the same profile differently (3g.39gb and 3g.40gb, 7g.79gb and 7g.80gb).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nodeagent.plan.observed import GpuInstanceProfile
from nodeagent.structs import Struct, replace
from nodeagent.text import nearest

_NAME = re.compile(
    r"(?:(?P<compute>[0-9]{1,3})c\.)?(?P<slices>[0-9]{1,3})g\.(?P<gigabytes>[0-9]{1,5})gb"
    r"(?:(?P<sign>[+-])(?P<attributes>[^+-]*))?"
)
_ATTRIBUTE = r"[A-Za-z]([A-Za-z0-9.]*[A-Za-z0-9])?"

# How far the gigabytes of two spellings may be apart and still mean the same profile. The drift
# seen between drivers is at most 4.3 % (1g.23gb and 1g.24gb on GB200), while the nearest
# different sizes of one slice count are 17 % apart (1g.5gb of A100 40GB, 1g.6gb of A30).
_SAME_SIZE = 0.05


class ProfileName(Struct, frozen=True):
    """The parts of a profile's name.

    `compute` equals `slices` when the instance has all of its GPU instance. `attributes` carry
    their sign: `+me`, `+gfx`, `+me.all`, `-me`; they are sorted, since their order means nothing.
    """

    compute: int
    slices: int
    gigabytes: int
    attributes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> ProfileName:
        """Read a name; raises ValueError with a sentence for the user."""
        match = _NAME.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text!r} is not a profile name; one looks like 3g.40gb, 1g.10gb+me or 1c.3g.40gb"
            )
        slices = int(match["slices"])
        compute = int(match["compute"]) if match["compute"] else slices
        gigabytes = int(match["gigabytes"])
        if not (slices and compute and gigabytes):
            raise ValueError(f"{text!r} has a size of 0; every part must be at least 1")
        if compute > slices:
            raise ValueError(
                f"{text!r} asks for {compute} compute slices of a GPU instance that has {slices}"
            )
        return cls(compute, slices, gigabytes, _attributes(text, match))

    @property
    def gpu_instance(self) -> ProfileName:
        """The name of the GPU instance that this is, or is a part of."""
        return ProfileName(self.slices, self.slices, self.gigabytes, self.attributes)

    def __str__(self) -> str:
        part = f"{self.compute}c." if self.compute != self.slices else ""
        sign = self.attributes[0][0] if self.attributes else ""
        suffix = sign + ",".join(a[1:] for a in self.attributes) if sign else ""
        return f"{part}{self.slices}g.{self.gigabytes}gb{suffix}"


def _attributes(text: str, match: re.Match[str]) -> tuple[str, ...]:
    sign = match["sign"]
    if sign is None:
        return ()
    names = match["attributes"].split(",")
    for name in names:
        if not re.fullmatch(_ATTRIBUTE, name):
            raise ValueError(f"{text!r} has no valid attribute after {sign!r}; known ones: me, gfx")
    if len(set(names)) != len(names):
        raise ValueError(f"{text!r} names an attribute twice")
    return tuple(sorted(sign + name for name in names))


def device_name(profile: str, slices: int, compute: int) -> str:
    """The name of a MIG device with `compute` of a GPU instance's `slices` compute slices."""
    return profile if compute == slices else f"{compute}c.{profile}"


def find(
    wanted: ProfileName, profiles: Iterable[GpuInstanceProfile]
) -> tuple[GpuInstanceProfile, ...]:
    """The card's profiles that `wanted` may mean: one, when it is clear.

    An exact match wins; else profiles of equal slices and attributes whose memory is within 5 %.
    """
    wanted = wanted.gpu_instance
    near = []
    for profile in profiles:
        name = ProfileName.parse(profile.name)
        if name == wanted:
            return (profile,)
        if (name.slices, name.attributes) == (wanted.slices, wanted.attributes):
            apart = abs(name.gigabytes - wanted.gigabytes)
            if apart <= _SAME_SIZE * max(name.gigabytes, wanted.gigabytes):
                near.append(profile)
    return tuple(near)


def nearest_profile(text: str, names: Iterable[str]) -> str | None:
    """What was probably meant by a name that the card does not have; None if nothing is alike.

    By meaning where it is a name: as many slices, the same attributes, then the nearest memory.
    Else by spelling. Kubernetes' spelling (`1g.10gb.me`) leads to the real one.
    """
    known = list(names)
    plus = re.sub(r"gb\.(?=[a-z])", "gb+", text.strip().lower())
    if plus in known:
        return plus
    try:
        wanted = ProfileName.parse(plus)
    except ValueError:
        return nearest(plus, known, cutoff=0.5)
    offered = [ProfileName.parse(name) for name in known]
    alike = [name for name in offered if name.slices == wanted.slices]
    if alike:
        near = min(alike, key=lambda name: (_unlike(name, wanted), _apart(name, wanted)))
        return str(replace(near, compute=wanted.compute))
    return str(min(offered, key=lambda name: _distance(name, wanted))) if offered else None


def _unlike(name: ProfileName, wanted: ProfileName) -> tuple[bool, bool, int]:
    """How far the attributes of two profiles are apart; `+me.all` is a kind of `+me`."""
    kinds = [{a.partition(".")[0] for a in one.attributes} for one in (name, wanted)]
    return (name.attributes != wanted.attributes, kinds[0] != kinds[1], len(name.attributes))


def _apart(name: ProfileName, wanted: ProfileName) -> float:
    """How often the smaller memory fits into the larger one."""
    sizes = sorted((name.gigabytes, wanted.gigabytes))
    return sizes[1] / sizes[0]


def _distance(name: ProfileName, wanted: ProfileName) -> tuple[float, int, tuple[bool, bool, int]]:
    """Compare profiles with other numbers of slices: memory counts most."""
    return _apart(name, wanted), abs(name.slices - wanted.slices), _unlike(name, wanted)
