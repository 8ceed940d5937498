"""What of the agent's status needs a hand, the worst first, each said once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from nodeagent.terminal.mps_page import daemon_place_words, daemon_troubles
from nodeagent.terminal.page import Json, Line, Span, Tone, dim, line, remark
from nodeagent.terminal.status_words import finding_advice, finding_words

_HEADLINE_TONES = {
    "ok": Tone.GOOD,
    "info": Tone.NEW,
    "warning": Tone.WARNING,
    "error": Tone.BAD,
}
_SEVERE = frozenset({"unhealthy", "unknown"})  # of a finding's severities


class Trouble(NamedTuple):
    """What is wrong with `subject` ("" where `message` says that itself) and what mends it.

    `path` is the place in the plan it comes from, `evidence` what was read. `gpu` is a UUID.
    """

    message: str
    remedy: str = ""
    subject: str = ""
    path: str = ""
    evidence: str = ""
    gpu: str = ""
    tone: Tone = Tone.WARNING

    def lines(self) -> tuple[Line, ...]:
        sentence = f"{self.subject} {self.message}".strip()
        said = f"{sentence}: {self.evidence}" if self.evidence else sentence
        return remark(said, self.remedy, path=self.path, tone=self.tone)


def troubles(status: Json) -> list[Trouble]:
    """List all troubles; what a problem says is not repeated for a daemon or a claim."""
    findings = list(_findings(status))
    problems = [_problem(problem) for problem in status.get("problems", ())]
    cluster: Json = (status.get("cluster") or {}).get("problem") or {}
    less_offered = status.get("lessOffered", ())
    others = (
        *_daemons(status),
        *_claims(status.get("claims", ())),
        *(_problem(one)._replace(subject="less is offered to claims:") for one in less_offered),
    )
    said = "\n".join(problem.message for problem in problems)
    return [
        *(finding for finding in findings if finding.tone is Tone.BAD),
        *problems,
        *([_problem(cluster)] if cluster else []),
        *(finding for finding in findings if finding.tone is not Tone.BAD),
        *(other for other in others if other.message not in said),
    ]


def headline_lines(headline: Json, found: list[Trouble]) -> tuple[Line, ...]:
    """The worst thing and what mends it. The trouble that it speaks of is taken out of `found`,
    and what that says beyond it is added.
    """
    if not headline:
        return ()
    text, remedy = str(headline.get("text", "")), str(headline.get("remedy", ""))
    tone = _HEADLINE_TONES.get(str(headline.get("severity")), Tone.PLAIN)
    same = next((one for one in found if _speaks_of(text, str(headline.get("gpu", "")), one)), None)
    more: list[str] = []
    if same is not None:
        found.remove(same)
        remedy = remedy or same.remedy
        where = f"in the plan: {same.path}" if same.path and same.path not in text else ""
        more = [said for said in (same.evidence, where) if said and said not in text]
    return (
        line(Span(text, tone)),
        *([line(f"  {remedy}")] if remedy else []),
        *(line(dim(f"  {said}")) for said in more),
    )


def _speaks_of(text: str, gpu: str, trouble: Trouble) -> bool:
    """A headline is a sentence: it begins with a capital letter, and ends with a full stop."""
    said = trouble.message[1:].rstrip(".")
    return bool(said) and trouble.gpu == gpu and said in text


# --- where they are found -------------------------------------------------------------------------


def _problem(problem: Json) -> Trouble:
    return Trouble(
        str(problem.get("message", "")),
        str(problem.get("remedy", "")),
        path=str(problem.get("path", "")),
        gpu=str(problem.get("gpu", "")),
    )


def _findings(status: Json) -> Iterator[Trouble]:
    """Findings of GPUs and of the node, but for those that leave a GPU healthy."""
    of_gpus = ((f"GPU {gpu['index']}", gpu) for gpu in status.get("gpus", ()))
    for subject, holder in (("the node", status), *of_gpus):
        health: Json = holder.get("health") or {}
        findings: Sequence[Json] = health.get("findings", ())
        state = str(health.get("status", "healthy"))
        if state != "healthy" and not findings:
            yield _finding(subject, holder, {"message": f"is {state}", "severity": state})
        for finding in findings:
            if finding.get("severity", state) != "healthy":
                yield _finding(subject, holder, {"severity": state, **finding})


def _finding(subject: str, holder: Json, finding: Json) -> Trouble:
    evidence = str(finding.get("evidence", ""))
    words = finding_words(finding)
    return Trouble(
        words or evidence,
        finding_advice(finding),
        subject,
        evidence=evidence if words else "",
        gpu=str(holder.get("uuid", "")),
        tone=Tone.BAD if finding.get("severity") in _SEVERE else Tone.WARNING,
    )


def _daemons(status: Json) -> Iterator[Trouble]:
    uuids = {gpu["index"]: str(gpu.get("uuid", "")) for gpu in status.get("gpus", ())}
    for daemon in status.get("mps", ()):
        device = daemon.get("device", "DEVICE")
        for message, tone in daemon_troubles(daemon):
            subject = f"MPS on {daemon_place_words(daemon)} is {daemon.get('state', '?')}:"
            remedy = f"nodeagent mps status {device} shows it"
            if daemon.get("state") == "Down":  # drained on request, it stays so
                remedy = f"nodeagent mps restart {device} starts it again"
            gpu = uuids.get(daemon.get("gpu"), "")
            yield Trouble(message, remedy, subject, gpu=gpu, tone=tone)


def _claims(claims: Iterable[Json]) -> Iterator[Trouble]:
    for claim in claims:
        title = f"{claim.get('namespace', '')}/{claim.get('name') or claim.get('uid') or '?'}"
        refusal: Json | None = claim.get("refusal")
        for problem in (*([refusal] if refusal else []), *claim.get("problems", ())):
            found = _problem(problem)
            yield found._replace(subject="" if title in found.message else f"claim {title}:")
