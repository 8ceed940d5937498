import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

from nodeagent.claims.names import DRIVER
from nodeagent.cluster.kubelet.device_users import Allocations, KubeletUsage, kubelet_users
from nodeagent.errors import GpuInUse
from nodeagent.gpu.driver import Driver
from nodeagent.gpu.users import UnknownUsers
from nodeagent.plan.observed import Access, Gpu
from nodeagent.plan.users import PodName, User
from nodeagent.settings import KubeletSettings
from nodeagent.simulation import SimulatedNode
from tests.cluster.kubelet.machine import Machine
from tests.gpu.steps_of import destroy, destroy_compute, disable, enable, laid_out
from tests.machine_load import until
from tests.simulated_cluster.kubelet import RATE_LIMITED, Kubelet

DESTROYS = "nvml*InstanceDestroy"
MODE_CHANGES = "nvmlDeviceSetMigMode"
TRAINER = PodName("default", "trainer")
ALLOCATED = User(0, source="kubelet", namespace="default", pod="trainer", container="main")


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    async with Kubelet(tmp_path / "pod-resources") as kubelet:
        yield kubelet


@pytest.fixture
async def usage(kubelet: Kubelet) -> AsyncIterator[KubeletUsage]:
    usage = KubeletUsage(kubelet.socket, deadline=30)
    yield usage
    await usage.close()


@pytest.fixture
async def driver(node: SimulatedNode, usage: KubeletUsage) -> AsyncIterator[Driver]:
    async with Driver(observe_deadline=30, step_deadline=30, sources=[usage]) as driver:
        yield driver


def device_of(gpu: Gpu) -> str:
    return gpu.instances[0].compute[0].uuid


def users_of(gpu: Gpu) -> tuple[User, ...]:
    return gpu.instances[0].compute[0].usage.processes


async def test_it_is_asked_while_the_gpus_are_read(
    node: SimulatedNode, driver: Driver, kubelet: Kubelet
) -> None:
    hang = node.inject("nvmlDeviceGetCount_v2", hang=True)
    looking = asyncio.create_task(driver.observe())
    await until(lambda: kubelet.calls)
    assert not looking.done()
    node.clear_faults(hang)
    assert {gpu.access for gpu in (await looking).gpus} == {Access.OK}
    assert kubelet.calls == ["List"]


# --- what is in the way ---------------------------------------------------------------------------


async def test_an_allocation_since_the_plan_keeps_an_instance(
    node: SimulatedNode, driver: Driver, kubelet: Kubelet
) -> None:
    gpu = await laid_out(driver, 0, at0="3g.40gb", at4="3g.40gb")
    kubelet.allocate("trainer", [device_of(gpu)], resource="example.com/renamed")
    first = gpu.instances[0]
    for step in (destroy(gpu, first), destroy_compute(gpu, first, first.compute[0])):
        with pytest.raises(GpuInUse, match="in use by an allocation of pod default/trainer"):
            await driver.apply(step)
    assert node.journal.total(DESTROYS) == 0
    await driver.apply(destroy(gpu, gpu.instances[1]))
    gpu = await driver.observe_gpu(gpu.uuid)
    assert users_of(gpu) == (ALLOCATED,)
    kubelet.finish("trainer")
    await driver.apply(destroy(gpu, gpu.instances[0]))
    assert (await driver.observe_gpu(gpu.uuid)).instances == ()


async def test_who_was_given_the_whole_gpu_keeps_its_mig_mode(
    node: SimulatedNode, driver: Driver, kubelet: Kubelet
) -> None:
    free, held = (await driver.observe()).gpus
    kubelet.allocate("trainer", [held.uuid])
    with pytest.raises(GpuInUse, match="GPU 1: its MIG mode is not changed: it is in use"):
        await driver.apply(enable(held))
    assert node.journal.total(MODE_CHANGES) == 0
    await driver.apply(enable(free))
    free, held = (await driver.observe()).gpus
    assert (free.idle, held.idle, held.usage.processes) == (True, False, (ALLOCATED,))


async def test_an_outdated_allocation_of_the_whole_gpu_keeps_what_is_in_it(
    node: SimulatedNode, driver: Driver, kubelet: Kubelet
) -> None:
    """The plugin has not noticed that MIG is on; its pod may be on any instance."""
    gpu = await laid_out(driver, 0, at0="3g.40gb")
    node.journal.clear()
    kubelet.allocate("trainer", [gpu.uuid])
    for step in (destroy(gpu, gpu.instances[0]), disable(gpu)):
        with pytest.raises(GpuInUse, match="default/trainer"):
            await driver.apply(step)
    assert node.journal.total(DESTROYS) + node.journal.total(MODE_CHANGES) == 0
    assert (await driver.observe_gpu(gpu.uuid)).usage.processes == (ALLOCATED,)


