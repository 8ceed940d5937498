"""What is said about users that are in the way can be pasted."""

import pytest

from nodeagent.plan.remedies import end_commands, in_use_remedy, reset_remedy
from nodeagent.plan.users import Usage, User
from nodeagent.structs import replace
from tests.plan.cards import card

TRAINER = User(4711, "python", namespace="ml", pod="train-0")
WORKER = User(4712, "python", namespace="ml", pod="train-0")
ALLOCATED = User(0, source="kubelet", namespace="ml", pod="train-1")
BARE = User(99, "sleepy")
NAMELESS = User(0, "python")


def test_pods_are_deleted_and_other_processes_killed() -> None:
    """Each pod once, all of a namespace in one command; a pod's processes end with it."""
    usage = Usage((TRAINER, WORKER, BARE))
    allocated = Usage((ALLOCATED, User(0, source="kubelet", namespace="web", pod="a")))
    assert in_use_remedy(usage, allocated) == (
        "run `kubectl delete pod -n ml train-0 train-1` and `kubectl delete pod -n web a` and "
        "`kill 99`, or wait for its end"
    )


def test_who_is_not_known_by_name() -> None:
    """Is to be found first; where nobody can say who it is, that comes before."""
    assert in_use_remedy(Usage((NAMELESS,))) == (
        "`fuser -v /dev/nvidia*` shows what uses it: end it, or wait for its end"
    )
    unknown = Usage(known=False, reason="the kubelet is away")
    assert in_use_remedy(unknown, Usage()).startswith("run `nodeagent check`: ")
    assert "kill 99" in in_use_remedy(unknown, Usage((BARE,)))


@pytest.mark.parametrize("no_reset", ["", "a virtual machine"])
def test_a_reset_by_hand(no_reset: str) -> None:
    """The mode comes first where it was not set, and a reboot is all where no reset is possible."""
    gpu = replace(card("a100-40gb"), no_reset=no_reset)
    first = f"first run `nvidia-smi -i {gpu.pci_bus_id} -mig 0`, then "
    remedy = reset_remedy(gpu)
    assert reset_remedy(gpu, mode_off_first=True) == first + remedy
    assert "-mig 0" not in remedy
    assert ("nvidia-smi --gpu-reset" in remedy) is (no_reset == "")


def test_commands_name_a_hundred() -> None:
    """What is pasted once is enough, and thousands do not fill an Event."""
    named = " ".join(map(str, range(1, 101)))
    assert end_commands((pid, "", "") for pid in range(1, 101)) == f"`kill {named}`"
    assert end_commands((pid, "", "") for pid in range(1, 5001)) == f"`kill {named}` and 4900 more"
    pods = [(pid, f"n{pid % 2}", f"p{pid}") for pid in range(80)]
    both = end_commands([(7000 + n, "", "") for n in range(30)] + pods)
    assert both.endswith(
        "p79` and `kill " + " ".join(str(7000 + n) for n in range(20)) + "` and 10 more"
    )
    assert end_commands(()) == ""
