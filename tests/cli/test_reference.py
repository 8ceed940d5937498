import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from nodeagent import __version__
from nodeagent.cli.parser import build_parser
from nodeagent.runbook import runbook
from tests.cli.conftest import Program
from tests.machine_load import stretched
from tools.make_man_pages import pages


def test_an_entry_on_a_terminal(program: Program) -> None:
    shown = program("explain", "inuse")
    assert shown.code == 0
    title, *lines = shown.out.splitlines()
    assert title == "InUse  problem"
    assert all(line.startswith("  ") for line in lines)
    assert "  mend  kill PID  # for a process outside any pod" in lines
    assert lines[-1] == "  see   Blocked, NodeagentPlanBlocked"


DRAIN, UNCORDON, RESET = ["kubectl drain"], ["kubectl uncordon"], ["nvidia-smi --gpu-reset"]
END = "(end)"


@pytest.mark.parametrize(
    ("how", "code", "commands"),
    [
        ("", "ecc", ["systemctl stop", "nvidia-smi --gpu-reset", "systemctl start", "# with MPS"]),
        ("", "NodeagentDown", ["systemctl restart nodeagent  # in a pod: kubectl -n nodeagent"]),
        ("", "Unguarded", ["kubectl apply", "# Under another account"]),
        ("", "Drift", ["systemctl restart nodeagent  # applies"]),
        (
            "",
            "GpuLost",
            [
                "# end the GPUs' users",
                "systemctl reboot",
                "# in a cluster:",
                "kubectl drain",
                "systemctl reboot",
                "kubectl uncordon",
            ],
        ),
        ("service", "ecc", [*DRAIN, "systemctl stop", *RESET, "systemctl start", *UNCORDON]),
        ("service", "NodeagentDown", ["systemctl restart nodeagent", END]),
        ("service", "Drift", ["systemctl restart nodeagent  # applies the plan again", END]),
        ("service", "GpuLost", [*DRAIN, "systemctl reboot", *UNCORDON]),
        ("pod", "ecc", [*DRAIN, "kubectl label", *RESET, "kubectl label", *UNCORDON]),
        ("pod", "NodeagentDown", ["kubectl -n nodeagent delete pod POD", END]),
        ("pod", "Drift", ["kubectl -n nodeagent delete pod POD", END]),
    ],
)
def test_commands_are_for_how_the_agent_runs(
    how: str, code: str, commands: list[str], program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how:
        monkeypatch.setenv("NODEAGENT_KUBERNETES_KUBECONFIG", "x")
    if how == "pod":
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    rows = program("explain", code).out.split("\n  mend  ")[1].splitlines()
    mend = [*(row.strip() for row in rows if not row.startswith("  see")), END]
    for row, command in zip(mend, commands, strict=False):
        assert row.startswith(command), mend
        assert row == command or command != END, mend
        assert not how or "# in a" not in row, mend
    monkeypatch.setenv("NODEAGENT_DRIFT", "what")  # settings that are refused are explained, too
    assert program("explain", code).code == 0


def test_all_entries_in_a_table(program: Program) -> None:
    listed = program("explain")
    header, *lines = listed.out.splitlines()
    assert header.split() == ["CODE", "KIND", "MEANS"]
    assert len(lines) == len(runbook().entries)
    assert "…" not in listed.out
    assert any(line.split()[:2] == ["InUse", "problem"] for line in lines)


def test_an_entry_for_programs(program: Program) -> None:
    found = program("explain", "XID", "79", "-o", "json").json
    (entry,) = found["entries"]
    assert list(entry) == ["code", "kind", "means", "look", "mend", "see"]
    assert (entry["code"], entry["kind"], entry["see"]) == ("79", "xid", ["fallenOffBus"])
    assert yaml.safe_load(program("explain", "79", "-o", "yaml").out) == found
    everything = json.loads(program("explain", "-o", "json").out)["entries"]
    assert len(everything) == len(runbook().entries)


@pytest.mark.parametrize("subject", ["plan", "settings"])
def test_schemas_in_yaml_have_no_anchors(subject: str, program: Program) -> None:
    shown = program("schema", subject, "-o", "yaml").out
    assert yaml.safe_load(shown) == program("schema", subject).json
    assert not any(getattr(event, "anchor", None) for event in yaml.parse(shown))


def test_help_and_version_are_commands(program: Program) -> None:
    for words in ((), ("mps",), ("mps", "restart")):
        assert program("help", *words).out == program(*words, "--help").out != ""
    assert program("help", "stauts") == program("stauts", "--help")
    assert program("version").out == program("--version").out
    assert program("version", "-o", "json").json == {"version": __version__}


def test_logs_are_those_of_the_unit(program: Program) -> None:
    """Or it is said where they are: in no journal, or in that of another unit alone."""
    journal = program.directory / "journalctl"
    followed = "--unit nodeagent --follow --output=json\n"
    for script, code, out in (
        ('echo "$@"', 0, followed),
        ('echo "$@"; exit 1', 1, followed),
        ("", 1, ""),
        (None, 1, ""),
    ):
        if script is None:
            journal.unlink()
        else:
            program.file(f"#!/bin/sh\n{script}\n", "journalctl").chmod(0o755)
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = {**os.environ, "PATH": str(program.directory)}
        words = ("logs", "--follow", "-o", "json")
        with program.process(*words, env=environment, **streams) as process:
            said, complaint = process.communicate(timeout=stretched(30))
        assert (process.returncode, said) == (code, out)
        assert bool(out) is ("kubectl -n nodeagent logs POD" not in complaint)


def test_an_unknown_code(program: Program) -> None:
    refused = program("explain", "InUsed")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err == 'nodeagent: there is no code "InUsed"\n  did you mean InUse?\n'


CHECKS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}
LINES = {
    "nodeagent st": "status",
    "nodeagent simulate occ": "occupy",
    "nodeagent mps st": "status",
    "nodeagent --state node.json expo": "export",
    "nodeagent plan --res": "--reset",
    "nodeagent plan --reset wh": "whenIdle",
    "nodeagent completion f": "fish",
    "nodeagent mps restart --f": "--force",
    "nodeagent bundle a": "a.tar.gz a folder",
    "nodeagent plan -f a.": "a.tar.gz",
    "nodeagent run --run-dir a": "a folder",
    "nodeagent run --node-name a": "",
    "nodeagent explain Blocked ecc inf": "inforom inforomCorrupt",
    "nodeagent explain mps-sh": "mps-shm",
    "nodeagent --simulate gb3": "gb300",
}


