import ast
import re
import shlex
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Formatter

import pytest
import yaml

from nodeagent.catalogue import Words, filled, problem_words, section
from nodeagent.claims.serving.attempts import CDI, INTERNAL, OTHER
from nodeagent.cli.parser import parse
from nodeagent.errors import UsageError
from nodeagent.health.table import BY_CAUSE, Check
from nodeagent.health.xids import default_table
from nodeagent.mps.clients.assess import OffenceKind
from nodeagent.mps.lifecycle.model import DaemonPhase
from nodeagent.plan.problems import Code, Problem
from nodeagent.reconcile.event_log import EventType
from nodeagent.runbook import EntryKind, actions, runbook
from nodeagent.settings.sources import setting_names
from nodeagent.views.claims import ClaimPhase
from nodeagent.views.conditions import HEALTHY, PARTITIONS_READY
from nodeagent.views.node_state import Phase
from tools.make_prometheus_rule import RULES
from tools.make_runbook import HEAD, PAGE, page

# --- problems and their facts ---------------------------------------------------------------------


SOURCES = Path(__file__).parents[1] / "nodeagent"
RAISING = ("of", "problem", "refuse")
OF_ITSELF = {"title", "index"}  # what `Gpu.problem` knows
KNOWN = {"agent"}  # what `filled` knows
NOT_FACTS = {"gpu", "path"}
SENTENCES = ("offence", "unplanned")  # sections without remedies
OF_A_PLACE = {"code", "below", "of_key"}

Key = tuple[str, str]  # code and case; of an error "" and its own


def _keys() -> Iterator[Key]:
    for code, entry in section("problem").items():
        if "message" in entry:
            yield Code(code), ""
        yield from ((Code(code), case) for case in entry.get("cases", ()))
    yield from (("", case) for case in section("error"))
    yield from ((kind, case) for kind in SENTENCES for case in section(kind))


def _words(code: str, case: str) -> Words:
    if code in SENTENCES:
        return Words(section(code)[case])
    return problem_words(code, case) if code else Words(**section("error")[case])


def _facts(words: Words) -> set[str]:
    named = (name for text in words for _, name, _, _ in Formatter().parse(text) if name)
    return {re.split(r"[.\[]", name)[0] for name in named} - KNOWN


def _raised() -> Iterator[tuple[str, Key, set[str], bool]]:
    """Of each call that raises a problem: where, its key, its facts, and whether it is of a GPU."""
    for file in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
                for where, key, given, of_gpu in _raised_in(function):
                    yield f"{file.relative_to(SOURCES)}:{where}", key, given, of_gpu


def _raised_in(function: ast.AST) -> Iterator[tuple[int, Key, set[str], bool]]:
    body = list(_own_nodes(function))
    for node in body:
        match node:
            case ast.Call(
                func=ast.Attribute(attr=name) | ast.Name(id=name),
                args=[ast.Attribute(value=ast.Name(id="Code"), attr=code), *more],
            ) if name in RAISING:
                given = {keyword.arg for keyword in node.keywords if keyword.arg} - NOT_FACTS
                for case in _cases(more[0], body) if more else [""]:
                    yield node.lineno, (Code[code], case), given, name != "of"
            case ast.Call(
                args=[ast.Attribute(value=ast.Name(id="OffenceKind"), attr=kind)], keywords=facts
            ):
                given = {str(fact.arg) for fact in facts}
                yield node.lineno, ("offence", OffenceKind[kind]), given, False
            case ast.Call(
                func=ast.Name(id="other_than_planned"), args=[ast.Constant(value=str(case))]
            ):
                given = {str(fact.arg) for fact in node.keywords}
                yield node.lineno, ("unplanned", case), given, False
            case ast.Call(
                func=ast.Attribute(attr="refused"), args=[ast.Constant(value=str(case)), *_]
            ):
                given = {keyword.arg for keyword in node.keywords if keyword.arg} - OF_A_PLACE
                yield node.lineno, (_code_of(node), case), given, False
            case ast.Call(
                func=ast.Attribute(attr="of"),
                args=[ast.Constant(value=str()) | ast.Name(id="case") as named],
            ):
                given = {keyword.arg for keyword in node.keywords if keyword.arg} - {"also"}
                for case in _cases(named, body):
                    yield node.lineno, ("", case), given, False


