"""What the status shows of GPUs at work."""

from __future__ import annotations

from nodeagent.metrics.samples import GpuIdentity, NvLink, SampleSet, Slice, Subject, WholeGpu
from nodeagent.telemetry.accounting import activity, readings
from nodeagent.views.node_state import Reading

GPU = GpuIdentity(0, "GPU-0", "00000000:1A:00.0", 0, "NVIDIA H100 80GB HBM3")
WHOLE, PART = Subject(WholeGpu(GPU)), Subject(Slice(GPU, "3g.40gb", 2))


def test_each_device_has_what_was_read_of_it() -> None:
    """In percent, degrees, watts and bytes; what was not read is not there, and links have none."""
    sample = SampleSet(
        {
            150: ((WHOLE, 64),),
            155: ((WHOLE, 412.345),),
            203: ((WHOLE, 37),),
            252: ((WHOLE, 2048), (PART, 1)),
            1001: ((PART, 0.5),),
            449: ((Subject(NvLink(GPU, 0)), 7),),
        }
    )
    assert readings(sample, activity(sample)) == {
        ("GPU-0", None): Reading(37.0, 64, 412.3, 2 << 30),
        ("GPU-0", 2): Reading(utilization=50.0, memory=1 << 20),
    }
