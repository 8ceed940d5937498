import json
import os
import platform
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from nodeagent.errors import UsageError
from nodeagent.settings import Address, load_settings, sources
from nodeagent.settings.cluster import DraSettings

NOTHING = Path("/dev/null")


def _file(directory: Path, text: str) -> Path:
    path = directory / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def _refused(
    path: Path = NOTHING,
    environment: dict[str, str] | None = None,
    flags: dict[str, object] | None = None,
) -> str:
    with pytest.raises(UsageError) as caught:
        load_settings(path, environment or {}, flags or {})
    return str(caught.value)


# --- sources ------------------------------------------------------------------------------------


def test_later_sources_win(tmp_path: Path) -> None:
    path = _file(tmp_path, "resync: {interval: 1}\ndrift: report\nreset: whenIdle\n")
    environment = {"NODEAGENT_RESYNC_INTERVAL": "2", "NODEAGENT_DRIFT": "mend"}
    settings = load_settings(path, environment, {"resync.interval": 3.0, "plan.file": None})
    assert (settings.resync.interval, settings.drift, settings.reset) == (3.0, "mend", "whenIdle")


@pytest.mark.parametrize(
    ("file", "environment", "expected"),
    [
        ("", {}, platform.node().lower()),
        ("", {"NODE_NAME": "from-downward-api"}, "from-downward-api"),
        ("node_name: from-file", {"NODE_NAME": "from-downward-api"}, "from-file"),
        ("node_name: from-file", {"NODEAGENT_NODE_NAME": "ours"}, "ours"),
    ],
)
def test_node_name_has_a_chain_of_defaults(
    tmp_path: Path, file: str, environment: dict[str, str], expected: str
) -> None:
    assert load_settings(_file(tmp_path, file), environment, {}).node_name == expected


def _another(schema: dict[str, Any], default: object) -> tuple[str, object]:
    """A value that is not the default: as a variable has it, and as a file would."""
    match schema:
        case {"enum": words}:
            word = next(word for word in words if word != default)
            return word, word
        case {"anyOf": [{"enum": _}, {"type": "integer"}]}:
            return "7", 7
        case {"type": "boolean"}:
            return "yes", True
        case {"type": "integer"}:
            return "7", 7
        case {"anyOf": [{"type": "number"}, _]}:
            return "7m", 420.0
        case {"anyOf": [{"type": "string"}, {"type": "array"}]}:
            return "/x  y", "/x y"
        case {"anyOf": [inner, {"type": "null"}]}:
            return _another(inner, default)
        case {"pattern": _}:
            return "[::1]:7", "[::1]:7"
        case {"type": "string"}:
            return "/x", "/x"
    raise AssertionError(schema)


def test_each_setting_can_be_set_by_its_variable() -> None:
    before = load_settings(NOTHING, {}, {})
    defaults = {name: sources.written(before, name) for name in sources.setting_names()}
    for name, default in defaults.items():
        text, value = _another(sources.schema_of(name), default)
        settings = load_settings(NOTHING, {sources.variable_of(name): text}, {})
        assert {one: sources.written(settings, one) for one in defaults} == {
            **defaults,
            name: value,
        }
        assert value != default


def test_nothing_said_is_nothing_set(tmp_path: Path) -> None:
    path = _file(tmp_path, "plan:\nlog: {level: }\n")
    settings = load_settings(path, {"NODEAGENT_PLAN_NAME": ""}, {"plan.name": None})
    assert settings == load_settings(None, {}, {})
    said = load_settings(None, {}, {"drift": "mend", "plan.source": "auto"})
    assert said == settings
    assert (set(said.given), set(said.plan.given)) == ({"drift"}, {"source"})


