"""Every block of commands in the pages is run, or says what it needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nodeagent.cli import main
from nodeagent.documents.reading import read_document
from tests.doc_blocks import (
    DOCUMENTS,
    MARKS,
    PAGES,
    ROOT,
    RUN,
    blocks_of,
    folder_with_examples,
    words_of,
)

BLOCKS = {page.name: tuple(blocks_of(page.read_text(encoding="utf-8"))) for page in PAGES}
SERVED = [name for name, blocks in BLOCKS.items() if any(b.info == RUN for b in blocks)]
NODE = ["--state", "node.json", "--no-color"]
# In tests/test_docs.py and tests/terminal/test_claims_page.py.
COMPARED = {"$ nodeagent plan -f plan.yaml", "$ nodeagent claims"}


def test_every_block_says_what_it_is() -> None:
    """A document, or commands that are run or name what they need."""
    for name, blocks in BLOCKS.items():
        for block in blocks:
            where = f"{name}:{block.line}"
            assert block.info in DOCUMENTS | MARKS.keys(), f"{where} has no mark: {block.info!r}"
            assert block.info != "console" or block.lines[0] in COMPARED, where


def test_no_command_starts_beside_the_one_before() -> None:
    """A block may be pasted whole: what is left in the background would race with the next line."""
    lines = [
        line for blocks in BLOCKS.values() for b in blocks if b.info in MARKS for line in b.lines
    ]
    assert [line for line in lines if re.search(r"(?<!&)&(?!&)\s*(#|$)", line)] == []


@pytest.fixture
def folder() -> Iterator[Path]:
    """One whose name is short, since sockets of MPS lie in it."""
    with TemporaryDirectory(prefix="na-", dir="/tmp") as name:
        yield Path(name)


@pytest.mark.parametrize("name", SERVED)
def test_what_the_simulator_can_serve_is_run(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Typed one after the other on one node with two H100 that are cut as in the example, each of a
    page's commands ends with 0, or with the code that the page names.
    """
    folder_with_examples(folder, monkeypatch)
    cut = ["apply", "-f", "examples/plan.yaml", "--simulate", "h100-80gb:2", *NODE]
    assert main(cut) == 0
    for block in (block for block in BLOCKS[name] if block.info == RUN):
        for line in block.lines:
            words, target = words_of(line)
            assert words[0] == "nodeagent", f"{name}:{block.line}: {line}"
            capsys.readouterr()
            code = main([*words[1:], "--no-color"])
            out, err = capsys.readouterr()
            named = re.search(r"#.*exit code (\d)", line)
            assert code == (int(named[1]) if named else 0), (f"{name}:{block.line}", line, out, err)
            if target:
                Path(target).write_text(out, encoding="utf-8")


def test_what_the_others_name_is_there() -> None:
    """Files of this repository exist, plans in the line are accepted, and patches are JSON."""
    for name, blocks in BLOCKS.items():
        for block in (block for block in blocks if block.info in MARKS):
            where = f"{name}:{block.line}"
            paths = r"(?:manifests|examples|systemd|requirements)/[\w./*-]+"
            for path in re.findall(rf"(?<![\w/]){paths}", block.body):
                assert list(ROOT.glob(path.rstrip("/"))), f"{where}: {path}"
            for plan in re.findall(r"nodeagent\.io/plan='([^']+)'", block.body):
                read_document(plan)
            for patch in re.findall(r"-p '([^']+)'", block.body):
                assert json.loads(patch), where


def test_no_page_applies_an_overlay_without_an_image() -> None:
    """The overlays name an image that no registry has: one's own overlay names the one that was
    built. Only that of the simulation is loaded into a cluster by this name.
    """
    overlays = ROOT.glob("manifests/overlays/*")
    for source in (*PAGES, *(overlay / "kustomization.yaml" for overlay in overlays)):
        found = re.findall(r"kubectl \w+ -k (manifests/[\w/-]+)", source.read_text("utf-8"))
        assert set(found) <= {"manifests/overlays/simulated", "manifests/monitoring"}, source


def test_no_page_starts_the_restore_unit() -> None:
    """It does not ask the kubelet, so on a node with pods it would change what they have."""
    starting = re.compile(r"systemctl +(?:enable +--now|start|restart|reenable +--now)\b")
    for name, blocks in BLOCKS.items():
        for block in blocks:
            for line in block.lines:
                starts = starting.search(line) and "nodeagent-restore" in line
                assert not starts, f"{name}:{block.line}: {line}"


def test_faults_in_the_pages_hit_calls_that_are_made() -> None:
    """A fault of a function that the agent never calls does nothing, whatever the page promises."""
    sources = (ROOT / "nodeagent/gpu").rglob("*.py")
    called = {name for s in sources for name in re.findall(r"\bnvml[A-Z]\w+", s.read_text("utf-8"))}
    shown = {
        words[3]
        for blocks in BLOCKS.values()
        for block in blocks
        for line in block.lines
        if (words := line.split("#")[0].split())[:3] == ["nodeagent", "simulate", "fault"]
    }
    functions = {word.strip("'") for word in shown if not word.startswith("-")}
    assert functions
    for function in functions:
        assert any(fnmatchcase(name, function) for name in called), function
