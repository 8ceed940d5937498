"""Families of series as Prometheus' text format 0.0.4, written once and served as bytes.

prometheus_client is not used for it: it renames counters, sorts labels, prints other numbers and
takes some 50 times as long. Its parser reads what is written here back in the tests.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import assert_never

from nodeagent.metrics.samples import GpuIdentity, Labels, Node, NvLink, Slice, Subject, WholeGpu
from nodeagent.metrics.sources import Number
from nodeagent.structs import Struct, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})
_GZIP = 31  # zlib's window bits for a gzip member of 32 KiB
_FASTEST = 1  # a level above it takes several times as long for a few percent
_LEAST = 5e-7  # below it six decimals would say 0


class Family(Struct, frozen=True):
    """All series of one name, by their label block; values that are not finite are left out.

    `format` writes a number: DCGM has whole ones and doubles with six decimals, the agent's own
    have all digits.
    `suffixed` are the series of a histogram, whole lines without the name.
    """

    name: str
    type: str
    help: str
    series: Mapping[str, Number]
    format: Callable[[Number], str] = repr
    suffixed: tuple[str, ...] = ()


def render(families: Iterable[Family]) -> bytes:
    """Write the text. Families without series are left out, and their HELP and TYPE with them."""
    written: list[str] = []
    for family in families:
        lines = _lines(family)
        if lines:
            meaning = family.help.translate(_HELP_ESCAPES)
            written.append(f"# HELP {family.name} {meaning}\n# TYPE {family.name} {family.type}\n")
            written += lines
    # Half of a surrogate pair, which JSON and names of files can have, must not cost all the rest.
    return "".join(written).encode(errors="replace")


def _lines(family: Family) -> list[str]:
    name = family.name
    if family.suffixed:
        return [f"{name}{line}\n" for line in family.suffixed]
    return [
        f"{name}{labels} {family.format(value)}\n"
        for labels, value in family.series.items()
        if isfinite(value)
    ]


def decimals(value: Number) -> str:
    """Write six decimals, or an exponent where these would be 0 for a small number."""
    if value and abs(value) < _LEAST:
        return f"{value:.6e}"
    return f"{value:.6f}"


def whole(value: Number) -> str:
    """Write a number as a whole one."""
    return str(value if type(value) is int else round(value))


def gzipped(text: bytes) -> bytes:
    """The text as a gzip member."""
    return zlib.compress(text, _FASTEST, _GZIP)


# --- the labels of a series as dcgm-exporter writes them ---
#
# Order: gpu, UUID, pci_bus_id, device, modelName; GPU_I_PROFILE, GPU_I_ID for an instance; the
# host; then the selected text fields and at last the attributes, both sorted by name. Rows of
# NVLinks begin with nvlink and call two of them gpu_uuid and model_name. An instance's `UUID` is
# its GPU's.

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


class LabelBlocks(Struct):
    """Label blocks of a text by subject, each written once.

    `host` is the host's label: `Hostname` up to dcgm-exporter 4.8.2, `hostname` since, or none.
    `texts` are the labels made of text fields, for the node (under "") and for each GPU by UUID.
    """

    host: Labels
    texts: Mapping[str, Labels]
    _written: dict[Subject, str] = field(default_factory=dict)

    def of(self, subject: Subject) -> str:
        written = self._written.get(subject)
        if written is None:
            written = block((*self._labels(subject), *sorted(subject.attributes)))
            self._written[subject] = written
        return written

    def _labels(self, subject: Subject) -> Labels:
        match subject.entity:
            case Node():
                return (*self.host, *self.texts.get("", ()))
            case WholeGpu(gpu):
                return (*gpu_labels(gpu), *self._last_labels(gpu))
            case Slice(gpu, profile, number):
                instance = (("GPU_I_PROFILE", profile), ("GPU_I_ID", str(number)))
                return (*gpu_labels(gpu), *instance, *self._last_labels(gpu))
            case NvLink(gpu, link):
                other = {"UUID": "gpu_uuid", "modelName": "model_name"}
                named = ((other.get(name, name), value) for name, value in gpu_labels(gpu))
                return (("nvlink", str(link)), *named, *self._last_labels(gpu))
            case _:
                assert_never(subject.entity)

    def _last_labels(self, gpu: GpuIdentity) -> Labels:
        return (*self.host, *self.texts.get(gpu.uuid, self.texts.get("", ())))
