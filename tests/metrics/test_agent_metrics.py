import pytest

from nodeagent.metrics.agent_metrics import AgentSample, Durations, agent_families
from nodeagent.metrics.agent_samples import ReaderState, Work, downtime, reader_samples
from nodeagent.metrics.exposition import render
from nodeagent.plan.observed import Gpu, Placement
from nodeagent.plan.plan import (
    GpuOutcome,
    GpuPlan,
    NodeOutcome,
    NodePlan,
    StepReport,
    StepResult,
    Verdict,
)
from nodeagent.plan.shares import Account, Share, Sharing, WantedMps
from nodeagent.plan.steps import (
    CreateGpuInstance,
    DestroyGpuInstance,
    ResetGpu,
    SetMigMode,
    StartMps,
    Step,
    StopMps,
)
from nodeagent.structs import replace
from tests.plan.cards import card


def _series(*samples: AgentSample) -> list[str]:
    return [
        line for line in render(agent_families(samples)).decode().splitlines() if line[0] != "#"
    ]


def test_steps_are_counted_by_kind_and_result() -> None:
    gpu = card("a100-40gb")
    step, back = SetMigMode(gpu.uuid, True, ""), ResetGpu(gpu.uuid, "")
    outcome = NodeOutcome(
        NodePlan(Verdict.APPLICABLE),
        (
            GpuOutcome(
                GpuPlan.in_sync(gpu),
                (StepReport(step, StepResult.DONE), StepReport(step, StepResult.FAILED)),
                gpu,
                restored=(StepReport(back, StepResult.DONE),),
            ),
        ),
    )
    work = Work()
    work.add_round(outcome, 0.3)
    work.add_round(outcome, 400.0)
    work.add_round(None, 0.01)
    lines = render(work.families()).decode().splitlines()
    assert 'nodeagent_steps_total{kind="setMigMode",result="done"} 2' in lines
    assert 'nodeagent_steps_total{kind="setMigMode",result="failed"} 2' in lines
    assert 'nodeagent_steps_total{kind="resetGpu",result="done"} 2' in lines
    assert "nodeagent_reconcile_duration_seconds_count 3" in lines


def test_counters_begin_with_0_so_that_an_increase_sees_the_first_event() -> None:
    work = Work()
    work.add_gpus([card("a100-40gb"), replace(card("h100-80gb"), mig=None)])
    work.add_reasons(["InUse"])
    lines = render(work.families()).decode().splitlines()
    for line in (
        'nodeagent_steps_total{kind="destroyInstance",result="failed"} 0',
        'nodeagent_claim_failures_total{operation="release",reason="InUse"} 0',
    ):
        assert line in lines
    slots = [line for line in lines if line.startswith("nodeagent_mig_slot_out_of_use")]
    assert [line.partition("slot=")[2] for line in slots] == [f'"{n}"}} 0' for n in range(8)]


def test_durations_are_a_histogram_that_the_parser_takes() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    durations = Durations("nodeagent_reconcile_duration_seconds", bounds=(0.5, 1.0))
    assert render([durations.family()]) == b""
    for seconds in (0.5, 0.75, 9.0):
        durations.add(seconds)
    (family,) = parser.text_string_to_metric_families(render([durations.family()]).decode())
    assert family.type == "histogram"
    assert [(s.name.rsplit("_", 1)[1], s.labels.get("le"), s.value) for s in family.samples] == [
        ("bucket", "0.5", 1),
        ("bucket", "1.0", 2),
        ("bucket", "+Inf", 3),
        ("sum", None, 10.25),
        ("count", None, 3),
    ]


def test_readers_say_how_old_their_values_are() -> None:
    readers = (
        ReaderState("fast", succeeded=True, at=9.5, duration=0.02),
        ReaderState("slow", succeeded=False, gpu="1", uuid="GPU-1"),
    )
    assert _series(*reader_samples(readers, now=10.0)) == [
        'nodeagent_sample_age_seconds{reader="fast"} 0.5',
        'nodeagent_reader_success{reader="fast"} 1',
        'nodeagent_reader_success{reader="slow",gpu="1",UUID="GPU-1"} 0',
        'nodeagent_reader_duration_seconds{reader="fast"} 0.02',
    ]


GPU = Gpu(0, "GPU-0")
MPS = WantedMps(Sharing((Share("s", 1, None, None),), "report"), Account(1000, 1000))


def _destroy(start: int, size: int) -> Step:
    return DestroyGpuInstance("GPU-0", start, "p", Placement(start, size), (), "")


def _create(start: int, size: int) -> Step:
    return CreateGpuInstance("GPU-0", 0, "p", Placement(start, size), (1,), "")


Taken = tuple[Step, float]
MODE = SetMigMode("GPU-0", True, "")
STOP = StopMps("GPU-0", "MIG-1", "", "p", Placement(0, 1))
START = StartMps("GPU-0", "", MPS, "", "p", Placement(0, 1))
DESTROY, CREATE = _destroy(0, 1), _create(0, 1)


@pytest.mark.parametrize(
    ("steps", "restored", "slots"),
    [
        (
            ((_destroy(0, 2), 1.0), (_destroy(4, 1), 0.5), (CREATE, 2.0), (_create(1, 1), 1.0)),
            (),
            {0: 3.5, 1: 4.5, 4: 3.5},
        ),
        (((MODE, 1.0), (CREATE, 1.0)), (), {}),  # it was not touched
        (((DESTROY, 1.0),), ((CREATE, 0.25),), {0: 1.25}),  # the way back counts
        (((STOP, 0.5), (DESTROY, 1.0), (CREATE, 1.0), (START, 2.0)), (), {0: 4.5}),
    ],
)
def test_a_slice_is_out_of_use_until_something_is_made_on_it(
    steps: tuple[Taken, ...], restored: tuple[Taken, ...], slots: dict[int, float]
) -> None:
    def reports(taken: tuple[Taken, ...]) -> tuple[StepReport, ...]:
        return tuple(StepReport(step, StepResult.DONE, seconds) for step, seconds in taken)

    outcome = GpuOutcome(GpuPlan.in_sync(GPU), reports(steps), GPU, restored=reports(restored))
    assert downtime(outcome) == slots
