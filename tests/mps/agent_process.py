"""An agent reduced to its fleet, as a process of its own that can be killed: adopts what there is,
starts one daemon if there is none, says so in one line, and goes on until it dies.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path

from nodeagent.mps.context import MpsContext
from nodeagent.mps.fleet import Fleet
from nodeagent.mps.launch.child import ChildLauncher
from nodeagent.mps.programs import Programs
from tests.mps.fleet_rig import GPU, POLICY, SERVED, ready, status, wanted


async def main(run_dir: Path, control: str, path: str) -> None:
    """Say which daemon it has once that is Ready."""
    programs = Programs(control=(control,), path=path)

    def check(_: object) -> tuple[str, ...]:
        return ()

    context = MpsContext(
        run_dir=run_dir,
        programs=programs,
        launcher=ChildLauncher(programs),
        settings=POLICY,
        check=check,
        report=lambda _device, _report: None,
        changed=lambda: None,
        jitter=random.Random(1).random,
        served_interval=SERVED,
    )
    async with Fleet(context) as fleet:
        if not fleet.statuses():
            await fleet.start(GPU, wanted())
        await ready(fleet)
        sys.stdout.write(json.dumps({"pid": status(fleet).pid}) + "\n")
        sys.stdout.flush()
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
