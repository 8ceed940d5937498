import pytest

from nodeagent.cluster.kubelet import allocations
from nodeagent.cluster.kubelet.device_users import Allocations, PodsByPid, with_allocations
from nodeagent.cluster.kubelet.processes import ProcessPod
from nodeagent.gpu.users import GpuRef, MigDeviceRef
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, Placement
from nodeagent.plan.users import PodName, Usage, User

ID = "1b2c3d4e-0000-5111-8222-333344445555"
DRA = "gpu.nvidia.com"


def test_ids_of_device_plugins() -> None:
    cases: list[tuple[str, allocations.DeviceId]] = [
        (f"GPU-{ID}", allocations.ByUuid(f"gpu-{ID}")),
        (f"MIG-{ID}", allocations.ByUuid(f"mig-{ID}")),
        (f"MIG-{ID.upper()}", allocations.ByUuid(f"mig-{ID}")),
        (f"GPU-{ID}::3", allocations.ByUuid(f"gpu-{ID}")),
        (f"MIG-{ID}::7", allocations.ByUuid(f"mig-{ID}")),
        (f"GPU-{ID}::10::0", allocations.ByUuid(f"gpu-{ID}")),
        (f"GPU-{ID}-5", allocations.ByUuid(f"gpu-{ID}")),
        ("nvidia2", allocations.ByFile(2)),
        ("nvidia0/gi11", allocations.ByFile(0, 11)),
        ("nvidia0/vgpu2", allocations.ByFile(0)),
        ("nvidia0/gi1/vgpu0", allocations.ByFile(0, 1)),
        ("GPU-1::0", allocations.ByUuid("gpu-1")),
        ("nvidia" + "0" * 5000, allocations.ByUuid("nvidia" + "0" * 5000)),
        (f"GPU-{ID}0", allocations.ByUuid(f"gpu-{ID}0")),
        ("0000:3b:00.0", allocations.ByUuid("0000:3b:00.0")),
    ]
    for text, meant in cases:
        assert allocations.read_device_id(text) == meant


def test_devices_of_claims() -> None:
    cases: list[tuple[str, str, allocations.DeviceId | None]] = [
        (DRA, "gpu-0", allocations.ByFile(0)),
        (DRA, "gpu-12", allocations.ByFile(12)),
        (DRA, "gpu-1-mig-19-6-1", allocations.ByPlace(1, 6)),
        (DRA, "gpu-1-mig-2g47gb-14-4", allocations.ByPlace(1, 4)),
        (DRA, "gpu-0-mig-1g12gb-me-20-3", allocations.ByPlace(0, 3)),
        (DRA, "gpu-3-mig-everything", allocations.ByFile(3)),
        (DRA, "gpu-3-of-another-time", allocations.ByFile(3)),
        (DRA, "gpu-vfio-0", None),
        (DRA, "gpux", allocations.Anywhere("gpux")),
        (DRA, f"gpu-{'1' * 5000}", allocations.Anywhere(f"gpu-{'1' * 5000}")),
        (DRA, "", allocations.Anywhere("")),
        ("compute-domain.nvidia.com", "channel-0", None),
        ("dra.example.com", "gpu-0", None),
    ]
    for driver, device, meant in cases:
        assert allocations.read_claimed_device(driver, device) == meant


# --- joined with devices and processes ------------------------------------------------------------

UUID_START = "1b2c3d4e-0000-5111-8222-33334444555"
GPU, MIG, OTHER = f"GPU-{UUID_START}0", f"MIG-{UUID_START}1", f"MIG-{UUID_START}2"
POD = PodName("team", "trainer")
ALLOCATED = User(0, source="kubelet", namespace="team", pod="trainer", container="main")
DEVICE = MigDeviceRef(GPU, 3, 5, 0, MIG, Placement(4, 2))
WHOLE = GpuRef(GPU, 3, (Placement(0, 1), Placement(4, 2)))


def held(*ids: str, pod: PodName = POD, container: str = "main") -> Allocations:
    """A reading with one container that holds these, under a resource of any name."""
    found = (
        allocations.Holding(pod, container, allocations.read_device_id(device), "x.io/y")
        for device in ids
    )
    return Allocations(tuple(found))


def claimed(device: str, driver: str = "gpu.nvidia.com") -> Allocations:
    """A reading with one container that holds a device by a claim."""
    found = allocations.read_claimed_device(driver, device)
    return Allocations((allocations.Holding(POD, "main", found),) if found else ())


@pytest.mark.parametrize("name", [MIG, f"{MIG}::0", "nvidia3/gi5", "nvidia3/gi5/vgpu1"])
def test_a_mig_device_is_used_by_who_holds_it(name: str) -> None:
    """This holds for each name that the plugin may give it; no other device is concerned."""
    reading = held(name)
    assert reading.users(DEVICE) == Usage((ALLOCATED,))
    assert reading.users(MigDeviceRef(GPU, 3, 6, 0, OTHER, Placement(0, 1))) == Usage()
    assert reading.users_of_gpu(WHOLE) == Usage()


@pytest.mark.parametrize("name", [GPU, f"{GPU}::1", f"{GPU}-7", "nvidia3", "nvidia3/vgpu0"])
def test_a_whole_gpu_is_used_by_who_holds_it(name: str) -> None:
    reading = held(name)
    assert reading.users_of_gpu(WHOLE) == Usage((ALLOCATED,))
    assert reading.users_of_gpu(GpuRef(f"GPU-{UUID_START}9", 0)) == Usage()
    assert reading.users(DEVICE) == Usage()


