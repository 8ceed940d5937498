"""Judges an agent from outside: what it says has to be so on the cards, in files and in /proc."""

import hashlib
import http.client
import json
import subprocess
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.mps.clients import SimulatedClient
from tests.acceptance.agent_home import Home
from tests.campaign import invariants, pages, processes, truth
from tests.campaign.episode import Plan
from tests.campaign.invariants import Violation
from tests.campaign.real.cluster import TOKEN, Cluster, device_files, device_shared
from tests.campaign.real.surroundings import WallClock
from tests.simulated_cluster.workloads import PART, SHARED

_GPU, _CAPABILITY = "/dev/nvidia", "/dev/nvidia-caps/nvidia-cap"
_PAGES = ("/v1/status", "/v1/events", "/metrics")


@dataclass(frozen=True, slots=True)
class User:
    """A program on a device, and what it may not lose: the card's mode, serials of instances."""

    process: subprocess.Popen[bytes]
    gpu: int
    parts: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Client:
    """A program under MPS, of a `pod` or not. `daemon`: the pid of the one that it may not lose,
    None when something happened to the daemons since it came.
    """

    program: SimulatedClient
    device: str
    daemon: int | None
    pod: str = ""


def parts_of(node: SimulatedNode, gpu: int, pid: int) -> tuple[int, ...] | None:
    """What a process has of a GPU; None: it is not there."""
    card = node.cards[gpu]
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


