"""The HTTP surface, over a real listener: each answer as described, the end."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import jsonschema
import pytest
from aiohttp import ClientSession, UnixConnector

from nodeagent.api.limits import TCP_LIMITS
from nodeagent.api.listening import listen
from nodeagent.api.openapi import DESCRIPTION
from nodeagent.api.routes import create_app
from nodeagent.reconcile.event_log import EventType
from nodeagent.structs import replace
from nodeagent.views.node_state import NodeState
from nodeagent.views.shapes import Cluster, ClusterProblem
from nodeagent.views.status_report import status_json
from tests.api.serving import api, assert_described
from tests.machine_load import stretched


async def test_every_answer_is_as_described() -> None:
    """Each path's answer fits the schema that /openapi.json gives for it."""
    async with api() as served:
        served.events.add(EventType.APPLIED, "done", gpu="GPU-1")
        for path in (
            "/healthz",
            "/readyz",
            "/v1/status",
            "/v1/plan",
            "/v1/mps",
            "/v1/events",
            "/openapi.json",
        ):
            status, body = await served.get(path)
            assert status == 200
            assert_described(path, 200, body)


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(server="https://api:6443", reachable=True, registered=True),
        Cluster(
            server="https://api:6443",
            reachable=False,
            registered=False,
            since="2030-01-02T00:00:00.000Z",
            problem=ClusterProblem(message="no", remedy="do"),
        ),
    ],
)
def test_the_cluster_in_the_status_is_as_described(cluster: Cluster) -> None:
    """Whether all is well or nothing is, and no key of it is undescribed."""
    status = status_json(NodeState("node-a", "annotation", cluster=cluster))
    assert status is not None
    assert_described("/v1/status", 200, status)
    described = DESCRIPTION["components"]["schemas"]["Cluster"]["properties"]
    assert status["cluster"].keys() <= described.keys()


async def test_the_description_lists_exactly_the_routes() -> None:
    """Nothing undescribed is served, and nothing described is missing."""
    async with api() as served:
        app = create_app(served.answers, listen_host="", limits=TCP_LIMITS)
        routes = {
            (route.method.lower(), route.resource.canonical)
            for route in app.router.routes()
            if route.resource and route.method != "HEAD"
        }
    described = {(method, path) for path, item in DESCRIPTION["paths"].items() for method in item}
    assert routes == described


def test_the_descriptions_schemas_are_valid() -> None:
    """Every schema is one, and every reference leads somewhere."""
    for schema in DESCRIPTION["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    names = {
        part.split('"')[0] for part in json.dumps(DESCRIPTION).split("#/components/schemas/")[1:]
    }
    assert names <= set(DESCRIPTION["components"]["schemas"])


def test_every_operation_has_a_name() -> None:
    """One of its own, as generators of clients want it for a function."""
    names = [
        operation["operationId"]
        for path in DESCRIPTION["paths"].values()
        for operation in path.values()
    ]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+([A-Z][a-z]+)*", name) for name in names)


async def test_reasons_make_a_503() -> None:
    """Not alive and not ready come with their reasons."""
    async with api() as served:
        served.reasons.append("the reconciler has not been heard of")
        for path in ("/healthz", "/readyz"):
            status, body = await served.get(path)
            assert status == 503
            assert body["reasons"] == served.reasons
            assert_described(path, 503, body)


async def test_the_status_of_one_gpu_is_that_of_now() -> None:
    """Also where nothing else is requested; its tag is another one then."""
    async with api() as served:
        url = f"{served.base}/v1/status?gpu={served.answers.state.observed.gpus[1].uuid}"
        async with served.session.get(url) as answer:
            known = {"If-None-Match": answer.headers["ETag"]}
        served.answers.state = replace(served.answers.state, source="annotation")
        async with asyncio.timeout(stretched(30)):
            found = b""
            while not found:
                async with served.session.get(url, headers=known) as answer:
                    found = await answer.read()
        assert json.loads(found)["source"] == "annotation"


async def test_the_unix_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    """Mode 0600, the same answers, any Host; gone when the agent is gone."""
    path = tmp_path / "agent.sock"
    path.touch()  # left by an agent that was killed
    async with api(unix_socket=path):
        assert path.stat().st_mode & 0o777 == 0o600
        async with (
            ClientSession(connector=UnixConnector(str(path))) as session,
            session.get("http://agent/healthz") as answer,
        ):
            assert answer.status == 200
    assert not path.exists()


async def test_a_taken_address_is_reported_in_a_sentence() -> None:
    """Who starts a second agent learns what to set."""
    from nodeagent.errors import NodeagentError

    async with api() as served:
        port = int(served.base.rsplit(":")[-1])
        with pytest.raises(NodeagentError, match=r"cannot listen on 127\.0\.0\.1"):
            async with listen(served.answers, "127.0.0.1", port, served.refusals):
                pass
