import asyncio
from functools import partial
from pathlib import Path
from typing import Any

from nodeagent.cluster.keeper import WriteIntervals
from nodeagent.simulation import SimulatedNode
from nodeagent.structs import replace
from tests.acceptance.cluster_rig import FIRST, NODE, PACE, Member, plan_text
from tests.machine_load import until
from tests.simulated_cluster.agent import PLAN, STATUS, digest
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.journal import Request

NAME = "nodeagent.io/plan-name"
OTHER = plan_text("{3g.40gb: 2}")


def written(api: ApiServer, since: float = 0.0) -> list[Request]:
    return [r for r in api.requests if r.write and "/nodes/" in r.path and r.time >= since]


def rejections(api: ApiServer) -> list[tuple[str, int]]:
    """The message and the count of each Event about a refused plan."""
    reported = [event for event in api.events if event["reason"] == "PlanRejected"]
    return [(event["message"], event["count"]) for event in reported]


def problems(member: Member) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (member.status or {}).get("problems", [])
    return listed


def paths(member: Member) -> list[str | None]:
    return [problem.get("path") for problem in problems(member)]


def devices(member: Member) -> set[str]:
    """The UUIDs of all MIG devices: another set means that something was made anew."""
    return {compute.uuid for i in member.rig.gpu().instances for compute in i.compute}


# What is written, and the place in it that is reported; none where all of it is wrong.
BAD = {
    "not YAML": ("version: v1\ngpus: [", None),
    "a list": ("[1, 2]", None),
    "a number": ("4711", None),
    "a word": ("3g.40gb", None),
    "nothing": ("", None),
    "control characters": ("version: v1\ngpus: \x01\x02\x1b[2J\x7f", None),
    "a NUL": ("version: v1\x00", None),
    "200 KiB": ("version: v1\n# " + "x" * (200 * 1024), None),
    "a bomb": ("a: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\nc: [*b,*b,*b,*b]\n", "a"),
    "an unknown key": ("version: v1\ngpus: [{devices: all, migs: {1g.10gb: 7}}]", "gpus[0].migs"),
    "keys that are no strings": (
        "version: v1\ngpus: [{devices: all, mig: {1: 2, true: 3}}]",
        "gpus[0].mig",
    ),
    "a date": ("version: v1\ngpus: [{devices: 2026-01-01, mig: {1g.10gb: 7}}]", "gpus[0].devices"),
    "one device twice": (
        "version: v1\ngpus: [{devices: [0, 0], mig: {1g.10gb: 7}}]",
        "gpus[0].devices[1]",
    ),
    "two wishes in one": (
        "version: v1\ngpus: [{devices: all, mig: disabled, mig: enabled}]",
        "gpus[0]",
    ),
    "two wishes for MPS": (
        "version: v1\ngpus: [{devices: all, mps: {replicas: 2, clients: {memory: 1Gi}}}]",
        "gpus[0].mps",
    ),
    "more than there is": (
        "version: v1\ngpus: [{devices: all, mig: {7g.80gb: 1, 1g.10gb: 1}}]",
        'gpus[0].mig["1g.10gb"]',
    ),
    "a card that is not there": (
        "version: v1\ngpus: [{devices: [7], mig: {1g.10gb: 7}}]",
        "gpus[0].devices[0]",
    ),
}


async def test_bad_plans_are_refused(member: Member) -> None:
    there = devices(member)
    for number, (what, (text, path)) in enumerate(BAD.items(), start=1):
        before = len(written(member.api))
        member.plan(text)
        await refused(member, text, number)
        # Annotation and condition are written one after the other, in either order.
        await until(partial(lambda path: path in paths(member), path))
        status = member.status or {}
        assert status["phase"] == "Rejected", what
        assert all(told["message"].isprintable() for told in problems(member)), what
        assert status["digest"] == digest(FIRST), what
        message, count = rejections(member.api)[-1]
        assert count == 1, what
        assert path is None or path in message, what
        assert len(written(member.api)) - before <= 2, what  # the status, and the condition
        assert devices(member) == there, what
    member.plan(OTHER)
    await member.in_sync(OTHER)


async def refused(member: Member, text: str, times: int) -> None:
    """Wait until status and condition are about a bad text, the condition about this one, and
    there are so many Events of its kind.
    """
    await until(
        lambda: (
            (member.status or {})["phase"] == "Rejected"
            and digest(text) in member.conditions["GPUPartitionsReady"]["message"]
            and len(rejections(member.api)) == times
        )
    )


async def test_a_plan_name_without_a_file(member: Member) -> None:
    there = devices(member)
    member.api.annotate(NODE, **{PLAN: None, NAME: "nowhere"})
    await until(lambda: "nowhere" in member.rig.state.note)
    await member.quiet()
    assert (member.status or {})["digest"] == digest(FIRST)
    assert devices(member) == there


