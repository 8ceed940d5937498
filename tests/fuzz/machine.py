"""Readers of what comes from the machine itself: state files, MPS, the kubelet, the kernel."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodeagent.app.use_service import use_file
from nodeagent.claims import records
from nodeagent.claims.offering.planned import planned_places_file
from nodeagent.cluster.kubelet.allocations import read_claimed_device, read_device_id
from nodeagent.cluster.kubelet.generated import podresources_pb2
from nodeagent.cluster.kubelet.pod_resources import KubeletError, allocated_in, holdings_in
from nodeagent.cluster.kubelet.processes import outside_pods, pod_of_cgroup
from nodeagent.files.state import StateFile
from nodeagent.gpu.nvidia_smi import listed_time_slice
from nodeagent.gpu.original_settings import OriginalSettings
from nodeagent.health.kernel_log import pci_address, read_lines
from nodeagent.health.state_file import encode, health_file
from nodeagent.mps import commands
from nodeagent.mps.clients.limits import own_limits
from nodeagent.mps.clients.watch import container_in
from nodeagent.mps.control import _parted
from nodeagent.mps.files.log import facts, worth_showing
from nodeagent.mps.files.records import FOLDER, RecordUnusable, read_records
from nodeagent.mps.shares import MEMORY_VARIABLE, SLOT_VARIABLE, THREADS_VARIABLE
from nodeagent.processes import MAX_ENVIRONMENT, variables_in
from nodeagent.reconcile.plan_update import last_good_plan
from nodeagent.use.records import Records
from tests.fuzz.runs import Parser, Refused

_STATE = Path("tests/data/state")
_CLAIM = "0b8f6a3e-1c2d-4e5f-8a9b-0c1d2e3f4a5b"


# --- state files ----------------------------------------------------------------------------------


def _sealed(kind: str, version: int, content: bytes) -> bytes:
    """With the first line that belongs to it, as if the agent had written it."""
    signed = b"%s %d" % (kind.encode(), version)
    digest = hashlib.sha256(signed + b"\n" + content).hexdigest()
    return b"# nodeagent %s sha256:%s\n" % (signed, digest.encode()) + content


def _content(name: str) -> bytes:
    return (_STATE / name).read_bytes().partition(b"\n")[2]


def _state(
    name: str, form: tuple[str, int], read: Callable[[Path], object], path: str, *seeds: bytes
) -> Parser:
    """Each input is the content of a whole file of this `form`, and, now and then, all of it."""
    kind, version = form

    def reading(text: bytes, folder: Path) -> None:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        whole = text.startswith(b"# nodeagent")
        file.write_bytes(text if whole else _sealed(kind, version, text))
        read(folder)

    sealed = _sealed(kind, version, seeds[0])
    return Parser(name, reading, (Refused,), (*seeds, sealed))


def _from(file: Callable[[Path], StateFile[Any]], path: str) -> Callable[[Path], object]:
    def read(folder: Path) -> object:
        kept = file(folder / path)
        value = kept.read()
        if value is None:
            raise Refused(str(kept.problem))
        return value

    return read


def _health(folder: Path) -> None:
    encode(_from(health_file, "health.json")(folder))  # type: ignore[arg-type]  # as it says


def _use(folder: Path) -> None:
    kept = _from(use_file, "use.json")(folder)
    list(Records(14, kept, 0.0).uses())  # type: ignore[arg-type]  # as it says


def _mps_records(folder: Path) -> None:
    for found in read_records(folder):
        if isinstance(found, RecordUnusable):
            raise Refused(found.message)


def _claim_records(folder: Path) -> None:
    for found in records.read_records(folder):
        if isinstance(found, records.UnreadableRecord):
            raise Refused(found.error.message)
        found.gpus  # noqa: B018 - it looks at each device


def _states() -> tuple[Parser, ...]:
    device = _content("record.json").partition(b'"device":"')[2].partition(b'"')[0].decode()
    gpus = b'[{"number":0,"uuid":"GPU-1","pci_bus_id":"00000000:1A:00.0"}]'
    plan = b'# configuration: "a"\n# gpus: ' + gpus + b"\nversion: v1\ngpus: []\n"
    places = b'{"GPU-1": [{"profile": "1g.10gb", "slices": 1, "start": 4, "mps": false}]}'
    modes = "earlier-modes.json"
    return (
        _state("state: health", ("health", 1), _health, "health.json", _content("health.json")),
        _state("state: use", ("use", 1), _use, "use.json", _content("use.json")),
        _state(
            "state: plan",
            ("last-good-plan", 1),
            _from(last_good_plan, "last-good-plan"),
            "last-good-plan",
            plan,
            _content("last-good-plan"),
        ),
        _state(
            "state: modes",
            ("earlier-modes", 1),
            _from(lambda path: OriginalSettings(path, read_only=True).file, modes),
            modes,
            _content(modes),
        ),
        _state(
            "state: places",
            ("planned-places", 1),
            _from(planned_places_file, "places.json"),
            "places.json",
            places,
        ),
        _state(
            "state: claim", ("claim", 1), _claim_records, f"{_CLAIM}.json", _content("claim.json")
        ),
        _state(
            "state: MPS",
            ("mps-record", 1),
            _mps_records,
            f"{FOLDER}/{device}/record.json",
            _content("record.json"),
        ),
    )


# --- MPS ------------------------------------------------------------------------------------------

_SHOWN_OF_A_LOG = 1 << 14  # bytes at its end

_COMMANDS = (
    *(commands.get_server_list(), commands.get_client_list(7), commands.get_server_status(7)),
    *(commands.get_threads(), commands.get_threads(7), commands.get_memory_limit()),
    *(commands.set_memory_limit(512), commands.terminate_client(7, 8), commands.quit_daemon(1)),
)
_LOG = b"""\
[2026-09-01 12:00:00.000 Control  4711] NEW CLIENT 4812 from user 1000: Server is not ready, pending
[2026-09-01 12:00:00.100 Control  4711] Starting new server 4813 for user 1000
[2026-09-01 12:00:00.200 Control  4711] NEW SERVER 4813: Ready
[2026-09-01 12:00:00.300 Server   4813] Volta MPS Server: Received new client request
[2026-09-01 12:00:00.400 Server   4813] Client process 4812 encountered a fatal GPU error.
[2026-09-01 12:00:00.500 Server   4813] Client {4812, 1} exit
[2026-09-01 12:00:00.600 Control  4711] Server 4813 exited with status 0
[2026-09-01 12:00:00.700 Control  4711] NEW UI
[2026-09-01 12:00:00.800 Control  4711] Cmd:get_server_list
"""


def _reply(text: bytes, _: Path) -> None:
    """As the answer to each of the commands, and as that to a batch."""
    said, refusals = text.decode(errors="replace"), []
    _parted(said, 3)
    for command in _COMMANDS:
        try:
            command.read(said.splitlines())
        except commands.UnexpectedReply as refusal:
            refusals.append(refusal)
    if len(refusals) == len(_COMMANDS):
        raise refusals[0]


def _log(text: bytes, _: Path) -> None:
    list(facts(text.decode(errors="replace").split("\n")))
    list(worth_showing(text[-_SHOWN_OF_A_LOG:].decode(errors="replace").splitlines()))


def _environment(text: bytes, _: Path) -> None:
    own = text.decode(errors="replace")
    own_limits({MEMORY_VARIABLE: own, THREADS_VARIABLE: own}, "GPU-b3bd7a30-5896-557f")


# --- the kubelet ----------------------------------------------------------------------------------


def _pods(count: int, devices: list[str]) -> bytes:
    plugged = podresources_pb2.ContainerDevices(resource_name="nvidia.com/gpu", device_ids=devices)
    claimed = podresources_pb2.DynamicResource(
        claim_name="c",
        claim_namespace="ns",
        claim_resources=[
            podresources_pb2.ClaimResource(driver_name=driver, pool_name="p", device_name=device)
            for driver, device in (
                ("gpu.nodeagent.io", "mig-1g-10gb-0"),
                ("gpu.nvidia.com", "gpu-0-mig-1g10gb-19-4"),
                ("gpu.nvidia.com", "gpu-0-mig-9-4-1"),
            )
        ],
    )
    container = podresources_pb2.ContainerResources(
        name="main", devices=[plugged], dynamic_resources=[claimed]
    )
    pod = podresources_pb2.PodResources(name="pod", namespace="ns", containers=[container])
    listed = podresources_pb2.ListPodResourcesResponse(pod_resources=[pod] * count)
    return listed.SerializeToString()


_GPU = "GPU-b3bd7a30-5896-557f-8bf4-a9aa828e379c"
_IDS = [_GPU, f"{_GPU}::3", f"MIG-{_GPU}/1/0", "nvidia0", "nvidia0/gi1/vgpu0", "x"]


def _allocations(text: bytes, _: Path) -> None:
    holdings_in(text)
    allocated_in(text)


def _device_id(text: bytes, _: Path) -> None:
    name = text.decode(errors="replace")
    read_device_id(name)
    read_claimed_device("gpu.nvidia.com", name)


# --- the kernel, nvidia-smi -----------------------------------------------------------------------

_KERNEL = b"""\
3,339,5140900,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.
3,340,5140900,-;NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:01): 13, pid='<unknown>', name=a b, x
NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0
NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (Reset)
NVRM: The NVIDIA GPU 0000:17:00.0 (PCI ID: 10de:20b0)
NVRM: has fallen off the bus
"""
_CGROUP = (
    b"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0b8f6a3e_1c2d_4e5f_8a9b_"
    b"0c1d2e3f4a5b.slice/cri-containerd-"
    + b"ab" * 32
    + b".scope\n1:name=systemd:/system.slice/a.service\n"
)


def _kernel(text: bytes, _: Path) -> None:
    events, _begun = read_lines(text.decode(errors="replace").split("\n"), 5.0)
    for event in events:
        pci_address(event.pci)


def _cgroup(text: bytes, _: Path) -> None:
    path = text.decode(errors="replace")
    pod_of_cgroup(path)
    outside_pods(path, 1000)
    container_in(path)


def parsers() -> tuple[Parser, ...]:
    """One for each kind of file, message or text."""
    replies = (
        b"",
        b"815\n4711\n",
        b"ACTIVE\n",
        b"33.3\n",
        b"512M\n",
        b"2G\n",
        b"0\n",
        b"Server 7 not found",
    )
    batch = b'815\nUnknown command "__1"\n2G\nUnknown command "__2"\n100.0\nUnknown command "__3"\n'
    lines = 64 << 10  # bytes of a log that are taken in one go
    return (
        *_states(),
        Parser(
            "MPS replies",
            _reply,
            (commands.UnexpectedReply,),
            (*replies, batch),
            (b"815\n" * 16_000, b"9" * 65_000),
        ),
        Parser(
            "MPS log",
            _log,
            (),
            (_LOG,),
            (
                *(_LOG * 70, b"[" * lines, b"[a] Client {" + b"} " * 30_000),
                *((piece * lines)[:lines] for piece in (b"\n", b"[\n", b"[]a]\n", b"[a]Server\n")),
            ),
        ),
        Parser(
            "MPS client",
            _environment,
            (),
            (b"0=1G,1=512MB", _GPU.encode() + b"=8G", b"12.5", b"100"),
            (b"0=1G," * 800, b"GPU-" * 1_000),
        ),
        Parser(
            "environment",
            lambda text, _: variables_in(text, "CUDA_MPS_", SLOT_VARIABLE),
            (),
            (b"A=1\0CUDA_MPS_PIPE_DIRECTORY=/p\0NODEAGENT_MPS_SLOT=GPU-1/a\0CUDA_MPS_X==\0",),
            tuple(
                (piece * MAX_ENVIRONMENT)[:MAX_ENVIRONMENT]
                for piece in (
                    b"\0",
                    b"\0CUDA_MPS",
                    b"CUDA_MPS_",
                    b"\0CUDA_MPS_a=",
                    b"\0CUDA_MPS_=b",
                )
            ),
        ),
        Parser(
            "kubelet: List",
            _allocations,
            (KubeletError,),
            (_pods(1, _IDS), _pods(3, _IDS[:2])),
            (_pods(250, _IDS * 3), _pods(1, ["nvidia" + "0" * 1_000_000])),
        ),
        Parser(
            "device id",
            _device_id,
            (),
            tuple(
                one.encode()
                for one in (*_IDS, "gpu-0-mig-9-4-1", "gpu-0-mig-1g10gb-19-4", "gpu-vfio-0")
            ),
            (b"gpu-0-mig-" + b"a-1" * 5_000, b"nvidia" + b"1" * 100_000),
        ),
        Parser("kernel log", _kernel, (), (_KERNEL, *_KERNEL.splitlines()), (_KERNEL * 16,)),
        Parser(
            "nvidia-smi",
            lambda text, _: listed_time_slice(text.decode(errors="replace")),
            (),
            (b"|   0   Timeslice       Default       |\n|   1   Time-slice   Long |\n",),
        ),
        Parser("cgroup", _cgroup, (), (_CGROUP,), (_CGROUP * 300,)),
    )