@pytest.mark.parametrize(
    ("dra", "in_cluster", "found"),
    [
        ({}, False, ""),
        ({"mode": "dynamic", "share": "memory"}, True, ""),
        ({"mode": "static"}, True, ""),
        ({"mode": "static", "share": "memory"}, True, "static, with which this has no effect"),
        ({"share": "memory", "share_mig": 2}, False, "effect: dra.share, dra.share_mig"),
        ({"mps_user": "root"}, True, "is off, with which this has no effect: dra.mps_user"),
        ({"mode": "dynamic", "mps_user": "root"}, True, ""),
        ({"mode": "dynamic", "share": "memory"}, False, "is dynamic, but there is no cluster"),
        ({"mode": "static", "nvidia_configs": True}, True, ""),
        ({"nvidia_configs": True}, True, "dra.mode is off, with which this has no effect: dra.nv"),
    ],
)
def test_claims_that_are_set_up_in_vain_are_a_problem(
    dra: dict[str, Any], in_cluster: bool, found: str
) -> None:
    problems = DraSettings(**dra).without_effect(in_cluster=in_cluster)
    assert [found in problem.message for problem in problems] == ([True] if found else [])


# --- refusals -----------------------------------------------------------------------------------


WRONG: tuple[tuple[str, str], ...] = (
    ("plan:\n  fiel: x", 'plan.fiel: unknown key "fiel"; here belong source, file, name (line 2,'),
    ("drifft: mend", 'drifft: unknown key "drifft"; here belong node_name, api, run,'),
    ("plan.file: x", "(write plan: {file: ...})"),
    ("plan: x", 'plan: found "x", expected a map with the keys source, file, name (line 1,'),
    ("- plan", "found a list, expected a map with the keys node_name, api,"),
    ("plan: {", "this is neither YAML nor JSON"),
    ("plan: {source: fil}", 'plan.source: found "fil", expected auto or file or annotation'),
    ("kubernetes: {tolerate: 3}", "kubernetes.tolerate: found 3, expected a list of texts"),
    ("plan: {name: 3}", "plan.name: found 3, expected a text (numbers and the like in"),
    ("gpu: {parallel: true}", "gpu.parallel: found true, expected a whole number"),
    (f"gpu: {{parallel: '{'9' * 5000}'}}", "gpu.parallel: found"),
    ("resync: {interval: -1}", "resync.interval: found -1, expected a number of seconds"),
    ("resync: {interval: 5 parsecs}", 'resync.interval: found "5 parsecs", expected'),
    ("api: {listen: 9470}", "api.listen: found 9470, expected HOST:PORT"),
    (f"api: {{listen: '{'a' * 64}:9470'}}", "api.listen: found"),
    ("api: {listen: 'localhost:70000'}", "api.listen: found"),
    ("nvidia_smi: 'a \"b'", "nvidia_smi: found"),
    ("nvidia_smi: []", "nvidia_smi: found a list, expected a command"),
    ("after_change: {command: sh -c x}", "after_change.command: found"),
    ("run: {dir: ''}", 'run.dir: found "", expected a path'),
    (
        "dra: {share: 8Gi}",
        'dra.share: found "8Gi", expected off, memory, time or a number of equal',
    ),
    ("reset: always", 'reset: found "always", expected never or whenIdle (line 1, column 8)'),
)


def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path) -> None:
    for text, words in WRONG:
        message = _refused(_file(tmp_path, text))
        assert message.startswith(str(tmp_path / "settings.yaml")), text
        assert words in message, text


def test_a_wrong_variable_is_named() -> None:
    assert _refused(environment={"NODEAGENT_DRIFT": "x"}).startswith('NODEAGENT_DRIFT: found "x"')
    assert (
        _refused(environment={"NODEAGENT_PLAN_FIEL": "x"})
        == "NODEAGENT_PLAN_FIEL is not a setting (did you mean NODEAGENT_PLAN_FILE?)"
    )
    unlike_any = _refused(environment={"NODEAGENT_FOO": "x"})
    assert "did you mean" not in unlike_any
    assert "PLAN_FILE" in unlike_any


def test_a_wrong_flag_is_named() -> None:
    assert _refused(flags={"log.level": "x"}).startswith('command line: log.level: found "x"')


