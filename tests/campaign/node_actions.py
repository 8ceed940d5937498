"""What both players do to a node in the same way: on its cards, in its folders."""

from __future__ import annotations

import shutil
from pathlib import Path

from nodeagent.errors import UsageError
from nodeagent.simulation import SimulatedNode
from nodeagent.simulation.codes import Refused


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
    """Delete a folder, or delete, cut or change one of the files in it."""
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
    elif content:
        content[number * 7 % len(content)] ^= 1 << number % 8
        file.write_bytes(content)
