"""What was read at one moment: values of fields, each of one thing, with what they are labelled by.

A value that the driver does not give is not here at all; it is never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nodeagent.metrics.conversion import Number

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """What tells a GPU from others in labels. `minor` is the N of /dev/nvidiaN."""

    index: int
    uuid: str
    pci_bus_id: str
    minor: int
    model: str

    def __hash__(self) -> int:  # of all its values would take long, and is needed often
        return hash(self.uuid)


@dataclass(frozen=True, slots=True)
class Node:
    """The node as a whole."""


@dataclass(frozen=True, slots=True)
class WholeGpu:
    """A GPU as a whole, whatever it is divided into."""

    gpu: GpuIdentity


@dataclass(frozen=True, slots=True)
class Slice:
    """A GPU instance. `generation` tells apart those that had the same id one after the other."""

    gpu: GpuIdentity
    profile: str
    id: int
    generation: int = 0

    def __hash__(self) -> int:  # as above
        return hash((self.gpu.uuid, self.id))


@dataclass(frozen=True, slots=True)
class NvLink:
    """One NVLink of a GPU."""

    gpu: GpuIdentity
    link: int


Entity = Node | WholeGpu | Slice | NvLink


@dataclass(frozen=True, slots=True)
class Subject:
    """What a value is of, and whose it is.

    `attributes` are the labels that are not the entity's own (container, namespace, pod, err_code):
    they follow the others, sorted by name.
    """

    entity: Entity
    attributes: Labels = ()


Value = tuple[Subject, Number]


@dataclass(frozen=True, slots=True)
class SampleSet:
    """The values of a moment by field id, and the texts that became labels.

    `node_texts` are by the id of a text field; `gpu_texts` likewise, first by the GPU's UUID.
    `slices` are the GPU instances that there are, by the UUID of their GPU, each as the subject it
    is for values of its own.
    """

    values: Mapping[int, tuple[Value, ...]]
    node_texts: Mapping[int, str] = field(default_factory=dict)
    gpu_texts: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    slices: Mapping[str, tuple[Subject, ...]] = field(default_factory=dict)


def by_field(values: Iterable[tuple[int, Subject, Number]]) -> dict[int, tuple[Value, ...]]:
    """Values in the order they were read, put together by field."""
    together: dict[int, list[Value]] = {}
    for number, subject, value in values:
        together.setdefault(number, []).append((subject, value))
    return {number: tuple(of_field) for number, of_field in together.items()}
