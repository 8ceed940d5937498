import os
import sys
import threading
from pathlib import Path

import pytest

from nodeagent.gpu.process_details import Details, ProcessDetails, details_of, script_in, script_of
from nodeagent.plan.observed import ComputeInstance, Gpu, GpuInstance, Placement
from nodeagent.plan.users import Usage, User
from nodeagent.structs import replace
from tests.processes.real import ready_process

TRAIN, OTHER = User(4711, "python3"), User(4712, "serve")


def _gpu(user: User, on_gpu: User | None = None) -> Gpu:
    device = ComputeInstance(0, "3g.40gb", 3, "MIG-1", usage=Usage((user,)))
    whole = Usage((on_gpu,) if on_gpu else ())
    instance = GpuInstance(1, 9, "3g.40gb", Placement(0, 4), (device,))
    return Gpu(0, "GPU-0", usage=whole, instances=(instance,))


@pytest.mark.parametrize(
    ("words", "script"),
    [
        (["train.py", "--epochs", "3"], "train.py"),
        (["-u", "/srv/train.py", "-m", "x"], "train.py"),
        (["-m", "torch.distributed.run", "train.py"], "torch.distributed.run"),
        (["-um", "vllm"], "vllm"),
        (["-mvllm", "serve"], "vllm"),
        (["-W", "ignore", "-X", "dev", "train.py"], "train.py"),
        (["-Wignore", "--check-hash-based-pycs", "never", "train.py"], "train.py"),
        (["-c", "import torch"], "-c"),
        (["-Ic", "import torch"], "-c"),
        (["-"], "-"),
        (["-m"], ""),
        ([], ""),
    ],
)
def test_the_script_of_a_command_line(words: list[str], script: str) -> None:
    assert script_in(words) == script


def test_of_a_process_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / f"a\x1b[31m{'b' * 100}.py"
    path.write_text("import sys; print('ready', flush=True); sys.stdin.read()")
    with ready_process(sys.executable, path) as process:
        assert script_of(process.pid) == f"a?[31m{'b' * 54}"
        found = details_of(User(process.pid, "python"))
        assert found == Details(os.geteuid(), script_of(process.pid))
        assert details_of(User(process.pid, "serve")) == Details(os.geteuid())
    assert details_of(User(process.pid, "python")) == Details()


async def test_users_get_their_details() -> None:
    """On MIG devices and on the GPU; one that is gone, and an allocation, stay as they were."""
    known = {4711: Details(1000, "train.py"), 4712: Details()}
    details = ProcessDetails(lambda user: known[user.pid])
    allocated = User(0, source="kubelet", pod="p")
    found = await details.with_details([_gpu(TRAIN, OTHER), _gpu(allocated)])
    details.close()
    trained = replace(TRAIN, uid=1000, script="train.py")
    assert found == [_gpu(trained, OTHER), _gpu(allocated)]
    assert str(trained) == "pid 4711 (python3 train.py)"


async def test_a_process_that_holds_up_the_look_delays_nothing() -> None:
    going_on = threading.Event()

    def read(_: User) -> Details:
        going_on.wait()
        return Details(0, "late.py")

    details = ProcessDetails(read)
    try:
        for _ in range(2):
            assert await details.with_details([_gpu(TRAIN)]) == [_gpu(TRAIN)]
    finally:
        going_on.set()
        details.close()
