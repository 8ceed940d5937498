"""A simulated node on this machine: the agent is a process of its own, in real time, with real
signals, sockets and files; so are all who use the node. It is judged from outside.
"""

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from nodeagent.cli.simulated_node import uuid_of
from nodeagent.errors import NodeagentError, UsageError
from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.mps.clients import SimulatedClient
from nodeagent.simulation.mps.installation import install, programs_in
from nodeagent.structs import replace
from tests.acceptance.agent_home import USER, Home
from tests.campaign import invariants, node_actions, processes
from tests.campaign.episode import WORKING, Episode, FullDisk, JumpClock
from tests.campaign.real.cluster import ThreadedCluster, device_shared, environment_of
from tests.campaign.real.judge import Client, Judge, User, parts_of
from tests.campaign.real.surroundings import Disks, WallClock

_OFTEN = 0.1  # seconds between looks at what the agent says
_LATENCY = 0.05  # seconds of each call that changes a card
_CHANGES = ("nvml*Create*Instance*", "nvml*InstanceDestroy", "nvmlDeviceSetMigMode")
# Of the agent: so short that a day of a few seconds has many of each.
_SETTINGS = {
    "NODEAGENT_RESYNC_INTERVAL": "1s",
    "NODEAGENT_SAMPLE_INTERVAL": "1s",
    "NODEAGENT_SAMPLE_SLOW_INTERVAL": "2s",
    "NODEAGENT_DRIVER_OBSERVE_DEADLINE": "2s",
    "NODEAGENT_DRIVER_STEP_DEADLINE": "3s",
    "NODEAGENT_MPS_CHECK_INTERVAL": "1s",
    "NODEAGENT_MPS_ANSWER_DEADLINE": "2s",
    "NODEAGENT_MPS_STEADY": "1s",
    "NODEAGENT_MPS_LONGEST_DELAY": "2s",
    "NODEAGENT_KUBERNETES_USE": "never",
    "NODEAGENT_KUBELET_USE": "never",
    "NODEAGENT_LOG_FORMAT": "json",
}


