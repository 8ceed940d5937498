"""The agent's metrics over a simulated node in this process: read, rendered and scraped."""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from nodeagent.app.metrics_service import MetricsService
from nodeagent.gpu.driver import Driver
from nodeagent.metrics.catalogue import Tier
from nodeagent.plan.desired import DesiredNode
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.planner import plan
from nodeagent.reconcile.executor import execute
from nodeagent.settings import load_settings
from nodeagent.telemetry.samples import SampleBatch
from nodeagent.telemetry.sampling_service import SamplingService
from nodeagent.views.node_state import NodeState
from tests.cluster.client.rig import running as beside
from tests.machine_load import until
from tests.plan.cards import Multiset, card, wanted

SOON = 60.0  # seconds that anything may take
Series = tuple[str, frozenset[tuple[str, str]]]


class Watched:
    def __init__(
        self,
        driver: Driver,
        *,
        current: Callable[[], NodeState] | None = None,
        made: Callable[..., MetricsService] = MetricsService,
        **variables: str,
    ) -> None:
        given = {"NODEAGENT_SAMPLE_INTERVAL": "20ms", "NODEAGENT_SAMPLE_SLOW_INTERVAL": "50ms"}
        named = {f"NODEAGENT_{name.upper()}": value for name, value in variables.items()}
        settings = load_settings(
            Path("/dev/null"), {"NODE_NAME": "gpu-node-0", **given, **named}, {}
        )
        self._read = Counter[str]()  # how often each GPU was sampled
        self._readers: list[str] = []  # of the GPUs that answer
        self.state = NodeState("gpu-node-0", "file")
        self.sampling = SamplingService(driver, settings.sample, begin=_at_once)
        self.part = made(settings, self.sampling, current=current or (lambda: self.state))
        self.sampling.samples.subscribe(self._count)

    def _count(self, batch: SampleBatch) -> None:
        self._read.update(batch.samples.keys())
        fast = ((f"fast/{one.gpu}", one) for one in batch.readers if one.name == Tier.FAST)
        self._readers = [n for n, one in fast if one.succeeded or n in batch.samples]

    def observed(self, node: ObservedNode) -> None:
        self.state = NodeState("gpu-node-0", "file", observed=node)
        self.part.exporter.changed()

    async def sampled(self, times: int = 2) -> None:
        """Wait until every GPU that answers was read so often from now on, also a slow one."""
        before = self._read.copy()
        await until(
            lambda: (
                self._readers
                and all(self._read[name] >= before[name] + times for name in self._readers)
            )
        )

    def text(self) -> str:
        return self.part.scrape(False).decode()


async def _at_once() -> None:
    return


@asynccontextmanager
async def running(watched: Watched) -> AsyncIterator[Watched]:
    async with beside(watched.part.run()):
        await watched.sampled(1)
        yield watched


async def divide(driver: Driver, layout: Multiset, *, only: int | None = None) -> ObservedNode:
    """Make the GPUs, or only one of them, so; the node as it is then."""
    observed = await driver.observe()
    empty = card("h100-80gb")
    wishes = {g.uuid: wanted(empty, layout) for g in observed.gpus if only in {None, g.index}}
    await execute(plan(DesiredNode(wishes), observed), driver, parallel=8)
    return await driver.observe()


def parsed(text: str) -> dict[Series, float]:
    """What Prometheus' own parser reads, by the names that stand in the text."""
    found: dict[Series, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name
            if f"\n{name}{{" not in text and f"\n{name} " not in text:
                name = name.removesuffix("_total")  # the parser gives it to every counter
            key = (name, frozenset(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def reported(series: dict[Series, float], name: str, **labels: str) -> list[float]:
    """The values of a metric's series with at least these labels."""
    wanted = set(labels.items())
    return [value for (n, have), value in series.items() if n == name and wanted <= have]
