"""What to do about ill health is a command with this node's values in it."""

from __future__ import annotations

import re

import pytest

from nodeagent.health.findings import Action, Pod
from nodeagent.health.table import ROWS
from nodeagent.views.health_remedies import HealthRemedies
from tests.views.example_node import OBSERVED

TENANTS = (Pod("ml", "train-0", "main"), Pod("ml", "train-0", "side"))


@pytest.mark.parametrize("in_cluster", [True, False])
def test_every_finding_has_a_command(in_cluster: bool) -> None:
    """Whatever its cause and its action; with the GPU's index and no open place."""
    remedies = HealthRemedies("gpu-node-0", in_cluster, OBSERVED)
    for row in ROWS:
        for action in {row.action, Action.RESET_GPU, Action.REBOOT, Action.INSPECT_HARDWARE}:
            found = remedies.of(row.cause, action, 1)
            assert re.search(r"`[^`]+`", found), (row.cause, action)
            assert not re.search(r"[{}]|NUMBER|ADDRESS|None", found), (row.cause, action)
            assert ("kubectl" in found) <= in_cluster, (row.cause, action)


def test_an_application_is_restarted_by_its_pods() -> None:
    """Each once; where none is known, the kernel log names the process."""
    remedies = HealthRemedies("gpu-node-0", True, OBSERVED)
    found = remedies.of("xidApplication", Action.RESTART_APPLICATION, 0, TENANTS)
    assert found == (
        "Restart the application: `kubectl delete pod -n ml train-0`. The GPU is healthy."
    )
    unknown = remedies.of("xidApplication", Action.RESTART_APPLICATION, 0)
    assert unknown.endswith("The GPU is healthy. See `dmesg | grep -i xid`.")


def test_a_gpu_that_is_inspected_gets_no_new_pods() -> None:
    """In a cluster; a degraded one works on."""
    remedies = HealthRemedies("gpu-node-0", True, OBSERVED)
    inspect = Action.INSPECT_HARDWARE
    assert remedies.of("memoryUnrepairable", inspect, 1) == (
        "Keep new pods away: `kubectl cordon gpu-node-0`. Run the vendor's field diagnostic. If it "
        "confirms the fault, have the card replaced. See `nvidia-smi -q -i 1`."
    )
    assert "cordon" not in remedies.of("throttledByHeat", inspect, 1)


def test_a_gpu_is_bound_to_the_driver_by_its_address() -> None:
    """As the kernel writes it."""
    remedies = HealthRemedies("gpu-node-0", True, OBSERVED)
    address = OBSERVED.gpus[1].pci_bus_id[4:].lower()
    assert f"`echo {address} > /sys/bus/pci/drivers/nvidia/bind`" in remedies.of(
        "gpuUnbound", Action.NONE, 1
    )
