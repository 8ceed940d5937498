"""Where settings come from: a YAML file, then the environment, then flags; the later wins.

Every error names the place that the value came from, the value, and what would be accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nodeagent.documents.bounded_yaml import LARGEST_TEXT, Tree, read_tree
from nodeagent.documents.findings import did_you_mean, listed, nearest, shown
from nodeagent.errors import DocumentError, UsageError
from nodeagent.settings.model import Settings

DEFAULT_FILE = Path("/etc/nodeagent/settings.yaml")

PREFIX = "NODEAGENT_"
# Names with the prefix that are other programs' or commands' business.
RESERVED = re.compile(r"NODEAGENT_(SIMULATED_STATE|(TEST|BENCH)_.+)")
# In a pod, Kubernetes describes each Service of the namespace; one may be called nodeagent.
SERVICE_LINK = re.compile(
    r"NODEAGENT_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_[A-Z]+(_.+)?)=.*"
    r"|NODEAGENT_(.+_)?PORT=[a-z]+://.*"
)


@dataclass(frozen=True, slots=True)
class _Given:
    """One value and the words for the place it came from."""

    value: object
    origin: str


def load_settings(
    path: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]
) -> Settings:
    """Read all sources. `path` None: the default file, which may be missing.

    `flags` are named like settings (`plan.file`); those that are None were not given. Raises
    UsageError.
    """
    given = {}
    if name_of_node := environment.get("NODE_NAME"):
        given["node_name"] = _Given(name_of_node, "NODE_NAME")
    given |= _from_file(path)
    given |= _from_environment(environment)
    for name, value in flags.items():
        if value is not None:
            given[name] = _Given(value, f"command line: {name}")
    try:
        return Settings.model_validate(_nested(given))
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False), given) from None


def setting_names(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[str]:
    """The names of all settings, such as `plan.file`, in the order of the model."""
    for name, field in model.model_fields.items():
        group = field.annotation
        if isinstance(group, type) and issubclass(group, BaseModel):
            yield from setting_names(group, f"{prefix}{name}.")
        else:
            yield prefix + name


def variable_of(setting: str) -> str:
    """The environment variable of a setting: `plan.file` is NODEAGENT_PLAN_FILE."""
    return PREFIX + setting.replace(".", "_").upper()


# --- the file -----------------------------------------------------------------------------------


def _from_file(path: Path | None) -> dict[str, _Given]:
    where = path or DEFAULT_FILE
    try:
        with where.open("rb") as file:
            tree = read_tree(file.read(LARGEST_TEXT))  # a text of this size is refused already
    except FileNotFoundError:
        if path is None:
            return {}
        raise UsageError(f"settings file {where} does not exist") from None
    except OSError as error:
        raise UsageError(f"settings file {where} cannot be read: {error.strerror}") from None
    except DocumentError as error:
        raise UsageError(f"{where}: {error.args[0]}", remedy=error.remedy) from None
    return dict(_named(tree, str(where)))


def _named(tree: Tree, where: str) -> Iterator[tuple[str, _Given]]:
    """Each value in the file under the setting's full name; a key without a value says nothing."""
    names = list(setting_names())
    groups = {name.partition(".")[0] for name in names if "." in name}
    for key, value in _entries(tree.value, where):
        if key not in groups:
            yield from _one(tree, (key,), value, where)
            continue
        for inner, inner_value in _entries(value, f"{where}: {key}"):
            yield from _one(tree, (key, inner), inner_value, where)


def _entries(value: object, where: str) -> list[tuple[str, object]]:
    if value is None:
        return []
    if not isinstance(value, dict):
        raise UsageError(f"{where}: found {shown(value)}", remedy="accepted: keys with values")
    return list(value.items())


def _one(
    tree: Tree, path: tuple[str, ...], value: object, where: str
) -> Iterator[tuple[str, _Given]]:
    name = ".".join(path)
    names = list(setting_names())
    origin = f"{where} line {tree.key_marks[path][0]}: {name}"
    if name not in names:
        raise UsageError(f"{origin} is no setting", remedy=_nearest(name, names))
    if "." in path[-1]:
        group, _, key = name.partition(".")
        raise UsageError(f"{origin} is written flat", remedy=f"write {group}: {{{key}: ...}}")
    if value is not None:
        yield name, _Given(value, origin)


# --- the environment ----------------------------------------------------------------------------


def _from_environment(environment: Mapping[str, str]) -> dict[str, _Given]:
    """A variable that is set but empty counts as not set."""
    settings = {variable_of(name): name for name in setting_names()}
    given = {}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX) or not value:
            continue
        if variable in settings:
            given[settings[variable]] = _Given(value, variable)
        elif not (RESERVED.fullmatch(variable) or SERVICE_LINK.match(f"{variable}={value}")):
            raise UsageError(f"{variable} is no setting", remedy=_nearest_variable(variable))
    return given


# --- errors -------------------------------------------------------------------------------------


def _nested(given: Mapping[str, _Given]) -> dict[str, object]:
    tree: dict[str, object] = {}
    groups: dict[str, dict[str, object]] = {}
    for name, one in given.items():
        group, _, key = name.rpartition(".")
        if group:
            groups.setdefault(group, {})[key] = one.value
        else:
            tree[key] = one.value
    return tree | groups


def _refusal(errors: list[ErrorDetails], given: Mapping[str, _Given]) -> UsageError:
    """One error for the reader: the first in full, the others counted."""
    first, *others = errors
    name = ".".join(str(part) for part in first["loc"])
    origin = given[name].origin if name in given else name
    expected = first.get("ctx", {}).get("expected")
    remedy = f"accepted: {expected}" if expected else first["msg"].removeprefix("Value error, ")
    more = f"; {len(others)} more are wrong" if others else ""
    return UsageError(f"{origin}: found {shown(first['input'])}", remedy=remedy + more)


def _nearest_variable(variable: str) -> str:
    """Told by what follows the prefix, which all variables share."""
    rests = [variable_of(name).removeprefix(PREFIX) for name in setting_names()]
    likely = nearest(variable.removeprefix(PREFIX), rests)
    if likely:
        return f"did you mean {PREFIX}{likely}?"
    return f"after {PREFIX} may stand {listed(rests, most=len(rests))}"


def _nearest(name: str, names: list[str]) -> str:
    return did_you_mean(name, names) or f"there are {listed(names, most=len(names))}"
