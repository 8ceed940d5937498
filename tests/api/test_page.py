import base64
import hashlib
import json
import re
import shutil
import subprocess
from importlib.resources import files
from typing import Any

import pytest

from nodeagent.api.page import CONTENT_SECURITY_POLICY, PAGE
from nodeagent.plan.plan import Policy
from nodeagent.structs import replace
from nodeagent.views.node_state import NodeState
from nodeagent.views.plan_report import plan_json
from nodeagent.views.status_report import status_json
from tests.api import page_states
from tests.api.serving import api, preview
from tests.views.example_node import OBSERVED

TEXT = PAGE.decode()
NODE = shutil.which("node")


def _inside(element: str) -> str:
    [content] = re.findall(rf"<{element}>(.*?)</{element}>", TEXT, re.DOTALL)
    assert isinstance(content, str)
    return content


MARKUP = TEXT.replace(_inside("style"), "").replace(_inside("script"), "")


async def test_the_page_is_served_with_its_policy() -> None:
    async with api() as served, served.session.get(served.base + "/") as answer:
        assert (answer.content_type, answer.charset) == ("text/html", "utf-8")
        assert await answer.read() == PAGE
        assert answer.headers.items() >= {
            ("Content-Security-Policy", CONTENT_SECURITY_POLICY),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
        }
    assert len(PAGE) < 100_000


