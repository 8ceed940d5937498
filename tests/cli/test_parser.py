from pathlib import Path

import pytest

from nodeagent.cli import main
from nodeagent.cli.exit_codes import ExitCode, most_severe, of_plan
from nodeagent.cli.parser import parse
from nodeagent.errors import UsageError
from nodeagent.plan.observed import Gpu
from nodeagent.plan.plan import GpuPlan, NodePlan, Verdict
from nodeagent.plan.problems import Code, Problem


@pytest.mark.parametrize(
    "words",
    [
        ["--simulate", "t4:1", "--state", "x", "-o", "json", "--no-color", "export"],
        ["export", "--simulate", "t4:1", "--state", "x", "-o", "json", "--no-color"],
        ["--simulate", "t4:1", "export", "-o", "json", "--no-color", "--state", "x"],
    ],
)
def test_global_options_may_stand_before_and_after_the_command(words: list[str]) -> None:
    options = parse(words)
    assert options.simulate == "t4:1"
    assert options.state == Path("x")
    assert options.output == "json"
    assert options.no_color


def test_the_later_of_two_wins() -> None:
    assert parse(["-o", "json", "export", "-o", "yaml"]).output == "yaml"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["export", "-o", "xml"],
        ["apply", "--wait", "-1"],
        ["apply", "--wait", "nan"],
        ["mps", "drain", "0", "--timeout", "1e10"],
        ["apply", "--parallel", "0"],
        ["simulate"],
        ["simulate", "occupy", "0", "--memory", "2 pages"],
        ["simulate", "fault", "--lost", "GPU-0"],
        ["mps", "restart"],
        ["mps", "status", "0", "--force"],
        ["simulate", "client"],
    ],
)
def test_bad_usage_is_two_lines_and_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("nodeagent: ")
    assert "--help" in lines[1]


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["stauts"], "did you mean status? see nodeagent --help"),
        (["simulate", "ocupy", "0"], "did you mean occupy? see nodeagent simulate --help"),
        (["plan", "-o", "jsn"], "did you mean json? see nodeagent plan --help"),
        (["destroy"], "see nodeagent --help"),
        (["plan", "--fiel=x"], "did you mean --file? see nodeagent plan --help"),
        (
            ["simulate", "client", "--device", "0", "--secs", "5"],
            "did you mean --seconds? see nodeagent simulate client --help",
        ),
        (["status", "3"], "see nodeagent status --help"),
        (
            ["apply", "-f", "x", "--skip-reset"],
            "nothing is reset unless --reset whenIdle says so; see nodeagent apply --help",
        ),
        (
            ["assert", "-f", "x", "--debug"],
            "`nodeagent plan` has each step with its reason; see nodeagent assert --help",
        ),
        (
            ["checkpoint"],
            "`nodeagent export > FILE` writes every instance with its place; see nodeagent --help",
        ),
    ],
)
def test_the_nearest_word(
    words: list[str], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.splitlines()[1] == f"  {remedy}"


@pytest.mark.parametrize(
    ("text", "size"),
    [("2Gi", 2 << 30), ("512Mi", 512 << 20), ("3G", 3 * 10**9), ("7", 7), ("1Ki", 1024)],
)
def test_sizes_are_kubernetes_quantities(text: str, size: int) -> None:
    assert parse(["simulate", "occupy", "0", "--memory", text]).memory == size


def test_mig_parted_option_names_are_understood() -> None:
    options = parse(["apply", "--config-file", "f", "--selected-config", "c"])
    assert (options.file, options.configuration) == ("f", "c")


def test_run_takes_its_plan_as_the_others_do() -> None:
    assert parse(["run", "-f", "x"]).plan == parse(["run", "--plan", "x"]).plan == Path("x")


def test_an_abbreviated_option_is_refused() -> None:
    """So that a new option never changes what an old script means."""
    with pytest.raises(UsageError):
        parse(["status", "--wat"])


_GPU = Gpu(index=0, uuid="GPU-0")


def _gpu(verdict: Verdict, *codes: Code) -> GpuPlan:
    return GpuPlan(_GPU, verdict, (), _GPU, tuple(Problem(code=code, message="") for code in codes))


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (_gpu(Verdict.IN_SYNC), 0),
        (_gpu(Verdict.APPLICABLE), 0),
        (_gpu(Verdict.APPLICABLE, Code.RESET_REQUIRED), 0),
        (_gpu(Verdict.BLOCKED, Code.IN_USE), 3),
        (_gpu(Verdict.BLOCKED, Code.RESET_REQUIRED), 1),
        (_gpu(Verdict.BLOCKED, Code.RESET_REQUIRED, Code.IN_USE), 3),
        (_gpu(Verdict.BLOCKED, Code.GPU_LOST), 1),
        (_gpu(Verdict.BLOCKED, Code.GPU_UNKNOWN), 1),
        (_gpu(Verdict.UNSATISFIABLE, Code.DOES_NOT_FIT), 1),
    ],
)
def test_code_of_one_gpu(gpu: GpuPlan, expected: int) -> None:
    assert of_plan(NodePlan(gpu.verdict, (gpu,))) == expected


@pytest.mark.parametrize(
    ("verdict", "expected"), [(Verdict.INVALID, 2), (Verdict.UNSATISFIABLE, 1)]
)
def test_code_of_a_document_refused_whole(verdict: Verdict, expected: int) -> None:
    assert (
        of_plan(NodePlan(verdict, problems=(Problem(code=Code.UNKNOWN_DEVICE, message=""),)))
        == expected
    )


def test_precedence() -> None:
    """2 before 1 before 3 before 0, so 3 means that trying again later is enough."""
    done, failed, bad, blocked = ExitCode(0), ExitCode(1), ExitCode(2), ExitCode(3)
    assert most_severe([done, blocked, failed, bad]) is bad
    assert most_severe([done, blocked, failed]) is failed
    assert most_severe([done, blocked]) is blocked
    assert most_severe([]) is done
    mixed = NodePlan(
        Verdict.UNSATISFIABLE,
        (_gpu(Verdict.BLOCKED, Code.IN_USE), _gpu(Verdict.UNSATISFIABLE, Code.NOT_MIG_CAPABLE)),
    )
    assert of_plan(mixed) == 1
