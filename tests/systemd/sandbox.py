"""Runs the command of a unit in what systemd would put around it, without a systemd.

`unshare --mount --pid --fork python sandbox.py UNIT STAGE PLAN WORDS...`, as root: the file system
is the machine's, but read-only as ProtectSystem=strict makes it, with the directories of the unit
writable; /run, /var/lib, /etc and /tmp are copies that end with the process. Capabilities, file
mode mask and environment are the unit's; UNIT may be followed by a colon and a drop-in. STAGE
appears as /opt/stage; WORDS come before the program. Python and this checkout stay where they are.
"""

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ALWAYS_WRITABLE = ("/dev", "/proc", "/sys", "/tmp", "/var/tmp")
PLACES = {
    "RuntimeDirectory": "/run",
    "StateDirectory": "/var/lib",
    "ConfigurationDirectory": "/etc",
}


def values_of(*units: str) -> dict[str, list[str]]:
    """All values by key, in order; those of a drop-in come after the unit's."""
    values = defaultdict(list)
    lines = [line for unit in units for line in Path(unit).read_text("utf-8").splitlines()]
    for line in lines:
        key, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            values[key].append(value)
    return values


def mount(*words: str) -> None:
    """Call the program mount; raises CalledProcessError."""
    subprocess.run(["mount", *words], check=True)


def copied(place: str) -> None:
    upper, work = Path(f"/opt/.upper{place}"), Path(f"/opt/.work{place}")
    upper.mkdir(parents=True)
    work.mkdir(parents=True)
    layers = f"lowerdir={place},upperdir={upper},workdir={work}"
    mount("-t", "overlay", "overlay", "-o", layers, place)


def furnish(stage: str, plan: str) -> None:
    trees = (Path(__file__).resolve().parents[2], Path(sys.prefix).resolve(), Path(sys.base_prefix))
    held = [(tree, os.open(tree, os.O_PATH)) for tree in trees]
    mount("--make-rprivate", "/")
    mount("-t", "proc", "proc", "/proc")
    mount("-t", "tmpfs", "tmpfs", "/opt")
    Path("/opt/stage").mkdir()
    mount("--bind", stage, "/opt/stage")
    # As a network namespace's below /run: a mount that is covered, and none can reach it.
    mount("-t", "tmpfs", "tmpfs", "/run")
    Path("/run/a namespace").mkdir()
    mount("-t", "tmpfs", "tmpfs", "/run/a namespace")
    for place in ("/run", "/tmp", "/var/tmp"):
        mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", place)
    for tree, file in held:
        if not tree.exists():
            tree.mkdir(parents=True)
            mount("--no-canonicalize", "--bind", f"/proc/{os.getpid()}/fd/{file}", str(tree))
    copied("/etc")
    copied("/var/lib")
    Path("/etc/nodeagent").mkdir(exist_ok=True)
    Path("/etc/nodeagent/plan.yaml").write_text(plan)
    program = Path("/opt/nodeagent/bin/nodeagent")
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m nodeagent "$@"\n')
    program.chmod(0o755)


def protect(unit: dict[str, list[str]]) -> None:
    """ProtectSystem=strict, and the directories that the unit has."""
    assert unit["ProtectSystem"] == ["strict"]
    writable = list(ALWAYS_WRITABLE)
    for key, place in PLACES.items():
        for name in " ".join(unit[key]).split():
            folder = Path(place, name)
            folder.mkdir(exist_ok=True)
            folder.chmod(int("".join(unit[f"{key}Mode"]) or "755", 8))
            mount("--bind", str(folder), str(folder))
            writable.append(str(folder))
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), words[4])
        below = any(point == one or point.startswith(f"{one}/") for one in writable)
        if not below and is_reachable(point, words[0]):
            mount("-o", "remount,bind,ro", point)


def is_reachable(point: str, mount_id: str) -> bool:
    """Whether this mount is what the path leads to: others lie over those of the machine."""
    try:
        file = os.open(point, os.O_PATH)
    except OSError:  # covered, or of a user who lets no other in (FUSE)
        return False
    try:
        return f"mnt_id:\t{mount_id}\n" in Path(f"/proc/self/fdinfo/{file}").read_text()
    finally:
        os.close(file)


def main() -> None:
    path, stage, plan, *before = sys.argv[1:]
    unit = values_of(*path.split(":"))
    furnish(stage, plan)
    protect(unit)
    os.umask(int(unit["UMask"][0], 8))
    capabilities = (
        f"+{name.removeprefix('CAP_').lower()}"
        for name in " ".join(unit["CapabilityBoundingSet"]).split()
    )
    environment = dict(line.split("=", 1) for line in unit["Environment"])
    limited = ["setpriv", f"--bounding-set=-all,{','.join(capabilities)}", "--no-new-privs"]
    command = [*before, *limited, *unit["ExecStart"][0].split()]
    os.execvpe(command[0], command, os.environ | environment)


if __name__ == "__main__":
    main()
