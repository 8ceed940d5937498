"""Nodes with made-up readings, for tests and for measuring how long a text takes."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from nodeagent.metrics.catalogue import Field, Level, WithMig
from nodeagent.metrics.dcgm import families
from nodeagent.metrics.exposition import render
from nodeagent.metrics.samples import (
    GpuIdentity,
    Node,
    NvLink,
    SampleSet,
    Slice,
    Subject,
    WholeGpu,
    by_field,
)
from nodeagent.metrics.selection import default_selection
from nodeagent.metrics.sources import Number

DRIVER_VERSION = 1  # field id
DRIVER = "575.57.08"


def gpu(index: int, model: str = "NVIDIA H100 80GB HBM3") -> GpuIdentity:
    return GpuIdentity(
        index=index,
        uuid=f"GPU-{index:08x}-1111-2222-3333-444455556666",
        pci_bus_id=f"00000000:{0x1A + index:02X}:00.0",
        minor=index,
        model=model,
    )


def pod(
    name: str, container: str = "main", namespace: str = "team-a"
) -> tuple[tuple[str, str], ...]:
    return (("container", container), ("namespace", namespace), ("pod", name))


def slices(of: GpuIdentity, count: int, profile: str = "1g.10gb") -> tuple[Subject, ...]:
    """So many instances of a GPU, each held by a pod of its own."""
    return tuple(
        Subject(Slice(of, profile, 7 + n), pod(f"job-{of.index}-{n}")) for n in range(count)
    )


def sample(
    fields: Iterable[Field], gpus: Iterable[GpuIdentity], *, per_gpu: int = 0, links: int = 0
) -> SampleSet:
    """A value of each field for all that can have one; each is different from its neighbours."""
    cards = tuple(gpus)
    parts = {card.uuid: slices(card, per_gpu) for card in cards} if per_gpu else {}
    wholes = {card.uuid: Subject(WholeGpu(card)) for card in cards}

    def values() -> Iterator[tuple[int, Subject, Number]]:
        for row in fields:
            for card in cards:
                here = parts.get(card.uuid, ())
                for n, subject in enumerate(_subjects(row, card, here, wholes[card.uuid], links)):
                    yield row.id, subject, _value(row, card.index * 16 + n)

    return SampleSet(by_field(values()), {DRIVER_VERSION: DRIVER}, {}, parts)


def _subjects(
    row: Field, card: GpuIdentity, parts: tuple[Subject, ...], whole: Subject, links: int
) -> Iterator[Subject]:
    if row.level is Level.NODE:
        if card.index == 0:
            yield Subject(Node())
        return
    if row.level is Level.LINK:
        if not parts:
            yield from (Subject(NvLink(card, link)) for link in range(links))
        return
    if not parts or row.with_mig is not WithMig.GONE:
        yield whole
    if row.part is not None:
        yield from parts


def _value(row: Field, n: int) -> Number:
    return (n % 100) / 100 + row.id / 1e6 if row.real else row.id + n


# --- the texts that are kept ----------------------------------------------------------------------

DATA = Path(__file__).parents[1] / "data/metrics"
GOLDEN = {  # model, how many, instances of each
    "h100_mig": ("NVIDIA H100 80GB HBM3", 1, 2),
    "a100": ("NVIDIA A100-SXM4-40GB", 2, 0),
    "t4": ("Tesla T4", 1, 0),
}


def golden(name: str) -> bytes:
    """The default set of a node, out of made-up readings."""
    model, cards, parts = GOLDEN[name]
    rows = default_selection().fields
    if model != "NVIDIA H100 80GB HBM3":  # no GPM; and a T4 has neither row remapping nor NVLink
        older = {"", "ampere", "NVLink 2+"} if "A100" in model else {""}
        rows = tuple(row for row in rows if row.min_architecture in older)
    readings = sample(rows, [gpu(n, model) for n in range(cards)], per_gpu=parts)
    return render(families(readings, default_selection(), (("Hostname", "gpu-node-0"),)))


if __name__ == "__main__":
    for kept in GOLDEN:
        (DATA / f"{kept}.prom").write_bytes(golden(kept))
