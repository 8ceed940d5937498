"""Ten faults that the program does not have, each put into a copy of it to see whether the campaign
finds them: what it does not find it does not look at.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENOUGH = 9  # of them have to be found


@dataclass(frozen=True, slots=True)
class Edit:
    """In a file of the package, `old`, which is there once, becomes `new`."""

    file: str
    old: str
    new: str

    def applied_to(self, text: str) -> str:
        """Raises ValueError where it does not fit any more."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has this {text.count(self.old)} times:\n{self.old}")
        return text.replace(self.old, self.new)


FAULTS: dict[str, tuple[Edit, ...]] = {
    "a change that failed is not undone": (
        Edit(
            "execute/executor.py",
            "    if steps and not terms.stop.is_set():\n",
            "    if steps and terms.stop.is_set():\n",
        ),
    ),
    "what was done is not read back": (
        Edit(
            "execute/executor.py",
            "        found += run.alone or _check_end(run.plan, seen, terms)\n",
            "        found += run.alone\n",
        ),
        Edit(
            "reconcile/reconciler.py",
            "        judgement, observed = await self._observe(driver)\n"
            "        self._done = outcome\n",
            "        ends = {g.plan.before.uuid: g.plan.after for g in outcome.gpus}\n"
            "        gpus = tuple(ends.get(gpu.uuid, gpu) for gpu in observed.gpus)\n"
            "        observed = replace(observed, gpus=gpus)\n"
            "        judgement = self.plan.judge(observed, self.rules.policy)\n"
            "        self._done = outcome\n",
        ),
    ),
    "users are looked for too early": (
        Edit(
            "gpu/steps/instances.py",
            "    gpu = change.gpu\n    names = tuple(",
            "    gpu = change.gpu\n    return gpu.recent.proved_idle(uuids)\n    names = tuple(",
        ),
    ),
    "a list of users that cannot be read is taken for empty": (
        Edit("gpu/users.py", "known=not self.problem,", "known=True,"),
    ),
    "a compute mode is recorded after it was changed": (
        Edit(
            "gpu/steps/modes.py",
            "        original.remember(step.device, current)\n"
            "        nvml.set_compute_mode(device, step.mode)\n",
            "        nvml.set_compute_mode(device, step.mode)\n"
            "        original.remember(step.device, current)\n",
        ),
    ),
    "daemons of an earlier life are not taken over": (
        Edit(
            "mps/adoption.py",
            "    for identity in candidates:\n",
            "    for identity in candidates[:0]:\n",
        ),
    ),
    "the plan in force is not kept for the next life": (
        Edit(
            "reconcile/last_good_plan.py",
            "            await asyncio.to_thread(self._file.save, self.unsaved)\n",
            "",
        ),
    ),
    "what failed is not tried again": (
        Edit(
            "reconcile/work_queue.py", "            now + pause,\n", '            float("inf"),\n'
        ),
    ),
    "half-made instances are left": (
        Edit(
            "plan/mig.py",
            "        yield _destroy(gpu, instance, _why_gone(instance, wanted))\n",
            "        if instance.compute:\n"
            "            yield _destroy(gpu, instance, _why_gone(instance, wanted))\n",
        ),
    ),
    "a GPU that does not answer keeps the others waiting": (
        Edit(
            "reconcile/reconciler.py",
            "            observed = await driver.observe()\n",
            "            observed = await driver.observe()\n"
            "        if any(gpu.access is not Access.OK for gpu in observed.gpus):\n"
            '            raise NodeagentError("a GPU does not answer")\n',
        ),
    ),
}


def copied_with(fault: str, folder: Path) -> None:
    """Copy the package into the folder, with the fault in it."""
    package = folder / "nodeagent"
    shutil.copytree(ROOT / "nodeagent", package)
    for edit in FAULTS[fault]:
        file = package / edit.file
        file.write_text(edit.applied_to(file.read_text()))


def found_by(seeds: list[str], fault: str) -> str:
    """The seed of the first day that goes wrong with it, and how; "" for none."""
    with tempfile.TemporaryDirectory(prefix="campaign-fault-") as name:
        Path(name).chmod(0o755)  # daemons run as another user
        copied_with(fault, Path(name))
        command = [sys.executable, "-m", "tests.campaign", "--until-found", "--as-it-is", *seeds]
        played = subprocess.run(
            command,
            cwd=name,  # where Python looks first
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    first = re.search(r"(?m)^seed .*", played.stdout)
    if first is None and played.returncode:
        raise RuntimeError(f"{fault}: {played.stdout}")
    return first[0] if first else ""


def play_all(seeds: list[str], faults: Iterable[str] = FAULTS) -> int:
    """Play the seeds with each fault until one finds it, and print the table; an exit code."""

    def play(fault: str) -> bool:
        began = time.perf_counter()
        found = found_by(seeds, fault)
        seconds = time.perf_counter() - began
        print(f"{fault}: {found or 'not found'} ({seconds:.0f} s)", flush=True)
        return bool(found)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(play, faults))
    print(f"found: {sum(results)} of {len(results)}")
    return int(sum(results) < min(ENOUGH, len(results)))
