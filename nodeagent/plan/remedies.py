"""What to do about users that are in the way, and how a GPU is reset: commands of this node."""

from collections.abc import Iterable

from nodeagent.catalogue import agent_words
from nodeagent.plan.observed import Gpu
from nodeagent.plan.users import Usage
from nodeagent.text import alike

# For users that the driver counts and does not name.
SHOW_USERS = "`fuser -v /dev/nvidia*` shows what uses it"
_MAX_NAMED = 100  # pods and processes in commands; thousands would fill logs and Events


def end_commands(users: Iterable[tuple[int, str, str]]) -> str:
    """`` `kubectl delete pod -n ml train-0` and `kill 4711` ``; "" where nobody is known by name.

    `users` are pid, namespace and pod. A process of a pod ends with it, by Kubernetes' rules.
    """
    ends = dict.fromkeys(
        (f"kubectl delete pod -n {namespace}", pod) if pod else ("kill", str(pid))
        for pid, namespace, pod in users
        if pod or pid
    )
    names = alike(sorted(ends, key=lambda end: end[0] == "kill")[:_MAX_NAMED])
    commands = " and ".join(f"`{command} {' '.join(named)}`" for command, named in names.items())
    return f"{commands} and {rest} more" if (rest := len(ends) - _MAX_NAMED) > 0 else commands


def in_use_remedy(*usages: Usage) -> str:
    """What ends the users of a device, or of several."""
    users = (user for usage in usages for user in usage.processes)
    if commands := end_commands((user.pid, user.namespace, user.pod) for user in users):
        return f"run {commands}, or wait for its end"
    if not all(usage.known for usage in usages):
        return "run `nodeagent check`: until it is known who uses it, it counts as in use"
    return f"{SHOW_USERS}: end it, or wait for its end"


def reset_remedy(gpu: Gpu, *, mode_off_first: bool = False) -> str:
    """How to reset an idle GPU by hand; `mode_off_first`: MIG mode off has not been requested yet.

    The driver resets no GPU that anything has open, an agent included.
    """
    first = f"first run `nvidia-smi -i {gpu.pci_bus_id} -mig 0`, then " if mode_off_first else ""
    if gpu.no_reset:
        return f"{first}reboot this machine: it cannot reset the GPU ({gpu.no_reset})"
    agent = agent_words()
    return (
        f"{first}stop all that has it open, the agent too (`{agent['stop']}`), run `nvidia-smi "
        f"--gpu-reset -i {gpu.pci_bus_id}` and start it again (`{agent['start']}`), or reboot"
    )


def silent_remedy(gpu: Gpu) -> str:
    """How to bring back a GPU that does not answer: in the words of its health where that is known,
    else by its last error's remedy, if it has one.
    """
    if gpu.health_limits.whole:
        return gpu.health_limits.remedy
    if gpu.access_remedy:
        return gpu.access_remedy.replace("-i GPU", f"-i {gpu.pci_bus_id or gpu.index}")
    return "look at `dmesg | grep NVRM`; if it lasts, reboot the node"


def idle_reset_remedy(gpu: Gpu) -> str:
    """How to make idle and reset a GPU that may be in use, by hand or by the agent."""
    if gpu.no_reset:
        return reset_remedy(gpu)
    return (
        f"end what uses the GPU, {reset_remedy(gpu)}; or allow it with the setting "
        "`reset: whenIdle`"
    )