def _code_of(refusal: ast.Call) -> Code:
    """The code that is given to `refused`."""
    for keyword in refusal.keywords:
        if keyword.arg == "code":
            assert isinstance(keyword.value, ast.Attribute)
            return Code[keyword.value.attr]
    return Code.INVALID_VALUE


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """All within it, but for what is in functions of its own."""
    for node in ast.iter_child_nodes(function):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
            yield from _own_nodes(node)


def _cases(named: ast.expr, body: list[ast.AST]) -> Iterator[str]:
    """The case that is named, or each of those that the variable can have."""
    if isinstance(named, ast.Constant):
        yield str(named.value)
        return
    assert isinstance(named, ast.Name)
    for node in body:
        match node:
            case ast.Assign(targets=[ast.Name(id=named.id)], value=ast.Constant(value=case)):
                yield str(case)
            case ast.Assign(
                targets=[ast.Name(id=named.id)],
                value=ast.IfExp(body=ast.Constant(value=case), orelse=ast.Constant(value=other)),
            ):
                yield from (str(case), str(other))


RAISED = list(_raised())


@pytest.mark.parametrize(
    ("key", "given", "of_gpu"), [each for _, *each in RAISED], ids=[where for where, *_ in RAISED]
)
def test_problems_are_raised_with_facts_they_need(key: Key, given: set[str], of_gpu: bool) -> None:
    needed = _facts(_words(*key))
    assert needed - (OF_ITSELF if of_gpu else set()) == given


def test_all_words_are_used() -> None:
    assert {key for _, key, *_ in RAISED} == set(_keys())
    text = (SOURCES / "catalogue.yaml").read_text(encoding="utf-8")
    errors = re.findall(r"^  (\w+):$", text[text.index("\nerror:\n") :], re.MULTILINE)
    assert len(errors) == len(section("error"))


def test_commands_and_settings_in_remedies_exist() -> None:
    tables = ("gpu/nvml_codes.json", "health/check_table.json")
    remedies = [_words(*key).remedy for key in _keys()]
    names = {*setting_names(), "mps.enforce"}  # which only a DeviceClass has
    groups = "|".join({name.split(".")[0] for name in names if "." in name})
    for text in (*remedies, *(_source(table) for table in tables)):
        for command in re.findall(r"`nodeagent ([^`]+)`", text):
            parse(shlex.split(re.sub(r"\{[^}]*\}", "0", command)))
        found = re.findall(rf"(?<![\w./{{])(?:{groups})\.[a-z]\w*\b(?!\.)", text)
        assert set(found) - {"plan.yaml"} <= names


def test_an_empty_fact_takes_its_punctuation_along() -> None:
    """`{why:: }` is `: ` and the fact."""
    assert filled("it failed{why:: }", {"why": "no reply"}) == "it failed: no reply"
    assert filled("it failed{why:: }", {"why": ""}) == "it failed"


def test_a_problem_has_its_words() -> None:
    found = Problem.of(Code.UNKNOWN_DEVICE, "noSuchGpu", path="gpus[0]", named="7", gpus="index 0")
    assert (found.message, found.remedy) == ("this node has no GPU 7", "it has index 0")
    assert (found.code, found.path, found.gpu) == (Code.UNKNOWN_DEVICE, "gpus[0]", "")


# --- the runbook ----------------------------------------------------------------------------------


