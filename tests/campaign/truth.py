"""What is so on the machine: from simulated cards and the disk, by no code of the agent's."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nodeagent.simulation import SimulatedNode
from tests.campaign import processes
from tests.campaign.episode import Plan

_LIMIT = "50.0"  # per cent of the threads of a device that two share, as its daemon says
EXCLUSIVE = 3
DISK = "campaign-disk"  # what the mounts of a day are called
_DEVICE = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card. `whole`: the profiles of GPU instances with one compute instance that fills them;
    `other` are all others. `modes`: the compute mode of each device, by UUID.
    """

    works: bool
    mig: bool
    whole: Counter[str]
    other: tuple[str, ...]
    modes: Mapping[str, int]

    def is_as(self, layout: Mapping[str, int], *, with_more: bool = False) -> bool:
        """Whether it is what a plan says, or that `with_more`; without profiles: outside of MIG."""
        missing, more = Counter(layout) - self.whole, self.whole - Counter(layout)
        return self.mig is bool(layout) and not missing and (with_more or not (more or self.other))

    def has_layout_of(self, gpu: Gpu) -> bool:
        """Whether the two have the same instances."""
        mine = (self.mig, self.whole, self.other)
        return mine == (gpu.mig, gpu.whole, gpu.other)


def gpus(node: SimulatedNode) -> list[Gpu]:
    found = []
    for card in node.cards:
        whole, other = Counter[str](), list[str]()
        for instance in card.state.instances:
            profile = card.profile(instance.profile)
            sizes = [card.compute_profile(instance, c.profile).slices for c in instance.compute]
            if sizes == [profile.slices]:
                whole[profile.name] += 1
            else:
                other.append(f"{profile.name} at {instance.start} with {sizes}")
        modes = {card.mig_uuid(i, c): c.compute_mode for i, c in card.mig_devices()}
        if not card.state.mig:
            modes = {card.identity.uuid: card.state.compute_mode}
        works = not card.state.failure
        found.append(Gpu(works, card.state.mig, whole, tuple(other), modes))
    return found


def differences(
    node: SimulatedNode,
    folder: Path,
    plan: Plan,
    *,
    modes_kept: bool = True,
    with_more: bool = False,
) -> list[str]:
    """What on the machine is not as the plan says, which leaves GPUs beyond its own to others.
    `modes_kept` False: the agent lost what compute modes were before it changed them. `with_more`:
    claims may have instances beside the plan's, and share them and those of the plan.
    """
    found, shared = list[str](), set[str]()
    for index, (gpu, layout) in enumerate(zip(gpus(node), plan.layouts, strict=False)):
        if not gpu.is_as(layout, with_more=with_more):
            found.append(f"GPU {index} is {gpu} and not {layout}")
        wants = index in plan.mps
        shared |= set(gpu.modes) if wants else set()
        for device, mode in gpu.modes.items():
            if (mode == EXCLUSIVE) != wants and (wants or (modes_kept and not with_more)):
                found.append(f"the compute mode of {device} is {mode}")
    if shared or processes.exist():
        daemons = processes.daemons(folder)
        others = daemons.keys() - shared
        if (others and not with_more) or any(len(daemons.get(one, ())) != 1 for one in shared):
            found.append(f"MPS daemons are {daemons} and not those of {sorted(shared)}")
    return found


def wrong_limits(folder: Path) -> list[str]:
    """What MPS daemons have for a limit other than the plan's, or that they do not answer."""
    limits = processes.thread_limits(folder)
    return [f"the limit of {one} is {limit}" for one, limit in limits.items() if limit != _LIMIT]


def descriptors() -> dict[str, str]:
    """What this process has open, by number; a file by its name, also when it was deleted since."""
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - quick
        try:
            what = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115 - quick
            found[name] = what.removesuffix(" (deleted)")
        except OSError:  # the listing's own
            continue
    return found


def leftovers(folder: Path) -> Iterator[str]:
    """What an agent that ended left on the machine, but for the daemons that the plan asks for and
    what belongs to these: sentences, each about one thing too much.
    """
    daemons = processes.daemons(folder)
    for pid, command in processes.others(daemons, folder):
        yield f"process {pid}: {command}"
    run = folder / "run"
    for path in run.iterdir() if run.exists() else ():
        if path.name != "mps":
            yield str(path)
    for path in (run / "mps").iterdir() if (run / "mps").exists() else ():
        if path.name not in daemons:
            yield str(path)
    own = folder / "node.json.mps"
    for records in (own / "claims").glob("*"), (folder / "cdi").glob("nodeagent.io-claim*"):
        yield from map(str, records)
    for path in (*(folder / "cdi").glob("*"), own / "earlier-modes.json"):
        yield from _devices_in(path, daemons)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if str(folder) in line and DISK not in line:
            yield f"mount {line}"


def _devices_in(path: Path, wanted: Collection[str]) -> Iterator[str]:
    """Those that a file names and that no daemon serves."""
    if path.exists():
        found = set(_DEVICE.findall(path.read_text(errors="replace")))
        yield from (f"{device} in {path}" for device in sorted(found - set(wanted)))
