import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent.errors import NodeagentError
from nodeagent.files import state

Value = dict[str, int]


def decoded(content: bytes) -> Value:
    value: Value = json.loads(content)
    return value


FORM: state.StateFormat[Value] = state.StateFormat(
    "use", 2, 5000, lambda value: f"{json.dumps(value)}\n".encode(), decoded
)
VALUE = {"one": 1, "two": 22}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept"


# --- writing --------------------------------------------------------------------------------------


def test_the_new_content_for_the_owner_alone(path: Path) -> None:
    path.write_bytes(b"old")
    path.chmod(0o644)
    path.with_name(".kept.new").write_bytes(b"left by a crash")
    state.replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_what_cannot_be_replaced_leaves_nothing(path: Path) -> None:
    path.mkdir()
    with pytest.raises(OSError, match="kept"):
        state.replace_file(path, b"new")
    assert list(path.parent.iterdir()) == [path]


def test_people_can_read_it(path: Path) -> None:
    state.write_state(path, FORM, VALUE)
    header, content = path.read_text().split("\n", 1)
    assert header.startswith("# nodeagent use 2 sha256:")
    assert json.loads(content) == VALUE


def test_what_would_not_be_read_is_not_written(path: Path) -> None:
    """Else it would be lost at the next start."""
    with pytest.raises(OSError, match="more than the 5000"):
        state.write_state(path, FORM, {"x" * 5000: 1})
    assert not path.exists()


# --- reading --------------------------------------------------------------------------------------


def test_read_back(path: Path) -> None:
    assert state.read_state(path, FORM) is None
    state.write_state(path, FORM, VALUE)
    assert state.read_state(path, FORM) == VALUE


def test_every_cut_and_every_flipped_bit_is_noticed(path: Path) -> None:
    state.write_state(path, FORM, VALUE)
    whole = path.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    for at in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            damaged.append(bytes(flipped))
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(state.StateUnusable):
            state.read_state(path, FORM)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def a_link(path: Path) -> None:
    state.write_state(path.with_name("elsewhere"), FORM, VALUE)
    path.symlink_to(path.with_name("elsewhere"))


def of_another_kind(path: Path) -> None:
    state.write_state(path, state.StateFormat("other", 1, 5000, FORM.encode, decoded), VALUE)


def newer(path: Path) -> None:
    state.write_state(path, state.StateFormat("use", 3, 5000, FORM.encode, decoded), VALUE)


def older(path: Path) -> None:
    state.write_state(path, state.StateFormat("use", 1, 5000, FORM.encode, decoded), VALUE)


def holding(content: bytes) -> Callable[[Path], None]:
    form: state.StateFormat[bytes] = state.StateFormat("use", 2, 5000, bytes, bytes)
    return lambda path: state.write_state(path, form, content)


PLACES: dict[str, Callable[[Path], object]] = {
    "a named pipe and not": os.mkfifo,
    "a directory and not": Path.mkdir,
    "a socket and not": a_socket,
    "a symbolic link and not": a_link,
    "it holds other and not use": of_another_kind,
    "a newer nodeagent wrote it": newer,
    "more than": lambda path: path.write_bytes(b"x" * 10_000),
    "version 1 of it is not read any more": older,
    "maximum recursion depth": holding(b"[" * 3000),
    "JSONDecodeError": holding(b"{"),
    "first line is missing": lambda path: path.write_bytes(b'{"one": 1}'),
    "first line is damaged": lambda path: path.write_bytes(b"# nodeagent x\n"),
}


@pytest.mark.parametrize("reason", PLACES)
def test_what_may_lie_there(path: Path, reason: str) -> None:
    PLACES[reason](path)
    with pytest.raises(state.StateUnusable, match=reason):
        state.read_state(path, FORM)
    kept = a_state_file(path)
    assert kept.load() is None
    kept.save(VALUE)
    assert a_state_file(path).load() == VALUE
    assert os.path.lexists(path.with_name("kept.unusable"))


def test_the_content_of_a_newer_version(path: Path) -> None:
    """Is whole, so that a reader can take from it what every version has."""
    newer(path)
    with pytest.raises(state.StateUnusable) as caught:
        state.read_state(path, FORM)
    assert caught.value.newer == b'{"one": 1, "two": 22}\n'
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(state.StateUnusable) as caught:
        state.read_state(path, FORM)
    assert caught.value.newer is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_file(path: Path) -> None:
    state.write_state(path, FORM, VALUE)
    os.chown(path, 4001, 4001)
    with pytest.raises(state.StateUnusable, match="belongs to uid 4001"):
        state.read_state(path, FORM)


