import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import structlog

from nodeagent.app.claim_view import ClaimReports
from nodeagent.claims.model import RecordPhase
from nodeagent.claims.reporting.claim_news import ClaimNews
from nodeagent.claims.reporting.device_reports import DeviceHealth, device_statuses
from nodeagent.claims.serving.claim_object import read_claim
from nodeagent.cluster.claim_publishers import (
    ClaimEventPublisher,
    ClaimStatus,
    ClaimStatusPublisher,
)
from nodeagent.cluster.client.access import ClusterAccess
from nodeagent.cluster.client.faults import ClusterFault
from nodeagent.reconcile.event_log import EventLog
from nodeagent.structs import replace
from tests.claims import samples
from tests.cluster.client.rig import running
from tests.machine_load import until
from tests.simulated_cluster.api_server import ApiServer
from tests.simulated_cluster.faults import Answer, Freeze
from tests.simulated_cluster.store import Key

TEAM, NAME = "team", "trainer"
KEY = Key("resourceclaims", TEAM, NAME)
OTHER = {"driver": "net.example.com", "pool": "p", "device": "nic", "conditions": []}
WELL = DeviceHealth(samples.POOL, samples.MIG_DEVICE, "healthy", 1.0)
SICK = DeviceHealth(
    samples.POOL, samples.MIG_DEVICE, "unhealthy", 1.0, "GPU 0 fell off the bus. Reboot."
)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """With a claim that has a device, of another driver too, and two pods."""
    async with ApiServer() as server:
        status = {
            "allocation": {"devices": {"results": [samples.result_json()]}},
            "reservedFor": [
                {"resource": "pods", "name": f"pod-{number}", "uid": f"uid-{number}"}
                for number in range(2)
            ],
            "devices": [OTHER],
        }
        body = {"metadata": {"name": NAME}, "status": status}
        server.store.create("resourceclaims", TEAM, body)
        yield server


def create_claim(server: ApiServer, name: str) -> str:
    """A claim of that name with the same device; its uid."""
    status = {"allocation": {"devices": {"results": [samples.result_json()]}}}
    body = {"metadata": {"name": name}, "status": status}
    made = server.store.create("resourceclaims", TEAM, body)
    return str(made["metadata"]["uid"])


def uid(server: ApiServer) -> str:
    return str(server.store.get(KEY)["metadata"]["uid"])


def status(server: ApiServer, health: DeviceHealth = WELL) -> ClaimStatus:
    one = samples.record(samples.mig_device(uuid="MIG-1"))
    return ClaimStatus(
        TEAM, NAME, uid(server), device_statuses(one, {(health.pool, health.device): health})
    )


def shown(server: ApiServer) -> dict[str, Any]:
    """The own device's entry in the claim's status; empty where there is none."""
    devices = server.store.get(KEY)["status"].get("devices", [])
    return next((one for one in devices if one["driver"] == samples.DRIVER), {})


def ready(server: ApiServer) -> tuple[str, str, str]:
    found = [c for c in shown(server).get("conditions", []) if c["type"] == "Ready"]
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else ("", "", "")


def patches(server: ApiServer) -> int:
    return len([one for one in server.requests if one.method == "PATCH"])


# --- status.devices -------------------------------------------------------------------------------


async def test_a_claims_status_has_its_devices(server: ApiServer, access: ClusterAccess) -> None:
    publisher = ClaimStatusPublisher(access)
    async with running(publisher.run()):
        publisher.publish([status(server)])
        await until(lambda: ready(server) == ("True", "Prepared", ""))
        since = shown(server)["conditions"][0]["lastTransitionTime"]
        assert since.endswith("Z")
        assert shown(server)["data"] == {
            "gpu": "GPU-4711",
            "uuid": "MIG-1",
            "profile": "1g.10gb",
            "placement": {"start": 4, "size": 1},
        }
        publisher.publish([status(server, SICK)])
        await until(lambda: ready(server) == ("False", "Unhealthy", SICK.message))
        assert OTHER in server.store.get(KEY)["status"]["devices"]
    assert patches(server) == 2
    successor = ClaimStatusPublisher(access)
    async with running(successor.run()):
        reads = len(server.requests)
        successor.publish([status(server, SICK)])
        await until(lambda: len(server.requests) > reads)
        successor.publish([status(server)])
        await until(lambda: ready(server)[0] == "True")
    assert patches(server) == 3


