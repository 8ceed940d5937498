"""Everything that the agent asks an API server for, in one conversation, and the answers.

Answers are made anonymous: uids, versions and times are only said to be there. Those of a real
server are in tests/recorded/api_server.json, which test_contract compares.
"""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import aiohttp

from nodeagent.cluster.client import requests as agent
from nodeagent.cluster.client.requests import Request
from tests.simulated_cluster.patching import MERGE
from tests.simulated_cluster.real_api_server import STRANGERS_TOKEN

NODE, DRIVER = "recorded-node", "gpu.nodeagent.io"
NODES, SPACE = "/api/v1/nodes", "/api/v1/namespaces/default"
RESOURCE = "/apis/resource.k8s.io/v1"
CLAIM = f"{RESOURCE}/namespaces/default/resourceclaims"
STRANGER = "0f3a4f4e-7d33-4f2a-9a53-000000000000"  # the uid of no object
KEY = "nodeagent.io/plan"

# What a real server adds to objects, and nothing of ours reads.
LEFT_OUT = {
    *("allocationMode", "count", "daemonEndpoints", "dnsPolicy", "enableServiceLinks"),
    *("generation", "imagePullPolicy", "nodeInfo", "preemptionPolicy", "priority", "qosClass"),
    *("resources", "restartPolicy", "schedulerName", "securityContext"),
    *("terminationMessagePath", "terminationMessagePolicy", "tolerations"),
}

Answer = dict[str, Any]
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def note(name: str, of: str = "") -> dict[str, Any]:
    """An Event about the Node, in `default` or in another namespace."""
    about = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": NODE}
    return {
        "metadata": {"name": name, "namespace": of or "default"},
        "involvedObject": about,
        "reason": "PlanApplied",
        "message": "done",
        "type": "Normal",
        "count": 1,
        "source": {"component": "nodeagent"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }


def offer(generation: int, **more: Any) -> dict[str, Any]:
    device = {
        "name": "mig-1g-10gb-0",
        "attributes": {"gpu.nvidia.com/profile": {"string": "1g.10gb"}},
        "capacity": {"gpu.nvidia.com/memory": {"value": "10Gi"}},
        "consumesCounters": [{"counterSet": "gpu", "counters": {"memory-slice-0": {"value": "1"}}}],
        "taints": [{"key": "gpu.nodeagent.io/occupied", "effect": "NoSchedule"}],
    }
    pool = {"name": f"{NODE}/gpu-0", "generation": generation, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "recorded-slice", **more},
        "spec": {"nodeName": NODE, "driver": DRIVER, "pool": pool, "devices": [device]},
    }


def devices(uid: str, *names: str) -> dict[str, Any]:
    """What the agent says of a claim's devices."""
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Prepared",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    common = {"driver": DRIVER, "pool": f"{NODE}/gpu-0", "conditions": [ready]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "recorded-claim", "uid": uid},
        "status": {"devices": [{**common, "device": name} for name in names]},
    }


