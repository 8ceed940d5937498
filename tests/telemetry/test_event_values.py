from nodeagent.health.state import HealthState
from nodeagent.metrics.catalogue import catalogue
from nodeagent.metrics.samples import GpuIdentity, SampleSet, Subject, WholeGpu
from nodeagent.metrics.selection import CLOCK_EVENT_REASONS
from nodeagent.telemetry.event_values import EventValues
from nodeagent.telemetry.samples import SampleBatch

GPU = Subject(WholeGpu(GpuIdentity(0, "GPU-0", "0000:01:00.0", 0, "H100")))


def test_clock_events_of_the_last_five_minutes_are_counted() -> None:
    values = EventValues()
    rows = [r for r in catalogue().composed if r.name == "DCGM_EXP_CLOCK_EVENTS_COUNT"]

    def counted(now: float, *reasons: int) -> dict[str, float]:
        read = {CLOCK_EVENT_REASONS: tuple((GPU, bits) for bits in reasons)}
        found = SampleBatch(samples={"fast": SampleSet(read)})
        sample = values.composed(rows, found, HealthState(), {}, now)
        known = sample.values.get(rows[0].id, ())
        return {dict(subject.attributes)["clock_event"]: value for subject, value in known}

    assert counted(0.0, 0x104) == {"power_cap": 1, "display_clocks": 1}
    assert counted(300.0, 0x4, 0) == {"power_cap": 2, "display_clocks": 1}
    assert counted(300.1) == {"power_cap": 1}
    assert counted(601.0) == {}