async def test_under_nvidias_name(server: ApiServer, access: ClusterAccess) -> None:
    """A device has the name in its status by which it was allocated, and is known by it again."""
    named = {"driver": "gpu.nvidia.com"}
    results = {"allocation": {"devices": {"results": [samples.result_json(**named)]}}}
    server.store.change(KEY, lambda claim: {**claim, "status": results})
    one = samples.record(samples.mig_device(result=samples.mig_result(**named)))
    wanted = replace(
        status(server), devices=device_statuses(one, {(samples.POOL, samples.MIG_DEVICE): WELL})
    )
    for _ in range(2):
        publisher, reads = ClaimStatusPublisher(access), len(server.requests)
        async with running(publisher.run()):
            publisher.publish([wanted])
            await until(partial(server.requests.__getitem__, slice(reads, None)))
            await until(lambda: server.store.get(KEY)["status"].get("devices"))
    [device] = server.store.get(KEY)["status"]["devices"]
    assert (device["driver"], device["conditions"][0]["reason"]) == (named["driver"], "Prepared")
    assert patches(server) == 1


async def test_a_device_made_again_is_not_prepared(
    server: ApiServer, access: ClusterAccess
) -> None:
    one = samples.record(samples.mig_device(uuid="MIG-1"), uid=uid(server))
    reports = ClaimReports(access, "node-1", lambda _: None, EventLog())

    async def said(phase: RecordPhase, *expected: str) -> None:
        reports.observe((replace(one, phase=phase),), {}, (WELL,), {})
        await until(lambda: ready(server)[:2] == expected)

    async with running(reports.run()):
        await said(RecordPhase.INTENT, "", "")
        await said(RecordPhase.READY, "True", "Prepared")
        assert patches(server) == 1
        await said(RecordPhase.INTENT, "False", "Preparing")
        await said(RecordPhase.READY, "True", "Prepared")
        await said(RecordPhase.RELEASING, "False", "Releasing")


async def test_a_status_needs_no_second_look(server: ApiServer, access: ClusterAccess) -> None:
    shown = read_claim(json.dumps(server.store.get(KEY)).encode())
    publisher = ClaimStatusPublisher(access, recent=lambda _: shown, retry=(0.01, 0.1))
    async with running(publisher.run()):
        publisher.publish([status(server)])
        await until(lambda: ready(server)[0] == "True")
        assert [one.method for one in server.requests] == ["PATCH"]
        old = replace(status(server), uid="uid-of-old", name=NAME)
        shown.metadata.uid = old.uid
        publisher.publish([old])
        await until(lambda: [one.method for one in server.requests][1:] == ["PATCH", "GET"])
        assert ready(server)[0] == "True"


async def test_what_was_read_before_writes_is_old(server: ApiServer, access: ClusterAccess) -> None:
    async def publish(publisher: ClaimStatusPublisher, *healths: DeviceHealth) -> None:
        async with running(publisher.run()):
            for health in healths:
                publisher.publish([status(server, health)])
                expected = "True" if health is WELL else "False"
                await until(lambda: ready(server)[0] == expected)  # noqa: B023  # waited for here

    await publish(ClaimStatusPublisher(access), WELL)
    shown = read_claim(json.dumps(server.store.get(KEY)).encode())
    await publish(ClaimStatusPublisher(access, recent=lambda _: shown), SICK, WELL, SICK)
    shown.metadata.uid = "uid-of-another"
    await publish(ClaimStatusPublisher(access, recent=lambda _: shown), WELL)