async def test_annotations_that_contradict_each_other(member: Member) -> None:
    there = devices(member)
    member.api.annotate(NODE, **{PLAN: OTHER, NAME: "all-1g.10gb"})
    await refused(member, OTHER, 1)
    assert (member.status or {})["phase"] == "Rejected"
    assert devices(member) == there
    member.api.annotate(NODE, **{NAME: None})
    await member.in_sync(OTHER)


async def test_a_plan_that_flips_often(gpus: SimulatedNode, api: ApiServer, tmp_path: Path) -> None:
    """At the real rate limits: a burst of writes, then few; one Event per cause."""
    write = WriteIntervals()
    intervals = replace(PACE, write=write)
    clock = asyncio.get_running_loop().time
    async with Member(tmp_path, api, intervals=intervals).running() as member:
        await member.in_sync(member.plan(FIRST))
        there = devices(member)
        begun = clock()
        for number in range(30):
            # Each time another text, and thus another digest, but one of two causes.
            member.plan((f"[{number}]", f"version: [ # {number}")[number % 2])
            await asyncio.sleep(begun + (number + 1) / 10 - clock())
        assert devices(member) == there
        member.plan(OTHER)
        await member.in_sync(OTHER)
        await until(lambda: len(rejections(api)) == 2)
        assert len({message for message, _ in rejections(api)}) == 2
        for path in (f"/nodes/{NODE}", f"/nodes/{NODE}/status"):
            times = [r.time for r in written(api, begun) if r.path.endswith(path)]
            assert len(times) >= 3, path
            assert len(times) <= write.burst + (times[-1] - times[0]) / write.interval + 1, path


# --- the Node itself ----------------------------------------------------------------------------


async def test_a_node_deleted_and_made_anew(member: Member) -> None:
    api, there = member.api, devices(member)
    before = api.node(NODE)["metadata"]["uid"]
    api.delete_node(NODE)
    await until(lambda: not member.publisher.state.registered)
    api.add_node(NODE)
    await until(lambda: (member.status or {}).get("digest") == digest(FIRST))
    assert api.node(NODE)["metadata"]["uid"] != before
    await until(lambda: "GPUPartitionsReady" in member.conditions)
    assert devices(member) == there
    await member.quiet()
    member.plan(OTHER)
    await member.in_sync(OTHER)


async def test_a_name_that_no_node_has(gpus: SimulatedNode, api: ApiServer, tmp_path: Path) -> None:
    """Nothing is written anywhere, the agent waits, and takes up a Node that comes."""
    api.annotate(NODE, **{PLAN: FIRST})
    async with Member(tmp_path, api, name="elsewhere").running() as member:
        await until(lambda: member.rig.state.note)
        await member.quiet()
        state = member.publisher.state
        assert (state.reachable, state.registered) == (True, False)
        assert state.problem
        assert "no Node elsewhere" in state.problem.message
        assert "node_name" in state.problem.remedy
        assert not written(api)
        assert len(api.requests) <= 4  # a list, a watch, and an Event or two
        assert not member.rig.gpu().instances
        api.add_node("elsewhere", annotations={PLAN: OTHER})
        await member.in_sync(OTHER)
    assert STATUS not in api.node(NODE)["metadata"]["annotations"]


async def test_a_name_of_another_node(gpus: SimulatedNode, api: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("of-n")
    api.tokens["of-n"] = "agent"
    api.access.own_node["of-n"] = NODE
    api.add_node("theirs", annotations={PLAN: FIRST})
    async with Member(tmp_path, api, name="theirs").running() as member:
        await until(lambda: member.publisher.state.problem)
        assert "own-node" in str(member.publisher.state.problem)
        await asyncio.sleep(0.5)
        assert len(written(api)) <= 4
    assert STATUS not in api.node("theirs")["metadata"]["annotations"]


async def test_a_status_edited_by_hand_is_restored(member: Member) -> None:
    api = member.api
    right = api.node(NODE)["metadata"]["annotations"][STATUS]
    forged = right.replace('"observedAt":"2', '"observedAt":"1')
    for value in ("{}", "not JSON", '{"phase": "InSync"}', forged, "", None):
        before = len(written(api))
        api.annotate(NODE, **{STATUS: value})
        await until(lambda: api.node(NODE)["metadata"]["annotations"].get(STATUS) == right)
        await member.quiet()
        assert len(written(api)) == before + 1, value


async def test_conditions_edited_by_hand_are_restored(member: Member) -> None:
    api = member.api
    right = member.conditions["GPUPartitionsReady"]
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    for edited in ([ready, {**right, "status": "False", "reason": "Mine"}], [ready]):
        api.patch_node(NODE, {"status": {"conditions": edited}})
        await until(lambda: member.conditions.get("GPUPartitionsReady", {}).get("status") == "True")
        assert member.conditions["GPUPartitionsReady"]["reason"] == right["reason"]
        await member.quiet()
    assert ready in api.node(NODE)["status"]["conditions"]