async def test_an_allocation_counts_beside_a_gpu_that_is_lost(
    node: SimulatedNode, driver: Driver, kubelet: Kubelet
) -> None:
    gpu = await laid_out(driver, 0, at0="3g.40gb")
    kubelet.allocate("trainer", [device_of(gpu)])
    node.lose(1)
    first, second = (await driver.observe()).gpus
    assert second.access is Access.LOST
    assert users_of(first) == (ALLOCATED,)


# --- a kubelet that does not answer ---------------------------------------------------------------


async def test_no_answer_means_in_use_until_there_is_one(
    node: SimulatedNode, driver: Driver, kubelet: Kubelet
) -> None:
    gpu = await laid_out(driver, 0, at0="3g.40gb")
    kubelet.allocate("trainer", [device_of(gpu)])
    await kubelet.stop(leave_socket=True)
    seen = await driver.observe_gpu(gpu.uuid)
    assert not seen.usage.known
    assert not seen.instances[0].compute[0].usage.known
    assert "does not answer" in seen.usage.reason
    for step in (destroy(gpu, gpu.instances[0]), disable(gpu)):
        with pytest.raises(GpuInUse, match="does not answer"):
            await driver.apply(step)
    assert node.journal.total(DESTROYS) == 0
    await kubelet.start()  # it knows its pods from its checkpoint
    with pytest.raises(GpuInUse, match="default/trainer"):
        await driver.apply(destroy(gpu, gpu.instances[0]))
    kubelet.finish("trainer")
    await driver.apply(destroy(gpu, gpu.instances[0]))


async def test_a_busy_kubelet_is_asked_again(kubelet: Kubelet, usage: KubeletUsage) -> None:
    """The kubelet refuses the hundredth call in a second, whichever clients made the others."""
    kubelet.refuse["List"] = RATE_LIMITED
    asking = asyncio.ensure_future(usage.ask())
    await until(lambda: kubelet.calls)
    kubelet.refuse.clear()
    assert await asking == Allocations()
    assert len(kubelet.calls) > 1


async def test_many_who_ask_at_once_cost_one_call(kubelet: Kubelet, usage: KubeletUsage) -> None:
    await asyncio.gather(*(usage.ask() for _ in range(8)))
    assert kubelet.calls == ["List"]


# --- whose processes are --------------------------------------------------------------------------


def run_pod(machine: Machine, pid: int, pod: str, state: str = "") -> None:
    """A process of the pod's, which uses no GPU; the pod's uid ends in the pid."""
    uid = f"1b2c3d4e-0000-4111-8222-{pid:012}"
    machine.logs_of(PodName("default", pod), uid, "main")
    machine.runs(pid, f"/kubepods/pod{uid}/{'c' * 64}{state}")


async def test_a_process_is_shown_with_its_pod_in_place_of_the_allocation(
    node: SimulatedNode, kubelet: Kubelet, tmp_path: Path
) -> None:
    here = Machine(tmp_path)
    usage = KubeletUsage(kubelet.socket, deadline=30, processes=here.pods)
    async with Driver(observe_deadline=30, step_deadline=30, sources=[usage]) as driver:
        gpu = await laid_out(driver, 0, at0="3g.40gb")
        kubelet.allocate("trainer", [device_of(gpu)])
        process = node.occupy(device_of(gpu))
        run_pod(here, process.pid, "trainer")
        (user,) = users_of(await driver.observe_gpu(gpu.uuid))
        assert (user.pid, user.source) == (process.pid, "process")
        assert (user.namespace, user.pod, user.container) == ("default", "trainer", "main")
        unnamed = KubeletUsage(kubelet.socket, deadline=30)  # looks no process up
        async with Driver(observe_deadline=30, step_deadline=30, sources=[unnamed]) as other:
            users = users_of(await other.observe_gpu(gpu.uuid))
            assert {user.pid for user in users} == {0, process.pid}
        node.release()
        assert users_of(await driver.observe_gpu(gpu.uuid)) == (ALLOCATED,)


# --- a kubelet that has just started --------------------------------------------------------------


