"""A simulated node on this machine: the agent is a process of its own, in real time, with real
signals, sockets and files; so are all who use the node. It is judged from outside.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from nodeagent.errors import UsageError
from nodeagent.simulation import SimulatedNode
from tests.acceptance.agent_home import Home
from tests.campaign import invariants, node_actions, processes, truth
from tests.campaign.episode import Plan
from tests.campaign.invariants import Violation
from tests.campaign.real.rest import leftovers

_OFTEN = 0.1  # seconds between looks at what the agent says
# Of the agent: so short that a day of a few seconds has many of each.
_SETTINGS = {
    "NODEAGENT_RESYNC_INTERVAL": "1s",
    "NODEAGENT_SAMPLE_INTERVAL": "1s",
    "NODEAGENT_SAMPLE_SLOW_INTERVAL": "2s",
    "NODEAGENT_DRIVER_OBSERVE_DEADLINE": "2s",
    "NODEAGENT_DRIVER_STEP_DEADLINE": "3s",
    "NODEAGENT_KUBERNETES_USE": "never",
    "NODEAGENT_KUBELET_USE": "never",
    "NODEAGENT_LOG_FORMAT": "json",
}


@dataclass(frozen=True, slots=True)
class User:
    """A program on a device, and what it may not lose: the card's mode, serials of instances."""

    process: subprocess.Popen[bytes]
    gpu: int
    parts: tuple[int, ...] | None


