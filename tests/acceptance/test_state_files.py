import os
import random
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeagent.app.use_service import use_file
from nodeagent.claims.offering.planned import planned_places_file
from nodeagent.claims.records import UnreadableRecord
from nodeagent.claims.records import read_records as claim_records
from nodeagent.documents.reading import digest_of
from nodeagent.files.state import StateFile, StateFormat, write_state
from nodeagent.gpu.original_settings import OriginalSettings
from nodeagent.health.state_file import health_file
from nodeagent.mps.files.records import RecordUnusable
from nodeagent.mps.files.records import read_records as mps_records
from nodeagent.reconcile.plan_update import last_good_plan
from tests.acceptance.agent_home import Home

KEPT = Path("tests/data/state")  # written on h100-80gb:2 with MPS, XIDs, time slices
FILES = sorted(KEPT.iterdir())  # one of each kind
# Of a content in a folder of its own, whose name is in another content.
Reader = Callable[[Path, bytes, bytes], object]
LOADERS: dict[str, Callable[[Path], StateFile[Any]]] = {
    "health.json": health_file,
    "last-good-plan": last_good_plan,
    "use.json": use_file,
    "earlier-modes.json": lambda path: OriginalSettings(path, read_only=True).file,
}


def kept(folder: Path, name: str) -> Path:
    return Path(shutil.copy(KEPT / name, folder / name))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.full)])
def test_cut_and_flipped(tmp_path: Path, path: Path, every: bool) -> None:
    read, good, rng = READERS[header_of(path)[0]], path.read_bytes(), random.Random(path.name)
    assert read(tmp_path, good, good) is not None
    bits = [(at, bit) for at in range(len(good)) for bit in range(8)]
    cuts = range(len(good)) if every else rng.sample(range(len(good)), 100)
    for length in cuts:
        with pytest.raises(Unusable):
            read(tmp_path, good[:length], good)
    for at, bit in bits if every else rng.sample(bits, 200):
        flipped = bytearray(good)
        flipped[at] ^= 1 << bit
        with pytest.raises(Unusable):
            read(tmp_path, bytes(flipped), good)


# --- this release and later ones ------------------------------------------------------------------


def test_one_of_each_kind_is_kept() -> None:
    sources = "".join(path.read_text() for path in Path("nodeagent").rglob("*.py"))
    written = set(re.findall(r'StateFormat\(\s*"([a-z-]+)",\s*([0-9]+)', sources))
    assert {header_of(path) for path in FILES} == written


def test_what_a_later_release_wrote_is_left_to_it(tmp_path: Path) -> None:
    for at, path in enumerate(FILES):
        kind, _ = header_of(path)
        later = tmp_path / "later"
        form: StateFormat[bytes] = StateFormat(kind, 99, 100, bytes, bytes)
        write_state(later, form, b"{}")
        folder = tmp_path / str(at)
        folder.mkdir()
        with pytest.raises(Unusable, match="a newer nodeagent wrote it"):
            READERS[kind](folder, later.read_bytes(), b"")


def header_of(path: Path) -> tuple[str, str]:
    _, _, kind, version, _ = path.read_bytes().partition(b"\n")[0].decode().split(" ")
    return kind, version


class Unusable(Exception):
    """What a reader says of a file that it cannot use."""


def by_file(name: str, loader: Callable[[Path], StateFile[Any]]) -> Reader:
    def read(folder: Path, content: bytes, _: bytes) -> object:
        (folder / name).write_bytes(content)
        file = loader(folder / name)
        found = file.read()
        if found is None:
            assert file.problem is not None
            raise Unusable(str(file.problem))
        return found

    return read


def by_mps(folder: Path, content: bytes, named: bytes) -> object:
    """For the record of a daemon, in the folder of its device."""
    device = re.search(rb'"device":"([^"]+)"', named)
    path = folder / "mps" / (device[1].decode() if device else "GPU-1") / "record.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    [found] = mps_records(folder)
    if isinstance(found, RecordUnusable):
        raise Unusable(found.message)
    return found


def by_claim(folder: Path, content: bytes, named: bytes) -> object:
    uid = re.search(rb'"uid": "([^"]+)"', named)
    name = uid[1].decode() if uid else "00000000-1111-2222-3333-444444444444"
    (folder / f"{name}.json").write_bytes(content)
    [found] = claim_records(folder)
    if isinstance(found, UnreadableRecord):
        raise Unusable(found.error.message)
    return found