def test_the_policy_names_exactly_the_style_and_the_script() -> None:
    policy = dict(part.split(maxsplit=1) for part in CONTENT_SECURITY_POLICY.split("; "))
    for element in ("style", "script"):
        digest = hashlib.sha256(_inside(element).encode()).digest()
        assert policy[f"{element}-src"] == f"'sha256-{base64.b64encode(digest).decode()}'"
    assert policy["default-src"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in CONTENT_SECURITY_POLICY


def test_the_page_needs_nothing_from_elsewhere() -> None:
    assert not re.search(r"https?:|//[a-z]|url\(|@import|\bimport\b|page\.(css|js)", TEXT)
    assert not re.search(r"<(link|script|img|iframe)[^>]*\b(src|href)=\"(?!data:,)", MARKUP)
    assert MARKUP.index('id="headline"') < MARKUP.index("<h1>")


def test_what_comes_from_outside_stays_text() -> None:
    assert not re.search(r"\b(inner|outer)HTML|insertAdjacentHTML|document\.write", TEXT)
    assert not re.search(r"\beval\(|new Function|DOMParser|setAttribute\(\"(style|on)", TEXT)
    assert not re.search(r"<[^>]*\s(style|on[a-z]+)=", MARKUP)


def test_every_element_that_the_script_names_is_there_once() -> None:
    """A name that was changed in one of the files only would leave a part of the page empty."""
    named = set(re.findall(r"\b(?:byId|show)\(\"([\w-]+)\"", _inside("script")))
    there = re.findall(r"\bid=\"([\w-]+)\"", MARKUP)
    assert len(named) > 10
    assert named <= set(there)
    assert len(there) == len(set(there))


# --- what the script makes of the agent's answers, where there is an engine to run it -------------


def _computed(expression: str, *states: NodeState) -> Any:
    """An expression of JavaScript over `all`, the status of each of these states."""
    folder = files("nodeagent.api.page")
    parts = (folder.joinpath(f"{name}.js") for name in ("words", "facts", "timeline"))
    script = "".join(part.read_text(encoding="utf-8") for part in parts)
    answers = json.dumps([status_json(state) for state in states])
    script += f"const all = {answers}; console.log(JSON.stringify({expression}));"
    return json.loads(_run("-", script))


def _run(option: str, script: str) -> str:
    assert NODE is not None
    return subprocess.run(
        [NODE, option], input=script, stdout=subprocess.PIPE, encoding="utf-8", check=True
    ).stdout


needs_node = pytest.mark.skipif(NODE is None, reason="no node to run JavaScript with")


@needs_node
def test_the_whole_script_is_javascript() -> None:
    _run("--check", _inside("script"))


@needs_node
def test_the_states_of_slices() -> None:
    states = "all.map((one) => boxesNow(one.gpus[0], goalOf()).map((box) => box.states))"
    assert _computed(
        states, page_states.IDLE, page_states.BUSY, page_states.SICK, page_states.LOST
    ) == [
        [["idle"], ["idle"], ["idle"]],
        [["idle"], ["idle"], ["used"]],
        [["sick", "idle"], ["sick", "idle"], ["sick", "used"]],
        [["lost"], ["lost"], ["lost"]],
    ]


@needs_node
def test_what_goes_and_what_is_new() -> None:
    state = page_states.WORKING
    assert state.plan is not None
    planned = plan_json(state.plan, digest="", source="file", policy=Policy())["gpus"][0]
    goal = json.dumps(planned)
    now, then = _computed(f"[boxesNow(all[0].gpus[0], goalOf({goal})), boxesAfter({goal})]", state)
    assert [(box["start"], box["states"][0]) for box in now] == [(n, "going") for n in (0, 1, 4)]
    assert sorted((box["name"], box["size"], box["states"][0]) for box in then) == [
        ("1g.10gb", 1, "fresh"),
        *[("2g.20gb", 2, "fresh")] * 3,
    ]


@needs_node
def test_what_is_in_the_way_of_a_blocked_plan() -> None:
    found = preview(page_states.WANTED.encode(), None, OBSERVED)[1]["gpus"][0]
    goal = json.dumps({**found, **found["onceFree"]})
    now, then = _computed(f"[boxesBefore({goal}), boxesAfter({goal})]")
    assert [(box["start"], box["states"]) for box in now] == [
        (0, ["going", "idle"]),
        (1, ["going", "idle"]),
        (4, ["blocking", "used"]),
    ]
    assert sorted(box["name"] for box in then) == ["1g.10gb", "2g.20gb", "2g.20gb", "2g.20gb"]


@needs_node
def test_what_one_remedy_mends_stands_together() -> None:
    """The headline's own first, and nothing that needs a hand is left out."""
    codes = "all.map((one) => handsNeeded(one).map((some) => some.map((hand) => hand.code)))"
    twice = replace(page_states.SICK, problems=page_states.STATES["blocked"].problems)
    assert _computed(codes, page_states.IDLE, page_states.MANY, page_states.FINDINGS, twice) == [
        [[]],
        [["InUse"] * 6],
        [["XidReset"], ["MemoryUnrepairable"], ["InforomCorrupt"]],
        [[], ["InUse"]],
    ]


@needs_node
def test_the_steps_of_a_remedy() -> None:
    """What stands behind "or" is another way: it is not to be done with the rest."""
    remedy = (
        "Drain it: `drain` (`delete`), then `reboot` on the node, then `uncordon`; "
        "or, if that fails, `reset`."
    )
    of = f"stepsOf({json.dumps(remedy)})[0]"
    steps, copied = _computed(f"[{of}, stepsText({of})]")
    assert [(step["words"], step["command"], step["after"]) for step in steps] == [
        ("Drain it:", "drain", ""),
        ("", "delete", ""),
        ("", "reboot", "on the node"),
        ("", "uncordon", ""),
        ("or, if that fails,", "reset", ""),
    ]
    text = "# Drain it:|drain|delete|reboot  # on the node|uncordon|# or, if that fails,|# reset"
    assert copied.splitlines() == text.split("|")


@needs_node
def test_a_change_takes_its_steps() -> None:
    """That for a claim, too; steps that nothing has ended yet stand alone."""
    types = ("StepDone", "ChangedForClaim", "StepDone", "Applied", "StepDone")
    events = [
        {"type": type_, "gpu": "GPU-1", "message": str(n), "time": f"2026-01-02T03:04:0{n}Z"}
        for n, type_ in enumerate(types)
    ][::-1]
    rows = _computed(f"withSteps({json.dumps(events)})")
    found = [[row["message"], *(step["message"] for step in row.get("steps", ()))] for row in rows]
    assert found == [["4"], ["3", "2"], ["1", "0"]]


@needs_node
def test_figures_that_are_not_read_any_more_say_how_old_they_are() -> None:
    past = "{power: [1].concat(Array(%d).fill(null)), temperature: Array(%d).fill(null)}"
    ages = ", ".join(f"staleWords({past % (old, old + 1)}, 10)" for old in (5, 7))
    assert _computed(f"[{ages}]") == ["", "figures are 1 min old"]


@needs_node
def test_what_hides_in_a_name_is_written_out() -> None:
    assert _computed("visible('a\\u202eb\\u009bc é')") == "a\\u202eb\\u009bc é"