class Machine:
    """One node, with a cluster around it or without."""

    def __init__(self, folder: Path, day: Episode) -> None:
        boards = day.boards
        self.home = Home(folder)
        self.home.boards = boards
        self.home.settings = {**_SETTINGS, "NODEAGENT_CDI_DIR": f"{folder}/cdi"}
        self.clock = WallClock(folder)
        if day.has(JumpClock):
            self.home.settings |= self.clock.settings
        self.own = folder / "node.json.mps"  # what else the simulated agent keeps
        disks = [folder / "state", folder / "run", self.own] if day.has(FullDisk) else []
        self.disks = Disks(disks)
        install(programs_in(self.own), version="580")  # of the driver, not of any agent
        self.cluster = ThreadedCluster(folder) if day.has_cluster else None
        if self.cluster:
            self.home.settings |= self.cluster.settings
        self.node = SimulatedNode(boards, state=self.home.state)
        self.users: list[User] = []
        self.clients: list[Client] = []
        self.daemons_spoiled = False  # and may have to be replaced
        self.served = 0  # clients that daemons accepted so far
        self._started = set[str]()  # pods whose program came
        self.interrupted = 0  # times that an agent was ended in the middle of a change
        self.judge = Judge(self.home, self.node, self.cluster, self.clock)
        self.clear_faults()

    def clear_faults(self) -> None:
        """The cards are well, and a change of one takes its time."""
        with self.node.changes():
            self.node.clear_faults()
            for function in _CHANGES:
                self.node.inject(function, delay=_LATENCY, times=None)

    def close(self) -> None:
        if self.home.agent is not None:
            self.home.stop(signal.SIGKILL)
        self.end_users()
        processes.end_all()
        if self.cluster:
            self.cluster.close()
        self.node.close()
        self.disks.close()

    # --- the agent's lives ------------------------------------------------------------------------

    def start(self) -> None:
        if self.home.agent is None:
            self.home.start(*(self.cluster.arguments if self.cluster else ()))

    def kill(self) -> None:
        if self.home.agent is not None:
            self._count_interruption()
            self.home.stop(signal.SIGKILL)
            with (self.home.folder / "stderr").open("ab") as log:
                log.write(b"\n")  # a line that it was about to write ends here

    def stop(self) -> None:
        agent = self.home.agent
        if agent is None:
            return
        self._count_interruption()
        try:
            self.home.stop(signal.SIGTERM)
        except subprocess.TimeoutExpired:
            self.judge.violate(invariants.NO_END, "after SIGTERM")
            self.kill()
            return
        if agent.returncode not in {0, -signal.SIGTERM}:
            self.judge.violate(invariants.CRASH, f"exit code {agent.returncode} after SIGTERM")

    def _count_interruption(self) -> None:
        self.judge.ask()
        self.interrupted += self.judge.phase == WORKING

    def pause(self, seconds: float) -> None:
        if self.home.agent is not None:
            self.home.agent.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            self.home.agent.send_signal(signal.SIGCONT)

    def run(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Let the machine be for so long, and look at what the agent says, until it is `enough`."""
        until = time.monotonic() + seconds
        while not self.judge.violations:
            self.look()
            left = until - time.monotonic()
            if left <= 0 or enough():
                return
            time.sleep(min(left, _OFTEN))

    # --- who uses it ------------------------------------------------------------------------------

    def occupy(self, number: int) -> None:
        """A program comes to a device, chosen by a number: as a client of MPS if it has that."""
        places = node_actions.devices(self.node)
        if not places:
            return
        device = places[number % len(places)]
        with suppress(UsageError, OSError):
            uuid = uuid_of(device, self.node)
            if self._connect(uuid, self.home.env_of(uuid, "replica-0")):
                return
        program = subprocess.Popen(["sleep", "1000"])
        try:
            with self.node.changes():
                self.node.occupy(device, program.pid, command="sleep", memory=None, follow=True)
                gpu = int(device.partition("/")[0])
                self.users.append(User(program, gpu, parts_of(self.node, gpu, program.pid)))
        except UsageError:  # its compute mode keeps it out, or it is gone meanwhile
            program.kill()
            program.wait()

    def _follow_pods(self, cluster: ThreadedCluster) -> None:
        """The programs of pods that share their devices come and go with these."""
        shared = cluster.shared()
        for client in [one for one in self.clients if one.pod and one.pod not in shared]:
            self.clients.remove(client)
            client.program.close()
        for pod in shared.keys() - self._started:
            with suppress(OSError):  # a person deleted its CDI file
                device = device_shared(self.home.folder, shared[pod])
                self._connect(device, environment_of(self.home.folder, shared[pod]), pod)
            self._started.add(pod)

    def _connect(self, device: str, environment: dict[str, str], pod: str = "") -> bool:
        """Whether a program could come that runs under MPS."""
        before = self._daemon(device)
        if before is None:
            return False
        pipes = Path(environment["CUDA_MPS_PIPE_DIRECTORY"])
        program = SimulatedClient(
            pipes, uid=USER, environment=environment, state=self.home.state, device=device
        )
        try:
            if not program.wait_until_connected():  # it would go on without MPS
                program.close()
                return False
            program.wait_until_accepted()
        except (NodeagentError, TimeoutError):
            program.close()
            return False
        self.served += 1
        after = self._daemon(device)
        stays = after == before and not self.daemons_spoiled
        self.clients.append(Client(program, device, after if stays else None, pod))
        return True

    def _daemon(self, device: str) -> int | None:
        pids = processes.daemons(self.home.folder).get(device, [])
        return pids[0] if len(pids) == 1 else None

    def forget_daemons(self) -> None:
        """Something happens to them that is not the agent's doing."""
        self.clients = [replace(client, daemon=None) for client in self.clients]

    def leave(self, number: int) -> None:
        if number < len(self.clients):
            self.clients.pop(number).program.close()
        elif self.users:
            _end(self.users.pop(number % len(self.users)))

    def end_users(self, gpu: int | None = None) -> None:
        """All of them end, or all of a GPU and all clients of MPS."""
        while self.clients:
            self.clients.pop().program.close()
        for user in [user for user in self.users if gpu in {None, user.gpu}]:
            self.users.remove(user)
            _end(user)

    def look(self) -> None:
        agent = self.home.agent
        ours = [agent, *(one.process for one in self.users), *(c.program for c in self.clients)]
        processes.reap_orphans([one.pid for one in ours if one])
        if agent is not None and agent.poll() is not None:
            self.home.agent = None
            last = self.home.said().strip().splitlines()[-1:]
            what = f"exit code {agent.returncode}: {''.join(last)}"
            self.judge.violate(invariants.CRASH, what)
        if self.cluster:
            self._follow_pods(self.cluster)
        self.judge.look(self.users, self.clients)


def _end(user: User) -> None:
    user.process.kill()
    user.process.wait()
