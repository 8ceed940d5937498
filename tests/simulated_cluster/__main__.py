"""`python -m tests.simulated_cluster`: an API server and a kubelet for trying the agent by hand.

It writes a kubeconfig that the agent and kubectl take, prints where everything is, and runs until
it is interrupted. With `--agent BOARDS` an agent on simulated GPUs runs against it, what that
writes into the Node's status annotation is printed as it comes, and pods that ask for a GPU get a
claim, a device and a start.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from nodeagent.claims.records import FOLDER
from nodeagent.cli.run import check_free
from nodeagent.errors import NodeagentError
from nodeagent.reconcile.writer_lock import FILE_NAME, writer_lock
from nodeagent.settings import Address
from nodeagent.simulation.state_file import directory_beside
from tests.simulated_cluster.agent import NAME, PLAN, STATUS, command, kubeconfig, status_of
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.kubelet import Kubelet
from tests.simulated_cluster.kubelet_claims import DraKubelet
from tests.simulated_cluster.workloads import NAMESPACE, Workloads

PLANS = (  # for one GPU, so that the others are left to claims
    "{version: v1, gpus: [{devices: [0], mig: {3g.40gb: 1, 1g.10gb: 3}}]}",
    "{version: v1, gpus: [{devices: [0], mig: {9g.90gb: 1}}]}",  # refused, with the reason
)
LISTING, KUBELET = "pod-resources", "kubelet"  # folders of the kubelet's sockets
POD = "trainer"
RESOURCE = "nvidia.com/mig-2g.20gb"  # of which the first plan has none: it is made for the pod


def starting(url: str) -> str:
    """The shell command that makes a pod which asks for a slice."""
    container = {"name": "main", "image": "none", "resources": {"limits": {RESOURCE: 1}}}
    pod = json.dumps({"metadata": {"name": POD}, "spec": {"containers": [container]}})
    kind = "Content-Type: application/json"
    return shlex.join(["curl", "-sSo/dev/null", "-XPOST", "-H", kind, pods(url), "-d", pod])


def ending(url: str) -> str:
    return shlex.join(["curl", "-sSo/dev/null", "-XDELETE", f"{pods(url)}/{POD}"])


def pods(url: str) -> str:
    return f"{url}/api/v1/namespaces/{NAMESPACE}/pods"


def annotating(url: str, node: str, plan: str) -> str:
    """The shell command that asks for a plan."""
    patch = json.dumps({"metadata": {"annotations": {PLAN: plan}}})
    kind = "Content-Type: application/merge-patch+json"
    return shlex.join(
        ["curl", "-sSo/dev/null", "-XPATCH", "-H", kind, f"{url}/api/v1/nodes/{node}", "-d", patch]
    )


def reading(url: str, node: str) -> str:
    """The shell command that shows the status annotation."""
    show = f'import json, sys; print(json.load(sys.stdin)["metadata"]["annotations"]["{STATUS}"])'
    return f"curl -sS {url}/api/v1/nodes/{node} | python3 -c {shlex.quote(show)}"


def say(api: ApiServer, kubelet: Kubelet, node: str, config: Path) -> None:
    """Tell where everything is, and what to do with it."""
    kubectl = f"kubectl --kubeconfig {config}"
    print(f"API server  {api.url}")
    print(f"kubeconfig  {config}")
    print(f"kubelet     {kubelet.socket}")
    print("\nask for a plan, and for one that no card can give:")
    for plan in PLANS:
        print(f"  {annotating(api.url, node, plan)}")
    print("see what came of it:")
    print(f"  {reading(api.url, node)}")
    print("or, where there is a kubectl:")
    plan = shlex.quote(f"{PLAN}={PLANS[0]}")
    print(f"  {kubectl} annotate node {node} --overwrite {plan}")
    print(f"  {kubectl} get node {node} -o yaml --watch")
    print(f"  {kubectl} get resourceslices,resourceclaims\n", flush=True)


async def tell_statuses(api: ApiServer, node: str) -> NoReturn:
    """Print every new status annotation in short."""
    changes: asyncio.Queue[Any] = asyncio.Queue()
    api.store.watching.add(changes)
    reported = None
    while True:
        change = await changes.get()
        found = change.after or {}
        status = status_of(found) if found.get("metadata", {}).get("name") == node else None
        if status is not None and status != reported:
            reported = status
            print(f"status  {'; '.join([status['phase'], *_problems(status)])}", flush=True)


def _problems(status: dict[str, Any]) -> list[str]:
    """Each with its place in the plan, where it has one."""
    found = status.get("problems", ())
    return [": ".join(filter(None, (p.get("path"), p["message"]))) for p in found]


async def go_away_on_request(api: ApiServer) -> NoReturn:
    """At SIGUSR1 the API server refuses connections, until the next one."""
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, asked.set)
    while True:
        await asked.wait()
        asked.clear()
        await api.stop()
        print("the API server is away", flush=True)
        await asked.wait()
        asked.clear()
        await api.start()
        print("the API server is back", flush=True)


@contextlib.contextmanager
def telling_when_ready(folder: Path, listen: str) -> Iterator[Path]:
    """Print it when the agent notifies, as it does systemd, on the socket whose path is given."""
    path, loop = folder / "notify", asyncio.get_running_loop()
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(path))

        def hear() -> None:
            if b"READY=1" in notified.recv(4096).split(b"\n"):
                print(f"the agent is ready: http://{listen}/", flush=True)

        loop.add_reader(notified, hear)
        try:
            yield path
        finally:
            loop.remove_reader(notified)


async def until_stopped(agent: list[str], folder: Path, notified: Path) -> int:
    """Wait for SIGINT or SIGTERM, with the agent (an empty command: without one); an exit code."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if not agent:
        await stop.wait()
        return 0
    process = await asyncio.create_subprocess_exec(
        *agent,
        env={
            **os.environ,
            "NODEAGENT_KUBELET_USE": "always",
            "NODEAGENT_KUBELET_SOCKET": f"{folder}/{LISTING}/kubelet.sock",
            "NODEAGENT_DRA_MODE": "dynamic",
            "NODEAGENT_KUBELET_DIR": f"{folder}/{KUBELET}",
            "NODEAGENT_CDI_DIR": f"{folder}/cdi",
            "NOTIFY_SOCKET": str(notified),
        },
        process_group=0,  # Ctrl-C is ours; a second signal would cut the agent short
    )
    ended, stopped = asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())
    await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if ended.done():
        return ended.result()
    process.terminate()
    return await ended


