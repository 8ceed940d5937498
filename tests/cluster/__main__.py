"""`python -m tests.cluster`: the test API server and kubelet, for trying the agent by hand.

It writes a kubeconfig that the agent and kubectl take, prints where everything is, and runs until
it is interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
from pathlib import Path

import yaml

from tests.cluster.api_server import ApiServer
from tests.cluster.kubelet import Kubelet


def kubeconfig(url: str) -> str:
    """A kubeconfig of one cluster without credentials."""
    name = "nodeagent-test"
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": {"server": url}}],
            "users": [{"name": name, "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        },
        sort_keys=False,
    )


async def serve(folder: Path, node: str, port: int) -> None:
    """Serve one Node until SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        api = await stack.enter_async_context(ApiServer(port=port))
        kubelet = await stack.enter_async_context(Kubelet(folder / "pod-resources"))
        api.add_node(node)
        config = folder / "kubeconfig"
        config.write_text(kubeconfig(api.url), encoding="utf-8")
        print(f"API server  {api.url}")
        print(f"kubeconfig  {config}")
        print(f"kubelet     {kubelet.socket}")
        print(f"try         kubectl --kubeconfig {config} get node {node} -o yaml", flush=True)
        await stop.wait()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".local/cluster"), help="for its files")
    parser.add_argument("--node", default="gpu-node-0", help="the Node's name")
    parser.add_argument("--port", type=int, default=0, help="of the API server; 0 for a free one")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(serve(options.folder.absolute(), options.node, options.port))


if __name__ == "__main__":
    main()
