"""The bytes of each message between the kubelet and the agent: as a DRA plugin, and as one who
asks for the devices of pods.

They are written by hand from protobuf's encoding: a field is its tag (number * 8 + kind; kind 2 is
a length and so many bytes, kind 0 a varint), and then its value. Names and numbers are those of
k8s.io/kubelet/pkg/apis (pluginregistration/v1, dra/v1, dra-health/v1alpha1, podresources/v1).
"""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from nodeagent.cluster.kubelet.generated.dra_health_pb2 import (
    HEALTHY,
    UNHEALTHY,
    UNKNOWN,
    DeviceHealth,
    DeviceIdentifier,
    NodeWatchResourcesRequest,
    NodeWatchResourcesResponse,
)
from nodeagent.cluster.kubelet.generated.dra_pb2 import (
    Claim,
    Device,
    NodePrepareResourceResponse,
    NodePrepareResourcesRequest,
    NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse,
    NodeUnprepareResourcesRequest,
    NodeUnprepareResourcesResponse,
)
from nodeagent.cluster.kubelet.generated.pluginregistration_pb2 import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStatusResponse,
)
from nodeagent.cluster.kubelet.generated.podresources_pb2 import (
    ClaimResource,
    ContainerDevices,
    ContainerResources,
    DynamicResource,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
    PodResources,
)