class Machine:
    """One node. `plans` are all that were ever asked for, by their digests. `changed`: when another
    than the agent changed cards, daemons or the plan last. `in_sync`: the plan of which the agent
    said since then that the node is so, and it was.
    """

    def __init__(self, folder: Path, boards: str) -> None:
        self.home = Home(folder)
        self.home.boards = boards
        self.home.settings = dict(_SETTINGS)
        self.node = SimulatedNode(boards, state=self.home.state)
        self.violations: list[Violation] = []
        self.plans: dict[str, Plan] = {}
        self.users: list[User] = []
        self.changed = datetime.now(UTC)
        self.in_sync: Plan | None = None
        self.phase = ""
        self._doubt: tuple[str, str] | None = None  # the digest, and when it was observed
        self._read = 0  # bytes of the log

    def close(self) -> None:
        """Nothing of it is needed any more."""
        if self.home.agent is not None:
            self.home.stop(signal.SIGKILL)
        self.end_users()
        processes.end_all()
        self.node.close()

    # --- the agent's lives ------------------------------------------------------------------------

    def start(self) -> None:
        """As after a boot, or by systemd."""
        if self.home.agent is None:
            self.home.start()

    def kill(self) -> None:
        """kill -9, now."""
        if self.home.agent is not None:
            self.home.stop(signal.SIGKILL)
            with (self.home.folder / "stderr").open("ab") as log:
                log.write(b"\n")  # a line that it was about to write ends here

    def stop(self) -> None:
        """SIGTERM, and wait for its end."""
        agent = self.home.agent
        if agent is None:
            return
        try:
            self.home.stop(signal.SIGTERM)
        except subprocess.TimeoutExpired:
            self.violate(invariants.NO_END, "after SIGTERM")
            self.kill()
            return
        if agent.returncode not in {0, -signal.SIGTERM}:
            self.violate(invariants.CRASH, f"exit code {agent.returncode} after SIGTERM")

    def pause(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after a while."""
        if self.home.agent is not None:
            self.home.agent.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            self.home.agent.send_signal(signal.SIGCONT)

    def run(self, seconds: float) -> None:
        """Let the machine be for so long, and look at what the agent says."""
        until = time.monotonic() + seconds
        while not self.violations:
            self.look()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _OFTEN))

    # --- who uses it ------------------------------------------------------------------------------

    def occupy(self, number: int) -> None:
        """A program comes to a device, chosen by a number."""
        places = node_actions.devices(self.node)
        if not places:
            return
        program = subprocess.Popen(["sleep", "1000"])
        device = places[number % len(places)]
        try:
            with self.node.changes():
                self.node.occupy(device, program.pid, command="sleep", memory=None, follow=True)
                gpu = int(device.partition("/")[0])
                self.users.append(User(program, gpu, self._parts(gpu, program.pid)))
        except UsageError:  # its compute mode keeps it out, or it is gone meanwhile
            program.kill()
            program.wait()

    def leave(self, number: int) -> None:
        """One of them ends."""
        if self.users:
            _end(self.users.pop(number % len(self.users)))

    def end_users(self, gpu: int | None = None) -> None:
        """All of them end, or all of a GPU."""
        for user in [user for user in self.users if gpu in {None, user.gpu}]:
            self.users.remove(user)
            _end(user)

    def _parts(self, gpu: int, pid: int) -> tuple[int, ...] | None:
        """What a process has of a GPU; None: it is not there."""
        card = self.node.cards[gpu]
        for process in card.state.processes:
            if process.pid == pid:
                own = process.instance, process.compute
                serials = (
                    (instance.serial, compute.serial)
                    for instance, compute in card.mig_devices()
                    if (instance.id, compute.id) == own
                )
                return (card.state.mig, *chain.from_iterable(serials))
        return None

    # --- what is so -------------------------------------------------------------------------------

    def touch(self) -> None:
        """Something that the agent has to find out by itself was changed just now."""
        self.changed = datetime.now(UTC)
        self.in_sync = self._doubt = None

    def wants(self, plan: Plan) -> None:
        """From now on this plan may be in force."""
        self.plans[f"sha256:{hashlib.sha256(plan.text.encode()).hexdigest()}"] = plan

    def differences(self, plan: Plan) -> list[str]:
        """What is not as this plan says."""
        with self.node.looks():
            return truth.differences(self.node, self.home.folder, plan)

    def look(self) -> None:
        """Judge what the agent says and did."""
        agent = self.home.agent
        processes.reap_orphans([p.pid for p in (agent, *(u.process for u in self.users)) if p])
        self._judge_log()
        if agent is not None and agent.poll() is not None:
            self.home.agent = None
            last = self.home.said().strip().splitlines()[-1:]
            self.violate(invariants.CRASH, f"exit code {agent.returncode}: {''.join(last)}")
        self._judge_users()
        self._judge_status(self._status())

    def _status(self) -> dict[str, Any]:
        """What the agent says; empty while it does not answer."""
        if self.home.agent is None:
            return {}
        try:
            text = self.home.text("/v1/status")
        except (OSError, http.client.HTTPException):  # it begins, or it just ended
            return {}
        self.violations += invariants.of_text("/v1/status", text)
        return dict(json.loads(text))

    def _judge_status(self, status: dict[str, Any]) -> None:
        """What it calls in sync has to be so. Where it is not, the next round has to notice: what
        is observed then was observed after everything that happened here.
        """
        self.phase = status.get("phase", "")
        plan = self.plans.get(status.get("digest", ""))
        observed = status.get("observedAt", "")
        if self.phase != "InSync" or plan is None or not observed:
            self._doubt = None
            return
        if datetime.fromisoformat(observed) <= self.changed:
            return
        wrong = self.differences(plan)
        if not wrong:
            self.in_sync, self._doubt = plan, None
        elif self._doubt is None or self._doubt[0] != status["digest"]:
            self._doubt = status["digest"], observed
        elif observed > self._doubt[1]:
            self.violate(invariants.NOT_SO, "; ".join(wrong))

    def _judge_users(self) -> None:
        with self.node.looks():
            for user in self.users:
                if self._parts(user.gpu, user.process.pid) != user.parts:
                    self.violate(invariants.IN_USE, f"process {user.process.pid} on GPU {user.gpu}")

    def _judge_log(self) -> None:
        with suppress(FileNotFoundError), (self.home.folder / "stderr").open("rb") as log:
            log.seek(self._read)
            whole = log.read().rpartition(b"\n")[0]
            self._read += len(whole)
            self.violations += invariants.of_log(whole.decode(errors="replace").splitlines())

    def judge_rest(self, plan: Plan) -> None:
        """What an agent that ended leaves behind is what the plan asks for."""
        left = (*self.differences(plan), *leftovers(self.home.folder))
        self.violations += [Violation(invariants.LEAK, one) for one in left]

    def violate(self, kind: str, what: str) -> None:
        self.violations.append(Violation(kind, what))


def _end(user: User) -> None:
    user.process.kill()
    user.process.wait()