ROOT = Path(__file__).parents[1]
ENTRIES = runbook().entries
# Sections whose entries are written; findings and XIDs are made.
WRITTEN = [kind for kind in EntryKind if kind not in (EntryKind.FINDING, EntryKind.XID)]
# What a line of a shell may begin with, and the words in capitals that stand for values.
PROGRAMS = {
    *("nodeagent", "kubectl", "systemctl", "journalctl", "nvidia-smi", "nvidia-ctk"),
    *("nvidia-cuda-mps-control", "curl", "dmesg", "lspci", "modprobe", "mount", "kill", "pgrep"),
    *("ls", "df", "rm", "mkdir", "chmod", "namei", "which", "id", "prlimit"),
}
PLACEHOLDERS = {
    *("NODE", "NUMBER", "DEVICE", "NAMESPACE", "POD", "CLAIM", "PID", "FILE", "NAME", "WATTS")
}
DISPLAYS = {"ECC", "POWER", "PERFORMANCE", "TEMPERATURE", "NVRM"}  # of nvidia-smi and dmesg


def _source(*paths: str) -> str:
    files = (file for path in paths for file in sorted((ROOT / "nodeagent").glob(path)))
    return "".join(file.read_text(encoding="utf-8") for file in files)


def _preflight_checks() -> set[str]:
    """The names in the sources of `nodeagent check`; `gpu 0` has its index as a value."""
    text = _source("cli/checks/*.py", "cli/check.py")
    called = re.findall(r'\b(?:ok|warning|error|directory_finding)\(\s*"([^"]+)"', text)
    named = re.findall(r'\bcheck(?:, \w+)* = f?"([^"{]+?)(?: \{[^"]*)?"', text)
    return {*called, *named, *re.findall(r'\("(mps \w+)", ', text)}


def _reasons() -> set[str]:
    """Of conditions and headlines, but for those that are phases, problems or findings."""
    text = _source("views/headline.py", "views/conditions.py", "health/reporting.py")
    found = {
        *re.findall(r'code="([A-Z]\w+)"', text),
        *re.findall(r'ondition\(\s*"\w+", "(\w+)"', text),
        *re.findall(r'(?:return|reason =|else) "([A-Z]\w+)"', text),
    }
    return found - {*Phase, *Code, *(row.reason for row in BY_CAUSE.values())}


def _events() -> set[str]:
    """Reasons of Events, but for those that other entries explain."""
    of_claims = re.findall(r'"(Claim[A-Z]\w+)"', _source("claims/reporting/claim_news.py"))
    return {*EventType, *of_claims} - {*Phase, *Code, *_reasons()}


def _alerts() -> set[str]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}


THERE_ARE: dict[EntryKind, Iterable[str]] = {
    EntryKind.PHASE: Phase,
    EntryKind.PROBLEM: {*Code, CDI, OTHER, INTERNAL},
    EntryKind.CONDITION: {PARTITIONS_READY, HEALTHY},
    EntryKind.REASON: _reasons(),
    EntryKind.EVENT: _events(),
    EntryKind.CHECK: Check,
    # A problem of the same name has its entry.
    EntryKind.FINDING: (c for c in BY_CAUSE if c.lower() not in {code.lower() for code in Code}),
    EntryKind.XID: map(str, section("xid")["usual"]),
    EntryKind.ALERT: _alerts(),
    EntryKind.PREFLIGHT: _preflight_checks(),
    EntryKind.CLAIM: ClaimPhase,
    EntryKind.DAEMON: DaemonPhase,
}


@pytest.mark.parametrize("kind", EntryKind)
def test_there_is_an_entry_for_each_and_no_other(kind: EntryKind) -> None:
    assert sorted(e.code for e in ENTRIES if e.kind is kind) == sorted(set(THERE_ARE[kind]))


def test_a_finding_named_like_a_problem_is_told_in_its_entry() -> None:
    [entry] = runbook().of("gpuLost")
    assert (entry.code, "GPU_IS_LOST" in entry.means) == ("GpuLost", True)