async def test_a_write_whose_answer_is_lost_may_have_been_carried_out(
    server: ApiServer, access: ClusterAccess
) -> None:
    well, sick = status(server), status(server, SICK)
    await ClaimStatusPublisher(access).send(well.uid, well)
    read = read_claim(json.dumps(server.store.get(KEY)).encode())
    publisher = ClaimStatusPublisher(access, recent=lambda _: read)
    server.faults.next(1, Answer(503), verb="PATCH")
    with pytest.raises(ClusterFault):
        await publisher.send(sick.uid, sick)
    await ClaimStatusPublisher(access).send(sick.uid, sick)
    await publisher.send(well.uid, well)
    assert ready(server)[0] == "True"


async def test_what_changes_back_meanwhile(server: ApiServer, access: ClusterAccess) -> None:
    publisher = ClaimStatusPublisher(access)
    async with running(publisher.run()):
        publisher.publish([status(server)])
        await until(lambda: ready(server)[0] == "True")
        server.faults.next(1, Freeze(), verb="PATCH")
        publisher.publish([status(server, SICK)])
        await until(lambda: server.faults.struck)
        publisher.publish([status(server)])
        server.faults.thaw()
        await until(lambda: patches(server) == 3)
        await until(lambda: ready(server)[0] == "True")


async def test_another_claim_of_the_name_stays(server: ApiServer, access: ClusterAccess) -> None:
    gone = status(server)
    other = ClaimStatus(TEAM, "gone", "uid-of-old", gone.devices)
    foreign = ClaimStatus(TEAM, NAME, "uid-of-another", gone.devices)
    publisher = ClaimStatusPublisher(access)
    async with running(publisher.run()):
        publisher.publish([other, foreign, gone])
        await until(lambda: ready(server)[0] == "True")
    assert patches(server) == 1


@pytest.mark.virtual_time
async def test_what_is_forbidden_is_asked_seldom(server: ApiServer, access: ClusterAccess) -> None:
    right = ("patch", "resourceclaims/status")
    server.access.withheld.add(right)
    publisher = ClaimStatusPublisher(access)
    async with running(publisher.run()):
        for _ in range(10):
            for health in (WELL, SICK):
                publisher.publish([status(server, health)])
                await asyncio.sleep(60)
        assert patches(server) == 1
        server.access.withheld.clear()
        await asyncio.sleep(3600)
        await until(lambda: ready(server)[0] == "False")


async def test_a_pod_that_ends_at_its_start(server: ApiServer, access: ClusterAccess) -> None:
    server.faults.next(1, Freeze(), verb="PATCH")
    publisher = ClaimStatusPublisher(access)
    async with running(publisher.run()):
        with structlog.testing.capture_logs() as logs:
            publisher.publish([status(server)])
            await until(lambda: server.faults.struck)
            server.store.change(KEY, lambda claim: {**claim, "status": {}})
            server.faults.thaw()
            last = replace(status(server), name="last", uid=create_claim(server, "last"))
            publisher.publish([last])
            written = Key("resourceclaims", TEAM, "last")
            await until(lambda: server.store.get(written)["status"].get("devices"))
    assert shown(server) == {}
    assert [one for one in logs if one["log_level"] == "warning"] == []


# --- Events ---------------------------------------------------------------------------------------


def news(server: ApiServer, reason: str = "ClaimPrepared", message: str = "ready") -> ClaimNews:
    return ClaimNews(TEAM, NAME, uid(server), reason, message, is_warning=reason == "ClaimWaiting")


def told(server: ApiServer) -> list[tuple[str, str, str, str]]:
    """About whom, by kind and name, the reason and the message."""
    return sorted(
        (e["involvedObject"]["kind"], e["involvedObject"]["name"], e["reason"], e["message"])
        for e in server.events
    )


