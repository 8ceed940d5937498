"""A claim's record that a later release wrote: nothing of the claim is touched."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.errors import NodeagentError
from nodeagent.files.state import StateFormat, write_state
from nodeagent.simulation import SimulatedNode
from tests.claims.machine import UIDS, Home, laid_out, pool_of

FIRST = 4711  # the pod's process


def claims_of(home: Home, node: SimulatedNode) -> list[tuple[str, str, str]]:
    """A slice of the first card, and all of the second; both have pods that run."""
    keys = (pool_of(node), "mig-1g-10gb-2"), (pool_of(node, 1), "gpu")
    names = [home.claim(number, key) for number, key in enumerate(keys)]
    for name, key in zip(names, keys, strict=True):
        home.run_pod(name, key)
    return names


async def test_before_a_later_release(node: SimulatedNode, home: Home) -> None:
    """Of a claim that a newer agent recorded, nothing is touched until that release is back: who
    asks for it, or for a place beside it, reads why. Other cards go on.
    """
    names = claims_of(home, node)
    async with home.core() as (claims, _):
        devices = [await claims.prepare(*name) for name in names]
    node.occupy(devices[0][0].uuid, pid=FIRST, command="train")
    path = home.records_dir / f"{UIDS[0]}.json"
    content, gpu = path.read_bytes(), devices[0][0].gpu
    later = f'{{"gpus": ["{gpu}"], "record": {{"of": "the future"}}}}'.encode()
    newer: StateFormat[Any] = StateFormat("claim", 2, 1 << 20, lambda _: later, lambda _: None)
    write_state(path, newer, None)
    files = home.files()
    message = (
        f"the record of a claim, {path}, cannot be used: a newer nodeagent wrote it (version 2; "
        f"this one reads 1); nothing new is created for claims on {gpu}"
    )
    home.pods = []
    async with home.core() as (claims, _):
        [problem] = claims.store.problems
        assert problem.message == message
        assert problem.remedy == (
            "start the release that wrote it; or check with nvidia-smi mig -lgi that the claim's "
            "instances are gone, and with nodeagent mps status that its MPS daemon is (nodeagent "
            f"mps drain DEVICE ends it), and rm {path}"
        )
        for asked in (claims.prepare(*names[0]), claims.release(UIDS[0])):
            with pytest.raises(NodeagentError) as refused:
                await asked
            assert refused.value.message == message
        with pytest.raises(NodeagentError, match="a newer nodeagent wrote it"):
            await claims.prepare(*home.claim(2, (pool_of(node), "mig-1g-10gb-5")))
        await home.upkeep(claims).round()
        assert (laid_out(node), home.files()) == ([(2, 1)], files)
        assert [process.pid for process in node.card(0).state.processes] == [FIRST]
        assert await claims.prepare(*names[1]) == devices[1]
        await claims.release(UIDS[1])
        assert home.records() == [path.name]
    path.write_bytes(content)
    async with home.core() as (claims, _):
        assert claims.store.problems == ()
        assert await claims.prepare(*names[0]) == devices[0]
