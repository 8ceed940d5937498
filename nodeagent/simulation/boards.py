"""The cards that can be simulated, read from the files in `boards/`.

A board file holds the figures of one model and says of each where it comes from. A field whose
status is `assumed` has no evidence behind it; every field can be overridden from outside.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from nodeagent.errors import UsageError

_DIRECTORY = Path(__file__).parent / "boards"
_MAX_GPUS = 64
_MIB = 1 << 20
_STATUSES = ("assumed", "inferred", "single-source", "confirmed")  # weakest first

# NVML's enumeration values of profiles, by what they do with the media engines.
MEDIA_EXTENSIONS = frozenset({7, 8})  # +me
ALL_MEDIA_ENGINES = frozenset({15, 16})  # +me.all
NO_MEDIA_ENGINES = frozenset({13, 14})  # -me
THREE_SLICES, FOUR_SLICES = 2, 3

Overrides = dict[str, dict[str, Any]]


class Evidence(msgspec.Struct, frozen=True):
    """How well a figure is known: `confirmed`, `single-source`, `inferred` or `assumed`."""

    status: str


class Slices(msgspec.Struct, frozen=True):
    """Adjacent memory slices of a card, or compute slots of a GPU instance."""

    start: int
    size: int

    @property
    def mask(self) -> int:
        """The slices as bits."""
        return ((1 << self.size) - 1) << self.start


class InstancePlacement(Slices, frozen=True):
    """A place for a GPU instance in memory slices, and the id that an instance there gets."""

    id: int
    mirrored_id: int


class ComputePlacement(Slices, frozen=True, array_like=True):
    """A place for a compute instance in compute slots: `[start, size]` in a board file."""


class ComputeProfile(msgspec.Struct, frozen=True):
    """How a GPU instance can be divided."""

    id: int
    slices: int
    multiprocessors: int
    max_instances: int
    placements: tuple[ComputePlacement, ...]


class GpuProfile(msgspec.Struct, frozen=True):
    """A kind of GPU instance. `id` is what create calls take, `kind` NVML's enumeration."""

    id: int
    kind: int
    name: str
    slices: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg: int
    ofa: int
    max_instances: int
    placements: tuple[InstancePlacement, ...]
    compute: tuple[ComputeProfile, ...]
    provenance: dict[str, Evidence]

    @property
    def memory(self) -> int:
        """Bytes."""
        return self.memory_mib * _MIB

    @property
    def status(self) -> str:
        """The weakest evidence of its figures."""
        found = {known.status for known in self.provenance.values()}
        return next(status for status in _STATUSES if status in found)

    def compute_profile(self, profile: int) -> ComputeProfile | None:
        return next((p for p in self.compute if p.id == profile), None)

    def compute_name(self, profile: ComputeProfile) -> str:
        """`3g.40gb` for all of the GPU instance, else `1c.3g.40gb`."""
        whole = profile.slices == self.slices
        return self.name if whole else f"{profile.slices}c.{self.name}"


class Board(msgspec.Struct, frozen=True):
    """One model of card. PCI ids are 32 bits, device high and vendor low."""

    product: str
    architecture: str
    pci_device_id: int
    pci_subsystem_id: int
    compute_capability: tuple[int, int]
    multiprocessors: int
    memory_mib: int
    reserved_mib: int
    bar1_mib: int
    memory_slices: int
    compute_slices: int
    max_gpu_instances: int
    mode_change_needs_reset: bool
    mode_survives_reboot: bool
    compute_placement: str  # firstFit | alignedTree
    nvlinks: int
    nvlink_peer: str  # none | switch | pair: the card beside it, over a bridge
    profiles: tuple[GpuProfile, ...]
    provenance: dict[str, Evidence]
    name: str = msgspec.field(name="board")

    @property
    def has_mig(self) -> bool:
        return bool(self.profiles)

    @property
    def has_grace(self) -> bool:
        """Whether NVIDIA's processor sits beside it."""
        return self.name.startswith(("gh", "gb"))

    @property
    def memory(self) -> int:
        """Bytes."""
        return self.memory_mib * _MIB

    @property
    def assumed(self) -> tuple[str, ...]:
        """The fields of the card itself that there is no evidence for."""
        return tuple(name for name, known in self.provenance.items() if known.status == "assumed")

    def profile(self, profile: int) -> GpuProfile | None:
        """By the id that create calls take."""
        return next((p for p in self.profiles if p.id == profile), None)

    def profile_of_kind(self, kind: int) -> GpuProfile | None:
        """By NVML's enumeration."""
        return next((p for p in self.profiles if p.kind == kind), None)