class Judge:
    """Of one node. `plans` are all that were ever asked for, by their digests. `changed`: when
    another than the agent changed cards, daemons or the plan last. `in_sync`: the plan of which the
    agent said since then that the node is so, and it was. `prepared`: the serials of the instances
    of each claim that a pod had, or a number below zero for its GPU as a whole, by its uid.
    `claims_spoiled`: whether another than the agent changed CDI files or records of claims, and it
    need not have noticed yet. `unhealthy`: whether the agent may hold a GPU for unhealthy.
    """

    def __init__(
        self, home: Home, node: SimulatedNode, cluster: Cluster | None, clock: WallClock
    ) -> None:
        self.violations: list[Violation] = []
        self.phase = ""
        self.prepared: dict[str, list[int]] = {}
        self.claims_spoiled = False
        self.unhealthy = False
        self._clock = clock
        self._home = home
        self._node = node
        self._cluster = cluster
        self._plans: dict[str, Plan] = {}
        self._changed = self._now()
        self._in_sync: Plan | None = None
        self._doubt: tuple[str, str] | None = None  # the digest, and when it was observed
        self._shown: tuple[dict[str, Any], str] = {}, ""  # the status and the metrics' page
        self._read = 0  # bytes of the log

    def violate(self, kind: str, what: str) -> None:
        self.violations.append(Violation(kind, what))

    def touch(self) -> None:
        """Something that the agent has to find out by itself was changed just now."""
        self._changed = self._now()
        self._in_sync = self._doubt = None

    def _now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._clock.jump)

    def wants(self, plan: Plan) -> None:
        self._plans[_digest(plan)] = plan

    # --- what is so -------------------------------------------------------------------------------

    def differences(self, plan: Plan, *, with_claims: bool = False) -> list[str]:
        with self._node.looks():
            return truth.differences(self._node, self._home.folder, plan, with_more=with_claims)

    def missing(self, plan: Plan) -> str:
        """What is not as this plan says, or not yet said where it has to be; "" for nothing."""
        if self._in_sync != plan:
            return f"{self.phase or 'no answer'}: {'; '.join(self.differences(plan))}"
        with self._node.looks():
            wrong = [*pages.untrue(self._node, self._home.folder, *self._shown)]
        if wrong:
            return "; ".join(wrong)
        if self._cluster is None:
            return ""
        if wrong := self.differences(plan):  # and no claims beside it
            return "; ".join(wrong)
        for card in self._node.cards[len(plan.layouts) :]:
            if card.state.instances or card.state.compute_mode:
                return f"GPU {card.index} is as claims had it"
        if left := self._cluster.pods_and_claims():
            return f"there are {left}"
        published = self._cluster.published()
        of = published.status.get("phase"), published.status.get("digest")
        if of != ("InSync", _digest(plan)):
            return f"the Node says {' of '.join(map(str, of))}"
        with self._node.looks():
            return "; ".join(pages.untrue_of_node(self._node, published, unhealthy=self.unhealthy))

    # --- whether it is right ----------------------------------------------------------------------

    def look(self, users: Iterable[User], clients: Iterable[Client]) -> None:
        self.read_log()
        self._look_at_users(users)
        self._look_at_clients(clients)
        self._look_at_claims()
        self.ask()

    def ask(self) -> None:
        self._compare(self._status() if self._home.agent else {})

    def look_at_rest(self, plan: Plan) -> None:
        """What an agent that ended leaves behind is what the plan asks for."""
        left = (*self.differences(plan), *truth.leftovers(self._home.folder))
        self.violations += [Violation(invariants.LEAK, one) for one in left]

    def _status(self) -> dict[str, Any]:
        """What the agent says; empty while it does not answer."""
        try:
            texts = {path: self._home.text(path) for path in _PAGES}
        except (OSError, http.client.HTTPException):  # it begins, or it just ended
            return {}
        for path, text in texts.items():
            self.violations += invariants.of_text(path, text)
            self._look_for_secrets(path, text)
        status = dict(json.loads(texts["/v1/status"]))
        self._shown = status, texts["/metrics"]
        return status

    def _compare(self, status: dict[str, Any]) -> None:
        """What it calls in sync has to be so. Where it is not, the next round has to notice: what
        is observed then was observed after everything that happened here.
        """
        self.phase = status.get("phase", "")
        plan = self._plans.get(status.get("digest", ""))
        observed = status.get("observedAt", "")
        if self.phase != "InSync" or plan is None or not observed:
            self._doubt = None
            return
        # After the clock was put back, what was observed before seems to come.
        if not self._changed < datetime.fromisoformat(observed) <= self._now():
            return
        wrong = self.differences(plan, with_claims=self._cluster is not None)
        if not wrong:
            self._in_sync, self._doubt = plan, None
        elif self._doubt is None or self._doubt[0] != status["digest"]:
            self._doubt = status["digest"], observed
        elif observed > self._doubt[1]:
            self.violate(invariants.NOT_SO, "; ".join(wrong))

    def _look_at_users(self, users: Iterable[User]) -> None:
        with self._node.looks():
            for user in users:
                pid = user.process.pid
                if parts_of(self._node, user.gpu, pid) != user.parts:
                    self.violate(invariants.IN_USE, f"process {pid} on GPU {user.gpu}")

    def _look_at_clients(self, clients: Iterable[Client]) -> None:
        served = [client for client in clients if client.daemon is not None]
        daemons = processes.daemons(self._home.folder) if served else {}
        for one in served:
            if daemons.get(one.device) != [one.daemon]:
                pids = daemons.get(one.device)
                what = (
                    f"daemon {one.daemon} of client {one.program.pid} on {one.device}: now {pids}"
                )
                self.violate(invariants.IN_USE, what)

    def _look_at_claims(self) -> None:
        """A prepared claim has its instances while its pod runs, and a CDI file that names them."""
        for wrong in self._lost_instances() if self.claims_spoiled else self.wrong_claims():
            self.violate(invariants.CLAIM, wrong)

    def wrong_claims(self) -> list[str]:
        """Of pods that run: what is wrong with what they have."""
        found, owners = list[str](), dict[int, str]()
        running = self._cluster.prepared() if self._cluster else {}
        with self._node.looks():
            for pod, (uid, asked) in running.items():
                owner, profile = pod, asked.removesuffix(SHARED)
                if asked == PART:  # of a GPU that others may have parts of, too
                    owner, profile = PART, "gpu"
                try:
                    parts = self._claimed(uid)
                except (OSError, ValueError, LookupError) as error:
                    found.append(f"{pod} runs, and its CDI file is {error!r}")
                    continue
                had = self.prepared.setdefault(uid, parts)
                if not parts or had != parts:
                    found.append(f"{pod} has instances {parts} and had {had}")
                others = {owners.setdefault(part, owner) for part in parts} - {owner}
                profiles = self._profiles(parts)
                if others or profiles != [profile]:
                    found.append(f"{pod} has {profiles} for {profile}, with {others}")
        return found

    def unserved(self) -> list[str]:
        """Pods that run and share their devices, and have no daemon there."""
        daemons, modes = processes.daemons(self._home.folder), dict[str, int]()
        with self._node.looks():
            for gpu in truth.gpus(self._node):
                modes |= gpu.modes
        found = []
        for pod, uid in self._cluster.shared().items() if self._cluster else ():
            device = device_shared(self._home.folder, uid)
            pids, mode = daemons.get(device, []), modes.get(device)
            if len(pids) != 1 or mode != truth.EXCLUSIVE:
                found.append(f"{pod} shares {device} in mode {mode} by the daemons {pids}")
        return found

    def _profiles(self, parts: Collection[int]) -> list[str]:
        """Of the GPU instances among these parts; `gpu` for a whole one."""
        instances = ((card, i) for card in self._node.cards for i in card.state.instances)
        profiles = [card.profile(i.profile).name for card, i in instances if i.serial in parts]
        return profiles + ["gpu" for part in parts if part < 0]

    def _lost_instances(self) -> Iterator[str]:
        """Of pods that run, whatever their CDI files say."""
        running = self._cluster.prepared() if self._cluster else {}
        with self._node.looks():
            pairs = chain.from_iterable(card.mig_devices() for card in self._node.cards)
            there = {part.serial for pair in pairs for part in pair} | self._whole_gpus()
        for pod, (uid, _) in running.items():
            if lost := set(self.prepared.get(uid, ())) - there:
                yield f"{pod} lost its instances {sorted(lost)}"

    def _claimed(self, uid: str) -> list[int]:
        """The serials of a claim's instances that there are, or its whole GPU; raises OSError."""
        files, known = device_files(self._home.folder, uid), self._node.capabilities()
        numbers = [int(f.removeprefix(_CAPABILITY)) for f in files if f.startswith(_CAPABILITY)]
        if not numbers:
            return [w for w in self._whole_gpus() if f"{_GPU}{-1 - w}" in files]
        found = list[int]()
        for gpu, gpu_instance, compute in map(known.__getitem__, numbers):
            for instance, part in self._node.cards[gpu].mig_devices():
                if (instance.id, part.id) == (gpu_instance, compute):
                    found += [instance.serial, part.serial]
        return found

    def _whole_gpus(self) -> set[int]:
        """Those out of MIG mode, as numbers that no serial is."""
        return {-1 - card.index for card in self._node.cards if not card.state.mig}

    def read_log(self) -> None:
        """What it logged since the last look, but for a line that is not whole."""
        with suppress(FileNotFoundError), (self._home.folder / "stderr").open("rb") as log:
            log.seek(self._read)
            whole = log.read().rpartition(b"\n")[0]
            self._read += len(whole)
            text = whole.decode(errors="replace")
            self.violations += invariants.of_log(text.splitlines())
            self._look_for_secrets("the log", text)

    def _look_for_secrets(self, name: str, text: str) -> None:
        if TOKEN in text:
            self.violate(invariants.SECRET, f"in {name}")


def _digest(plan: Plan) -> str:
    return f"sha256:{hashlib.sha256(plan.text.encode()).hexdigest()}"
