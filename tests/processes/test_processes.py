import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from nodeagent import processes
from tests.machine_load import stretched, until
from tests.processes.real import process_of

STRANGE = Path(__file__).with_name("strange_process.py")
TENANT = 4001
GIBIBYTE = 1 << 30
CANNOT = 9  # the exit status where the kernel does not let a test do what it needs
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes processes of other users")


@contextmanager
def running(
    *command: str, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process until the end of the block; it said that it is ready."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()
    assert process.returncode == 0


def strange(
    name: str = "python", *, shown: int = 0, uid: int = os.geteuid()
) -> AbstractContextManager[subprocess.Popen[str]]:
    """A process with this name, and with so many bytes shown as its environment."""
    return running(sys.executable, str(STRANGE), name, str(shown), str(uid))


def looked_at(code: str, *, uid: int | None = None, before: str = "") -> list[str]:
    """What the code prints that looks at processes as this user; `before` in a shell."""
    three = (uid,) * 3  # with root's groups it would see all: hidepid spares group 0
    become = "" if uid is None else f"os.setgroups([])\nos.setresgid{three}\nos.setresuid{three}\n"
    program = f"import os, psutil\nfrom nodeagent.processes import *\n{become}{code}"
    done = subprocess.run(
        ["sh", "-c", f'{before} exec "$@"', "sh", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == CANNOT:
        pytest.skip(f"not to be had here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat, as proc(5) describes it."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


@pytest.mark.parametrize("name", ["sleeper", "a) R 1 (b", ") Z 1 2 3", "two\nlines"])
def test_an_identity_is_the_kernels_and_stays(name: str) -> None:
    """It is the number of ticks that the kernel has, whatever a process calls itself."""
    with strange(name) as process:
        first = processes.identify(process.pid)
        assert first == processes.ProcessIdentity(process.pid, ticks(process.pid))
        assert processes.identify(process.pid) == first
        assert not processes.is_gone(first)
        assert processes.name_of(process.pid) == name.replace("\n", "?")
    assert processes.is_gone(first)
    assert processes.identify(process.pid) is None


@as_root
def test_the_users_of_a_process() -> None:
    code = "import os; os.setresuid(4001, 4002, 4003); print('ready', flush=True); os.read(0, 1)"
    with running(sys.executable, "-c", code) as process:
        found = processes.inspect(process.pid)
    assert isinstance(found, processes.Process)
    assert (found.uids.real, found.uids.effective, found.uids.saved) == (4001, 4002, 4003)


@as_root
@pytest.mark.parametrize("name", ["Uid:\t0\t0\t0", "\rUid:\t0\t0\t0"])
def test_a_name_forges_no_user(name: str) -> None:
    with strange(name, uid=TENANT) as process:
        found = processes.inspect(process.pid)
    assert isinstance(found, processes.Process)
    assert found.uids == processes.Uids(TENANT, TENANT, TENANT)


def test_a_zombie_is_gone() -> None:
    with subprocess.Popen(["true"], stdout=subprocess.PIPE) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{process.pid}").exists()
        assert processes.identify(process.pid) is None
        assert processes.is_gone(processes.ProcessIdentity(process.pid, ticks(process.pid)))


def test_a_pid_that_is_used_again_is_another_process() -> None:
    own = processes.ProcessIdentity(os.getpid(), ticks(os.getpid()))
    assert not processes.is_gone(own)
    assert processes.is_gone(processes.ProcessIdentity(own.pid, own.create_time - 1))


@pytest.mark.parametrize("pid", [0, -1, 1 << 22, 1 << 40])
def test_what_is_no_pid_is_no_process(pid: int) -> None:
    assert (
        processes.inspect(pid),
        processes.command_of(pid),
        processes.environment_of(pid, "A"),
        processes.name_of(pid),
    ) == (None, None, None, "")


@as_root
@pytest.mark.parametrize("hidepid", [1, 2])
def test_who_is_hidden_is_not_gone(hidepid: int) -> None:
    """With hidepid a user sees no other's process in /proc: that means unknown, not gone."""
    ended = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
    here = os.getpid()
    mount = f"mount -t proc -o hidepid={hidepid} proc /proc"
    shown = looked_at(
        f"found = identify({here}), command_of({here}), environment_of({here}, 'A')\n"
        "print(*(type(one).__name__ for one in found))\n"
        f"print(is_gone(ProcessIdentity({here}, 1)), identify({int(ended.stdout)}))\n"
        "print(type(identify(os.getpid())).__name__)\n",
        uid=TENANT,
        before=f"""[ "$IN" ] || IN=1 exec unshare -m sh -c '{mount} && IN=1 exec "$@" || exit 9' \
          sh "$@"\n""",
    )
    assert shown == ["Hidden Hidden Hidden", "False None", "ProcessIdentity"]


@as_root
def test_the_environment_of_anothers_process_is_unknown_to_a_tenant() -> None:
    """Its command may be read by all, its environment only by users who may trace it."""
    here = os.getpid()
    code = f"found = environment_of({here}, 'A'), command_of({here})\n"
    shown = looked_at(f"{code}print(*(type(one).__name__ for one in found))", uid=TENANT)
    assert shown == ["Hidden tuple"]


def test_the_first_of_several_variables_counts() -> None:
    code = (
        "import ctypes, os, sys\n"
        "texts = lambda *all: (ctypes.c_char_p * (len(all) + 1))(*all, None)\n"
        "ctypes.CDLL(None).execve(b'/bin/sh', texts(b'sh', b'-c', b'echo ready; read x; :'), "
        "texts(b'OTHER=MPS_A=9', b'MPS_A=1', b'MPS_A=2', b'MPS_B==x=\\xff', b'MPS_C', b'=MPS_D'))"
    )
    with running(sys.executable, "-c", code) as process:
        last = os.fsdecode(b"=x=\xff")
        assert processes.environment_of(process.pid, "MPS_") == {"MPS_A": "1", "MPS_B": last}
        assert processes.environment_of(process.pid, "MPS_B", "OTH") == {
            "OTHER": "MPS_A=9",
            "MPS_B": last,
        }
        assert processes.command_of(process.pid) == ("sh", "-c", "echo ready; read x; :")


def test_a_crowd_of_variables_is_not_kept() -> None:
    """A tenant can have tens of thousands under names that are looked for: then it is not known."""
    crowd = {f"MPS_{number}": "" for number in range(20_000)}
    with running("sh", "-c", "echo ready; read x; :", environment=crowd) as process:
        assert isinstance(processes.environment_of(process.pid, "MPS_"), processes.Hidden)
        assert processes.environment_of(process.pid, "MPS_12345") == {"MPS_12345": ""}


def test_a_gigabyte_of_environment_is_not_read() -> None:
    """A tenant can show any memory as its environment; the agent must not hold that in its own."""
    with strange("a-name-of-15-ch", shown=GIBIBYTE, uid=os.geteuid() or TENANT) as process:
        shown = looked_at(
            f"pid = {process.pid}\n"
            "print(type(environment_of(pid, 'A')).__name__, len(command_of(pid)), name_of(pid))\n"
            "print(type(inspect(pid)).__name__)\n"
            # Its own peak; that of getrusage() is also of the large process that it was made by.
            "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])\n"
        )
    assert shown[:2] == ["Hidden 0 a-name-of-15-ch", "Process"]
    assert int(shown[2]) < 128 * 1024  # KiB


def test_commands_do_not_pay_for_it() -> None:
    code = "import sys, nodeagent.processes; print('psutil' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "False\n"


@as_root
def test_groups() -> None:
    with process_of("sleep", "60", group=7, extra_groups=[30, 7, 5]) as process:
        assert processes.groups_of(process.pid) == (7, (5, 7, 30))
    assert processes.groups_of(process.pid) is None


# --- watch ----------------------------------------------------------------------------------------


DESCRIPTORS = Path("/proc/self/fd")
NO_SUCH_PID = 2**22 + 1  # above the kernel's highest pid_max


def open_files() -> set[str]:
    return {entry.name for entry in DESCRIPTORS.iterdir()}


async def test_a_process_no_longer_watched_wakes_nothing() -> None:
    woken = asyncio.Event()
    watch = processes.ProcessWatch(woken.set, fallback=3600)
    with process_of("sleep", "60") as former, process_of("sleep", "60") as process:
        watch.watch({former.pid})
        watch.watch({process.pid})
        former.kill()
        former.wait()
        await asyncio.sleep(0.05)
        assert not woken.is_set()
        process.kill()
        async with asyncio.timeout(stretched(30)):
            await woken.wait()
    watch.close()


@pytest.mark.virtual_time
@pytest.mark.parametrize("pid", [0, NO_SUCH_PID, 2**32 - 1])
async def test_looks_again_where_the_kernel_cannot_tell(pid: int) -> None:
    times: list[float] = []
    clock = asyncio.get_running_loop().time

    def look_again() -> None:
        times.append(clock())
        if len(times) < 3:
            watch.watch({pid})

    watch = processes.ProcessWatch(look_again, fallback=0.02)
    times.append(clock())
    watch.watch({pid})
    await until(lambda: len(times) >= 3)
    watch.close()
    assert times[1] - times[0] == pytest.approx(0.02)
    assert times[2] - times[1] == pytest.approx(0.04)


@pytest.mark.virtual_time
async def test_a_zombie_does_not_wake_again_and_again() -> None:
    """It has ended already, and yet the driver may still name it: looked at after a while."""
    woken: list[int] = []
    watch = processes.ProcessWatch(lambda: woken.append(1), fallback=0.2)
    with process_of("sleep", "60") as process:
        process.kill()
        # It stays a zombie.
        await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        before = open_files()
        watch.watch({process.pid})
        assert open_files() <= before
        await asyncio.sleep(0.1)
        assert woken == []
        await until(lambda: woken)
    watch.close()


async def test_takes_no_more_descriptors_than_it_may() -> None:
    """However many processes a tenant puts on a GPU."""
    watch = processes.ProcessWatch(lambda: None, fallback=3600, most=1)
    with process_of("sleep", "60") as one, process_of("sleep", "60") as other:
        before = len(open_files())
        watch.watch({one.pid, other.pid})
        assert len(open_files()) == before + 1
        watch.close()
        assert len(open_files()) == before
