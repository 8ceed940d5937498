"""What the agent says of itself, and the table of its own metrics."""

from __future__ import annotations

import re

import pytest

from nodeagent.metrics.agent_metrics import (
    AGENT_METRICS,
    RECONCILE_DURATION,
    AgentSample,
    Durations,
    agent_families,
)
from nodeagent.metrics.agent_samples import ReaderState, Work, reader_samples
from nodeagent.metrics.catalogue import Kind
from nodeagent.metrics.exposition import render
from nodeagent.plan.plan import (
    GpuOutcome,
    GpuPlan,
    NodeOutcome,
    NodePlan,
    StepReport,
    StepResult,
    Verdict,
)
from nodeagent.plan.steps import ResetGpu, SetMigMode
from tests.plan.cards import card

PROMISED = {
    "nodeagent_plan_applied",
    "nodeagent_steps_total",
    "nodeagent_reconcile_duration_seconds",
    "nodeagent_mig_instances",
    "nodeagent_mig_slots_free",
    "nodeagent_mps_daemon_up",
    "nodeagent_mps_restarts_total",
    "nodeagent_mps_client_memory_bytes",
    "nodeagent_mps_client_memory_limit_bytes",
    "nodeagent_sample_age_seconds",
    "nodeagent_reader_success",
    "nodeagent_build_info",
}


def _series(*samples: AgentSample) -> list[str]:
    return [
        line for line in render(agent_families(samples)).decode().splitlines() if line[0] != "#"
    ]


def test_the_names_that_users_rely_on_are_there() -> None:
    """Every metric that is promised is in the table, once, in Prometheus' own manner."""
    names = [metric.name for metric in AGENT_METRICS]
    assert set(names) >= PROMISED
    assert len(set(names)) == len(names)
    for metric in AGENT_METRICS:
        assert re.fullmatch(r"(nodeagent|process)_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.type is Kind.COUNTER), metric.name
        assert metric.help
        assert not metric.help.endswith(".")


def test_steps_are_counted_by_kind_and_result() -> None:
    """The way back is counted too; names are those of the JSON."""
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


def test_durations_are_a_histogram_that_the_parser_takes() -> None:
    """Buckets grow up to the count; what is longer than the last bound is in +Inf alone."""
    parser = pytest.importorskip("prometheus_client.parser")
    durations = Durations(RECONCILE_DURATION, bounds=(0.5, 1.0))
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
    """A reader that never got any has no age; labels that do not apply are left out."""
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
