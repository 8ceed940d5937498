"""Stand-ins for systemd-run, systemctl and nsenter: they do what they are asked, without a systemd.

Units are files in their folder. What a service is started as, is really done: user, groups,
environment, log.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.mps.conftest import PYTHON

_SHARED = """#!{python} -IS
import json, os, sys, time
folder = os.path.dirname(os.path.realpath(__file__))

def note(*call):
    with open(folder + "/calls", "a") as calls:
        calls.write(json.dumps(call) + "\\n")

def path(unit):
    return folder + "/" + unit + ".json"

def write(unit, **state):
    new = path(unit) + ".%d" % os.getpid()
    with open(new, "w") as file:
        json.dump(state, file)
    os.rename(new, path(unit))

def read(unit):
    try:
        with open(path(unit)) as file:
            return json.load(file)
    except OSError:
        return dict(LoadState="not-found", ActiveState="inactive", MainPID=0, Result="success",
                    ExecMainCode=0, ExecMainStatus=0)
"""

_SYSTEMD_RUN = """
note("systemd-run", *sys.argv[1:])
if os.path.exists(folder + "/hang"):
    time.sleep(60)
separator = sys.argv.index("--")
command, options = sys.argv[separator + 1:], {}
for option in sys.argv[1:separator]:
    name, _, value = option.partition("=")
    options.setdefault(name, []).append(value)
[unit] = options["--unit"]
properties = dict(text.split("=", 1) for text in options["--property"])
environment = dict(text.split("=", 1) for text in options["--setenv"])
if read(unit)["LoadState"] == "loaded":
    sys.exit("Failed to start transient service unit: Unit %s was already loaded." % unit)
reader, writer = os.pipe()  # closed when the program is loaded, as with --service-type=exec

def service():
    log = os.open(properties["StandardOutput"].removeprefix("append:"), os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.umask(int(properties["UMask"], 8))
    os.chdir(properties["WorkingDirectory"])
    if os.geteuid() == 0:
        os.setgroups([int(n) for n in properties.get("SupplementaryGroups", "").split()])
        os.setgid(int(properties["Group"]))
        os.setuid(int(properties["User"]))
    os.environ["PATH"] = environment["PATH"]
    os.execvpe(command[0], command, environment)

if os.fork() == 0:  # what systemd would be: it waits, and knows how the service ended
    os.setsid()
    for descriptor in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    os.close(reader)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        try:
            service()
        except OSError:
            os._exit(203)
    write(unit, LoadState="loaded", ActiveState="active", MainPID=pid, Result="success",
          ExecMainCode=0, ExecMainStatus=0)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    code, status = (2, status) if os.WIFSIGNALED(status) else (1, os.WEXITSTATUS(status))
    if (code, status) in ((1, 0), (2, 15)):
        os.unlink(path(unit))
    else:
        write(unit, LoadState="loaded", ActiveState="failed", MainPID=0,
              Result="signal" if code == 2 else "exit-code", ExecMainCode=code,
              ExecMainStatus=status)
    os._exit(0)
os.close(writer)
os.read(reader, 1)
for _ in range(20):  # the process that waits for the service may still be writing how it ended
    if read(unit)["ExecMainStatus"] == 203:
        print("Job for %s failed because the control process exited with error code." % unit,
              file=sys.stderr)
        print("See ...", file=sys.stderr)
        sys.exit(1)
    time.sleep(0.005)
"""

_SYSTEMCTL = """
note("systemctl", *sys.argv[1:])
match sys.argv[1:]:
    case ["show", wanted, unit]:
        state = read(unit)
        if state["MainPID"] and os.path.exists(folder + "/fail_once"):
            os.unlink(folder + "/fail_once")
            sys.exit("Failed to get properties: Connection timed out")
        for name in wanted.removeprefix("-p").split(","):
            print("%s=%s" % (name, state[name]))
    case ["reset-failed", unit]:
        if read(unit)["ActiveState"] == "failed":
            os.unlink(path(unit))
    case ["stop", "--no-block", unit]:
        if read(unit)["MainPID"]:
            os.kill(read(unit)["MainPID"], 15)
    case other:
        sys.exit("Unknown command verb %s" % other)
"""

_NSENTER = """
note("nsenter", *sys.argv[1:])
assert sys.argv[1:5] == ["--target", "1", "--mount", "--"], sys.argv
try:
    os.execvp(sys.argv[5], sys.argv[5:])
except OSError as error:
    sys.exit("nsenter: failed to execute %s: %s" % (sys.argv[5], error.strerror))
"""


class SystemdPrograms:
    """Those in a folder, which is to be first on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        programs = {"systemd-run": _SYSTEMD_RUN, "systemctl": _SYSTEMCTL, "nsenter": _NSENTER}
        for name, text in programs.items():
            (folder / name).write_text(_SHARED.format(python=PYTHON) + text)
            (folder / name).chmod(0o755)

    def calls(self) -> list[list[str]]:
        """What was called, with its arguments."""
        lines = (self.folder / "calls").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def turn(self, unit: str, **state: Any) -> None:
        """Make a unit as it is not."""
        known = {"LoadState": "loaded", "MainPID": 0, "Result": "success"}
        codes = {"ExecMainCode": 1, "ExecMainStatus": 0}
        (self.folder / f"{unit}.json").write_text(json.dumps({**known, **codes, **state}))

    def units(self) -> list[str]:
        """Those that are loaded."""
        return [path.stem for path in self.folder.glob("*.service.json")]
