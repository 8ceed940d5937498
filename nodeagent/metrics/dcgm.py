"""Arranges a sample as dcgm-exporter prints it: one family for each selected field.

Where MIG is on, a field that is exported for the GPU's instances is not for the whole GPU too: sums
over all series would count it twice. A field that only the whole GPU has is exported once.
dcgm-exporter repeats it for each instance, which makes sums of power wrong; it can be asked for.
"""

from collections.abc import Mapping

from nodeagent.metrics.catalogue import Field, Level
from nodeagent.metrics.exposition import Family, LabelBlocks, decimals, whole
from nodeagent.metrics.samples import Labels, SampleSet, Slice, Subject, Value, WholeGpu
from nodeagent.metrics.selection import SelectedLabel, Selection
from nodeagent.metrics.sources import EventCount, Number
from nodeagent.structs import Struct


def families(
    sample: SampleSet,
    selection: Selection,
    host: Labels,
    *,
    renamed: bool = False,
    repeat_whole: bool = False,
) -> list[Family]:
    """One family for each selected field that has values, in the order of field ids.

    Those of links come last, as dcgm-exporter has them. A second value of the same thing is left
    out: two series of one name with equal labels would make the whole text invalid. So is a field
    that the file has under its old and its new name, where both are written as the new one.

    `host` is the host's label, if there is to be one. `renamed`: by the names that DCGM gave them
    in 4.6. `repeat_whole`: give each instance the whole GPU's values too, as dcgm-exporter does.
    """
    blocks = LabelBlocks(host, label_texts(sample, selection.labels))
    places = _Places(sample, blocks, repeat_whole=repeat_whole)
    found: list[Family] = []
    links: list[Family] = []
    names: set[str] = set()
    for wanted in selection.metrics:
        row = wanted.field
        values = sample.values.get(row.id, ())
        if not values:
            continue
        name = row.renamed if renamed else wanted.name
        if name in names:
            continue
        names.add(name)
        target = links if row.level is Level.LINK else found
        written = decimals if row.real else whole
        target.append(Family(name, wanted.type, wanted.help, places.series(row, values), written))
    return found + links


class _Place(Struct, frozen=True):
    """Where a subject's values go. `part_of` and `divided` are UUIDs of GPUs: whose instance
    it is, or which GPU with instances it is; empty where it is not.
    """

    block: str
    part_of: str = ""
    divided: str = ""


class _Places:
    """Sorts the values of a field into series; looks subjects up by identity, for speed."""

    def __init__(self, sample: SampleSet, blocks: LabelBlocks, *, repeat_whole: bool) -> None:
        self._slices = sample.slices
        self._blocks = blocks
        self._repeat = repeat_whole
        self._met: dict[int, _Place] = {}

    def series(self, row: Field, values: tuple[Value, ...]) -> dict[str, Number]:
        """A field's series by their labels; of two with equal ones the first counts."""
        met = self._met
        placed = [
            (met.get(id(subject)) or self._place(subject), subject, value)
            for subject, value in values
        ]
        # What hit the GPU hit no instance: both are exported.
        of_events = isinstance(row.whole, EventCount)
        in_parts = set() if of_events else {p.part_of for p, _, _ in placed}
        series: dict[str, Number] = {}
        for place, subject, value in placed:
            if not place.divided:
                series.setdefault(place.block, value)
            elif place.divided in in_parts:
                continue
            elif self._repeat:
                if of_events and not value:
                    continue  # nothing hit the GPU; what hit its instances they have themselves
                for part in self._slices[place.divided]:
                    series.setdefault(self._blocks.of(_of_part(part, subject)), value)
            else:
                series.setdefault(place.block, value)
        return series

    def _place(self, subject: Subject) -> _Place:
        entity, block = subject.entity, self._blocks.of(subject)
        match entity:
            case Slice(gpu):
                place = _Place(block, part_of=gpu.uuid)
            case WholeGpu(gpu) if self._slices.get(gpu.uuid):
                place = _Place(block, divided=gpu.uuid)
            case _:
                place = _Place(block)
        self._met[id(subject)] = place  # the sample keeps its subjects meanwhile
        return place


def _of_part(part: Subject, whole: Subject) -> Subject:
    """An instance with a value of its GPU, and the attributes of that value alone."""
    if not whole.attributes:
        return part
    return Subject(part.entity, tuple(dict((*part.attributes, *whole.attributes)).items()))


def label_texts(sample: SampleSet, labels: tuple[SelectedLabel, ...]) -> Mapping[str, Labels]:
    """The labels that text fields and numbers became: for the node, and for each GPU.

    One whose value is not known is left out.
    """
    texts = {uuid: dict(of_gpu) for uuid, of_gpu in sample.gpu_texts.items()}
    named = [(label.field.id, label.name) for label in labels]
    for number, _ in named:  # DCGM's files may make a label of a whole GPU's number, too
        for subject, value in sample.values.get(number, ()):
            if isinstance(subject.entity, WholeGpu):
                of_gpu = texts.setdefault(subject.entity.gpu.uuid, {})
                of_gpu.setdefault(number, str(round(value)))
    found: dict[str, Labels] = {}
    for uuid in ("", *sorted(texts)):
        known = {**texts.get(uuid, {}), **sample.node_texts}
        found[uuid] = tuple((name, known[number]) for number, name in named if known.get(number))
    return {uuid: its for uuid, its in found.items() if its or uuid}
