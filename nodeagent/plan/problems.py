"""A problem as a value that every surface shows alike."""

from typing import Protocol, Self

from nodeagent.catalogue import filled, problem_words
from nodeagent.plan.codes import Code
from nodeagent.structs import Shape


class Explained(Protocol):
    """What went wrong and what would be right, such as a `NodeagentError`."""

    @property
    def message(self) -> str: ...

    @property
    def remedy(self) -> str: ...


class Problem(Shape, frozen=True, kw_only=True):
    """One obstacle: `gpu` is a UUID ("" for the node), `path` a place in the document. `code` is a
    `Code`, or of a refused claim one of `claims.serving.attempts`.
    """

    code: str
    gpu: str = ""
    path: str = ""
    message: str
    remedy: str = ""

    @classmethod
    def of(
        cls, code: Code, case: str = "", *, gpu: str = "", path: str = "", **facts: object
    ) -> Self:
        """The problem in the words of the catalogue; `case` is one of those of its code."""
        words = problem_words(code, case)
        return cls(
            code=code,
            gpu=gpu,
            path=path,
            message=filled(words.message, facts),
            remedy=filled(words.remedy, facts),
        )

    @classmethod
    def from_error(cls, code: str, error: Explained, *, gpu: str = "", path: str = "") -> Self:
        """An error that stands in the way, in its own words: those of what failed."""
        return cls(code=code, gpu=gpu, path=path, message=error.message, remedy=error.remedy)


class PlanRefused(Exception):
    """What is desired cannot be, or not now; `problems` say why."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*(problem.message for problem in problems))
        self.problems = problems


__all__ = ["Code", "Explained", "PlanRefused", "Problem"]