READERS: dict[str, Reader] = {
    "health": by_file("health.json", LOADERS["health.json"]),
    "last-good-plan": by_file("last-good-plan", LOADERS["last-good-plan"]),
    "earlier-modes": by_file("earlier-modes.json", LOADERS["earlier-modes.json"]),
    "use": by_file("use.json", LOADERS["use.json"]),
    "planned-places": by_file("planned-places.json", planned_places_file),
    "mps-record": by_mps,
    "claim": by_claim,
}


# --- a real agent ---------------------------------------------------------------------------------


def newer(path: Path) -> None:
    kind = path.read_text(errors="replace").split()[2]
    form: StateFormat[bytes] = StateFormat(kind, 99, 100, bytes, bytes)
    write_state(path, form, b"{}")


def number(text: str) -> Callable[[Path], object]:
    """Another content with a checksum that is right: a number, or what is none."""

    def put(path: Path) -> None:
        kind = path.read_text().split()[2]
        form: StateFormat[bytes] = StateFormat(kind, 1, 100, bytes, bytes)
        write_state(path, form, f'{{"at": {text}}}'.encode())

    return put


def instead(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def put(path: Path) -> None:
        path.unlink()
        make(path)

    return put


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "7e18422": number("7e18422"),
    "NaN": number("NaN"),
    "symbolic link": linked,
    "1 MB of [": lambda path: path.write_text("[" * 1_000_000),
    "named pipe": instead(os.mkfifo),
    "another user's": lambda path: os.chown(path, 4001, 4001),
    "directory": instead(Path.mkdir),
    "flipped": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\xff"),
    "newer": newer,
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
}
# Each to every file in ten starts; three of them, with nine damages, are for every day.
STARTS = [
    pytest.param(number, marks=[pytest.mark.full] if number > 2 else [])
    for number in range(len(DAMAGES))
]


@pytest.mark.parametrize("first", STARTS)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_start_goes_on(home: Home, first: int) -> None:
    home.plan.write_text("version: v1\ngpus: [{devices: [0], mig: {1g.10gb: 1}}]\n")
    names, damages = list(LOADERS), list(DAMAGES)
    asides = []
    for at, name in enumerate(names):
        folder = home.folder / ("node.json.mps" if name == "earlier-modes.json" else "state")
        folder.mkdir(exist_ok=True)
        DAMAGES[damages[(first + 3 * at) % len(damages)]](kept(folder, name))
        asides.append(folder / f"{name}.unusable")
    home.start()
    home.until(lambda: home.status().get("phase") == "InSync")
    found = [p for p in home.status()["problems"] if p["code"] == "StateFile"]
    assert len(found) == len(LOADERS), found
    for aside in asides:
        assert os.path.lexists(aside)
        [problem] = [p for p in found if f"it is now {aside}" in p["message"]]
        assert f"rm {aside}" in problem["remedy"]
    home.stop(signal.SIGTERM)
    assert "Traceback" not in home.said()


def test_the_remedy_ends_the_problem(home: Home) -> None:
    home.plan.write_text("version: v1\ngpus: []\n")
    (home.folder / "state").mkdir()
    (home.folder / "state/health.json").write_text("?")
    home.start()

    home.until(lambda: home.status().get("phase") == "InSync")
    [problem] = home.status()["problems"]
    Path(problem["remedy"].rpartition("rm ")[2]).unlink()
    home.until(lambda: not home.status()["problems"])


def test_the_next_agent_goes_on_with_what_was_kept(home: Home) -> None:
    (home.folder / "state").mkdir()
    (home.folder / "node.json.mps").mkdir()
    for name in ("health.json", "last-good-plan"):
        kept(home.folder / "state", name)
    kept(home.folder / "node.json.mps", "earlier-modes.json")
    home.start()
    plan = last_good_plan(KEPT / "last-good-plan").read()
    assert plan is not None

    home.until(lambda: home.status().get("digest") == digest_of(plan.plan.text))
    assert "StateFile" not in [problem["code"] for problem in home.status()["problems"]]
