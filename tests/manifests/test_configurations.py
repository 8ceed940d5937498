"""Configurations for claims: what the agent refuses, the API server refuses when it is written.

One table for both: the agent's reader, and the policy at a real API server (where
KUBEBUILDER_ASSETS names a folder with kube-apiserver and etcd).
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from nodeagent.claims.serving.claim_object import Source
from nodeagent.claims.serving.configuration import read_configuration
from nodeagent.errors import DocumentError
from tests.claims.samples import DRIVER, Json, device_config, nvidia_config
from tests.machine_load import stretched
from tests.manifests import rendering
from tests.manifests.rendering import Document, why_not, with_components, written
from tests.manifests.test_policies_on_a_real_server import CLAIMS, Admin
from tests.simulated_cluster.claim_status import APPLY
from tests.simulated_cluster.real_api_server import RealApiServer

NVIDIA = "gpu.nvidia.com"
API = "/apis/resource.k8s.io/v1"
TEMPLATES = f"{API}/namespaces/default/resourceclaimtemplates"
DEVICE_CLASSES = f"{API}/deviceclasses"
POLICY = "components/dra/configurations.yaml"


def mps(**keys: Any) -> Json:
    """The agent's own, with MPS."""
    return device_config(mps=keys)


def limits(kind: str = "GpuConfig", **keys: Any) -> Json:
    """NVIDIA's, with limits of MPS."""
    return nvidia_config(kind, strategy="MPS", mpsConfig=keys)


GOOD: list[Json] = [
    *(device_config(timeSlice=word) for word in ("default", "short", "medium", "long")),
    mps(clients={}),
    mps(replicas=1),
    mps(replicas=128),
    mps(shares={"a": {}}),
    mps(shares={f"a{'-' * 61}9": {"count": 128, "memory": "8Gi", "threads": 0.5}}),
    *(mps(clients={"threads": number}) for number in (1, 12.5, 100, 100.0)),
    *(
        mps(clients={"memory": amount})
        for amount in ("8Gi", "512Mi", "10G", "+1", "1.5Gi", ".5Ki", "5.", "1e3", "1E3", "1000m")
    ),
    *(mps(clients={"memory": amount}) for amount in (1, 2**62, 1e9)),
    nvidia_config(),
    nvidia_config("MigDeviceConfig"),
    nvidia_config(strategy="TimeSlicing"),
    nvidia_config("MigDeviceConfig", strategy="TimeSlicing"),
    nvidia_config(strategy="TimeSlicing", timeSlicingConfig={}),
    nvidia_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"}),
    limits(),
    limits(defaultActiveThreadPercentage=100, defaultPinnedDeviceMemoryLimit="10Gi"),
    limits("MigDeviceConfig", defaultPerDevicePinnedMemoryLimit={"0": "5Gi"}, multiUser=False),
    limits(defaultPerDevicePinnedMemoryLimit={}),
]
OF_CLASSES: list[tuple[str, Json]] = [  # refused in claims, with this key
    *(
        ("mps.user", mps(clients={}, user=user))
        for user in (0, 2**32 - 2, "7", "1000:1000", "any", "tenant-a$")
    ),
    ("mps.enforce", mps(clients={}, enforce="report")),
    ("mps.enforce", mps(clients={}, enforce="terminate")),
    ("mps.oversubscribe", mps(clients={}, oversubscribe=False)),
    ("sharing.mpsConfig.multiUser", limits(multiUser=True)),
]
BAD: list[tuple[str, Json]] = [  # refused everywhere, at this place
    ("", {"kind": "DeviceConfig", "timeSlice": "long"}),
    ("apiVersion", device_config(timeSlice="long") | {"apiVersion": "gpu.nodeagent.io/v2"}),
    ("apiVersion", nvidia_config() | {"apiVersion": "gpu.nvidia.com/v1alpha1"}),
    ("", {"apiVersion": "gpu.nodeagent.io/v1"}),
    ("", {}),
    ("kind", device_config(timeSlice="long") | {"kind": "DeviceConfg"}),
    ("kind", device_config(timeSlice="long") | {"kind": None}),
    ("kind", device_config(timeSlice="long") | {"kind": ["DeviceConfig"]}),
    ("kind", nvidia_config("VfioDeviceConfig")),
    ("", device_config()),
    ("timeSlice", device_config(timeSlice="long", mps={"replicas": 2})),
    ("timeslice", device_config(timeslice="long")),
    ("timeSlice", device_config(timeSlice="Long")),
    ("timeSlice", device_config(timeSlice=None)),
    ("timeSlice", device_config(timeSlice={"interval": "Long"})),
    ("mps", device_config(mps=None)),
    ("mps", device_config(mps=True)),
    ("mps", mps()),
    ("mps", mps(clients={}, replicas=2)),
    ("mps.client", mps(client={})),
    *(("mps.replicas", mps(replicas=number)) for number in (0, 129, 2.5, True, "2")),
    ("mps.shares", mps(shares={})),
    ("mps.shares", mps(shares=["a"])),
    ("mps.shares", mps(shares={"a": {}, "b": {}})),
    ("mps.shares.A", mps(shares={"A": {}})),
    ("mps.shares.a", mps(shares={"a": None})),
    ("mps.shares.a.count", mps(shares={"a": {"count": 129}})),
    ("mps.shares.a.cores", mps(shares={"a": {"cores": 1}})),
    ("mps.clients", mps(clients=[])),
    ("mps.clients.count", mps(clients={"count": 1})),
    *(
        ("mps.clients.threads", mps(clients={"threads": number}))
        for number in (0, -1, 100.1, "50", "50%", True, None)
    ),
    *(
        ("mps.clients.memory", mps(clients={"memory": amount}))
        for amount in ("8GB", "8 Gi", "0", "-1Gi", "", ".", "0.1", "1500m", "1e30", "10E", "lots")
    ),
    *(("mps.clients.memory", mps(clients={"memory": amount})) for amount in (0, -1, 0.5, True)),
    ("mps.clients.memory", mps(clients={"memory": {}})),
    ("mps.user", mps(clients={}, user=-1)),
    ("mps.user", mps(clients={}, user=2**32 - 1)),
    ("mps.user", mps(clients={}, user="1000:9999999999")),
    ("mps.user", mps(clients={}, user="a b")),
    ("mps.user", mps(clients={}, user=None)),
    ("mps.enforce", mps(clients={}, enforce="kill")),
    ("mps.oversubscribe", mps(clients={}, oversubscribe="yes")),
    ("mps.prioritise", mps(clients={}, prioritise=1)),
    ("sharing", nvidia_config() | {"sharing": None}),
    ("share", nvidia_config() | {"share": {}}),
    ("sharing", nvidia_config() | {"sharing": {}}),
    ("sharing.strategy", nvidia_config(strategy="mps")),
    ("sharing.mode", nvidia_config(strategy="MPS", mode=1)),
    ("sharing.timeSlicingConfig", nvidia_config(strategy="MPS", timeSlicingConfig={})),
    ("sharing.mpsConfig", nvidia_config(strategy="TimeSlicing", mpsConfig={})),
    (
        "sharing.timeSlicingConfig",
        nvidia_config("MigDeviceConfig", strategy="TimeSlicing", timeSlicingConfig={}),
    ),
    (
        "sharing.timeSlicingConfig.interval",
        nvidia_config(strategy="TimeSlicing", timeSlicingConfig={"interval": "long"}),
    ),
    ("sharing.mpsConfig.threads", limits(threads=5)),
    ("sharing.mpsConfig.defaultActiveThreadPercentage", limits(defaultActiveThreadPercentage=12.5)),
    (
        "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit",
        limits(defaultPinnedDeviceMemoryLimit="10GB"),
    ),
    (
        "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit",
        limits(defaultPerDevicePinnedMemoryLimit={"0": "5Gi", "1": "5Gi"}),
    ),
    ("sharing.mpsConfig.multiUser", limits(multiUser="yes")),
    (
        "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.a",
        limits(defaultPerDevicePinnedMemoryLimit={"a": "5GB"}),
    ),
]


