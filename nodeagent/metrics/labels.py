"""The labels of a series as dcgm-exporter writes them, ready to be put behind a name.

Order: gpu, UUID, pci_bus_id, device, modelName; GPU_I_PROFILE, GPU_I_ID for an instance; the host;
then the selected text fields and at last the attributes, both sorted by name. Rows of NVLinks begin
with nvlink and call two of them gpu_uuid and model_name. `UUID` of an instance is its GPU's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from nodeagent.metrics.samples import GpuIdentity, Labels, Node, NvLink, Slice, Subject, WholeGpu

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def block(labels: Iterable[tuple[str, str]]) -> str:
    """`{name="value",...}` with values escaped; nothing at all without labels."""
    written = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels)
    return f"{{{written}}}" if written else ""


def gpu_labels(gpu: GpuIdentity) -> Labels:
    """What every series of a GPU begins with."""
    return (
        ("gpu", str(gpu.index)),
        ("UUID", gpu.uuid),
        ("pci_bus_id", gpu.pci_bus_id),
        ("device", f"nvidia{gpu.minor}"),
        ("modelName", gpu.model),
    )


@dataclass(frozen=True, slots=True)
class HostLabel:
    """The host's label: `Hostname` up to dcgm-exporter 4.8.2, `hostname` since; empty: none."""

    value: str
    name: str = "Hostname"

    @property
    def labels(self) -> Labels:
        return ((self.name, self.value),) if self.name and self.value else ()


@dataclass(slots=True)
class LabelBlocks:
    """Label blocks by subject, each written once and kept as long as it is used.

    `texts` are the labels made of text fields, for the node (under "") and for each GPU by UUID;
    when they change, all blocks are written anew. Looking up is by identity first: whoever samples
    does well to keep its subjects.
    """

    host: HostLabel
    _texts: Mapping[str, Labels] = field(default_factory=dict)
    _blocks: dict[Subject, str] = field(default_factory=dict)
    _used: dict[Subject, str] = field(default_factory=dict)
    _met: dict[int, tuple[Subject, str]] = field(default_factory=dict)

    def begin(self, texts: Mapping[str, Labels]) -> None:
        """A new text begins: what the one before did not use is forgotten."""
        self._blocks = self._used if texts == self._texts else {}
        self._texts = texts
        self._used = {}
        self._met = {}

    def of(self, subject: Subject) -> str:
        """The block behind a name."""
        met = self._met.get(id(subject))
        if met is not None:
            return met[1]
        written = self._used.get(subject) or self._blocks.get(subject) or self._write(subject)
        self._used[subject] = written
        self._met[id(subject)] = (subject, written)  # the subject stays, so its id stays its own
        return written

    def _write(self, subject: Subject) -> str:
        return block((*self._own(subject), *sorted(subject.attributes)))

    def _own(self, subject: Subject) -> Labels:
        match subject.entity:
            case Node():
                return (*self.host.labels, *self._texts.get("", ()))
            case WholeGpu(gpu):
                return (*gpu_labels(gpu), *self._after(gpu))
            case Slice(gpu, profile, number):
                instance = (("GPU_I_PROFILE", profile), ("GPU_I_ID", str(number)))
                return (*gpu_labels(gpu), *instance, *self._after(gpu))
            case NvLink(gpu, link):
                other = {"UUID": "gpu_uuid", "modelName": "model_name"}
                named = ((other.get(name, name), value) for name, value in gpu_labels(gpu))
                return (("nvlink", str(link)), *named, *self._after(gpu))
            case _:
                assert_never(subject.entity)

    def _after(self, gpu: GpuIdentity) -> Labels:
        return (*self.host.labels, *self._texts.get(gpu.uuid, self._texts.get("", ())))
