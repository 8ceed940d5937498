import asyncio
import contextlib
import json
import shlex
import shutil
import signal
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.cluster_rig import SOON, plan_text
from tests.agent_environment import own_host
from tests.machine_load import stretched, until
from tests.simulated_cluster.__main__ import begin_anew
from tests.simulated_cluster.agent import (
    NAME,
    PLAN,
    STATUS,
    AgentProcess,
    command,
    in_sync,
    kubeconfig,
    status,
    until_status,
)
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Freeze

LAYOUTS = ("{3g.40gb: 1, 1g.10gb: 3}", "{2g.20gb: 2, 1g.10gb: 3}")
MAX_RESIDENT = 110  # MiB
MAX_SECONDS = 10.0  # seconds; only a gross failure exceeds it, the benchmark measures


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        server.tokens["first"] = "agent"
        server.add_node(NAME)
        yield server


@contextlib.asynccontextmanager
async def agent(folder: Path, api: ApiServer, boards: str) -> AsyncIterator[AgentProcess]:
    token = folder / "token"
    token.write_text("first")
    (folder / "kubeconfig").write_text(kubeconfig(api.url, token_file=token))
    async with AgentProcess(command(boards, folder), folder) as process:
        yield process
    assert process.code == 0, process.said()


async def ask(api: ApiServer, plan: str) -> float:
    """Ask for a plan, await it on the Node; how many seconds that took."""
    begun = asyncio.get_running_loop().time()
    api.annotate(NAME, **{PLAN: plan})
    await until_status(api, in_sync(plan))
    return asyncio.get_running_loop().time() - begun


async def unwritten(api: ApiServer, seconds: float) -> None:
    """Wait until the Node was not written for so long: then the next write need not wait."""
    clock = asyncio.get_running_loop().time

    def last() -> float:
        return max(r.time for r in api.requests if r.write and "/nodes/" in r.path)

    while last() + seconds > clock():
        await asyncio.sleep(0.05)


async def test_an_account_that_nothing_limits(tmp_path: Path, api: ApiServer) -> None:
    api.access.unguarded = True
    async with agent(tmp_path, api, "t4:1"):
        found = await until_status(api, lambda status: bool(status["problems"]))
    assert found["headline"]["severity"] == "warning"
    assert found["headline"]["code"] == "Unguarded"


def without_events(api: ApiServer) -> Counter[str]:
    """The requests so far, but for Events, which are sent at leisure."""
    return Counter(
        "watch" if request.watch else f"{request.method} {request.path}"
        for request in api.requests
        if not request.path.endswith("/events") and "/events/" not in request.path
    )


async def test_a_life_in_a_cluster(api: ApiServer, tmp_path: Path) -> None:
    """Changes are answered soon, quiet means no request, and a new token and a server that was away
    cost no plan; all at the product's own pace. Its end waits for no server.
    """
    async with agent(tmp_path, api, "h100-80gb:2"):
        await ask(api, plan_text(LAYOUTS[1]))
        await unwritten(api, 1.05)
        assert await ask(api, plan_text(LAYOUTS[0])) < MAX_SECONDS

        await unwritten(api, 1.5)
        steady = without_events(api)
        assert steady["watch"] == 1
        await asyncio.sleep(1.5)
        assert without_events(api) == steady

        (tmp_path / "token").write_text("second")
        api.tokens["second"] = "agent"
        api.revoke("first")
        before = len(api.requests)
        async with api.refusing():
            await asyncio.sleep(0.5)
        await ask(api, plan_text(LAYOUTS[0], "back"))
        assert len(api.requests) - before <= 10

        api.faults.next(100, Freeze())
        api.faults.strike(Freeze())
        api.annotate(NAME, **{PLAN: plan_text(LAYOUTS[1], "not answered any more")})
    # Exit code 0 shows that a silent server does not keep the agent from ending.


async def test_what_it_takes_of_memory(api: ApiServer, tmp_path: Path) -> None:
    async with agent(tmp_path, api, "h100-80gb:8") as process:
        await ask(api, plan_text("{1g.10gb: 7}"))
        await asyncio.sleep(3)
        assert process.resident < MAX_RESIDENT * 2**20
        found = status(api)
        assert found is not None
        assert sum(len(gpu["instances"]) for gpu in found["gpus"]) == 56


# --- make run-cluster ---------------------------------------------------------------------------


