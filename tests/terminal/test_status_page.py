"""What `nodeagent status` says first, and of the node's cluster."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.terminal.page import Line, Tone, plain_text
from nodeagent.terminal.status_page import status_page

SERVER = "https://api:6443"
SINCE = "2030-01-02T03:04:05.000Z"
REFUSED = {"message": "the API server refused it", "remedy": "check the token"}


def _rows(cluster: dict[str, Any] | None) -> list[str]:
    status: dict[str, Any] = {"node": "gpu-7", "phase": "InSync", "gpus": [], "problems": []}
    if cluster is not None:
        status["cluster"] = cluster
    rows = plain_text(status_page(status, 100, 40)).splitlines()
    return [row for row in rows[2:] if row]


@pytest.mark.parametrize(
    ("cluster", "shown"),
    [
        (None, []),
        (
            {"server": SERVER, "reachable": True, "registered": True},
            [f"cluster {SERVER}  reachable"],
        ),
        (
            {"server": SERVER, "reachable": True, "registered": True, "since": SINCE},
            [f"cluster {SERVER}  reachable since {SINCE}"],
        ),
        (
            {"server": "the API server", "reachable": False, "registered": False},
            ["cluster the API server  not reached yet"],
        ),
        (
            {
                "server": SERVER,
                "reachable": False,
                "registered": True,
                "since": SINCE,
                "problem": REFUSED,
            },
            [
                f"cluster {SERVER}  not reachable since {SINCE}",
                "! the API server refused it",
                "  check the token",
            ],
        ),
        (
            {"server": SERVER, "reachable": True, "registered": True, "problem": REFUSED},
            [
                f"cluster {SERVER}  reachable",
                "! the API server refused it",
                "  check the token",
            ],
        ),
    ],
)
def test_the_cluster_is_shown(cluster: dict[str, Any] | None, shown: list[str]) -> None:
    """The page has its state, the time, the problem and the remedy; nothing without a cluster."""
    assert _rows(cluster) == shown


def test_a_configuration_is_named() -> None:
    """Of a plan that was chosen by name the name is more telling than the digest."""
    status = {"phase": "InSync", "digest": "sha256:0123456789abcdef", "source": "mig-config"}
    shown = plain_text(status_page({**status, "configuration": "all-balanced"}, 100, 40))
    assert "plan sha256:0123456789ab (all-balanced) from mig-config" in shown


def _tone(rows: tuple[Line, ...], text: str) -> Tone:
    (found,) = (span.tone for row in rows for span in row if span.text == text)
    return found


@pytest.mark.parametrize(
    ("severity", "tone", "phase"),
    [
        ("ok", Tone.GOOD, Tone.GOOD),
        ("info", Tone.NEW, Tone.GOOD),
        ("warning", Tone.WARNING, Tone.PLAIN),
        ("error", Tone.BAD, Tone.PLAIN),
    ],
)
def test_the_headline_comes_first(severity: str, tone: Tone, phase: Tone) -> None:
    """In the colour of its severity; a phase is green only where nothing else is wrong."""
    headline = {"severity": severity, "text": "GPU 1 is lost.", "remedy": "Reboot it."}
    status = {"node": "gpu-7", "phase": "InSync", "headline": headline}
    rows = status_page(status, 100, 40)
    assert plain_text(rows[:2]) == "GPU 1 is lost.\n  Reboot it.\n"
    assert _tone(rows, "GPU 1 is lost.") is tone
    assert _tone(rows, "InSync") is phase


def test_one_command_explains_all_that_is_wrong() -> None:
    """The headline's code first, each once, at the end; nothing where all is well."""
    problems = [{"code": code, "message": "so"} for code in ("NotOffered", "InUse", "NotOffered")]
    headline = {"severity": "warning", "text": "so", "code": "InUse"}
    causes = {"inUse": "degraded", "xidReset": "unhealthy", "xidNote": "healthy"}
    findings = [{"cause": cause, "severity": severity} for cause, severity in causes.items()]
    health = {"status": "unhealthy", "findings": findings}
    status = {"headline": headline, "problems": problems, "health": health}
    rows = status_page(status, 100, 40)
    assert plain_text(rows[-1:]) == "more: nodeagent explain InUse xidReset NotOffered\n"
    well = {"headline": {"severity": "ok", "text": "so", "code": "InSync"}}
    assert "explain" not in plain_text(status_page(well, 100, 40))


def test_why_less_is_offered_needs_a_hand() -> None:
    """With the remedy."""
    reason = {"gpu": "GPU-0", "message": "MIG mode of GPU 0 is off", "remedy": "reset it"}
    assert plain_text(status_page({"lessOffered": [reason]}, 100, 40)).endswith(
        "! less is offered to claims: MIG mode of GPU 0 is off\n  reset it\n"
    )


def test_what_the_headline_says_is_not_said_again() -> None:
    """Neither as a problem nor by the phase; what the problem knows beyond it stands below."""
    problem = {
        "gpu": "GPU-0",
        "path": "gpus[0].mig",
        "message": "it is in use by pid 4711",
        "remedy": "end it",
    }
    other = {"message": "the disk is full", "remedy": "make room"}
    headline = {
        "severity": "warning",
        "text": "It is in use by pid 4711.",
        "remedy": "End it.",
        "gpu": "GPU-0",
    }
    status = {
        "node": "gpu-7",
        "phase": "Blocked",
        "message": "it is in use by pid 4711 (and 1 more)",
        "headline": headline,
        "problems": [problem, other],
    }
    assert plain_text(status_page(status, 100, 40)) == (
        "It is in use by pid 4711.\n  End it.\n  in the plan: gpus[0].mig\n"
        "node gpu-7  Blocked\nno plan\n\n! the disk is full\n  make room\n"
    )
