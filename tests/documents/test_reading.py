import hashlib
import json
import time
from typing import Any

import pytest

from nodeagent.documents.findings import MAX_PROBLEMS
from nodeagent.documents.reading import MAX_PLAN, read_document
from nodeagent.errors import DocumentError
from nodeagent.plan.desired import MigDisabled
from nodeagent.plan.problems import Code, Problem

PLAN = "version: v1\ngpus: [{devices: all, mig: disabled}]\n"
FILE = "version: v1\nmig-configs: {a: [{devices: all, mig-enabled: false}]}\n"


def problems_of(text: str | bytes, configuration: str | None = None) -> tuple[Problem, ...]:
    try:
        read_document(text, configuration=configuration)
    except DocumentError as error:
        return error.problems
    return ()


def fault(text: str | bytes, configuration: str | None = None) -> Problem:
    return problems_of(text, configuration)[0]


def test_digest() -> None:
    for text in (PLAN, PLAN + "# x\n", FILE, "\ufeff" + PLAN, PLAN + "# é\n"):
        expected = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        assert read_document(text).digest == expected
        assert read_document(text.encode()).digest == expected


def test_kind_of_document() -> None:
    assert isinstance(read_document(PLAN).entries[0].mig, MigDisabled)
    assert read_document(FILE).entries[0].path == "mig-configs.a[0]"
    assert fault(PLAN + "mig-configs: {}").path == "gpus"
    assert fault("version: v1\nmig_configs: {}\n").code is Code.UNKNOWN_KEY


def test_sizes() -> None:
    filled = PLAN + "#" * (MAX_PLAN - len(PLAN))
    assert read_document(filled).entries
    assert "65,537 bytes; a plan has at most 65,536" in fault(filled + "#").message
    assert "a plan has at most" in fault(filled + "# mig-configs").message
    assert read_document(FILE + "#" * (2**20 - 1 - len(FILE))).entries
    assert "1 MiB" in fault(FILE + "#" * (2**20 - len(FILE))).message


@pytest.mark.parametrize(
    "document",
    [
        {"version": "v1", "gpus": [{f"k{n}": 1 for n in range(2900)}]},
        {"version": "v1", "gpus": [{"devices": ["x"] * 5000, "mig": {}}]},
        {"version": "v1", "gpus": [{"devices": "all", "mig": {f"{n}x": 0 for n in range(2900)}}]},
        {"version": "v1", "mig-configs": {f"l{n}": [{"x": 1}] for n in range(1150)}},
    ],
    ids=["keys", "devices", "profiles", "configurations"],
)
def test_full_of_faults(document: dict[str, Any]) -> None:
    text = json.dumps(document)

    def seconds() -> float:
        begin = time.process_time()  # whatever else the machine does meanwhile
        assert len(problems_of(text)) == MAX_PROBLEMS + 1
        return time.process_time() - begin

    assert min(seconds() for _ in range(3)) < 0.3


# --- what holds a plan, and is none ---------------------------------------------------------------


INNER = "version: v1\\ngpus: [{devices: all, mig: {1g.10gb: 7}}]\\n"
MAPPED = f'{{kind: ConfigMap, apiVersion: v1, data: {{"a.yaml": "{INNER}"}}}}'


@pytest.mark.parametrize(
    ("text", "said", "remedy"),
    [
        (
            MAPPED,
            'kind "ConfigMap", not a plan; there is one at data["a.yaml"]',
            "`yq -r '.data[\"a.yaml\"]' FILE > plan.yaml`",
        ),
        (
            f"{{kind: List, apiVersion: v1, items: [{{kind: Secret}}, {MAPPED}]}}",
            'kind "List", not a plan; there is one at items[1].data["a.yaml"]',
            ".items[1]",
        ),
        (
            "{image: {tag: 1}, plan: {version: v1, mig-configs: {}}}",
            "Helm values or the like, not a plan; there is one at plan",
            "`yq -r .plan FILE > plan.yaml`",
        ),
        ("{kind: Pod, apiVersion: v1}", 'kind "Pod", not a plan, and has none', "version and gpus"),
    ],
)
def test_what_holds_a_plan_says_where_and_how_to_get_it(text: str, said: str, remedy: str) -> None:
    for configuration in (None, "all-1g.10gb"):
        with pytest.raises(DocumentError) as caught:
            read_document(text, configuration=configuration)
        (problem,) = caught.value.problems
        assert said in problem.message
        assert remedy in problem.remedy