def test_entries_are_short() -> None:
    for kind in WRITTEN:
        for code, parts in section(kind).items():
            lines = textwrap.wrap(parts["means"], 96)
            lines += (parts["look"] + parts["mend"]).splitlines()
            assert 3 <= len(lines) <= 8, code
    written = (entry for entry in ENTRIES if entry.kind is not EntryKind.XID)  # NVIDIA names those
    assert not [entry.code for entry in written if len(entry.first_sentence) > 100]


def test_lines_can_be_pasted() -> None:
    for entry in ENTRIES:
        assert entry.look, entry.code
        assert entry.mend, entry.code
        for line in (*entry.look, *entry.mend):
            command = re.split(r"(?:^|\s)# ", line)[0].strip()
            programs = {part.split()[0] for part in re.split(r"&&|\|", command) if part.strip()}
            assert programs - {"grep"} <= PROGRAMS, line
            assert (
                set(re.findall(r"(?<![\w.])[A-Z]{3,}(?![\w])", command)) <= PLACEHOLDERS | DISPLAYS
            )


def test_actions_stand_for_lines() -> None:
    parts = [p for kind in WRITTEN for p in section(kind).values()]
    texts = [p.get("look", "") + p["mend"] for p in (*parts, *section("xid")["classes"].values())]
    lines = {line for text in texts for line in text.splitlines()}
    assert {line for line in lines if re.fullmatch(r"\{\w+\}", line)} == set(actions())
    assert not [line for e in ENTRIES for line in e.mend if line in actions()]


def test_references_lead_somewhere() -> None:
    assert not [(e.code, code) for e in ENTRIES for code in e.see if not runbook().of(code)]


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
    assert set(re.findall(r"`([A-Z]+)`", HEAD)) == PLACEHOLDERS


# --- looking one up -------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["XID 79", "xid 79", "xid79", "XID-79", "79"])
def test_xids_by_any_spelling(words: str) -> None:
    (entry,) = runbook().find(words.split())
    assert (entry.kind, entry.code, entry.see) == (EntryKind.XID, "79", ("fallenOffBus",))
    assert entry.means.startswith("GPU has fallen off the bus. Class nodeReboot.")
    assert "systemctl reboot  # on the node" in entry.mend


def test_every_xid_has_an_entry() -> None:
    for xid in (*default_table().rows, 5000):
        (entry,) = runbook().of(str(xid))
        assert entry.look
        assert entry.mend
    assert "not in this program's table" in runbook().of("5000")[0].means


def test_a_code_of_several_subjects_has_several_entries() -> None:
    kinds = {entry.kind for entry in runbook().find(["driver"])}
    assert kinds == {EntryKind.PROBLEM, EntryKind.CHECK, EntryKind.PREFLIGHT}
    assert runbook().find(["MPS", "shm"]) == runbook().find(["mps shm"])


@pytest.mark.parametrize("reason", [*EventType, "ClaimWaiting", "ClaimRefused"])
def test_reasons_of_events_are_explained(reason: str) -> None:
    assert runbook().find([reason])[0].code in (reason, reason.lower())


def test_several_codes() -> None:
    found = runbook().find(["InUse", "xid", "79", "inuse", "31"])
    assert [entry.code for entry in found] == ["InUse", "79", "31"]


@pytest.mark.parametrize(
    ("words", "near"),
    [("InUsed", "InUse"), ("nodeagentplanblock", "NodeagentPlanBlocked"), ("mps smh", "mps shm")],
)
def test_an_unknown_code_gets_the_nearest(words: str, near: str) -> None:
    with pytest.raises(UsageError) as refused:
        runbook().find(words.split())
    assert refused.value.remedy == f"did you mean {near}?"


@pytest.mark.parametrize("word", ["0", "123456", "qqqqqqqq", "-"])
def test_what_is_like_nothing(word: str) -> None:
    with pytest.raises(UsageError, match="no code") as refused:
        runbook().find([word])
    assert refused.value.remedy == "`nodeagent explain` lists all codes"
