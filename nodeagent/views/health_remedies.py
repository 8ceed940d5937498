"""What to do about what the health checks find, in sentences with this node's commands. Pure."""

from collections.abc import Iterable

from nodeagent.health.findings import Action, Finding, Severity
from nodeagent.health.table import BY_CAUSE, FIGURES, REBOOT_NODE, RESTART, advice
from nodeagent.plan.observed import ObservedNode
from nodeagent.plan.remedies import end_commands
from nodeagent.plan.users import Pod
from nodeagent.structs import Struct
from nodeagent.views.shapes import RunsAs
from nodeagent.views.text import users

# Where the advice has no command, since it needs hands or people: one that shows the figures.
_ALL_FIGURES = "See `nvidia-smi -q -i {gpu}`."
_DRAIN = "kubectl drain {} --ignore-daemonsets --delete-emptydir-data"
_UNCORDON = "kubectl uncordon {}"  # a drained node is cordoned
_BIND = "Run `echo {pci} > /sys/bus/pci/drivers/nvidia/bind` as root."


class HealthRemedies(Struct, frozen=True):
    """What to do about a cause of ill health, in the commands of this node; in a cluster they are
    kubectl's, too. Methods take the index of the GPU, None where the cause is of no single one.
    """

    node: str
    runs_as: RunsAs
    observed: ObservedNode

    def of_finding(self, finding: Finding, gpu: int | None = None) -> str:
        """Remedy of a finding; that of an application's error names the pods that it hit."""
        return self.of(finding.cause, finding.action, gpu, finding.pods)

    def of(
        self, cause: str, action: Action, gpu: int | None = None, pods: Iterable[Pod] = ()
    ) -> str:
        """The advice; if it has no command, one is added that shows the figures."""
        delete_pods = end_commands((0, pod.namespace, pod.name) for pod in pods)  # no pids
        text = advice(
            cause,
            action,
            reboot=self._reboot(),
            reset=self._reset(gpu),
            restart=f"{RESTART.removesuffix('.')}: {delete_pods}." if delete_pods else RESTART,
        )
        row = BY_CAUSE[cause]
        if text and "`" not in text:
            shows = _BIND if cause == "gpuUnbound" else FIGURES.get(row.check, _ALL_FIGURES)
            text = f"{text} {shows.format(gpu=_number(gpu), pci=self._address(gpu))}"
        unhealthy = action is Action.INSPECT_HARDWARE and row.severity is Severity.UNHEALTHY
        if unhealthy and self.runs_as:  # pods on its other GPUs run on
            return f"Keep new pods away: `kubectl cordon {self.node}`. {text}"
        return text

    def _address(self, gpu: int | None) -> str:
        """The PCI address of the GPU, as the kernel writes it."""
        found = (one.pci_bus_id for one in self.observed.gpus if one.index == gpu)
        return next(found, "").lower().removeprefix("0000") or "ADDRESS"

    def _reset(self, gpu: int | None) -> str:
        """How to reset the GPU. The driver resets none that a process has open, such as this agent,
        or an MPS server, which outlives the agent.
        """
        which = "the GPU" if gpu is None else f"GPU {gpu}"
        reset = f"`nvidia-smi --gpu-reset -i {_number(gpu)}`"
        found = (one for one in self.observed.gpus if one.index == gpu)
        shared = any(device.mps for one in found for device in one.devices())
        stop, start = "`systemctl stop nodeagent`", "`systemctl start nodeagent`"
        if not self.runs_as:
            end = f"end its users{self._end_users(gpu)}"
            if shared:
                stop = f"`nodeagent mps drain {gpu}`, {stop}"
                start = f"{start}, `nodeagent mps restart {gpu}`"
            return f"Reset {which}: {end}, then {stop}, {reset}, {start}."
        if shared:
            return self._reboot()
        drain, uncordon = _DRAIN.format(self.node), _UNCORDON.format(self.node)
        if self.runs_as == "service":
            there = f"{stop}, {reset} and {start} on the node"
        else:
            label = f"kubectl label node {self.node} nodeagent.io/off"
            drain, uncordon = f"{drain} && {label}=", f"{label}- && {uncordon}"
            there = f"run {reset} on the node"
        return f"Reset {which}: `{drain}`, then {there}, then `{uncordon}`; or reboot the node."

    def _reboot(self) -> str:
        reboot = REBOOT_NODE.removesuffix(".")
        if not self.runs_as:
            return (
                f"{reboot}: end the users of its GPUs{self._end_users()}, then `systemctl reboot`."
            )
        return (
            f"{reboot}: `{_DRAIN.format(self.node)}`, then `systemctl reboot` on the node, then "
            f"`{_UNCORDON.format(self.node)}`."
        )

    def _end_users(self, gpu: int | None = None) -> str:
        """What ends the users of this GPU or of all, in brackets; a Node's status has no pids."""
        gpus = (one for one in self.observed.gpus if gpu in (None, one.index))
        found = (user for one in gpus for user in users(one))
        commands = end_commands((user.pid, user.namespace, user.pod) for user in found)
        return f" ({commands})" if commands else ""


def _number(gpu: int | None) -> str:
    return "NUMBER" if gpu is None else str(gpu)