async def test_a_kubelet_that_does_not_list_its_pods_yet(
    node: SimulatedNode, kubelet: Kubelet, tmp_path: Path
) -> None:
    """After its start it lists pods as it learns of them, none while the API server is away: until
    all that run are listed once, anything may be allocated.
    """
    here = Machine(tmp_path)
    usage = KubeletUsage(kubelet.socket, deadline=30, processes=here.pods)
    async with Driver(observe_deadline=30, step_deadline=30, sources=[usage]) as driver:
        gpu = await laid_out(driver, 0, at0="3g.40gb")
        kubelet.allocate("trainer", [device_of(gpu)])
        run_pod(here, 11, "trainer")
        run_pod(here, 12, "monitor")
        kubelet.allocate("monitor", [])
        assert users_of(await driver.observe_gpu(gpu.uuid)) == (ALLOCATED,)
        kubelet.finish("trainer")
        await kubelet.restart()
        for source in (usage, KubeletUsage(kubelet.socket, deadline=30, processes=here.pods)):
            reading = await source.ask()
            assert isinstance(reading, UnknownUsers)
            assert "does not list default/trainer, which runs here" in reading.reason
        with pytest.raises(GpuInUse, match="does not list default/trainer"):
            await driver.apply(destroy(gpu, gpu.instances[0]))
        kubelet.allocate("trainer", [device_of(gpu)])
        assert users_of(await driver.observe_gpu(gpu.uuid)) == (ALLOCATED,)
        kubelet.finish("trainer")  # forgotten by a kubelet that knew it: it is over
        await driver.apply(destroy(gpu, gpu.instances[0]))


async def test_pods_that_end_while_the_kubelet_starts(kubelet: Kubelet, tmp_path: Path) -> None:
    here = Machine(tmp_path)
    run_pod(here, 11, "trainer")
    usage = KubeletUsage(kubelet.socket, deadline=30, processes=here.pods)
    assert isinstance(await usage.ask(), UnknownUsers)
    here.ends(11)
    run_pod(here, 12, "worker", " (deleted)")
    assert await usage.ask() == Allocations()


async def test_claims_with_a_record_are_no_users(
    node: SimulatedNode, kubelet: Kubelet, usage: KubeletUsage
) -> None:
    """Their records protect what they have; a claim without one is a user as any other."""
    for name, device in (("recorded", "mig-3g-40gb-0"), ("unknown", "mig-3g-40gb-4")):
        kubelet.claim(name, device, name=name, driver=DRIVER, pool="node-0/gpu-1")
    known = {("default", "recorded")}
    aware = KubeletUsage(kubelet.socket, deadline=30, recorded=lambda: known)
    for source, pods in ((usage, {"recorded", "unknown"}), (aware, {"unknown"})):
        found = await source.ask()
        assert isinstance(found, Allocations)
        assert {one.pod.name for one in found.holdings} == pods
    await aware.close()


# --- whether the kubelet is asked -----------------------------------------------------------------


async def test_a_node_without_kubelet_has_no_allocations_until_one_comes(tmp_path: Path) -> None:
    """By itself the agent counts on a kubelet from when on its folder is there."""
    kubelet = Kubelet(tmp_path / "pod-resources")
    usage = kubelet_users(KubeletSettings(socket=kubelet.socket), in_cluster=False, simulated=False)
    assert usage is not None
    assert await usage.ask() == Allocations()
    kubelet.socket.parent.mkdir()
    assert isinstance(await usage.ask(), UnknownUsers)
    async with kubelet:
        kubelet.allocate("trainer", ["nvidia0"])
        assert await usage.ask() != Allocations()


@pytest.mark.parametrize(("use", "in_cluster"), [("auto", True), ("always", False)])
async def test_where_there_must_be_a_kubelet_its_absence_is_no_answer(
    tmp_path: Path, use: Literal["auto", "always"], in_cluster: bool
) -> None:
    settings = KubeletSettings(socket=tmp_path / "nothing/kubelet.sock", use=use)
    usage = kubelet_users(settings, in_cluster=in_cluster, simulated=False)
    assert usage is not None
    assert isinstance(await usage.ask(), UnknownUsers)


def test_no_kubelet_is_asked_where_it_is_not_wanted() -> None:
    socket = Path("/nothing/kubelet.sock")
    never = KubeletSettings(socket=socket, use="never")
    assert kubelet_users(never, in_cluster=True, simulated=False) is None
    assert kubelet_users(KubeletSettings(socket=socket), in_cluster=True, simulated=True) is None
    assert (
        kubelet_users(
            KubeletSettings(socket=socket, use="always"), in_cluster=False, simulated=True
        )
        is not None
    )