class Conversation:
    """With one server, whose answers it keeps by what was asked.

    `with_long`: also what a real server answers only after ten seconds, in which it tries whether a
    conflict passes.
    """

    def __init__(
        self, session: aiohttp.ClientSession, url: str, token: str, *, with_long: bool
    ) -> None:
        self._session, self._url, self._token = session, url, token
        self._with_long = with_long
        self.answers: dict[str, Answer] = {}

    async def send(self, what: str, request: Request) -> Any:
        """Ask as the agent does, and keep the answer; it, as the server gave it."""
        headers = {"Authorization": f"Bearer {self._token}"}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        async with self._session.request(
            request.method,
            self._url + request.path,
            params=request.query,
            data=None if request.body is None else json.dumps(request.body),
            headers=headers,
            ssl=False,
        ) as answer:
            lines = [json.loads(line) for line in (await answer.text()).splitlines()]
        found = lines if "watch" in request.query else lines[0]
        assert what not in self.answers, f"asked twice: {what}"
        self.answers[what] = {"code": answer.status, "body": anonymous(found)}
        return found

    async def admin(self, method: Any, path: str, body: Any = None, kind: str = MERGE) -> Any:
        """What another client does meanwhile; the answer is not kept."""
        kind = "application/json" if method in {"POST", "PUT"} else kind
        await self.send("", Request("", method, path, body=body, content_type=kind))
        return self.answers.pop("")

    async def all(self) -> dict[str, Answer]:
        async with asyncio.TaskGroup() as watches:
            await self._nodes(watches)
            await self._events()
            await self._pods()
            await self._slices(watches)
            await self._claims()
        await self._who()
        return self.answers

    async def _nodes(self, watches: asyncio.TaskGroup) -> None:
        await self.admin("POST", NODES, {"metadata": {"name": NODE}})
        listed = await self.send("list of a Node", agent.list_node(NODE))
        old = listed["metadata"]["resourceVersion"]
        patch = {"metadata": {"annotations": {KEY: "a"}}}
        after = await self.send("patch of a Node", agent.patch_node(NODE, patch))
        trial = {"metadata": {"annotations": {KEY: "never"}}}
        await self.send("dry run of a patch", agent.patch_node(NODE, trial, dry_run=True))
        await self.send("list after the dry run", agent.list_node(NODE))
        condition = {"type": "GPUHealthy", "status": "True", "reason": "Healthy", "message": "m"}
        times = ("lastHeartbeatTime", "lastTransitionTime")
        condition |= dict.fromkeys(times, "2026-01-01T00:00:00Z")
        status = {"status": {"conditions": [condition]}}
        await self.send("patch of conditions", agent.patch_node_status(NODE, status))
        await self.send("patch that changes nothing", agent.patch_node_status(NODE, status))
        for what, metadata in {
            "another version": {"resourceVersion": old},
            "another uid": {"uid": STRANGER},
            "a bad key": {"annotations": {"no key!": ""}},
            "a bad label": {"labels": {KEY: "no label!"}},
        }.items():
            await self.send(what, agent.patch_node(NODE, {"metadata": metadata}))
        await self.send("patch of no Node", agent.patch_node("nothing", patch))
        watch = agent.watch(agent.list_node(NODE), version=old, seconds=1)
        await self.send("watch of a Node", watch)
        await self.admin("DELETE", f"{NODES}/{NODE}")
        version = after["metadata"]["resourceVersion"]
        gone = agent.watch(agent.list_node(NODE), version=version, seconds=1)
        watches.create_task(self.send("watch of a Node that goes", gone))

    async def _events(self) -> None:
        await self.send("new Event", agent.create_event(note("recorded-event")))
        await self.send("the same Event", agent.create_event(note("recorded-event")))
        await self.send("Event elsewhere", agent.create_event(note("elsewhere", "kube-system")))
        await self.send("patch of an Event", agent.patch_event("recorded-event", {"count": 2}))
        await self.send("patch of no Event", agent.patch_event("nothing", {"count": 2}))
        await self.admin("DELETE", f"{SPACE}/events/recorded-event")

    async def _pods(self) -> None:
        for name in ("recorded-pod", "recorded-other"):
            containers = [{"name": "main", "image": "none"}]
            spec = {"nodeName": NODE, "containers": containers, "terminationGracePeriodSeconds": 0}
            await self.admin("POST", f"{SPACE}/pods", {"metadata": {"name": name}, "spec": spec})
        pod = await self.send("pod", agent.get_pod("default", "recorded-pod"))
        # Of the server's cache, which may be a moment behind.
        while len((await self.send(what := "list of pods", agent.list_pods(NODE)))["items"]) < 2:
            del self.answers[what]
        uid = pod["metadata"]["uid"]
        for what, name, who in (
            ("eviction of another pod", "recorded-pod", STRANGER),
            ("eviction", "recorded-pod", uid),
            ("eviction of no pod", "recorded-pod", uid),
            ("deletion of another pod", "recorded-other", STRANGER),
        ):
            if what == "eviction of another pod" and not self._with_long:
                continue
            ask = agent.delete_pod if what.startswith("deletion") else agent.evict_pod
            await self.send(what, ask("default", name, uid=who))
        other = await self.send("other pod", agent.get_pod("default", "recorded-other"))
        await self.send(
            "deletion", agent.delete_pod("default", "recorded-other", uid=other["metadata"]["uid"])
        )
        await self.send("no pod", agent.get_pod("default", "recorded-other"))
        await self.send("no RuntimeClass", agent.get_runtime_class("nothing"))

    async def _slices(self, watches: asyncio.TaskGroup) -> None:
        made = await self.send("new ResourceSlice", agent.create_slice(offer(1)))
        await self.send("the same ResourceSlice", agent.create_slice(offer(1)))
        listed = await self.send("list of ResourceSlices", agent.list_slices(NODE))
        version = made["metadata"]["resourceVersion"]
        replace = agent.replace_slice
        await self.send("slice without its version", replace("recorded-slice", offer(2)))
        body = offer(3, resourceVersion=version)
        await self.send("slice changed meanwhile", replace("recorded-slice", body))
        (listed_slice,) = (await self.send("changed list", agent.list_slices(NODE)))["items"]
        version = listed_slice["metadata"]["resourceVersion"]
        body = offer(3, resourceVersion=version)
        moved = {**body, "spec": {**body["spec"], "nodeName": "another"}}
        await self.send("slice of another Node", replace("recorded-slice", moved))
        await self.send("changed slice", replace("recorded-slice", body))
        body["metadata"]["name"] = "nothing"
        await self.send("change of no slice", replace("nothing", body))
        bad = offer(1)
        bad["metadata"]["name"] = "recorded-bad"
        bad["spec"]["sharedCounters"] = [{"name": "gpu", "counters": {"a": {"value": "1"}}}]
        await self.send("slice of counters and devices", agent.create_slice(bad))
        await self.send("deletion of a slice", agent.delete_slice("recorded-slice"))
        await self.send("deletion of no slice", agent.delete_slice("recorded-slice"))
        since = listed["metadata"]["resourceVersion"]
        watch = agent.watch(agent.list_slices(NODE), version=since, seconds=1)
        watches.create_task(self.send("watch of ResourceSlices", watch))

    async def _claims(self) -> None:
        request = {"name": "gpu", "exactly": {"deviceClassName": "mig.nodeagent.io"}}
        claim = {
            "metadata": {"name": "recorded-claim"},
            "spec": {"devices": {"requests": [request]}},
        }
        await self.admin("POST", CLAIM, claim)
        get = agent.get_claim("default", "recorded-claim")
        uid = (await self.send("claim", get))["metadata"]["uid"]
        result = {"request": "gpu", "driver": DRIVER, "pool": f"{NODE}/gpu-0", "device": "a"}
        allocation = {"devices": {"results": [result]}}
        await self.admin(
            "PATCH", f"{CLAIM}/recorded-claim/status", {"status": {"allocation": allocation}}
        )
        await self.send("allocated claim", agent.get_claim("default", "recorded-claim"))
        apply = agent.apply_claim_devices
        for what, body in {
            "devices": devices(uid, "a"),
            "a device that is not the claim's": devices(uid, "b"),
            "devices of another claim": devices(STRANGER, "a"),
            "no devices any more": devices(uid),
        }.items():
            await self.send(what, apply("default", "recorded-claim", body))
        await self.admin("DELETE", f"{CLAIM}/recorded-claim")
        await self.send("no claim", agent.get_claim("default", "recorded-claim"))
        await self.send("devices of no claim", apply("default", "recorded-claim", devices(uid)))

    async def _who(self) -> None:
        right = agent.Right("patch", "nodes/status")
        await self.send("question about a right", agent.review_access(right))
        self._token = STRANGERS_TOKEN
        for number, request in enumerate(
            (
                agent.list_node(NODE),
                agent.patch_node_status(NODE, {}),
                agent.create_event(note("denied")),
                agent.get_claim("default", "denied"),
                agent.list_slices(NODE),
                agent.evict_pod("default", "denied", uid=STRANGER),
            )
        ):
            await self.send(f"what is denied {number}", request)
        self._token = "wrong"
        await self.send("token that is not accepted", agent.list_node(NODE))