def sent(line: str) -> None:
    words = shlex.split(line)
    assert words[0] == "curl"
    url = next(word for word in words if word.startswith("http://"))
    method = next(word for word in words if word.startswith("-X")).removeprefix("-X")
    headers, body = {}, None
    if "-d" in words:
        name, _, value = words[words.index("-H") + 1].partition(": ")
        headers, body = {name: value}, words[words.index("-d") + 1].encode()
    request = urllib.request.Request(url, body, headers, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status in {200, 201}


async def test_by_hand(tmp_path: Path) -> None:
    """`make run-cluster` prints lines that work, shows what comes of them, and ends at Ctrl-C."""
    listen = f"{own_host()}:9418"
    command = [sys.executable, "-m", "tests.simulated_cluster", "--folder", str(tmp_path)]
    command += ["--agent", "h100-80gb:2", "--listen", listen]
    with (tmp_path / "stderr").open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=stderr
        )
    assert process.stdout is not None

    async def line(start: str) -> str:
        assert process.stdout is not None
        async with asyncio.timeout(stretched(SOON)):
            async for raw in process.stdout:
                if raw.decode().strip().startswith(start):
                    return raw.decode().strip()
        raise AssertionError(f"it ended without a line that starts with {start}")

    try:
        good, bad = await line("curl"), await line("curl")
        reading, starting, ending = await line("curl"), await line("curl"), await line("curl")
        url = next(word for word in shlex.split(reading) if word.startswith("http://"))
        assert await line("the agent is ready") == f"the agent is ready: http://{listen}/"
        # What is offered before the plan is tainted after it: wait until there is something.
        await until(lambda: len(offering_pools(url)) == 2)
        await asyncio.to_thread(sent, good)
        await until(lambda: len(instances(url)) == 4)
        await until(lambda: f"\nhttp://{listen}/\n" in (tmp_path / "stderr").read_text())
        second = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, refusal = await second.communicate()
        assert second.returncode == 1
        assert f"cannot listen on {listen}: another program ".encode() in refusal
        await asyncio.to_thread(sent, bad)
        assert "gpus[0].mig" in await line("status  Rejected")
        # Until then the scheduler may choose what was offered before there was a plan.
        await until(lambda: "gpu.nodeagent.io/withdrawn" in slices(url))
        await asyncio.to_thread(sent, starting)
        assert "nodeagent.io/claim=" in await line("pod trainer runs")
        await until(lambda: len(instances(url)) == 5)
        await asyncio.to_thread(sent, ending)
        await line("pod trainer is gone")
        if shutil.which("kubectl"):
            kinds = ("get", "resourceslices,resourceclaims", "-o", "name")
            assert "resourceslice.resource.k8s.io/" in await kubectl(tmp_path, *kinds)
        await until(lambda: len(instances(url)) == 4)
        process.send_signal(signal.SIGUSR1)
        await line("the API server is away")
        with pytest.raises(urllib.error.URLError):
            instances(url)
        process.send_signal(signal.SIGUSR1)
        await line("the API server is back")
        assert len(instances(url)) == 4
    finally:
        process.send_signal(signal.SIGINT)
        code = await process.wait()
    assert code == 0


async def kubectl(folder: Path, *arguments: str) -> str:
    where = ("--kubeconfig", f"{folder}/kubeconfig", "--cache-dir", f"{folder}/cache")
    process = await asyncio.create_subprocess_exec(
        "kubectl", *where, *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return out.decode()


def test_a_new_node_is_not_taken_for_the_last_one(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/health.json").write_text("{}")
    begin_anew(tmp_path, "127.0.0.1:0")
    assert list(tmp_path.glob("state/*")) == []


def offering_pools(url: str) -> set[str]:
    specs = [item["spec"] for item in json.loads(slices(url))["items"]]
    return {spec["pool"]["name"] for spec in specs if spec.get("devices")}


def slices(url: str) -> str:
    path = "/apis/resource.k8s.io/v1/resourceslices"
    with urllib.request.urlopen(urllib.parse.urljoin(url, path), timeout=10) as answer:
        return str(answer.read(), "utf-8")


def instances(url: str) -> list[Any]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        reported = json.load(answer)["metadata"].get("annotations", {}).get(STATUS, "{}")
    return [i for gpu in json.loads(reported).get("gpus", ()) for i in gpu["instances"]]
