"""What both players do to a node in the same way: on its cards, in its folders."""

import hashlib
import re
import shutil
from pathlib import Path

from nodeagent.errors import UsageError
from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.codes import Refused
from nodeagent.simulation.mps.knobs import Knobs
from tests.campaign import processes


def write_plan(file: Path, text: str | None) -> None:
    """Replace the plan file at once; None: delete it."""
    if text is None:
        file.unlink(missing_ok=True)
    else:
        new = file.with_suffix(".new")
        new.write_text(text)
        new.replace(file)


def devices(node: SimulatedNode) -> list[str]:
    """All on which a program can run, as the simulator names them."""
    found = []
    for card in node.cards:
        if not card.state.mig:
            found.append(str(card.index))
        found += [f"{card.index}/{i.id}/{c.id}" for i, c in card.mig_devices()]
    return found


def change_behind_its_back(node: SimulatedNode, gpu: int, number: int, *, create: bool) -> None:
    """Another program makes an instance, or destroys an idle one, as far as the card lets it."""
    card = node.cards[gpu]
    used = {process.instance for process in card.state.processes}
    idle = [instance for instance in card.state.instances if instance.id not in used]
    try:
        with node.changes():
            if create:
                profile = card.board.profiles[number % len(card.board.profiles)]
                made = card.create_instance(profile.id)
                if number % 2:
                    whole = [c for c in profile.compute if c.slices == profile.slices]
                    card.create_compute(made, whole[0].id)
            elif idle:
                gone = idle[number % len(idle)]
                for compute in list(gone.compute):
                    card.destroy_compute(gone, compute)
                card.destroy_instance(gone)
    except (Refused, UsageError):
        return


def damage(folder: Path, how: str, number: int) -> None:
    """Delete a folder, or delete, cut or change a file in it, or make it one of a newer release."""
    if how == "deleteAll":
        shutil.rmtree(folder, ignore_errors=True)
        return
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        return
    file = files[number % len(files)]
    content = bytearray(file.read_bytes())
    if how == "delete":
        file.unlink()
    elif how == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif how == "newer":
        file.write_bytes(_of_newer_version(bytes(content)))
    elif content:
        content[number * 7 % len(content)] ^= 1 << number % 8
        file.write_bytes(content)


def _of_newer_version(content: bytes) -> bytes:
    """The same of a version unknown yet, its checksum right; what has none stays as it is."""
    head, _, rest = content.partition(b"\n")
    kind = re.match(rb"# nodeagent ([a-z-]+) ", head)
    if kind is None:
        return content
    signed = kind[1] + b" 999"
    digest = hashlib.sha256(signed + b"\n" + rest).hexdigest().encode()
    return b"# nodeagent " + signed + b" sha256:" + digest + b"\n" + rest


def misbehave(programs: Path, folder: Path, knob: str, number: int | None) -> None:
    """One of the daemons does something wrong from now on, or all of them do, unless there can be
    none yet: an installation would not be made where there is a file of it.
    """
    if not (programs / "nvidia-cuda-mps-control").exists():
        return
    value = {"busy": "error", "start_error": "it has its reasons", "slow_start": 3}.get(knob, True)
    if number is None:
        Knobs(programs).turn(knob, value)
    elif devices := sorted(processes.daemons(folder)):
        pipes = folder / "run" / "mps" / devices[number % len(devices)] / "pipe"
        Knobs(programs, pipes).turn(knob, value)
