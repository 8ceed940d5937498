"""What happens to a node on a day: a list of actions that is printed, read back and cut short."""

from nodeagent.structs import Struct

WORKING = "Working"  # the agent's word for having begun a change


class Plan(Struct, frozen=True):
    """The plan file is replaced. Counts by profile for each GPU; none: MIG is off. `mps`: the GPUs
    all of whose devices are shared.
    """

    layouts: tuple[dict[str, int], ...]
    mps: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        entries = [
            f"- {{devices: [{gpu}], mig: {_flow(layout)}{self._sharing(gpu)}}}\n"
            for gpu, layout in enumerate(self.layouts)
        ]
        return f"version: v1\ngpus:\n{''.join(entries)}"

    def _sharing(self, gpu: int) -> str:
        return ", mps: {replicas: 2}" if gpu in self.mps else ""


class BadPlan(Struct, frozen=True):
    """The plan file is replaced by what is no plan for this node; None: it is deleted."""

    text: str | None


class Occupy(Struct, frozen=True):
    """A process comes to a device, chosen by a number; with `before` in the middle of the agent's
    work, right before a call of NVML that matches, or before the agent begins ("Working"): the
    first after `skip` of them.
    """

    device: int
    before: str = ""
    skip: int = 0


class Leave(Struct, frozen=True):
    """A process ends, chosen by a number."""

    process: int


class Fault(Struct, frozen=True):
    """Calls of NVML fail: the first `times` after `skip`. `applied`: they do their work first."""

    function: str
    code: str
    times: int = 1
    skip: int = 0
    applied: bool = False


class Hang(Struct, frozen=True):
    """The first call after `skip` does not return before all faults end."""

    function: str
    skip: int = 0


class Ignore(Struct, frozen=True):
    """Calls that change something report success and do nothing, until all faults end."""

    function: str


class EndFaults(Struct, frozen=True):
    """NVML works again."""


class Lose(Struct, frozen=True):
    """A GPU falls off the bus, or wants a reset."""

    gpu: int
    code: str


class Recover(Struct, frozen=True):
    """A lost GPU comes back; its processes and instances are gone."""

    gpu: int


class Xid(Struct, frozen=True):
    """The driver reports an XID."""

    gpu: int
    number: int


class Foreign(Struct, frozen=True):
    """Another program makes an instance, or destroys an idle one, chosen by a number."""

    gpu: int
    create: bool
    number: int


class Kill(Struct, frozen=True):
    """kill -9 at the agent's `changes`-th change of files or GPUs from now, with `before` from the
    next call of NVML that matches, or when the step is over; it is started again after `down`
    seconds.
    """

    changes: int
    down: float = 1.0
    before: str = ""


class Pause(Struct, frozen=True):
    """The agent's process gets SIGSTOP, and after so many seconds SIGCONT."""

    seconds: float


class Restart(Struct, frozen=True):
    """SIGTERM, and a new start."""


class Reboot(Struct, frozen=True):
    """The machine is started again."""


class JumpClock(Struct, frozen=True):
    """The wall clock is set by so many seconds."""

    seconds: float


class Damage(Struct, frozen=True):
    """A file of the agent's, chosen by a number, is deleted, cut off, changed by a bit, or of a
    newer version; or all of a directory is deleted.
    """

    directory: str
    how: str
    number: int


class FullDisk(Struct, frozen=True):
    """From the `writes`-th write on there is no room, in that directory of the agent's or in all of
    them, until all faults end; or it is `read_only`, and nothing can be deleted either.
    """

    writes: int
    directory: str = ""
    read_only: bool = False


class Signal(Struct, frozen=True):
    """An MPS daemon, chosen by a number, gets a signal."""

    name: str
    number: int


class Misbehave(Struct, frozen=True):
    """An MPS daemon, chosen by a number, does something wrong, or any that starts: what a knob of
    the stand-in is for. What has to be cleared is, when all faults end.
    """

    knob: str
    number: int | None = None


class SpoilApi(Struct, frozen=True):
    """The API server is cut off, restarted, or answers the next `requests` in a wrong way."""

    how: str
    requests: int = 1


class SpoilKubelet(Struct, frozen=True):
    """The kubelet goes, is restarted, or does not answer."""

    how: str


class AddPod(Struct, frozen=True):
    """A pod asks for a device, of a profile chosen by a number."""

    profile: int


class DeletePod(Struct, frozen=True):
    """A pod is deleted, chosen by a number."""

    number: int


ClusterAction = SpoilApi | SpoilKubelet | AddPod | DeletePod

Action = (
    Plan
    | BadPlan
    | Occupy
    | Leave
    | Fault
    | Hang
    | Ignore
    | EndFaults
    | Lose
    | Recover
    | Xid
    | Foreign
    | Kill
    | Pause
    | Restart
    | Reboot
    | JumpClock
    | Damage
    | FullDisk
    | Signal
    | Misbehave
    | ClusterAction
)


class Step(Struct, frozen=True):
    """An action, and how many seconds the machine runs then."""

    action: Action
    seconds: float


class Episode(Struct, frozen=True):
    """A node's day. `strict` False: the driver destroys what is in use on request."""

    seed: int
    boards: str
    strict: bool
    steps: tuple[Step, ...]

    @property
    def has_mps(self) -> bool:
        """Whether any plan wants a daemon, which is a process of its own."""
        return any(isinstance(step.action, Plan) and step.action.mps for step in self.steps)

    def has(self, kind: type[Action]) -> bool:
        return any(isinstance(step.action, kind) for step in self.steps)

    @property
    def has_cluster(self) -> bool:
        """Whether anything on it is about a cluster, whose last GPU is left to claims then."""
        return any(isinstance(step.action, ClusterAction) for step in self.steps)

    def __str__(self) -> str:
        lines = "".join(f"        {step},\n" for step in self.steps)
        head = f"    {self.seed},\n    {self.boards!r},\n    {self.strict},\n"
        return f"Episode(\n{head}    (\n{lines}    ),\n)"


def _flow(layout: dict[str, int]) -> str:
    entries = ", ".join(f"{profile}: {count}" for profile, count in layout.items())
    return f"{{{entries}}}" if entries else "disabled"