def places_of_faults(parameters: Json, source: Source, driver: str = DRIVER) -> list[str]:
    """Where the agent finds them below the parameters, which NVIDIA's may be for, if any."""
    try:
        read_configuration(parameters, source, ("config",), driver=driver, nvidia=True)
    except DocumentError as error:
        return [one.path.removeprefix("config").removeprefix(".") for one in error.problems]
    return []


def test_the_agent_refuses_them() -> None:
    for source in Source:
        assert [one for one in GOOD if places_of_faults(one, source)] == []
        assert [(at, one) for at, one in BAD if at not in places_of_faults(one, source)] == []
    for at, one in OF_CLASSES:
        assert places_of_faults(one, Source.CLASS) == []
        assert places_of_faults(one, Source.CLAIM) == [at]


# --- the policy -----------------------------------------------------------------------------------


BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
NAME = "nodeagent-configurations"
_, FAULTY = BAD[0]


@pytest.fixture
async def admin(real_server: RealApiServer | None) -> AsyncIterator[Admin]:
    """Of the server, with the policy in force."""
    if real_server is None:
        pytest.skip("no kube-apiserver and etcd in KUBEBUILDER_ASSETS")
    async with aiohttp.ClientSession() as session:
        admin = Admin(real_server, session)
        await enforce(admin, written(POLICY), of_nvidia=False)
        yield admin


