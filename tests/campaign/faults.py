"""Faults that the program does not have, each put into a copy of it to see whether the campaign
finds them: what it does not find it does not look at.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENOUGH = 0.9  # of them have to be found


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


Faults = Mapping[str, tuple[Edit, ...]]

FAULTS: Faults = {  # for days in one process
    "a change that failed is not undone": (
        Edit(
            "reconcile/executor.py",
            "    if steps and not terms.stop.is_set():\n",
            "    if steps and terms.stop.is_set():\n",
        ),
    ),
    "what was done is not read back": (
        Edit(
            "reconcile/executor.py",
            "        found += run.soft_failures or _check_end(run.plan, seen, terms)\n",
            "        found += run.soft_failures\n",
        ),
        Edit(
            "reconcile/owner.py",
            "        self._keep(*(gpu.after for gpu in outcome.gpus))\n",
            "        self._keep(*(gpu.plan.after for gpu in outcome.gpus))\n",
        ),
        Edit(
            "reconcile/reconciler.py",
            '            self.control.wake("a GPU was changed since it was read back")\n',
            "            pass\n",
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
            "reconcile/active_plan.py",
            "            await asyncio.to_thread(self._file.save, kept)\n",
            "            await asyncio.sleep(0)\n",
        ),
    ),
    "what failed is not tried again": (
        Edit(
            "reconcile/work_queue.py", "            now + pause,\n", '            float("inf"),\n'
        ),
    ),
    "its own change that comes late is said to be another program's": (
        Edit("telemetry/health_sources.py", "            if done:\n", "            if self:\n"),
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
            "            observed = await self.owners.observe(details=details)\n",
            "            observed = await self.owners.observe(details=details)\n"
            "        if any(gpu.access is not Access.OK for gpu in observed.gpus):\n"
            '            raise NodeagentError("a GPU does not answer")\n',
        ),
    ),
    "a state file that was read stays open": (
        Edit("files/state.py", "        os.close(descriptor)\n", "        pass\n"),
    ),
    "a wait for another plan goes on after the change": (
        Edit(
            "reconcile/reconciler.py",
            "            for task in both:\n"
            "                task.cancel()\n"
            "            await asyncio.gather(*both, return_exceptions=True)\n",
            "            preparing.cancel()\n",
        ),
    ),
    "the thread of a driver that is shut down stays": (
        Edit("gpu/workers.py", "            self._jobs.put(None)\n", ""),
    ),
    "a daemon of an earlier life is replaced by one of this life": (
        Edit(
            "mps/supervisor.py",
            "        self.handle(model.Adopted(has, process.pid), process)\n",
            "        self.handle(model.Adopted(has, process.pid), process)\n"
            "        process.kill()\n",
        ),
    ),
    "a daemon whose directory was deleted is left to itself": (
        Edit(
            "mps/fleet.py",
            "                await self._end_lost(daemon)\n",
            "                pass\n",
        ),
    ),
    "the agent's end waits for a call that hangs": (
        Edit(
            "gpu/workers.py",
            "        if self.stuck:\n"
            "            return False\n"
            "        with suppress(DeadlineExceeded):\n"
            "            await self._wait_for_forsaken(deadline)\n",
            "        while self._running():\n            await asyncio.sleep(deadline)\n",
        ),
    ),
    "a driver that fails ends the agent": (
        Edit(
            "reconcile/reconciler.py",
            "        except NodeagentError as error:\n            await self.owners.close()\n",
            "        except NodeagentError as error:\n            raise\n",
        ),
    ),
    "a GPU that does not answer is asked again without a pause": (
        Edit(
            "reconcile/reconciler.py",
            "        return min(pause, self.backoff.after(self._failures))\n",
            "        return 0.0\n",
        ),
    ),
}


# For days with real processes: what the others do not have.
REAL_FAULTS: Faults = {
    "the limits of MPS daemons are not read back": (
        Edit(
            "mps/monitor.py",
            "        wrong = (*differences(seen, state.spec), *self._context.check(state.spec))\n",
            "        wrong = tuple(self._context.check(state.spec))\n",
        ),
    ),
    "an MPS daemon does not wait for its clients' end": (
        Edit(
            "plan/mps.py",
            "_served(gpu, device, why, path) if device.usage.in_use else None",
            "None",
        ),
        Edit(
            "reconcile/node_controller.py",
            "in (step.device, *served) and device.usage.in_use:\n",
            "in (step.device, *served) and False:\n",
        ),
        Edit(
            "mps/fleet.py",
            "                await requests.stop(supervisor)\n",
            "                await requests.end(supervisor)\n",
        ),
    ),
    "a step that failed is reported with its traceback": (
        Edit(
            "reconcile/step_problems.py",
            "    what, why = step_words(step), error_sentence(error)\n",
            "    what = step_words(step)\n"
            "    why = ''.join(__import__('traceback').format_exception(error))\n",
        ),
    ),
    "the CDI file of a claim outlives it": (
        Edit(
            "claims/serving/cdi.py",
            "        if not names or not os.path.lexists(self.directory):\n",
            "        if names or not os.path.lexists(self.directory):\n",
        ),
    ),
    "what expired at the API server is not listed anew": (
        Edit(
            "cluster/reflector.py",
            '            self._version = ""  # 410',
            "            pass  # 410",
        ),
    ),
    "the CDI file of a claim names the first instance of its GPU": (
        Edit(
            "claims/serving/cdi.py",
            "            keys = _keys(device, own, numbers)\n",
            "            gpu = observed.gpu(device.gpu)\n"
            "            there = gpu.instances if gpu else ()\n"
            "            first = there[0].id if there else device.instance\n"
            "            from nodeagent.structs import replace\n"
            "            named = replace(device, instance=first)\n"
            "            keys = _keys(named, own, numbers)\n",
        ),
    ),
    "the token for the API server is logged when it is read": (
        Edit(
            "cluster/client/access.py",
            "                self._read_at, self._session = self.clock(), session\n",
            "                self._read_at, self._session = self.clock(), session\n"
            '                __import__("sys").stderr.write(f"{identity.authorization}\\n")\n',
        ),
    ),
}


def copied_with(edits: Iterable[Edit], folder: Path) -> None:
    """Copy the package and its tests into the folder, with a fault in it."""
    for name in ("nodeagent", "tests"):
        shutil.copytree(ROOT / name, folder / name)
    for edit in edits:
        file = folder / "nodeagent" / edit.file
        file.write_text(edit.applied_to(file.read_text()))


def found_by(player: str, seeds: list[str], edits: Iterable[Edit]) -> tuple[str, int]:
    """The first day's seed that goes wrong with it, and how, else ""; how many days were played."""
    with tempfile.TemporaryDirectory(prefix="campaign-fault-") as name:
        Path(name).chmod(0o755)  # daemons run as another user
        copied_with(edits, Path(name))
        how = ("--until-found", "--as-it-is", "--workers", "1")
        played = subprocess.run(
            [sys.executable, "-m", player, *how, *seeds],
            cwd=name,  # where Python looks first
            env={**os.environ, "PYTHONPATH": name},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    days = re.search(r"(?m)^episodes +(\d+)$", played.stdout)
    if days is None:
        raise RuntimeError(played.stdout)
    first = re.search(r"(?m)^seed .*", played.stdout)
    return first[0] if first else "", int(days[1])


def play_all(player: str, seeds: list[str], workers: int, faults: Faults) -> int:
    """Play the seeds with each fault until one finds it, and print the table; an exit code."""

    def play(fault: str) -> bool:
        began = time.perf_counter()
        found, days = found_by(player, seeds, faults[fault])
        seconds = time.perf_counter() - began
        end = f"{found:.90}" if found else "not found"
        print(f"{fault}: {end} ({days} days, {seconds:.0f} s)", flush=True)
        return bool(found)

    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(play, faults))
    print(f"found: {sum(results)} of {len(results)}")
    return int(sum(results) < ENOUGH * len(results))