def program() -> str:
    """The program as one types it here: that of the environment in use."""
    beside = Path(sys.executable).with_name("nodeagent")
    return str(beside) if beside.exists() else f"{sys.executable} -m nodeagent"


def begin_anew(folder: Path, listen: str) -> None:
    """A new node, of which no agent knows anything, and no claims; raises NodeagentError, with
    everything as it was, where an agent runs in the folder or the address is taken.
    """
    host, _, port = listen.rpartition(":")
    check_free(Address(host, int(port)))
    state = folder / "node.json"
    with writer_lock(state.with_name(f"{state.name}.{FILE_NAME}")):
        state.unlink(missing_ok=True)
        shutil.rmtree(folder / "state", ignore_errors=True)
        shutil.rmtree(directory_beside(state) / FOLDER, ignore_errors=True)


async def serve(options: argparse.Namespace) -> int:
    """Serve one Node until a signal, or until the agent ends by itself; an exit code."""
    folder: Path = options.folder.absolute()
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(ApiServer(port=options.port))
        kubelet = await stack.enter_async_context(Kubelet(folder / LISTING))
        plugins = DraKubelet(folder / KUBELET, pod_resources=kubelet)
        await stack.enter_async_context(plugins)
        api.add_node(options.node)
        config = folder / "kubeconfig"
        whole = config.with_name("kubeconfig.new")  # who waits for the file finds all of it
        whole.write_text(kubeconfig(api.url), encoding="utf-8")
        whole.rename(config)
        say(api, kubelet, options.node, config)
        if options.agent:
            print("a pod gets a slice that is made for it; see it, and take it away again:")
            print(f"  {starting(api.url)}")
            print(f"  {program()} status --run-dir {folder}/run")
            print(f"  {ending(api.url)}")
            print("take the API server away; the same line brings it back:")
            print(f"  kill -USR1 {os.getpid()}")
            print(flush=True)
        workloads = Workloads(api, plugins, options.node, lambda text: print(text, flush=True))
        tasks = (tell_statuses(api, options.node), workloads.run(), go_away_on_request(api))
        for following in tasks:
            stack.callback(asyncio.create_task(following).cancel)
        agent: list[str] = []
        if options.agent:
            state = ("--state", str(folder / "node.json"))
            agent = [*command(options.agent, folder, options.node), *state]
            agent += ["--listen", options.listen]
        notified = stack.enter_context(telling_when_ready(folder, options.listen))
        return await until_stopped(agent, folder, notified)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulated_cluster", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".local/cluster"), help="for its files")
    parser.add_argument("--node", default=NAME, help="the Node's name")
    parser.add_argument("--port", type=int, default=0, help="of the API server; 0 for a free one")
    parser.add_argument("--agent", metavar="BOARDS", help="run an agent on these simulated GPUs")
    parser.add_argument("--listen", default="127.0.0.1:9470", help="where the agent's page is")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    try:
        if options.agent:
            begin_anew(options.folder, options.listen)
    except NodeagentError as error:
        sys.exit(str(error))
    return asyncio.run(serve(options))


if __name__ == "__main__":
    sys.exit(main())