async def enforce(admin: Admin, documents: Iterable[Document], *, of_nvidia: bool) -> None:
    """Apply policy and binding, and wait until they count; `of_nvidia`: also for its driver."""
    for path, kind in ((POLICIES, "Policy"), (BINDINGS, "PolicyBinding")):
        document = rendering.one(documents, f"ValidatingAdmission{kind}", NAME)
        applied = f"{path}/{NAME}?fieldManager=kubectl"
        status, text = await admin.ask("PATCH", applied, document, content_type=APPLY)
        assert status in {200, 201}, text
    async with asyncio.timeout(stretched(30)):
        while not await said_of(admin, FAULTY):
            await asyncio.sleep(0.2)
        while bool(await said_of(admin, FAULTY, driver=NVIDIA)) != of_nvidia:
            await asyncio.sleep(0.2)


def written_in(kind: str, *parameters: Json, driver: str = DRIVER) -> Json:
    config = [{"opaque": {"driver": driver, "parameters": one}} for one in parameters]
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nodeagent.io"}}
    spec: Json = {"devices": {"requests": [request], "config": config}}
    specs = {CLAIMS: spec, TEMPLATES: {"spec": spec}, DEVICE_CLASSES: {"config": config}}
    return {"metadata": {"name": "written-early"}, "spec": specs[kind]}


async def said_of(admin: Admin, *parameters: Json, kind: str = CLAIMS, driver: str = DRIVER) -> str:
    """What the API server says to an object with these; "" where it takes it."""
    body = written_in(kind, *parameters, driver=driver)
    status, text = await admin.ask("POST", f"{kind}?dryRun=All", body)
    assert status in {201, 422}, text
    return "" if status == 201 else text


KINDS = {
    CLAIMS: "spec.devices.config",
    TEMPLATES: "spec.spec.devices.config",
    DEVICE_CLASSES: "spec.config",
}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_policy_refuses_them(admin: Admin, kind: str) -> None:
    """At the same place as the agent, as the user has written it; what the agent takes is taken."""
    wrong = []
    of_class = kind == DEVICE_CLASSES
    good = [*GOOD, *(one for _, one in OF_CLASSES if of_class)]
    bad = [*BAD, *(row for row in OF_CLASSES if not of_class)]
    for at, one in (*((None, one) for one in good), *bad):
        said = await said_of(admin, one, kind=kind)
        place = f"{KINDS[kind]}[0].opaque.parameters" + (f".{at}" if at else "")
        if bool(said) != (at is not None) or (at is not None and f" {place}: found " not in said):
            wrong.append((at, one, said))
    assert wrong == []


async def test_a_large_document_is_judged_to_its_end(admin: Admin) -> None:
    """Within the API server's budget for expressions: the last of 32 configurations, each as large
    as one can be (10 KiB), has the fault.
    """
    for large in (
        limits(defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="10Gi"),
        device_config(timeSlice="long", **{f"key{n}": 1 for n in range(700)}),
        mps(shares={f"share{n}": {} for n in range(500)}),
        mps(clients={"memory": "8" * 9000}),
    ):
        assert NAME in await said_of(admin, *[large] * 31, FAULTY)
    last = f"{KINDS[CLAIMS]}[31].opaque.parameters: found no apiVersion"
    assert last in await said_of(admin, *[nvidia_config()] * 31, FAULTY)


async def test_what_is_there_already_is_left(admin: Admin) -> None:
    """A class from before the policy can have another label, but no other faulty configuration."""
    await admin.ask("DELETE", f"{BINDINGS}/{NAME}")
    async with asyncio.timeout(stretched(30)):
        while await said_of(admin, FAULTY):
            await asyncio.sleep(0.2)
    await admin.made(DEVICE_CLASSES, written_in(DEVICE_CLASSES, FAULTY))
    await enforce(admin, written(POLICY), of_nvidia=False)
    path = f"{DEVICE_CLASSES}/written-early"
    status, text = await admin.ask("PATCH", path, {"metadata": {"labels": {"a": "b"}}})
    assert status == 200, text
    changed = written_in(DEVICE_CLASSES, FAULTY, FAULTY)
    status, text = await admin.ask("PATCH", path, {"spec": changed["spec"]})
    assert (status, NAME in text) == (422, True)
    await admin.ask("DELETE", path)


@pytest.mark.skipif(bool(why_not()), reason=why_not())
async def test_what_is_for_nvidias_driver(admin: Admin, tmp_path: Path) -> None:
    """Without its names nothing of it is judged, with them all as by the agent: its kinds alone."""
    assert not await said_of(admin, {"kind": "GpuConfg"}, driver=NVIDIA)
    names = with_components(tmp_path, "plain", ["dra", "dra-nvidia-names"])
    await enforce(admin, names, of_nvidia=True)
    rows = [*(("", good) for good in GOOD), *OF_CLASSES, *BAD]
    assert len(rows) > 100
    for _, row in rows:
        for kind, source in ((CLAIMS, Source.CLAIM), (DEVICE_CLASSES, Source.CLASS)):
            refused = bool(await said_of(admin, row, kind=kind, driver=NVIDIA))
            assert refused == bool(places_of_faults(row, source, NVIDIA)), row