# --- setting aside --------------------------------------------------------------------------------


def a_state_file(path: Path) -> state.StateFile[Value]:
    return state.StateFile(path, FORM)


def test_a_problem_until_it_is_looked_at(path: Path) -> None:
    path.write_text("?")
    kept = a_state_file(path)
    assert kept.load() is None
    assert kept.problem is not None
    aside = path.with_name("kept.unusable")
    assert f"it is now {aside}" in kept.problem.message
    assert f"rm {aside}" in kept.problem.remedy
    assert aside.read_text() == "?"
    kept.save(VALUE)
    kept.review()
    assert kept.problem is not None
    aside.unlink()
    kept.review()
    assert kept.problem is None


@pytest.mark.parametrize("again", [False, True], ids=["no new file", "a new file"])
def test_a_problem_in_the_next_life_too(path: Path, *, again: bool) -> None:
    for text in ("older", "newer"):
        path.write_text(text)
        a_state_file(path).load()
    if again:
        state.write_state(path, FORM, VALUE)
    kept = a_state_file(path)
    assert kept.load() == (VALUE if again else None)
    assert kept.problem is not None
    assert f"an earlier {path} could not be used" in kept.problem.message
    assert "records of use begin anew" in kept.problem.message
    kept.save(VALUE)
    kept.review()
    assert kept.problem is not None
    for aside in kept.problem.remedy.rpartition("rm ")[2].split():
        Path(aside).unlink()
    kept.review()
    assert kept.problem is None
    later = a_state_file(path)
    assert later.load() == VALUE
    assert later.problem is None


@pytest.mark.parametrize("saved", [False, True], ids=["as it was found", "as it was written"])
def test_deleted_under_the_agent_it_is_written_again(path: Path, *, saved: bool) -> None:
    """With its directory, by a cleanup job: the next life is to know what this one does."""
    folder = path.parent / "lib"
    folder.mkdir()
    state.write_state(folder / "kept", FORM, VALUE)
    kept = a_state_file(folder / "kept")
    assert kept.load() == VALUE
    value = {**VALUE, "three": 333}
    if saved:
        kept.save(value)
    shutil.rmtree(folder)
    kept.review()
    assert a_state_file(folder / "kept").load() == (value if saved else VALUE)
    assert kept.problem is None


def test_what_was_never_kept_is_not_written(path: Path) -> None:
    path.write_text("?")
    kept = a_state_file(path)
    kept.load()
    kept.review()
    assert not path.exists()


def test_reading_alone_changes_nothing(path: Path) -> None:
    path.write_text("?")
    kept = a_state_file(path)
    assert kept.read() is None
    assert kept.problem is not None
    assert [entry.name for entry in path.parent.iterdir()] == ["kept"]


def test_the_newest_is_kept(path: Path) -> None:
    for number in range(3):
        path.write_text(str(number))
        assert state.set_aside(path).read_text() == str(number)
    assert [entry.read_text() for entry in path.parent.iterdir()] == ["2"]


def test_a_directory_never_gives_way(path: Path) -> None:
    """Its content may be wanted; then nothing is written, and the error gives the reason."""
    path.mkdir()
    state.set_aside(path)
    path.write_text("?")
    kept = a_state_file(path)
    assert kept.load() is None
    with pytest.raises(NodeagentError, match="Is a directory"):
        kept.save(VALUE)
    assert path.read_text() == "?"


def test_what_cannot_be_written_is_a_problem_until_it_can(path: Path) -> None:
    (path.parent / "lib").write_text("no folder")
    kept = a_state_file(path.parent / "lib" / "kept")
    with pytest.raises(NodeagentError, match=r"the records of use cannot be kept in .*/lib/kept"):
        kept.save(VALUE)
    assert kept.problem is not None
    (path.parent / "lib").unlink()
    kept.save(VALUE)
    assert kept.problem is None


def test_nothing_is_kept_where_there_is_no_place() -> None:
    """A simulated node without a folder of its own keeps nothing, and that is no error."""
    kept = state.StateFile(None, FORM)
    kept.save(VALUE)
    assert kept.load() is None
    assert kept.problem is None
