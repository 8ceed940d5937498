"""What others build on stays: what docs/compatibility.md promises, one fact a line in
tests/recorded/interface.txt.

What is new may be recorded at any time, and is when a version is released:
NODEAGENT_TEST_RECORD=1 make pytest ARGS=tests/test_compatibility.py
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from nodeagent.api.openapi import DESCRIPTION
from nodeagent.cli.exit_codes import ExitCode
from nodeagent.cli.parser import build_parser
from nodeagent.documents.plan import plan_schema
from nodeagent.settings.sources import settings_schema
from tests.claims.test_resource_slices import published

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "tests/recorded/interface.txt"
SHAPE = "#/components/schemas/"
INPUTS = ("plan", "settings", "values")
VALUES = json.loads((ROOT / "manifests/helm/nodeagent/values.schema.json").read_text("utf-8"))
CODES = ("action", "problem", "phase", "condition", "reason", "claim", "daemon", "event", "check")


def _of_schema(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    """Each key with its type and each value of an enumeration; a `!` where the key has to be."""
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _of_schema(part, path)
    kinds = schema.get("type", ())
    for kind in (kinds,) if isinstance(kinds, str) else kinds:
        yield f"{path}: {kind}"
    if named := schema.get("$ref", ""):
        shapes = DESCRIPTION["components"]["schemas"] if SHAPE in named else VALUES["definitions"]
        yield from _of_schema(shapes[named.rpartition("/")[2]], path)
    for value in schema.get("enum", ()):
        yield f"{path}: {json.dumps(value)}"
    properties = schema.get("properties", {})
    for key, part in properties.items():
        yield from _of_schema(part, f"{path}.{key}")
    for key in schema.get("required", ()):
        if key in properties:
            yield f"{path}.{key}!"
    for word, sign in (("items", "[]"), ("additionalProperties", ".*")):
        if isinstance(schema.get(word), dict):
            yield from _of_schema(schema[word], f"{path}{sign}")


def _of_value(value: Any, path: str) -> Iterator[str]:
    match value:
        case dict():
            for key, part in value.items():
                yield from _of_value(part, f"{path}.{key}")
        case list():
            for part in value:
                yield from _of_value(part, f"{path}[]")
        case bool() | str():
            yield f"{path}: {type(value).__name__}"
        case _:
            yield f"{path}: number"


def _of_devices() -> Iterator[str]:
    """What CEL selectors of claims name."""
    _, slices = published("h100-80gb")
    for device, kind in product(slices["spec"]["devices"], ("attributes", "capacity")):
        yield from (f"device {kind}: {name}" for name in device[kind])


def _of_annotations() -> Iterator[str]:
    """As recorded agents wrote them, and as the page has them."""
    page = (ROOT / "docs/annotations.md").read_text(encoding="utf-8")
    for name, body in re.findall(r"(?s)## Annotation (\S+)\n\n[^#]*?```json\n(.*?)```", page):
        yield from _of_value(json.loads(body), name)
    for golden in sorted((ROOT / "tests/goldens/recorded/agents").glob("*.txt")):
        text = golden.read_text(encoding="utf-8")
        for name, body in re.findall(r"(?m)^  (nodeagent\.io/\w+):\n((?:    .*\n)+)", text):
            yield from _of_value(yaml.safe_load(body), name)


def _of_metrics() -> Iterator[str]:
    folder = ROOT / "nodeagent/metrics"
    for one in json.loads((folder / "agent_metrics.json").read_text(encoding="utf-8")):
        yield f"metric {one['name']}: {one['type']}"
        yield from (f"metric {one['name']}{{{label}}}" for label in one.get("labels", ()))
    for one in json.loads((folder / "fields.json").read_text(encoding="utf-8"))["fields"]:
        names = [one[key] for key in ("name", "renamed", "earlier") if key in one]
        yield from (f"metric {name}: {one['kind']}, {one['unit']}" for name in names)
        yield from ([f"metric {one['name']} by default"] if one.get("default") else [])


def _of_state_files() -> Iterator[str]:
    for module in (ROOT / "nodeagent").rglob("*.py"):
        text = module.read_text(encoding="utf-8")
        for kind, version in re.findall(r'StateFormat\(\s*"([a-z-]+)", (\d+),', text):
            yield f"state file {kind}: version {version}"


def interface() -> list[str]:
    """All facts, in order."""
    inputs = (plan_schema(), settings_schema(), VALUES)
    facts = {fact for name, s in zip(INPUTS, inputs, strict=True) for fact in _of_schema(s, name)}
    for path, methods in DESCRIPTION["paths"].items():
        for method, operation in methods.items():
            for code, answer in operation["responses"].items():
                facts.add(f"api {method} {path}: {code}")
                for content in answer.get("content", {}).values():
                    facts |= set(_of_schema(content["schema"], f"api {path}"))
    facts |= {*_of_annotations(), *_of_devices(), *_of_metrics(), *_of_state_files()}
    for parser in build_parser().with_subcommands():
        if not parser.prog.startswith("nodeagent simulate"):
            options = (option for action in parser.actions for option in action.option_strings)
            facts |= {f"command {parser.prog} {option}" for option in options}
    facts |= {f"exit code {one.value}: {one.name}" for one in ExitCode}
    catalogue = yaml.safe_load((ROOT / "nodeagent/catalogue.yaml").read_text(encoding="utf-8"))
    facts |= {f"{kind} {code}" for kind in (*CODES, "alert") for code in catalogue[kind]}
    return sorted(facts)


def test_what_was_released_is_still_there() -> None:
    """No key, type, value, metric, code or option is gone; no accepted document needs a new key."""
    now = interface()
    if "NODEAGENT_TEST_RECORD" in os.environ:
        RECORDED.write_text("\n".join((*now, "")), encoding="utf-8")
    recorded = RECORDED.read_text(encoding="utf-8").splitlines()
    assert len(recorded) > 2500
    of_inputs = {f for f in recorded if f.startswith(INPUTS)}
    gone = sorted({f for f in recorded if not (f in of_inputs and f.endswith("!"))} - set(now))
    objects = {re.sub(r"\.[^.]*$", "", fact) for fact in of_inputs}
    new = (f for f in now if f.startswith(INPUTS) and f.endswith("!") and f not in of_inputs)
    demanded = [f for f in new if re.sub(r"\.[^.]*$", "", f) in objects]
    remedy = "put it back (docs/compatibility.md), or, if no release had it, record anew"
    if gone or demanded:
        pytest.fail("\n".join((f"gone: {gone}", f"demanded: {demanded}", remedy)))
