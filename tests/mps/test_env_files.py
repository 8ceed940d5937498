"""Env files say the same to everyone who reads such files, or are not made."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.mps.files.client_files import NotPlain, env_file, file_name, is_plain
from nodeagent.mps.shares import client_environment
from nodeagent.plan.shares import Share
from tests.mps.plans import GPU, MIG, spec_of, wanted


@pytest.mark.parametrize("device", [GPU, MIG])
def test_a_shell_reads_what_was_meant(tmp_path: Path, device: str) -> None:
    """`set -a; . file` exports just these, whatever the limits are."""
    plan = wanted(Share("small", 2, 8192, 33.33), Share("all", 1, None, None))
    for slot in plan.sharing.slots:
        environment = client_environment(spec_of(plan, device), slot)
        path = tmp_path / file_name(slot.name)
        path.write_bytes(env_file(environment))
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


def test_docker_reads_what_was_meant() -> None:
    """It takes each line up to the first = as the name, and all the rest, quotes included, as the
    value; lines that start with # are comments.
    """
    environment = client_environment(spec_of(wanted()), wanted().sharing.slots[0])
    lines = env_file(environment).decode().splitlines()
    assert dict(line.split("=", 1) for line in lines) == environment
    assert not any(line.startswith("#") or line != line.strip() for line in lines)


@given(st.text())
def test_what_is_plain_needs_no_quotes(value: str) -> None:
    """Neither for a shell, nor for systemd, which takes quotes, backslashes and, at the end of a
    line, continuation for more than what they are.
    """
    if is_plain(value):
        assert shlex.quote(value) == value
        assert not set(value) & set("\"'\\#;$`~ \t\r\n\0")


@pytest.mark.parametrize(
    "value",
    [
        "",
        "/run/a b/pipe",
        "/run/x\nLD_PRELOAD=/tmp/evil.so",
        "/run/x\r",
        "/run/x\0",
        "$(reboot)",
        "`reboot`",
        "a;b",
        "'a'",
        '"a"',
        "a\\",
        "#a",
        "~root",
        "/run/ä",
        "/run/\u2028",
    ],
)
def test_values_that_some_reader_would_take_otherwise(value: str) -> None:
    """Are refused, and shown without doing anything to a terminal."""
    with pytest.raises(NotPlain) as caught:
        env_file({"CUDA_MPS_PIPE_DIRECTORY": value})
    assert "CUDA_MPS_PIPE_DIRECTORY would be" in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["", "a", "A B", "A=B", "A\n", "1A", "BASH_FUNC_x%%"])
def test_names_that_are_none(name: str) -> None:
    """Are refused."""
    with pytest.raises(NotPlain, match="is no name of a variable"):
        env_file({name: "x"})


@pytest.mark.parametrize(
    "slot", ["", ".", "..", "../../etc/passwd", "a/b", "a\n", ".a", "-a", "a b", "a" * 101, "ä"]
)
def test_slots_that_make_no_file(slot: str) -> None:
    """No path can be made of a share's name."""
    with pytest.raises(NotPlain, match="makes no file name"):
        file_name(slot)


def test_slots_that_make_a_file() -> None:
    """All that a plan can say: 63 characters and a number."""
    longest = f"{'a' * 63}-127"
    assert file_name(longest) == f"{longest}.env"
    assert os.sep not in file_name("small-0")


def test_the_page_for_users() -> None:
    """The pod in it has the variables that a slot's file has, with values of the same form."""
    page = Path(__file__).parents[2] / "docs/mps-clients.md"
    written = re.findall(r"\{name: ([A-Z_]+), value: \"?([^\"}]+)\"?\}", page.read_text())
    slot = wanted().sharing.slots[0]
    environment = client_environment(spec_of(wanted(), "GPU-..."), slot)
    environment["CUDA_MPS_PIPE_DIRECTORY"] = "/run/nodeagent/mps/GPU-.../pipe"
    assert dict(written) == environment
