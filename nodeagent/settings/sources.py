"""Where settings come from: a YAML file, then the environment, then flags; the later wins.

Every error names the place that the value came from, the value, and what would be accepted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nodeagent.errors import DocumentError, UsageError
from nodeagent.settings.group import Group, fields
from nodeagent.settings.model import Settings
from nodeagent.settings.values import Kind, kind_of
from nodeagent.text import did_you_mean, listed, nearest, shown

if TYPE_CHECKING:  # most commands find no settings file, and do without YAML
    from nodeagent.documents.bounded_yaml import Tree

DEFAULT_FILE = Path("/etc/nodeagent/settings.yaml")

PREFIX = "NODEAGENT_"
# Names with the prefix that are other programs' or commands' business.
RESERVED = r"NODEAGENT_(SIMULATED_STATE|(TEST|BENCH)_.+)"
# In a pod, Kubernetes describes each Service of the namespace; one may be called nodeagent.
SERVICE_LINK = (
    r"NODEAGENT_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_[A-Z]+(_.+)?)=.*"
    r"|NODEAGENT_(.+_)?PORT=[a-z]+://.*"
)


class _Given(NamedTuple):
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
    return _settings_of(given)


def setting_names() -> list[str]:
    """The names of all settings, such as `plan.file`, in the order of the model."""
    return list(_kinds())


def choices(name: str) -> tuple[str, ...]:
    """The words that a setting can be, where it is one of some."""
    return tuple(schema_of(name)["enum"])


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema of a setting's value."""
    return _kinds()[name].schema


def settings_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a settings file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:nodeagent:schema:settings",
        "title": "nodeagent settings",
        **_group_schema(Settings()),
    }


def written(settings: Settings, name: str) -> object:
    """The value of a setting as a file would have it."""
    return _kinds()[name].written(value_of(settings, name))


def value_of(settings: Settings, name: str) -> Any:
    """The value of a setting."""
    group, _, key = name.rpartition(".")
    return getattr(getattr(settings, group) if group else settings, key)


def _group_schema(group: Group) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, field in fields(group).items():
        value = getattr(group, name)
        if isinstance(value, Group):
            properties[name] = _group_schema(value)
        elif field.description:
            kind = kind_of(field.kind)
            properties[name] = {"description": field.description, **kind.schema}
            if name != "node_name":  # which is each node's own
                properties[name]["default"] = kind.written(value)
    return {
        "type": "object",
        "description": type(group).__doc__,
        "additionalProperties": False,
        "properties": properties,
    }


@cache
def _kinds() -> Mapping[str, Kind]:
    found = {}
    for name, field in fields(Settings).items():
        if isinstance(field.default, Group):
            for inner in fields(field.default).values():
                if inner.description:
                    found[f"{name}.{inner.name}"] = kind_of(inner.kind)
        elif field.description:
            found[name] = kind_of(field.kind)
    return found


def variable_of(setting: str) -> str:
    """The environment variable of a setting: `plan.file` is NODEAGENT_PLAN_FILE."""
    return PREFIX + setting.replace(".", "_").upper()


# --- the file -----------------------------------------------------------------------------------


def _refuse_pipe(where: Path) -> None:
    if where.is_fifo():
        raise UsageError(f"settings file {where} is a named pipe, which may never be written")


def _from_file(path: Path | None) -> dict[str, _Given]:
    where = path or DEFAULT_FILE
    try:
        _refuse_pipe(where)
        with where.open("rb") as file:
            from nodeagent.documents.bounded_yaml import LARGEST_TEXT, read_tree

            tree = read_tree(file.read(LARGEST_TEXT))  # a text of this size is refused already
    except FileNotFoundError:
        if path is None:
            return {}
        raise UsageError(f"settings file {where} does not exist") from None
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"settings file {where} cannot be read: {why}") from None
    except DocumentError as error:
        raise UsageError(f"{where}: {error.args[0]}", remedy=error.remedy) from None
    return dict(_named(tree, str(where)))


def _named(tree: Tree, where: str) -> Iterator[tuple[str, _Given]]:
    """Each value in the file under the setting's full name; a key without a value says nothing."""
    groups = {name.partition(".")[0] for name in setting_names() if "." in name}
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
    names = setting_names()
    origin = f"{where} line {tree.key_marks[path][0]}: {name}"
    if name not in names:
        known = f"there are {listed(names, most=len(names))}"
        raise UsageError(f"{origin} is not a setting", remedy=did_you_mean(name, names) or known)
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
        elif not (
            re.fullmatch(RESERVED, variable) or re.match(SERVICE_LINK, f"{variable}={value}")
        ):
            raise UsageError(f"{variable} is not a setting", remedy=_nearest_variable(variable))
    return given


# --- values -------------------------------------------------------------------------------------


def _settings_of(given: Mapping[str, _Given]) -> Settings:
    """The values read, each by its kind; of those that are wrong the first is named."""
    values: dict[str, dict[str, Any]] = {}
    wrong: list[UsageError] = []
    for name, kind in _kinds().items():
        if name in given:
            group, _, key = name.rpartition(".")
            try:
                values.setdefault(group, {})[key] = kind.read(given[name].value)
            except ValueError as error:
                found = f"{given[name].origin}: found {shown(given[name].value)}"
                wrong.append(UsageError(found, remedy=str(error)))
    if wrong:
        more = f"; {len(wrong) - 1} more are wrong" if len(wrong) > 1 else ""
        raise UsageError(wrong[0].message, remedy=f"{wrong[0].remedy}{more}")
    plain = values.pop("", {})
    settings = Settings(given=frozenset(plain), **plain)
    groups = {
        name: getattr(settings, name).__replace__(given=frozenset(inner), **inner)
        for name, inner in values.items()
    }
    return settings.__replace__(**groups)


def _nearest_variable(variable: str) -> str:
    """Compared by what follows the prefix, which all variables share."""
    rests = [variable_of(name).removeprefix(PREFIX) for name in setting_names()]
    likely = nearest(variable.removeprefix(PREFIX), rests)
    if likely:
        return f"did you mean {PREFIX}{likely}?"
    return f"after {PREFIX} may stand {listed(rests, most=len(rests))}"
