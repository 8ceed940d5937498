"""What clients need is published: what is shared, and nothing where others had a hand in it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nodeagent.mps.files.publisher import Publisher
from nodeagent.mps.shares import DaemonSpec, client_environment
from nodeagent.plan.problems import Code
from nodeagent.plan.shares import Share, WantedMps
from tests.mps.plans import GPU, MIG, spec_of, wanted

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


class Node:
    """A node's directories."""

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
        """The names of the CDI devices."""
        path = self.cdi / "nodeagent.io-mps.json"
        document: Mapping[str, Any] = json.loads(path.read_text())
        return [device["name"] for device in document["devices"]]

    def stamps(self) -> dict[Path, tuple[int, int]]:
        """By which one sees that something was written, even the same again."""
        every = [*self.run.rglob("*"), *self.cdi.rglob("*")]
        return {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in every}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """One without any files yet."""
    return Node(tmp_path)


def test_every_slot(node: Node) -> None:
    """An env file and a CDI device for each, on a GPU and on a MIG device."""
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
    """Slots, then devices, then all: no file of ours is left, and nothing of anybody else's is
    touched.
    """
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
    """A node without MPS gets no directories."""
    assert node.publisher.publish([]) == ()
    assert not node.run.exists()
    assert not node.cdi.exists()


# --- what is refused ------------------------------------------------------------------------------


def test_nothing_to_publish_needs_no_safe_place(node: Node, tmp_path: Path) -> None:
    """Directories that everyone can write are refused only once files shall go there."""
    tmp_path.chmod(0o2777)
    publisher = Publisher(run_dir=tmp_path, cdi_dir=tmp_path)
    assert publisher.publish([]) == ()
    refused = publisher.publish(node.shared(gpu=wanted()))
    assert {problem.code for problem in refused} == {Code.MPS}


def test_a_symlinked_env_directory(node: Node, tmp_path: Path) -> None:
    """Is named; the other device, and containers, get theirs."""
    (node.run / "mps" / GPU).mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (node.run / "mps" / GPU / "env").symlink_to(tmp_path / "elsewhere")
    [problem] = node.publisher.publish(node.shared(gpu=wanted(), mig=wanted()))
    assert (problem.code, problem.gpu) == (Code.MPS, GPU)
    assert f"{node.run}/mps/{GPU}/env is a symlink" in problem.message
    assert problem.remedy
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert len(node.files()) == 3
    assert len(node.devices()) == 6


def test_a_symlinked_file(node: Node, tmp_path: Path) -> None:
    """In either directory: named, left, and what it leads to is left too."""
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


@as_root
@pytest.mark.parametrize("where", ["run", "run/mps", "run/mps/GPU", "run/mps/GPU/env", "cdi"])
def test_foreign_ownership(node: Node, tmp_path: Path, where: str) -> None:
    """Of any directory on the way: who owns it could exchange what is in it."""
    assert node.publisher.publish(node.shared(gpu=wanted())) == ()
    path = tmp_path / where.replace("GPU", GPU)
    os.chown(path, 1000, 1000)
    [problem] = node.publisher.publish(node.shared(gpu=wanted(Share("new", 1, 1, 1.0))))
    assert f"{path} belongs to user 1000, not 0" in problem.message


@as_root
def test_foreign_files(node: Node) -> None:
    """Are named and left."""
    node.publisher.publish(node.shared(gpu=wanted()))
    paths = [node.run / "mps" / GPU / "env/small-0.env", node.cdi / "nodeagent.io-mps.json"]
    for path in paths:
        os.chown(path, 1000, 1000)
    problems = node.publisher.publish(node.shared(mig=wanted()))
    assert ["belongs to user 1000" in p.message for p in problems] == [True, True]
    assert all(path.exists() for path in paths)


def test_what_else_is_in_the_env_directory(node: Node) -> None:
    """Is named and left."""
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
    """They reach no file, whichever check passed them; the device's files and entry are removed."""
    node.publisher.publish(node.shared(gpu=wanted(), mig=wanted()))
    [problem] = node.publisher.publish(node.shared(gpu=wanted(share), mig=wanted()))
    assert problem.gpu == GPU
    assert "\n" not in problem.message
    assert all(name.startswith(MIG) for name in node.files())
    assert all(name.startswith(MIG) for name in node.devices())


@pytest.mark.parametrize(
    ("device", "pipe"),
    [
        (GPU, "/run/x\nLD_PRELOAD=/tmp/x.so"),
        (GPU, "/run/a b"),
        (GPU, "/run/../tmp"),
        ("../../etc", "/run/x"),
        ("GPU/x", "/run/x"),
        ("", "/run/x"),
    ],
)
def test_hostile_devices_and_directories(node: Node, device: str, pipe: str) -> None:
    """The same."""
    plan = wanted()
    [problem] = node.publisher.publish([spec_of(plan, device, pipe=pipe)])
    assert "\n" not in problem.message
    assert node.files() == {}
    assert not node.cdi.exists()


def test_a_run_directory_that_env_files_cannot_name(tmp_path: Path) -> None:
    """Says what would be right."""
    node = Node(tmp_path / "a b")
    [problem] = node.publisher.publish(node.shared(gpu=wanted()))
    assert problem.remedy == "use letters, digits, -, _, . and / in run.dir"
