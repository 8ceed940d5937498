import json
import re
import textwrap
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nodeagent.api.openapi import DESCRIPTION
from nodeagent.cli import main
from nodeagent.cli.parser import build_parser, parse
from nodeagent.documents.plan import plan_schema
from nodeagent.documents.reading import read_document
from nodeagent.settings import Settings, load_settings
from nodeagent.settings.sources import setting_names, written
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
from tools import make_hardware_page

README = (ROOT / "README.md").read_text(encoding="utf-8")
SIMULATOR = (ROOT / "docs/simulator.md").read_text(encoding="utf-8")
SETTINGS = (ROOT / "docs/settings.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["developers/threats.md", "developers/reliability.md"])
def test_the_tests_that_a_page_names_are_there(name: str) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert len(named) > 5
    for path, test in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not test or re.search(rf"^(async )?def {test}\(", text, re.MULTILINE), (path, test)


def _rows(text: str) -> dict[str, list[str]]:
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and (name := re.match(r"`([\w.-]+)", cells[0])):
            rows[name[1]] = cells
    return rows


def _commands(text: str) -> list[str]:
    """What follows `nodeagent` in the lines of blocks of commands, comments included."""
    bodies = "".join(block.body for block in blocks_of(text) if block.info in MARKS)
    return re.findall(r"^ *(?:\$ )?nodeagent (.+)$", bodies, re.MULTILINE)


def test_every_setting_is_documented_with_its_default() -> None:
    rows = _rows(SETTINGS.split("## Names that are no settings", maxsplit=1)[0])
    assert setting_names() == list(rows)
    defaults = load_settings(None, {}, {})
    for name, (_, default, *_) in rows.items():
        value = written(defaults, name)
        if name == "node_name":
            assert "host name" in default
        elif value is None or value == "":
            assert default == "none"
        else:
            exact = value if isinstance(value, str) else json.dumps(value)
            number = f"{value:g}" if isinstance(value, float) else exact
            assert default == f"`{number}`", name


def test_every_command_is_in_the_readme() -> None:
    table = README.split("## Commands")[1].split("## ")[0]
    rows = re.findall(r"^\| .*", table, re.MULTILINE)
    assert set(build_parser().subcommands) == set(re.findall(r"`([a-z]+)", " ".join(rows)))


def _plan_keys(schema: object) -> set[str]:
    match schema:
        case {"properties": dict(properties), **rest}:
            return set(properties) | _plan_keys(list(properties.values())) | _plan_keys(rest)
        case dict():
            return _plan_keys([value for key, value in schema.items() if key != "required"])
        case list():
            return set[str]().union(*map(_plan_keys, schema))
        case _:
            return set()


def test_every_key_of_a_plan_is_documented() -> None:
    page = (ROOT / "docs/plan.md").read_text(encoding="utf-8")
    rows, inside = set(_rows(page)), {"memory", "threads"}  # these two within a row
    assert rows | inside == _plan_keys(plan_schema())
    assert all(f"`{key}`" in page for key in inside)


def test_every_path_of_the_api_is_documented() -> None:
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(GET|POST) (/\S*)` \|", page, re.MULTILINE)
    described = [
        (method.upper(), path) for path, item in DESCRIPTION["paths"].items() for method in item
    ]
    assert sorted(described) == sorted(listed)


def test_the_hardware_page_is_up_to_date() -> None:
    assert make_hardware_page.PAGE.read_text(encoding="utf-8") == make_hardware_page.page()


def test_every_simulation_is_documented() -> None:
    for name in build_parser().subcommands["simulate"].subcommands:
        assert f"simulate {name}" in SIMULATOR, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_pages_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for command in _commands(text) + re.findall(r"`nodeagent ([^`]+)`", text):
        if not re.match(r"COMMAND|\.\.\.", command):  # a synopsis
            words, _ = words_of(command)
            parse([word for word in words if word != "--help"])


def _anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_in_the_pages_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", page.read_text("utf-8")):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not (anchor and there.suffix == ".md") or anchor in _anchors(there), (target, anchor)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_documents_in_the_pages_are_accepted(page: Path, tmp_path: Path) -> None:
    shown = blocks_of(page.read_text("utf-8"))
    for block in (textwrap.dedent(one.body) for one in shown if one.info == "yaml"):
        if "settings.yaml" in block.splitlines()[0]:
            path = tmp_path / "settings.yaml"
            path.write_text(block, encoding="utf-8")
            assert isinstance(load_settings(path, {}, {}), Settings)
        else:
            assert read_document(block).entries


def test_the_picture_in_the_readme_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_with_examples(tmp_path, monkeypatch)
    (tmp_path / "plan.yaml").write_text(
        "version: v1\ngpus: [{devices: [0], mig: {3g.40gb: 1, 1g.10gb: 3}}]\n", encoding="utf-8"
    )
    (tmp_path / "before.yaml").write_text(
        "version: v1\ngpus: [{devices: [0], mig: {2g.20gb: 2, 1g.10gb: 3}}]\n", encoding="utf-8"
    )
    node = ["--state", "node.json", "--no-color"]
    assert main(["apply", "-f", "before.yaml", "--simulate", "h100-80gb:1", *node]) == 0
    assert main(["simulate", "occupy", "0:6", *node]) == 0
    capsys.readouterr()
    assert main(["plan", "-f", "plan.yaml", *node]) == 0
    shown = README.split("$ nodeagent plan -f plan.yaml\n")[1].split("```")[0]
    assert capsys.readouterr().out.splitlines() == shown.splitlines()


# --- blocks of commands ---------------------------------------------------------------------------


BLOCKS = {page.name: tuple(blocks_of(page.read_text(encoding="utf-8"))) for page in PAGES}
SERVED = [name for name, blocks in BLOCKS.items() if any(b.info == RUN for b in blocks)]
NODE = ["--state", "node.json", "--no-color"]
# In tests/test_docs.py and tests/terminal/test_claims_page.py.
COMPARED = {"$ nodeagent plan -f plan.yaml", "$ nodeagent claims"}


def test_every_block_says_what_it_is() -> None:
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