def _script(program: Program, shell: str) -> Path:
    made = program("completion", shell)
    assert (made.code, made.err) == (0, "")
    return program.file(made.out, f"completion.{shell}")


@pytest.mark.parametrize("shell", CHECKS)
def test_each_script_has_every_word_and_is_accepted(program: Program, shell: str) -> None:
    script = _script(program, shell)
    text = script.read_text(encoding="utf-8")
    for parser in build_parser().with_subcommands():
        assert parser.prog.rpartition(" ")[2] in text
        for name in (name for action in parser.actions for name in action.option_strings):
            assert (name.lstrip("-") if shell == "fish" else name) in text
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} on this machine")
    done = subprocess.run([*CHECKS[shell], script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes(program: Program) -> None:
    script = _script(program, "bash")
    (program.directory / "a folder").mkdir()
    program.file("", "a.tar.gz")
    lines = "".join(
        f"COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shtab_nodeagent; "
        'echo "${COMPREPLY[*]}"\n'
        for line in LINES
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", f"compopt() {{ :; }}\nsource {script.name}\n{lines}"],
        cwd=program.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    found = dict(zip(LINES, done.stdout.splitlines(), strict=True))
    assert {k: set(v.split()) for k, v in found.items()} == {
        k: set(v.split()) for k, v in LINES.items()
    }


def test_every_command_has_a_manual_page(tmp_path: Path) -> None:
    made = pages()
    for parser in build_parser().with_subcommands():
        page = made[f"{parser.prog.replace(' ', '-')}.1"].replace("\\-", "-")
        assert all(name in page for action in parser.actions for name in action.option_strings)
    if shutil.which("groff") is None:
        pytest.skip("there is no groff on this machine")
    for name, page in made.items():
        (tmp_path / name).write_text(page, encoding="utf-8")
    command_line = ["groff", "-man", "-Tutf8", "-ww", "-z", *made]
    done = subprocess.run(command_line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


PAGE = (Path(__file__).parents[2] / "docs/commands.md").read_text(encoding="utf-8")
OPTIONS = {
    parser.prog.removeprefix("nodeagent").strip(): {
        option for action in parser.actions for option in action.option_strings
    }
    - {"-h", "--help"}
    for parser in build_parser().with_subcommands()
}
NAMES = [name for name in OPTIONS if name]
GLOBAL = {"--simulate", "--state", "-o", "--output", "--no-color"}


SHARED = {"--settings", "--listen", "--run-dir", "--state-dir"}


def _section(name: str) -> str:
    match = re.search(rf"^##+ `{name}`\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert match, f"docs/commands.md has no section `{name}`"
    return match[1]


def _first_column(text: str) -> set[str]:
    cells = (row.split("|")[1] for row in text.splitlines() if row.startswith("| `-"))
    return {option for cell in cells for option in re.findall(r"`(-[\w-]+)", cell)}


@pytest.mark.parametrize("name", NAMES)
def test_a_commands_options_are_documented(name: str) -> None:
    named, taken = _first_column(_section(name)), OPTIONS[name] - GLOBAL
    assert named <= taken
    assert taken - named <= SHARED


def test_who_takes_the_shared_options_is_documented() -> None:
    table = PAGE.split("## Options of several commands")[1].split("\n## ")[0]
    rows = [row.split("|") for row in table.splitlines() if row.startswith("| `-")]
    listed = {
        option.strip(" `"): set(re.findall(r"`([^`]+)`", who)) for _, option, _, who, _ in rows
    }
    assert listed == {
        option: {name for name in NAMES if option in OPTIONS[name]} - {"run"} for option in SHARED
    }


def test_the_common_options_are_documented() -> None:
    common = PAGE.split("## Options of every command")[1].split("\n## ")[0]
    assert _first_column(common) == GLOBAL
    assert all(options >= GLOBAL for options in OPTIONS.values())


def test_no_section_is_about_what_is_not_there() -> None:
    assert set(re.findall(r"^##+ `([^`]+)`$", PAGE, re.MULTILINE)) == set(NAMES)


def test_all_exit_codes_are_documented() -> None:
    table = PAGE.split("## Exit codes")[1].split("\n## ")[0]
    assert re.findall(r"^\| (\d) \|", table, re.MULTILINE) == ["0", "1", "2", "3"]
