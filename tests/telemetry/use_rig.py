"""An agent's accounts over time that tests make up, with its records of use and their file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeagent.app.use_service import use_file
from nodeagent.plan.observed import ObservedNode
from nodeagent.telemetry.accounting import Accounts
from nodeagent.telemetry.ownership import Device, uses
from nodeagent.use.records import Records, Use

GAP = 120.0
DAY = 86400.0


def names(use: Use) -> tuple[str, str]:
    return use.holder.name, use.grant.device


class Agent:
    """Accounts of one agent after the other, which have a clock and a state file.

    An agent that is started anew keeps records of the last `days`.
    """

    def __init__(self, path: Path | None = None, *, longest_gap: float = GAP) -> None:
        self.file = use_file(path)
        self.days = 14
        self._longest_gap = longest_gap
        self.now, self.wall, self.boot = 1000.0, 1.8e9, "first"
        self.start()

    def start(self) -> None:
        self.accounts = Accounts(longest_gap=self._longest_gap)
        kept = self.file.load()
        self.records = self.accounts.records = Records(self.days, kept, self.wall, self.boot)

    def restart(self, away: float = 0.0, *, boot: str = "") -> None:
        """Start another agent, after a reboot of the machine where `boot` is another one."""
        self.file.save(self.records.kept(self.wall))
        self.boot = boot or self.boot
        self.now += away
        self.wall += away
        self.start()

    def see(
        self,
        node: ObservedNode,
        passed: float = 10.0,
        active: Mapping[Device, float] | None = None,
        **more: Any,
    ) -> None:
        self.now += passed
        self.wall += passed
        who = more.pop("who", None) or uses(node, {}, lambda _: None)
        self.accounts.observe(self.now, node, who, active or {}, **more)

    @property
    def uses(self) -> dict[tuple[str, str], Use]:
        return {names(use): use for use in self.records.uses()}
