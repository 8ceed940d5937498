"""A sample as dcgm-exporter would print it: the selected fields as families.

Where MIG is on, a field that is told of the GPU's instances is not told of the whole GPU too: sums
over all series would count it twice. A field that only the whole GPU has is told once.
dcgm-exporter repeats it for each instance, which makes sums of power wrong; it can be asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from nodeagent.metrics.catalogue import Field, Level
from nodeagent.metrics.conversion import Number
from nodeagent.metrics.exposition import Family, Form
from nodeagent.metrics.labels import LabelBlocks
from nodeagent.metrics.samples import Labels, SampleSet, Slice, Subject, Value, WholeGpu
from nodeagent.metrics.selection import Selection, WantedLabel
from nodeagent.metrics.sources import Event


class Names(StrEnum):
    """What metrics are called: as the file of counters says, or as DCGM renamed them in 4.6."""

    AS_WRITTEN = "asWritten"
    RENAMED = "renamed"


@dataclass(frozen=True, slots=True)
class Style:
    """`repeat_whole`: give each instance the whole GPU's values too, as dcgm-exporter does."""

    names: Names = Names.AS_WRITTEN
    repeat_whole: bool = False


def families(
    sample: SampleSet, selection: Selection, blocks: LabelBlocks, style: Style | None = None
) -> list[Family]:
    """One family for each selected field that has values, in the order of field ids.

    Those of links come last, as dcgm-exporter has them. A second value of the same thing is left
    out: two series of one name with equal labels would make the whole text invalid.
    """
    style = style or Style()
    blocks.begin(label_texts(sample, selection.labels))
    found: list[Family] = []
    links: list[Family] = []
    for wanted in selection.metrics:
        row = wanted.field
        values = sample.values.get(row.id, ())
        if not values:
            continue
        series: dict[str, Number] = {}
        for subject, value in _placed(row, values, sample, style):
            series.setdefault(blocks.of(subject), value)
        name = row.renamed if style.names is Names.RENAMED else wanted.name
        target = links if row.level is Level.LINK else found
        form = Form.DECIMALS if row.real else Form.WHOLE
        target.append(Family(name, wanted.type, wanted.help, series, form))
    return found + links


def _placed(
    row: Field, values: tuple[Value, ...], sample: SampleSet, style: Style
) -> Iterator[Value]:
    """The values of a field, each where it is to be told."""
    divided = sample.slices
    if not divided:
        yield from values
        return
    told_apart = isinstance(row.whole.source, Event)  # what hit the GPU hit no instance
    in_parts = {s.entity.gpu.uuid for s, _ in values if isinstance(s.entity, Slice)}
    for subject, value in values:
        entity = subject.entity
        if isinstance(entity, WholeGpu) and (parts := divided.get(entity.gpu.uuid)):
            if entity.gpu.uuid in in_parts and not told_apart:
                continue
            if style.repeat_whole:
                yield from ((_of_part(part, subject), value) for part in parts)
                continue
        yield subject, value


def _of_part(part: Subject, whole: Subject) -> Subject:
    """An instance that is told a value of its GPU, with what is said of that value alone."""
    if not whole.attributes:
        return part
    return Subject(part.entity, tuple(dict((*part.attributes, *whole.attributes)).items()))


def label_texts(sample: SampleSet, labels: tuple[WantedLabel, ...]) -> Mapping[str, Labels]:
    """The labels that text fields and numbers became: for the node, and for each GPU.

    One whose value is not known is left out.
    """
    uuids = set(sample.gpu_texts)
    for label in labels:
        for subject, _ in sample.values.get(label.field.id, ()):
            if isinstance(subject.entity, WholeGpu):
                uuids.add(subject.entity.gpu.uuid)
    of_gpus = {uuid: _labels(sample, labels, uuid) for uuid in ("", *sorted(uuids))}
    return {uuid: found for uuid, found in of_gpus.items() if found or uuid}


def _labels(sample: SampleSet, labels: tuple[WantedLabel, ...], uuid: str) -> Labels:
    found: list[tuple[str, str]] = []
    texts = sample.gpu_texts.get(uuid, {})
    for label in labels:
        number = label.field.id
        text = sample.node_texts.get(number) or texts.get(number)
        if not text and isinstance(label.field, Field):
            text = _number_text(sample.values.get(number, ()), uuid)
        if text:
            found.append((label.name, text))
    return tuple(found)


def _number_text(values: tuple[Value, ...], uuid: str) -> str | None:
    """A whole GPU's number as a label: DCGM's files may make a label of any field."""
    for subject, value in values:
        if isinstance(subject.entity, WholeGpu) and subject.entity.gpu.uuid == uuid:
            return str(round(value))
    return None