async def test_events_of_a_claim_and_its_pods(server: ApiServer, access: ClusterAccess) -> None:
    publisher = ClaimEventPublisher(access, "gpu-0")
    async with running(publisher.run()):
        publisher.publish(news(server))
        await until(lambda: len(server.events) == 3)
    assert told(server) == [
        ("Pod", "pod-0", "ClaimPrepared", "ready"),
        ("Pod", "pod-1", "ClaimPrepared", "ready"),
        ("ResourceClaim", NAME, "ClaimPrepared", "ready"),
    ]
    found = {e["involvedObject"]["name"]: e for e in server.events}
    assert found[NAME]["involvedObject"] == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "namespace": TEAM,
        "name": NAME,
        "uid": uid(server),
    }
    assert found["pod-1"]["involvedObject"]["uid"] == "uid-1"
    assert {e["metadata"]["namespace"] for e in server.events} == {TEAM}
    assert {e["source"]["host"] for e in server.events} == {"gpu-0"}


async def test_a_claim_just_read_is_not_asked_for(server: ApiServer, access: ClusterAccess) -> None:
    known = {NAME: samples.reserved(uid(server), "pod-7")}
    publisher = ClaimEventPublisher(access, "gpu-0", recent=lambda key: known.get(key[1]))
    async with running(publisher.run()):
        publisher.publish(news(server))
        await until(lambda: len(server.events) == 2)
        known[NAME] = samples.reserved("uid-of-another", "pod-8")
        publisher.publish(news(server, "ClaimReleased"))
        await until(lambda: len(server.events) == 3)
    assert {(e["involvedObject"]["name"], e["reason"]) for e in server.events} == {
        (NAME, "ClaimPrepared"),
        ("pod-7", "ClaimPrepared"),
        (NAME, "ClaimReleased"),
    }
    assert not any("resourceclaims" in one.path for one in server.requests)


async def test_a_pod_that_has_just_come_is_told(server: ApiServer, access: ClusterAccess) -> None:
    """What was read a moment ago has not this pod, whose fault it is."""
    read = samples.reserved(uid(server), "pod-7")
    publisher = ClaimEventPublisher(access, "gpu-0", recent=lambda _: read)
    async with running(publisher.run()):
        publisher.publish(news(server, "ClaimMismatch"))
        await until(lambda: len(server.events) == 3)
    assert {e["involvedObject"]["name"] for e in server.events} == {NAME, "pod-0", "pod-1"}


async def test_each_mismatch_is_told(server: ApiServer, access: ClusterAccess) -> None:
    """What is wrong with another container or pod of the claim has an Event of its own."""
    publisher = ClaimEventPublisher(access, "gpu-0")
    async with running(publisher.run()):
        for container in ("main", "side", "main"):
            publisher.publish(replace(news(server, "ClaimMismatch"), message=container))
        await until(lambda: len(server.events) == 6)
    assert {(e["message"], e.get("count", 1)) for e in server.events} == {("main", 1), ("side", 1)}


async def test_a_claim_that_is_gone_has_its_event(server: ApiServer, access: ClusterAccess) -> None:
    released = ClaimNews(TEAM, NAME, "uid-of-old", "ClaimReleased", "released")
    publisher = ClaimEventPublisher(access, "gpu-0")
    async with running(publisher.run()):
        publisher.publish(released)
        publisher.publish(replace(released, name="another", uid="uid-of-another"))
        await until(lambda: len(server.events) >= 2)
    assert told(server) == [
        ("ResourceClaim", "another", "ClaimReleased", "released"),
        ("ResourceClaim", NAME, "ClaimReleased", "released"),
    ]


async def test_a_waiting_claim_has_an_event_a_minute(
    server: ApiServer, access: ClusterAccess
) -> None:
    times = iter(range(0, 10_000, 10))  # seconds; the kubelet asks again every ten
    publisher = ClaimEventPublisher(access, "gpu-0", clock=lambda: float(next(times)))
    async with running(publisher.run()):
        for _ in range(13):
            publisher.publish(news(server, "ClaimWaiting", "pid 7 uses it"))
        await until(lambda: [e["count"] for e in server.events] == [3] * 3)
    assert {e["type"] for e in server.events} == {"Warning"}
