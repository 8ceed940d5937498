"""What was asked of the API server, for tests that count."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Request:
    """One request as it arrived. `time` is the loop's clock, `who` the bearer token ("" for none).

    `status` is what it was answered with: 0 while it is under way and where it got no answer.
    """

    method: str
    path: str
    query: dict[str, str]
    content_type: str
    body: Any
    time: float
    who: str = field(repr=False)
    status: int = 0

    @property
    def watch(self) -> bool:
        return self.method == "GET" and self.query.get("watch") in {"true", "1"}

    @property
    def write(self) -> bool:
        return self.method != "GET"