CLAIM = Claim(namespace="ns", uid="u-1", name="claim")
CLAIM_BYTES = b"\x0a\x02ns\x12\x03u-1\x1a\x05claim"  # 4 + 5 + 7 = 16 bytes
DEVICE = Device(
    request_names=["a", "bc"],
    pool_name="pool",
    device_name="gpu",
    cdi_device_ids=["k/c=1", "k/c=2"],
    share_id="s",
)
DEVICE_BYTES = (  # 3 + 4 + 6 + 5 + 7 + 7 + 3 = 35 bytes
    b"\x0a\x01a\x0a\x02bc\x12\x04pool\x1a\x03gpu\x22\x05k/c=1\x22\x05k/c=2\x2a\x01s"
)
HEALTH = DeviceHealth(
    device=DeviceIdentifier(pool_name="pool", device_name="gpu"),
    health=UNHEALTHY,
    last_updated_time=300,
    health_check_timeout_seconds=30,
    message="Xid 79",
)
HEALTH_BYTES = (  # 13 + 2 + 3 + 2 + 8 = 28 bytes
    b"\x0a\x0b\x0a\x04pool\x12\x03gpu"
    b"\x10\x02"
    b"\x18\xac\x02"  # 300 = 0b10_0101100: the lower seven bits with a 1 before them, then 0b10
    b"\x20\x1e"
    b"\x2a\x06Xid 79"
)
INFO_BYTES = (
    b"\x0a\x09DRAPlugin"
    b"\x12\x10gpu.nodeagent.io"
    b"\x1a\x02/s"
    b"\x22\x0cv1.DRAPlugin"
    b"\x22\x1av1alpha1.DRAResourceHealth"
)
CLAIMED = ClaimResource(driver_name="d", pool_name="pool", device_name="gpu", share_id="s")
CLAIMED_BYTES = b"\x12\x01d\x1a\x04pool\x22\x03gpu\x2a\x01s"  # 3 + 6 + 5 + 3 = 17 bytes
USED = DynamicResource(claim_name="c", claim_namespace="ns", claim_resources=[CLAIMED])
USED_BYTES = b"\x12\x01c\x1a\x02ns\x22\x11" + CLAIMED_BYTES  # 3 + 4 + 19 = 26 bytes
PLUGGED = ContainerDevices(resource_name="r", device_ids=["a", "b"])
PLUGGED_BYTES = b"\x0a\x01r\x12\x01a\x12\x01b"  # 3 * 3 = 9 bytes
CONTAINER = ContainerResources(name="main", devices=[PLUGGED], dynamic_resources=[USED])
CONTAINER_BYTES = (  # 6 + 11 + 28 = 45 bytes
    b"\x0a\x04main" + b"\x12\x09" + PLUGGED_BYTES + b"\x2a\x1a" + USED_BYTES
)
POD = PodResources(name="pod", namespace="ns", containers=[CONTAINER])
POD_BYTES = b"\x0a\x03pod\x12\x02ns\x1a\x2d" + CONTAINER_BYTES  # 5 + 4 + 47 = 56 bytes
WIRE: dict[str, tuple[Message, bytes]] = {
    "info request": (InfoRequest(), b""),
    "info": (
        PluginInfo(
            type="DRAPlugin",
            name="gpu.nodeagent.io",
            endpoint="/s",
            supported_versions=["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"],
        ),
        INFO_BYTES,
    ),
    "registered": (RegistrationStatus(plugin_registered=True), b"\x08\x01"),
    "not registered": (RegistrationStatus(plugin_registered=False, error="no"), b"\x12\x02no"),
    "registration answer": (RegistrationStatusResponse(), b""),
    "claim": (CLAIM, CLAIM_BYTES),
    "prepare request": (
        NodePrepareResourcesRequest(claims=[CLAIM, CLAIM]),
        b"\x0a\x10" + CLAIM_BYTES + b"\x0a\x10" + CLAIM_BYTES,
    ),
    "device": (DEVICE, DEVICE_BYTES),
    "device without a share": (Device(pool_name="p", device_name="d"), b"\x12\x01p\x1a\x01d"),
    "device with an empty share": (Device(share_id=""), b"\x2a\x00"),  # `optional`: it is there
    "prepared claim": (NodePrepareResourceResponse(devices=[DEVICE]), b"\x0a\x23" + DEVICE_BYTES),
    "claim that is not prepared": (NodePrepareResourceResponse(error="no"), b"\x12\x02no"),
    "prepare response": (  # an entry of a map is a message of key = 1 and value = 2
        NodePrepareResourcesResponse(claims={"u": NodePrepareResourceResponse(devices=[DEVICE])}),
        b"\x0a\x2a" + b"\x0a\x01u" + b"\x12\x25" + b"\x0a\x23" + DEVICE_BYTES,
    ),
    "unprepare request": (
        NodeUnprepareResourcesRequest(claims=[CLAIM]),
        b"\x0a\x10" + CLAIM_BYTES,
    ),
    "unprepare response": (
        NodeUnprepareResourcesResponse(claims={"u": NodeUnprepareResourceResponse()}),
        b"\x0a\x05" + b"\x0a\x01u" + b"\x12\x00",
    ),
    "unprepare response with an error": (
        NodeUnprepareResourcesResponse(claims={"u": NodeUnprepareResourceResponse(error="no")}),
        b"\x0a\x09" + b"\x0a\x01u" + b"\x12\x04" + b"\x0a\x02no",
    ),
    "health request": (NodeWatchResourcesRequest(), b""),
    "health of a device": (HEALTH, HEALTH_BYTES),
    "healthy": (DeviceHealth(health=HEALTHY), b"\x10\x01"),
    "health unknown": (DeviceHealth(health=UNKNOWN), b""),
    "health": (
        NodeWatchResourcesResponse(devices=[HEALTH, HEALTH]),
        b"\x0a\x1c" + HEALTH_BYTES + b"\x0a\x1c" + HEALTH_BYTES,
    ),
    "list request": (ListPodResourcesRequest(), b""),
    "claimed device": (CLAIMED, CLAIMED_BYTES),
    "claim of a container": (USED, USED_BYTES),
    "pod with devices": (POD, POD_BYTES),
    "list response": (ListPodResourcesResponse(pod_resources=[POD]), b"\x0a\x38" + POD_BYTES),
}


@pytest.mark.parametrize("name", WIRE)
def test_the_bytes_of_a_message(name: str) -> None:
    """Written as the kubelet reads it, and read as the kubelet writes it."""
    message, wire = WIRE[name]
    assert message.SerializeToString() == wire
    assert type(message).FromString(wire) == message


@pytest.mark.parametrize("name", WIRE)
def test_fields_of_a_newer_version_are_skipped(name: str) -> None:
    """Whatever has a number that is not known does no harm."""
    message, wire = WIRE[name]
    newer = type(message).FromString(wire + b"\xf2\x07\x01x")
    newer.DiscardUnknownFields()
    assert newer == message
