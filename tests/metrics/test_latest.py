"""The newest values of all readers, of what there is now."""

from __future__ import annotations

from nodeagent.metrics.samples import SampleSet, Slice, Subject, WholeGpu, merged
from tests.metrics.node import gpu, pod, slices

USED, TEMPERATURE = 252, 150
WHOLE = Subject(WholeGpu(gpu(0)))


def _slice(number: int, generation: int = 0) -> Subject:
    return Subject(Slice(gpu(0), "1g.10gb", number, generation))


def test_readers_are_put_together() -> None:
    """Values, and the texts that become labels."""
    fast = SampleSet({USED: ((WHOLE, 2),)}, {1: "575"})
    slow = SampleSet({TEMPERATURE: ((WHOLE, 40),)}, {}, {gpu(0).uuid: {53: "0123"}})
    sample = merged([fast, slow], {})
    assert sample.values == {USED: ((WHOLE, 2),), TEMPERATURE: ((WHOLE, 40),)}
    assert (sample.node_texts, sample.gpu_texts) == ({1: "575"}, {gpu(0).uuid: {53: "0123"}})


def test_a_series_ends_with_its_instance() -> None:
    """What was read of an instance before it was destroyed is not exported afterwards."""
    kept, gone = slices(gpu(0), 2)
    latest = [SampleSet({USED: ((WHOLE, 9), (kept, 1), (gone, 2))})]
    assert merged(latest, {gpu(0).uuid: (kept,)}).values[USED] == ((WHOLE, 9), (kept, 1))
    assert merged(latest, {}).values[USED] == ((WHOLE, 9),)


def test_an_instance_made_anew_has_no_old_values() -> None:
    """The same id and profile in another generation is another instance."""
    latest = [SampleSet({USED: ((_slice(7), 5),)})]
    assert merged(latest, {gpu(0).uuid: (_slice(7, generation=1),)}).values[USED] == ()


def test_values_belong_to_the_pod_of_now() -> None:
    """Who holds an instance is said by who looked last, unless the value says whose it is."""
    own = Subject(_slice(8).entity, pod("mine"))
    latest = [SampleSet({USED: ((_slice(7), 5), (own, 6))})]
    now = Subject(_slice(7).entity, pod("newcomer"))
    found = merged(latest, {gpu(0).uuid: (now, _slice(8))}).values[USED]
    assert found == ((now, 5), (own, 6))


def test_gpus_are_in_the_order_of_their_indices() -> None:
    """Which GPU answers first is random, and text in a changing order compresses badly."""
    second = Subject(WholeGpu(gpu(1)))
    latest = [SampleSet({USED: ((second, 2),)}), SampleSet({USED: ((WHOLE, 1),)})]
    assert merged(latest, {}).values[USED] == ((WHOLE, 1), (second, 2))
