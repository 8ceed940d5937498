import json
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.json import encode

from nodeagent.files.cdi import cdi_specification
from nodeagent.mps.files import client_files
from nodeagent.mps.files.publisher import Publisher
from nodeagent.mps.shares import DaemonSpec, client_environment
from nodeagent.plan.problems import Code
from nodeagent.plan.shares import Share, WantedMps
from nodeagent.structs import replace
from tests.cdi_schema import valid_names
from tests.mps.plans import GPU, MIG, spec_of, wanted

# --- env files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [GPU, MIG])
def test_a_shell_reads_what_was_meant(tmp_path: Path, device: str) -> None:
    plan = wanted(Share("small", 2, 8192, 33.33), Share("all", 1, None, None))
    for slot in plan.sharing.slots:
        environment = client_environment(spec_of(plan, device), slot)
        path = tmp_path / client_files.file_name(slot.name)
        path.write_bytes(client_files.env_file(environment))
        printed = subprocess.run(
            ["/bin/sh", "-c", 'set -a; . "$0"; exec /usr/bin/env', str(path)],
            env={},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        seen = dict(line.split("=", 1) for line in printed.splitlines())
        assert {name: seen[name] for name in environment} == environment
        assert set(seen) <= {*environment, "PWD", "_", "SHLVL", "OLDPWD"}


@given(st.text())
def test_what_is_plain_needs_no_quotes(value: str) -> None:
    if client_files.is_plain(value):
        assert shlex.quote(value) == value
        assert not set(value) & set("\"'\\#;$`~ \t\r\n\0")


@pytest.mark.parametrize(
    "value", ["", "/run/a b/pipe", "/run/x\nLD_PRELOAD=/tmp/evil.so", "$(reboot)", "/run/\u2028"]
)
def test_values_that_some_reader_would_take_otherwise(value: str) -> None:
    with pytest.raises(client_files.NotPlain) as caught:
        client_files.env_file({"CUDA_MPS_PIPE_DIRECTORY": value})
    assert "CUDA_MPS_PIPE_DIRECTORY would be" in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["", "a", "A=B", "A\n", "1A"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(client_files.NotPlain, match="is no name of a variable"):
        client_files.env_file({name: "x"})


@pytest.mark.parametrize("slot", ["", "..", "../../etc/passwd", "a/b", "a\n", "-a", "a" * 101])
def test_slots_that_make_no_file(slot: str) -> None:
    with pytest.raises(client_files.NotPlain, match="makes no file name"):
        client_files.file_name(slot)


def test_the_page_for_users() -> None:
    page = Path(__file__).parents[2] / "docs/mps.md"
    written = re.findall(r"\{name: ([A-Z_]+), value: \"?([^\"}]+)\"?\}", page.read_text())
    slot = wanted().sharing.slots[0]
    environment = client_environment(spec_of(wanted(), "GPU-..."), slot)
    environment["CUDA_MPS_PIPE_DIRECTORY"] = "/run/nodeagent/mps/GPU-.../pipe"
    assert dict(written) == environment


# --- cdi ------------------------------------------------------------------------------------------


def document() -> dict[str, Any]:
    """All slots of a plan with two shares, on a GPU and on a MIG device."""
    plan = wanted()
    devices = [
        client_files.slot_device(replace(spec_of(plan, device), private_shm=True), slot)
        for device in (GPU, MIG)
        for slot in plan.sharing.slots
    ]
    found: dict[str, Any] = json.loads(
        cdi_specification(client_files.CDI_VERSION, client_files.KIND, devices)
    )
    return found


def test_it_is_valid() -> None:
    """Also to Podman 4.3, which refuses a file with a newer version or an unknown key."""
    found = document()
    names = valid_names(found)
    assert (found["cdiVersion"], found["kind"]) == ("0.5.0", "nodeagent.io/mps")
    assert {key for device in found["devices"] for key in device} == {"name", "containerEdits"}
    assert names[:3] == [f"{GPU}-small-0", f"{GPU}-small-1", f"{GPU}-large-0"]
    assert len(set(names)) == len(names) == 6


def test_what_a_container_gets() -> None:
    plan = wanted()
    [slot, *_] = plan.sharing.slots
    spec = replace(spec_of(plan, pipe="/run/x/pipe"), private_shm=True)
    device = json.loads(encode(client_files.slot_device(spec, slot)))
    assert device["containerEdits"] == {
        "env": [
            f"{name}={value}" for name, value in sorted(client_environment(spec, slot).items())
        ],
        "mounts": [
            {
                "hostPath": "/run/x/pipe",
                "containerPath": "/run/x/pipe",
                "options": ["ro", "nosuid", "nodev", "noexec", "bind"],
            },
            {
                "hostPath": "/run/x/shm",
                "containerPath": "/dev/shm",
                "options": ["rw", "nosuid", "nodev", "noexec", "bind"],
            },
        ],
    }


# --- publishing -----------------------------------------------------------------------------------


class Node:
    def __init__(self, folder: Path) -> None:
        self.run, self.cdi = folder / "run", folder / "cdi"
        self.publisher = Publisher(run_dir=self.run, cdi_dir=self.cdi)

    def shared(self, **plans: WantedMps) -> list[DaemonSpec]:
        """What `publish` takes: of the GPU, of the MIG device, or both."""
        devices = {"gpu": GPU, "mig": MIG}
        return [
            spec_of(plan, devices[name], pipe=f"{self.run}/mps/{devices[name]}/pipe")
            for name, plan in plans.items()
        ]

    def files(self) -> dict[str, str]:
        """The env files, by path below `mps`, with what they say."""
        paths = (self.run / "mps").glob("*/env/*")
        return {str(p.relative_to(self.run / "mps")): p.read_text() for p in sorted(paths)}

    def devices(self) -> list[str]:
        path = self.cdi / "nodeagent.io-mps.json"
        document: Mapping[str, Any] = json.loads(path.read_text())
        return [device["name"] for device in document["devices"]]

    def stamps(self) -> dict[Path, tuple[int, int]]:
        """By which one sees that something was written, even the same again."""
        every = [*self.run.rglob("*"), *self.cdi.rglob("*")]
        return {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in every}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_every_slot(node: Node) -> None:
    shared = node.shared(gpu=wanted(), mig=wanted(Share("clients", None, 4096, None)))
    assert node.publisher.publish(shared) == ()
    files = node.files()
    assert list(files) == [
        f"{GPU}/env/large-0.env",
        f"{GPU}/env/small-0.env",
        f"{GPU}/env/small-1.env",
        f"{MIG}/env/clients-0.env",
    ]
    spec = shared[0]
    expected = client_environment(spec, spec.wanted.sharing.slots[1])
    read = dict(line.split("=", 1) for line in files[f"{GPU}/env/small-1.env"].splitlines())
    assert read == expected
    assert node.devices() == [
        f"{GPU}-small-0",
        f"{GPU}-small-1",
        f"{GPU}-large-0",
        f"{MIG}-clients-0",
    ]


def test_only_what_changed_is_written(node: Node) -> None:
    """Watchers of these directories are not woken for nothing."""
    node.publisher.publish(node.shared(gpu=wanted(), mig=wanted()))
    before = node.stamps()
    assert node.publisher.publish(node.shared(mig=wanted(), gpu=wanted())) == ()
    assert node.stamps() == before
    smaller = wanted(Share("small", 2, 4096, 15.0), Share("large", 1, 40960, 40.0))
    node.publisher.publish(node.shared(gpu=smaller, mig=wanted()))
    # Not directories, whose time may be the same: all this may take less than a tick of the clock.
    changed = {p.name for p, stamp in node.stamps().items() if p.is_file() and before[p] != stamp}
    assert changed == {"small-0.env", "small-1.env", "nodeagent.io-mps.json"}


def test_what_is_no_more_is_removed(node: Node) -> None:
    node.publisher.publish(node.shared(gpu=wanted(), mig=wanted()))
    (node.cdi / "nvidia.yaml").write_text("somebody else's")
    (node.run / "mps" / GPU / "record.json").write_text("{}")
    one = wanted(Share("small", 1, 8192, 15.0))
    node.publisher.publish(node.shared(gpu=one, mig=wanted()))
    assert [name for name in node.files() if name.startswith(GPU)] == [f"{GPU}/env/small-0.env"]
    node.publisher.publish(node.shared(mig=one))
    assert list(node.files()) == [f"{MIG}/env/small-0.env"]
    assert node.devices() == [f"{MIG}-small-0"]
    assert not (node.run / "mps" / GPU / "env").exists()
    assert node.publisher.publish([]) == ()
    assert node.files() == {}
    assert [path.name for path in node.cdi.iterdir()] == ["nvidia.yaml"]
    assert (node.run / "mps" / GPU / "record.json").exists()


def test_nothing_shared_makes_nothing(node: Node) -> None:
    assert node.publisher.publish([]) == ()
    assert not node.run.exists()
    assert not node.cdi.exists()


# --- what is refused ------------------------------------------------------------------------------


def test_nothing_to_publish_needs_no_safe_place(node: Node, tmp_path: Path) -> None:
    tmp_path.chmod(0o2777)
    publisher = Publisher(run_dir=tmp_path, cdi_dir=tmp_path)
    assert publisher.publish([]) == ()
    refused = publisher.publish(node.shared(gpu=wanted()))
    assert {problem.code for problem in refused} == {Code.MPS}


def test_a_symlinked_file(node: Node, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("x")
    (node.run / "mps" / GPU / "env").mkdir(parents=True)
    (node.run / "mps" / GPU / "env/small-0.env").symlink_to(victim)
    (node.run / "mps" / GPU / "env/old.env").symlink_to(victim)
    node.cdi.mkdir()
    (node.cdi / "nodeagent.io-mps.json").symlink_to(victim)
    messages = [p.message for p in node.publisher.publish(node.shared(gpu=wanted()))]
    assert [m.rpartition("published: ")[2] for m in messages] == [
        f"{node.run}/mps/{GPU}/env/small-0.env is a symlink, which could lead anywhere",
        f"{node.run}/mps/{GPU}/env/old.env is a symlink, which could lead anywhere",
        f"{node.cdi}/nodeagent.io-mps.json is a symlink, which could lead anywhere",
    ]
    assert victim.read_text() == "x"
    [left] = node.publisher.publish([])[-1:]
    assert "nodeagent.io-mps.json is a symlink" in left.message


def test_what_else_is_in_the_env_directory(node: Node) -> None:
    node.publisher.publish(node.shared(gpu=wanted()))
    (node.run / "mps" / GPU / "env/notes.txt").write_text("x")
    [problem] = node.publisher.publish(node.shared(gpu=wanted()))
    assert "notes.txt is none of the agent's files" in problem.message


@pytest.mark.parametrize(
    "share",
    [
        Share("../../../etc/cron.d/x", 1, 1, 1.0),
        Share("a\nLD_PRELOAD=/tmp/x", 1, 1, 1.0),
        Share("a", 1, 0, 1.0),
        Share("a", 1, 1.5, 1.0),  # type: ignore[arg-type]  # as if something had let it through
        Share("a", 1, 1, float("nan")),
    ],
)
def test_hostile_shares(node: Node, share: Share) -> None:
    node.publisher.publish(node.shared(gpu=wanted(), mig=wanted()))
    [problem] = node.publisher.publish(node.shared(gpu=wanted(share), mig=wanted()))
    assert problem.gpu == GPU
    assert "\n" not in problem.message
    assert all(name.startswith(MIG) for name in node.files())
    assert all(name.startswith(MIG) for name in node.devices())


@pytest.mark.parametrize(
    ("device", "pipe"),
    [(GPU, "/run/x\nLD_PRELOAD=/tmp/x.so"), (GPU, "/run/../tmp"), ("../../etc", "/run/x")],
)
def test_hostile_devices_and_directories(node: Node, device: str, pipe: str) -> None:
    plan = wanted()
    [problem] = node.publisher.publish([spec_of(plan, device, pipe=pipe)])
    assert "\n" not in problem.message
    assert node.files() == {}
    assert not node.cdi.exists()
