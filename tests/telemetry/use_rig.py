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
        self.now, self.wall = 1000.0, 1.8e9
        self.start()

    def start(self) -> None:
        self.accounts = Accounts(longest_gap=self._longest_gap)
        self.records = self.accounts.records = Records(self.days, self.file.load(), self.wall)

    def restart(self, away: float = 0.0) -> None:
        self.file.save(self.records.kept(self.wall))
        self.now = 5.0  # as after a reboot
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
