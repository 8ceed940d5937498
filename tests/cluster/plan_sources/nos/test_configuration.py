"""The key of nos' ConfigMap that the Node's label names: read once, and a failure is reported."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.plan_sources.nos.source import NosConfiguration, ReadIntervals, Trouble
from nodeagent.errors import UsageError
from nodeagent.reconcile.plan_update import NoPlan, UnreadablePlan
from tests.cluster.client.rig import running, until
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Html, Reset

WHERE = ("nebuly-nvidia", "nos-device-plugin-configs")
PLACE = "/".join(WHERE)
PATH = "/api/v1/namespaces/nebuly-nvidia/configmaps/nos-device-plugin-configs"
QUICK = ReadIntervals(interval=0.02, retry=(0.02, 0.04))


@dataclass
class Reader:
    """A reader that is running, with what it reported: a text, or trouble."""

    server: ApiServer
    configuration: NosConfiguration
    reported: list[str | Trouble | None] = field(default_factory=list)

    def put(self, **texts: str) -> None:
        """Write the ConfigMap."""
        data = {key.replace("_", "-"): text for key, text in texts.items()}
        self.server.put_config_map(*WHERE, data)

    @property
    def asked(self) -> int:
        """How often the ConfigMap was asked for."""
        return len([r for r in self.server.requests if r.path == PATH])


@pytest.fixture
async def reader(server: ApiServer, access: ClusterAccess) -> AsyncIterator[Reader]:
    """With short times."""

    def changed() -> None:
        made.reported.append(made.configuration.found)

    made = Reader(
        server, NosConfiguration(access, PLACE, changed, intervals=QUICK, jitter=lambda: 0.01)
    )
    async with running(made.configuration.run()):
        yield made


async def test_a_key_is_read_once(reader: Reader) -> None:
    """One request for each key, however long it is wanted; no key, no request."""
    reader.put(node_1_a="one", node_10_a="ten", node_1_b="two")
    reader.configuration.want(None)
    reader.configuration.want("node-1-a")
    await until(lambda: reader.reported == ["one"])
    reader.configuration.want("node-1-a")
    reader.configuration.want("node-1-b")
    assert reader.configuration.found is None  # what was under another key is not it
    await until(lambda: reader.reported == ["one", "two"])
    reader.configuration.want(None)
    assert reader.configuration.found is None
    assert reader.asked == 2


async def test_a_key_that_flips(reader: Reader) -> None:
    """However often the label changes, requests keep their distance and the last key wins."""
    reader.put(a="one", b="two")
    for key in ["a", "b"] * 50:
        reader.configuration.want(key)
    await until(lambda: reader.reported == ["two"])
    assert reader.asked == 1


@pytest.mark.parametrize("there", [None, {}, {"other": "x"}])
async def test_what_is_missing_is_looked_for_again(
    reader: Reader, there: dict[str, str] | None
) -> None:
    """No ConfigMap, or no such key in it: reported once, and used as soon as it is there."""
    if there is not None:
        reader.put(**there)
    reader.configuration.want("node-a-1")
    await until(lambda: reader.asked >= 3)
    (trouble,) = reader.reported
    assert isinstance(trouble, UnreadablePlan)
    assert '"node-a-1"' in trouble.problem.message
    assert PLACE in trouble.problem.message
    reader.put(node_a_1="text")
    await until(lambda: reader.reported[1:] == ["text"])


async def test_forbidden(reader: Reader) -> None:
    """What a person has to mend is a refusal that says so."""
    reader.server.faults.next(1, Answer(403), path=PATH)
    reader.put(a="text")
    reader.configuration.want("a")
    await until(lambda: len(reader.reported) == 2)
    trouble, text = reader.reported
    assert isinstance(trouble, UnreadablePlan)
    assert "cannot be read" in trouble.problem.message
    assert trouble.problem.remedy
    assert text == "text"


@pytest.mark.parametrize("fault", [Answer(500), Answer(429), Html(), Reset()])
async def test_what_passes(reader: Reader, fault: Answer | Html | Reset) -> None:
    """While the API server does not answer there is no plan, and nothing is refused."""
    reader.server.faults.next(2, fault, path=PATH)
    reader.put(a="text")
    reader.configuration.want("a")
    await until(lambda: "text" in reader.reported)
    first, *_ = reader.reported
    assert isinstance(first, NoPlan)
    assert PLACE in first.reason
    assert reader.asked == 3


async def test_another_key_does_not_wait(server: ApiServer, access: ClusterAccess) -> None:
    """A key that is there is read at once, however long the missing one would be waited for."""
    reported: list[str | Trouble | None] = []
    patient = ReadIntervals(interval=0.0, retry=(3600.0, 3600.0))
    found = NosConfiguration(access, PLACE, lambda: reported.append(found.found), intervals=patient)
    server.put_config_map(*WHERE, {"b": "text"})
    async with running(found.run()):
        found.want("a")
        await until(lambda: reported)
        found.want("b")
        await until(lambda: reported[1:] == ["text"])


@pytest.mark.parametrize("place", ["name", "/name", "namespace/", "a/b/c"])
def test_no_place(access: ClusterAccess, place: str) -> None:
    """A setting that names no ConfigMap is refused with what would be right."""
    with pytest.raises(UsageError, match="NAMESPACE/NAME"):
        NosConfiguration(access, place, lambda: None)