def board_names() -> tuple[str, ...]:
    """All boards, in alphabetical order."""
    return tuple(sorted(path.stem for path in _DIRECTORY.glob("*.json")))


def parse_boards(text: str) -> tuple[str, ...]:
    """`a100-40gb:2,t4:1` becomes one board name for each GPU; raises UsageError."""
    names: list[str] = []
    for item in text.split(","):
        name, colon, count = item.strip().partition(":")
        name = name.strip().lower()
        if name not in board_names():
            raise UsageError(f"there is no board {name!r}", remedy=nearest(name, board_names()))
        names += [name] * (_count(count.strip(), item) if colon else 1)
    if len(names) > _MAX_GPUS:
        raise UsageError(f"{text!r} asks for {len(names)} GPUs", remedy=f"at most {_MAX_GPUS}")
    return tuple(names)


def boards_text(names: Sequence[str]) -> str:
    """`h100-80gb:8` again."""
    return ",".join(f"{name}:{len(list(same))}" for name, same in groupby(names))


def known_boards() -> tuple[Board, ...]:
    """What there is to simulate."""
    return tuple(_plain_board(name) for name in board_names())


def load_board(name: str, overrides: Overrides | None = None) -> Board:
    """The board of that name, with the caller's own figures in place of the file's.

    `overrides` maps a board to fields, where `profiles` maps a profile's name to its fields:
    `{"b200": {"memory_mib": 183359, "profiles": {"3g.90gb": {"memory_mib": 91000}}}}`.
    Raises UsageError when the board or a field does not exist or a value is of the wrong type.
    """
    changes = (overrides or {}).get(name)
    if changes is None:
        return _plain_board(name)

    raw = merge(read_board(name), changes, name)
    try:
        return _build(raw)
    except (ValueError, msgspec.ValidationError) as error:
        raise UsageError(f"the figures given for {name} do not fit together: {error}") from error


# --- reading ------------------------------------------------------------------------------------


def read_board(name: str) -> dict[str, Any]:
    """The board file as it is; raises UsageError."""
    path = _DIRECTORY / f"{name}.json"
    if not path.is_file():
        raise UsageError(f"there is no board {name!r}", remedy=nearest(name, board_names()))
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


@cache
def _plain_board(name: str) -> Board:
    return _build(read_board(name))


def _build(raw: Mapping[str, Any]) -> Board:
    """Raises ValueError or msgspec.ValidationError for what does not fit."""
    numbers = {name: int(raw[name], 16) for name in ("pci_device_id", "pci_subsystem_id")}
    capability = [int(part) for part in raw["compute_capability"].split(".")]
    return msgspec.convert({**raw, **numbers, "compute_capability": capability}, Board)


def _count(text: str, item: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= _MAX_GPUS:
        raise UsageError(
            f"{item.strip()!r} has no valid number of GPUs",
            remedy=f"1 to {_MAX_GPUS}, as in h100-80gb:8",
        )
    return int(text)


def nearest(name: str, known: tuple[str, ...]) -> str:
    """A remedy for a misspelt name."""
    import difflib  # only for errors: it is slow to load

    longer = [board for board in known if name and board.startswith(name)]
    near = longer or difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"


# --- a user's own figures in place of a board file's --------------------------------------------


def merge(raw: dict[str, Any], changes: object, path: str) -> dict[str, Any]:
    """A board file's content with other values; raises UsageError naming the path."""
    if not isinstance(changes, Mapping):
        raise UsageError(f"{path} cannot be {changes!r}", remedy="it maps fields to values")
    merged = dict(raw)
    fields = [name for name in raw if name not in {"board", "provenance", "sources"}]
    for name, value in changes.items():
        where = f"{path}.{name}"
        if name not in fields:
            raise UsageError(f"{where} does not exist", remedy=nearest(name, tuple(fields)))
        if name in {"profiles", "compute"}:
            merged[name] = _merge_rows(raw[name], value, where)
            continue
        if type(value) is not type(raw[name]):
            raise UsageError(f"{where} cannot be {value!r}", remedy=f"now it is {raw[name]!r}")
        merged[name] = value
    return merged


def _merge_rows(rows: list[dict[str, Any]], changes: object, path: str) -> list[dict[str, Any]]:
    if not isinstance(changes, Mapping):
        raise UsageError(f"{path} cannot be {changes!r}", remedy="it maps profiles to fields")
    keys = {str(row.get("name", row["id"])): row for row in rows}
    merged = dict(keys)
    for key, fields in changes.items():
        if key not in keys:
            raise UsageError(f"{path}.{key} does not exist", remedy=nearest(key, tuple(keys)))
        merged[key] = merge(keys[key], fields, f"{path}.{key}")
    return list(merged.values())
