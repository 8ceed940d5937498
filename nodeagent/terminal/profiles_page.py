"""What GPUs offer: the profiles of this node's, and the boards that can be simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from nodeagent.plan.mig import unlisted
from nodeagent.plan.observed import Engines, Gpu, GpuInstanceProfile, Placement
from nodeagent.terminal.page import Line, Span, Tone, dim, gpu_blocks, line, table, toned
from nodeagent.terminal.plan_words import mode_words, problem_lines
from nodeagent.text import alike, gibibytes, quantity

if TYPE_CHECKING:
    from nodeagent.simulation.boards import Board


_HEADER = ("PROFILE", ">ID", ">MEMORY", ">SMs", "ENGINES", ">MAX", ">MORE NOW", "PLACEMENTS")


def profiles_page(offers: Sequence[tuple[Gpu, Mapping[str, int]]]) -> tuple[Line, ...]:
    """A page of profiles; `offers`: GPUs, and how many of each profile can be created now."""
    blocks = gpu_blocks((gpu, _body(gpu, creatable)) for gpu, creatable in offers)
    return tuple(blocks[:-1]) or (line("This node has no GPU."),)


def _body(gpu: Gpu, creatable: Mapping[str, int]) -> tuple[Line, ...]:
    problem = problem_lines([unlisted(gpu)], Tone.WARNING) if gpu.unlisted else ()
    if not gpu.profiles:
        return (line(Span(mode_words(gpu), Tone.WARNING)), *problem)
    rows = [_row(profile, creatable.get(profile.name, 0)) for profile in gpu.profiles]
    off = gpu.mig is not None and not gpu.mig.current
    note = (line(dim("MIG is off: nothing can be created before it is switched on")),)
    return (*table(_HEADER, rows), *problem, *(note if off else ()))


def _row(profile: GpuInstanceProfile, more: int) -> list[str | Span]:
    return [
        profile.name,
        str(profile.id),
        gibibytes(profile.memory),
        str(profile.multiprocessors),
        _engine_words(profile.engines),
        str(profile.max_count),
        Span(str(more), Tone.GOOD if more else Tone.DIM),
        _placement_words(profile.placements),
    ]


def _engine_words(engines: Engines) -> str:
    """`2 copy 1 dec`; `none` for a profile without engines."""
    counts = (engines.copy, engines.decoder, engines.encoder, engines.jpeg, engines.ofa)
    named = zip(counts, ("copy", "dec", "enc", "jpeg", "ofa"), strict=True)
    return " ".join(f"{n} {name}" for n, name in named if n) or "none"


def _placement_words(placements: Sequence[Placement]) -> str:
    """`{0,2,4}:2`: where instances may begin, and how many memory slices they take."""
    by_size = alike((place.size, place.start) for place in placements)
    return " ".join(
        f"{{{','.join(map(str, sorted(starts)))}}}:{size}" for size, starts in by_size.items()
    )


# --- boards ---------------------------------------------------------------------------------------


_COLUMN = 26  # for the names of profiles and cards: the longest has 24 letters


def boards_page(boards: Iterable[Board]) -> tuple[Line, ...]:
    """Print each board with its profiles; the evidence is that of a profile's weakest field."""
    lines: list[Line] = []
    for board in boards:
        facts = f"{board.product}, {gibibytes(board.memory)}"
        lines.append(line(Span(board.name.ljust(_COLUMN), Tone.TITLE), facts))
        for profile in board.profiles:
            times = f"{profile.max_instances} x {gibibytes(profile.memory)}"
            name = f"  {profile.name}".ljust(_COLUMN)
            lines.append(line(f"{name}{times}  ", toned(profile.status)))
        if not board.profiles:
            lines.append(line(dim("  no MIG")))
        if board.assumed:
            fields = f"{quantity(len(board.assumed), 'field')}: {', '.join(board.assumed)}"
            lines.append(line(dim(f"  without evidence, {fields}")))
    return tuple(lines)