def test_several_errors_are_counted() -> None:
    message = _refused(environment={"NODEAGENT_DRIFT": "x", "NODEAGENT_RESET": "y"})
    assert message.endswith("expected mend or report (1 more are wrong)")


def test_variables_that_are_not_settings_are_left_alone() -> None:
    """Reserved names, and those Kubernetes makes for a Service called nodeagent, are no error."""
    environment = {
        "NODEAGENT_SIMULATED_STATE": "/tmp/s",
        "NODEAGENT_TEST_GPUS": "GPU-1",
        "NODEAGENT_SERVICE_HOST": "10.0.0.1",
        "NODEAGENT_SERVICE_PORT_HTTP": "9470",
        "NODEAGENT_PORT": "tcp://10.0.0.1:9470",
        "NODEAGENT_METRICS_PORT_9400_TCP_ADDR": "10.0.0.1",
    }
    assert load_settings(NOTHING, environment, {}) == load_settings(NOTHING, {}, {})
    assert "is not a setting" in _refused(environment={"NODEAGENT_API_PORT": "9470"})


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    assert _refused(tmp_path / "no.yaml").endswith("no.yaml does not exist")
    assert "cannot be read: Is a directory" in _refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is a named pipe" in _refused(tmp_path / "pipe")


# --- values -------------------------------------------------------------------------------------


def test_durations_are_seconds() -> None:
    for unit, seconds in {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "": 1}.items():
        environment = {"NODEAGENT_RESYNC_INTERVAL": f"2.5{unit}"}
        assert load_settings(NOTHING, environment, {}).resync.interval == 2.5 * seconds


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9470", ("127.0.0.1", 9470)),
        (":0", ("", 0)),
        ("[::]:9470", ("::", 9470)),
        ("node-1.example:80", ("node-1.example", 80)),
    ],
)
def test_addresses_read_and_print_alike(text: str, address: tuple[str, int]) -> None:
    listen = load_settings(NOTHING, {}, {"api.listen": text}).api.listen
    assert (listen, str(listen)) == (Address(*address), text)


# --- what tools read ----------------------------------------------------------------------------


def test_each_setting_has_a_description() -> None:
    for name in sources.setting_names():
        described = sources.settings_schema()
        for part in name.split("."):
            described = described["properties"][part]
        description = described["description"]
        assert description, name
        if name.endswith(("interval", "deadline")):
            assert "Seconds" in description, name


@pytest.mark.parametrize(
    ("document", "fits"),
    [
        ({}, True),
        ({"plan": {"file": "/x"}, "resync": {"interval": "5m"}}, True),
        ({"nvidia_smi": ["chroot", "/host", "nvidia-smi"]}, True),
        ({"after_change": {"command": ["/bin/true", "x"]}}, True),
        ({"after_change": {"command": ["true", "/x"]}}, False),
        ({"plan": {"fiel": "/x"}}, False),
        ({"gpu": {"parallel": 0}}, False),
        ({"resync": {"interval": "5 parsecs"}}, False),
        ({"api": {"listen": "9470"}}, False),
        ({"dra": {"share": "time"}}, True),
        ({"dra": {"share": "8Gi"}}, False),
        ({"dra": {"share": 8}}, True),
        ({"dra": {"share": 1}}, False),
    ],
)
def test_schema_and_reader_agree(tmp_path: Path, document: dict[str, object], fits: bool) -> None:
    schema = sources.settings_schema()
    Draft202012Validator.check_schema(schema)
    assert Draft202012Validator(schema).is_valid(document) == fits
    path = _file(tmp_path, json.dumps(document))
    if fits:
        load_settings(path, {}, {})
    else:
        _refused(path)


def test_the_word_off_needs_no_quotes(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("dra: {mode: off}\ndrift: mend\n", encoding="utf-8")
    assert load_settings(file, {}, {}).dra.mode == "off"
    file.write_text("drift: off\n", encoding="utf-8")
    with pytest.raises(UsageError, match="drift: found false"):
        load_settings(file, {}, {})
