"""What is left on the machine by an agent that ended: the daemons that the plan asks for, with what
belongs to them, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.campaign import processes
from tests.campaign.real.surroundings import DISK

_DEVICE = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def leftovers(folder: Path) -> Iterator[str]:
    """Sentences, each about one thing too much."""
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
        yield from _devices(path, daemons)
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if str(folder) in line and DISK not in line:
            yield f"mount {line}"


def _devices(path: Path, wanted: Collection[str]) -> Iterator[str]:
    """Those that a file names and that no daemon serves."""
    if path.exists():
        found = set(_DEVICE.findall(path.read_text(errors="replace")))
        yield from (f"{device} in {path}" for device in sorted(found - set(wanted)))