def anonymous(found: Any, key: str = "") -> Any:
    """Without what differs from one time to the next, nor the list of who set which field."""
    match found:
        case dict() if key == "details" and "causes" in found:
            causes = {json.dumps(one, sort_keys=True): one for one in found["causes"]}
            return anonymous({**found, "causes": list(causes.values())})
        case dict():
            return {k: anonymous(v, k) for k, v in found.items() if k != "managedFields"}
        case list():
            return [anonymous(one) for one in found]
        case str() if key == "resourceVersion":
            return "VERSION" if found else ""
        case str():
            text = _UID.sub("UID", _TIME.sub("TIME", found))
            return re.sub(
                r"too old resource version: \d+ \(\d+\)", "too old resource version", text
            )
        case _:
            return found


def differences(real: Any, ours: Any, path: str = "") -> Iterator[str]:
    """Where ours is unlike the real one, as paths with both values."""
    if isinstance(real, dict) and isinstance(ours, dict):
        for key in {**real, **ours}:
            if key not in ours and key in LEFT_OUT:
                continue
            if key not in ours:
                yield f"{path}.{key}: not in ours: {json.dumps(real[key])[:80]}"
            elif key not in real:
                yield f"{path}.{key}: only in ours: {json.dumps(ours[key])[:80]}"
            else:
                yield from differences(real[key], ours[key], f"{path}.{key}")
    elif isinstance(real, list) and isinstance(ours, list) and len(real) == len(ours):
        for number, pair in enumerate(zip(real, ours, strict=True)):
            yield from differences(*pair, f"{path}[{number}]")
    elif real != ours:
        yield f"{path}: {json.dumps(real)[:300]}, ours {json.dumps(ours)[:300]}"