@pytest.mark.parametrize("name", ["gpu-3-mig-14-4-2", "gpu-3-mig-2g20gb-14-4"])
def test_a_claimed_mig_device_is_known_by_its_place(name: str) -> None:
    reading = claimed(name)
    assert reading.users(DEVICE) == Usage((ALLOCATED,))
    for place in (Placement(start, size) for size in (1, 2, 4, 8) for start in range(9 - size)):
        users = Usage((ALLOCATED,)) if place.start <= 4 < place.start + place.size else Usage()
        assert reading.users(MigDeviceRef(GPU, 3, 6, 0, OTHER, place)) == users
        beside = reading.users_of_gpu(GpuRef(GPU, 3, (place,)))
        assert beside == (Usage() if users.processes else Usage((ALLOCATED,)))
    assert reading.users_of_gpu(WHOLE) == Usage()


def test_a_claimed_gpu_is_known_by_its_file() -> None:
    assert claimed("gpu-3").users_of_gpu(WHOLE) == Usage((ALLOCATED,))
    assert claimed("gpu-2").users_of_gpu(WHOLE) == Usage()
    assert claimed("gpu-3", "dra.example.com").users_of_gpu(WHOLE) == Usage()


def test_an_unintelligible_claim_makes_everything_unknown() -> None:
    for usage in (claimed("card").users(DEVICE), claimed("card").users_of_gpu(WHOLE)):
        assert not usage.known
        assert "pod team/trainer was given the device 'card'" in usage.reason


def test_a_gpu_whose_file_is_not_known_may_be_the_claimed_one() -> None:
    assert not claimed("gpu-3").users_of_gpu(GpuRef(GPU, None)).known
    assert not claimed("gpu-3").users(MigDeviceRef(GPU, None, 5, 0, MIG)).known
    assert held(MIG).users_of_gpu(GpuRef(GPU, None)) == Usage()


# --- joined with processes ------------------------------------------------------------------------


def joined(reading: Allocations, pods: PodsByPid, *pids: int) -> tuple[User, ...]:
    """Users of the device, on which the driver sees these processes."""
    usage = Usage(tuple(User(pid, "python") for pid in pids))
    device = ComputeInstance(0, "2g.20gb", 2, MIG, usage=usage)
    gpu = Gpu(
        3, GPU, minor=3, instances=(GpuInstance(5, 14, "2g.20gb", Placement(4, 2), (device,)),)
    )
    return with_allocations(gpu, reading, pods).instances[0].compute[0].usage.processes


def of_trainer(container: str = "main") -> User:
    return User(7, "python", namespace="team", pod="trainer", container=container)


def test_a_process_stands_for_its_pods_allocation() -> None:
    pods = {7: ProcessPod("uid", "", POD, "main")}
    assert joined(held(MIG), pods, 7) == (of_trainer(),)
    assert joined(held(MIG), {7: ProcessPod("uid", "", POD)}, 7) == (of_trainer(),)
    assert joined(held(MIG), {7: ProcessPod("uid", "", POD, "debug")}, 7) == (of_trainer("debug"),)


def test_a_process_of_another_pod_stands_for_no_other_pod() -> None:
    pods = {7: ProcessPod("uid", "", PodName("team", "intruder"), "main")}
    intruder, allocated = joined(held(MIG), pods, 7)
    assert (intruder.pod, allocated) == ("intruder", ALLOCATED)


def test_a_process_of_the_machine_is_not_the_pods() -> None:
    """An MPS server, say; were it named after the pod, an eviction would go for the wrong one."""
    assert joined(held(MIG), {7: None}, 7) == (User(7, "python"), ALLOCATED)


def test_a_process_of_which_nothing_is_known_is_the_only_holders() -> None:
    """The allocation stays beside it, for that is no proof: the process may be a server."""
    assert joined(held(MIG), {}, 7) == (of_trainer(), ALLOCATED)
    assert joined(held(MIG), {7: ProcessPod("uid")}, 7) == (of_trainer(), ALLOCATED)


def test_of_two_holders_it_is_unknown_which() -> None:
    both = Allocations(
        held(f"{MIG}::0").holdings + held(f"{MIG}::1", pod=PodName("team", "other")).holdings
    )
    assert joined(both, {}, 7)[0] == User(7, "python")
    assert len(joined(both, {}, 7)) == 3


def test_who_holds_the_gpu_is_its_user() -> None:
    gpu = Gpu(3, GPU, minor=3, usage=Usage((User(7, "python"),)))
    pods = {7: ProcessPod("uid", "", POD, "main")}
    assert with_allocations(gpu, held(GPU), pods).usage == Usage((of_trainer(),))
    assert with_allocations(gpu, held(GPU), {7: None}).usage.processes[1] == ALLOCATED


# --- claims of the agent's own driver -------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "of_device", "of_gpu"),
    [
        ("mig-2g-20gb-4", True, False),
        ("mig-1g-10gb-me-4", True, False),
        ("mig-2g-20gb-0", False, False),
        ("gpu", False, True),
    ],
)
def test_what_a_claim_has_of_the_agents_own_driver(
    name: str, of_device: bool, of_gpu: bool
) -> None:
    for gpu, here in ((GPU, True), (OTHER, False)):
        found = allocations.read_own_device(("team", "half"), f"node-0/{gpu.lower()}", name)
        reading = Allocations((allocations.Holding(POD, "main", found),))
        assert bool(reading.users(DEVICE).processes) is (here and of_device)
        assert bool(reading.users_of_gpu(WHOLE).processes) is (here and of_gpu)


def test_an_own_device_of_an_unknown_name_may_be_any() -> None:
    """A later release may give names that this one does not know."""
    found = allocations.read_own_device(("team", "half"), f"node-0/{GPU.lower()}", "partition")
    assert not Allocations((allocations.Holding(POD, "main", found),)).users(DEVICE).known
