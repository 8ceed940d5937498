"""Where settings come from: a YAML file, then the environment, then flags; the later wins.

Every error names the place that the value came from, the value, and what would be accepted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodeagent.documents.findings import Findings
from nodeagent.documents.grammar import DocumentValue, Given, JsonSchema, Key, Rule, form, read_with
from nodeagent.errors import DocumentError, UsageError
from nodeagent.settings.model import Settings
from nodeagent.settings.values import Group, rule_of
from nodeagent.text import listed, nearest

if TYPE_CHECKING:
    from nodeagent.plan.problems import Problem

DEFAULT_FILE = Path("/etc/nodeagent/settings.yaml")

PREFIX = "NODEAGENT_"
# Variables with the prefix that are no settings: other programs or commands read them.
RESERVED = r"NODEAGENT_(SIMULATED_STATE|(TEST|BENCH)_.+)"
# In a pod, Kubernetes describes each Service of the namespace; one may be called nodeagent.
SERVICE_LINK = (
    r"NODEAGENT_(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_[A-Z]+(_.+)?)=.*"
    r"|NODEAGENT_(.+_)?PORT=[a-z]+://.*"
)


Values = dict[str, Any]  # by the full names of settings


def load_settings(
    path: Path | None, environment: Mapping[str, str], flags: Mapping[str, object]
) -> Settings:
    """Read all sources. `path` None: the default file, which may be missing.

    `flags` are named like settings (`plan.file`); those that are None were not given. Raises
    UsageError.
    """
    values: Values = {}
    if name_of_node := environment.get("NODE_NAME"):
        values = _read_source({"NODE_NAME": ("node_name", name_of_node)})
    values |= _from_file(path)
    values |= _from_environment(environment)
    given = {name: value for name, value in flags.items() if value is not None}
    values |= _read_source({f"command line: {name}": (name, given[name]) for name in given})
    return _settings_of(values)


def setting_names() -> list[str]:
    """The names of all settings, such as `plan.file`, in the order of the model."""
    return list(_rules())


def choices(name: str) -> tuple[str, ...]:
    """The words that a setting allows, for one that allows only certain words."""
    return tuple(schema_of(name)["enum"])


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema of a setting's value."""
    return _rules()[name].schema


def settings_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a settings file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:nodeagent:schema:settings",
        "title": "nodeagent settings",
        **_form(Settings()).schema,
    }


def written(settings: Settings, name: str) -> object:
    """The value of a setting as a file would have it."""
    return _rules()[name].written(value_of(settings, name))


def value_of(settings: Settings, name: str) -> Any:
    """The value of a setting."""
    group, _, key = name.rpartition(".")
    return getattr(getattr(settings, group) if group else settings, key)


def _form(group: Group, prefix: str = "") -> Rule[Values]:
    """The rule that reads a group from a file, into values by the full names of settings."""
    keys: list[Key] = []
    properties: JsonSchema = {}
    for name, kind in type(group).__annotations__.items():
        value, description = getattr(group, name), ""
        if isinstance(value, Group):
            rule: Rule[Any] = _form(value, f"{name}.")
            properties[name] = rule.schema
        else:
            rule, description = rule_of(kind), kind.__metadata__[-1]
            properties[name] = {"description": description, **rule.schema}
            if name != "node_name":  # which is each node's own
                properties[name]["default"] = rule.written(value)
        keys.append(Key(name, _or_nothing(rule), description))

    def by_full_name(_: DocumentValue, given: Given) -> Values:
        found: Values = {}
        for name, value in given.items():
            if isinstance(getattr(group, name), Group):
                found |= value or {}
            elif value is not None:
                found[f"{prefix}{name}"] = value
        return found

    read = form(*keys, build=by_full_name, hint=lambda name: _unflattened(f"{prefix}{name}")).read
    schema: JsonSchema = {
        "type": "object",
        "description": type(group).__doc__,
        "additionalProperties": False,
        "properties": properties,
    }
    return Rule(read, schema)


def _or_nothing(rule: Rule[Any]) -> Rule[Any]:
    """The rule, but with None for a key without a value, which counts as not given."""
    return Rule(lambda place: None if place.value is None else rule.read(place), rule.schema)


def _unflattened(name: str) -> str:
    """How a setting is written in a file, for one that was written flat."""
    group, _, key = name.partition(".")
    return f"write {group}: {{{key}: ...}}" if key and name in setting_names() else ""


@cache
def _rules() -> Mapping[str, Rule[Any]]:
    found: dict[str, Rule[Any]] = {}
    for name, kind in Settings.__annotations__.items():
        if isinstance(kind, type) and issubclass(kind, Group):
            inner = kind.__annotations__.items()
            found |= {f"{name}.{key}": rule_of(of_key) for key, of_key in inner}
        else:
            found[name] = rule_of(kind)
    return found


def variable_of(setting: str) -> str:
    """The environment variable of a setting: `plan.file` is NODEAGENT_PLAN_FILE."""
    return PREFIX + setting.replace(".", "_").upper()


# --- the sources ----------------------------------------------------------------------------------


def _from_file(path: Path | None) -> Values:
    where = path or DEFAULT_FILE
    try:
        if where.is_fifo():
            raise UsageError(f"settings file {where} is a named pipe, which may never be written")
        with where.open("rb") as file:
            from nodeagent.documents.bounded_yaml import MAX_TEXT, read_tree

            tree = read_tree(file.read(MAX_TEXT))  # a text of this size is refused already
        whole = _or_nothing(_form(Settings()))
        return read_with(whole, tree.value, tree.findings()) or {}
    except FileNotFoundError:
        if path is None:
            return {}
        raise UsageError(f"settings file {where} does not exist") from None
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"settings file {where} cannot be read: {why}") from None
    except DocumentError as error:
        raise _refused([(str(where), problem) for problem in error.problems]) from None


def _from_environment(environment: Mapping[str, str]) -> Values:
    """A variable that is set but empty counts as not set."""
    settings = {variable_of(name): name for name in setting_names()}
    given = {}
    for variable, value in sorted(environment.items()):
        if not variable.startswith(PREFIX) or not value:
            continue
        if variable in settings:
            given[variable] = (settings[variable], value)
        elif not (
            re.fullmatch(RESERVED, variable) or re.match(SERVICE_LINK, f"{variable}={value}")
        ):
            raise UsageError(f"{variable} is not a setting", remedy=_nearest_variable(variable))
    return _read_source(given)


def _nearest_variable(variable: str) -> str:
    """A remedy for an unknown variable; names are compared without the prefix that all share."""
    rests = [variable_of(name).removeprefix(PREFIX) for name in setting_names()]
    likely = nearest(variable.removeprefix(PREFIX), rests)
    if likely:
        return f"did you mean {PREFIX}{likely}?"
    return f"after {PREFIX} may stand {listed(rests, most=len(rests))}"


# --- values ---------------------------------------------------------------------------------------


def _read_source(given: Mapping[str, tuple[str, object]]) -> Values:
    """Read one source: names and values of settings, by the place where each was given."""
    values: Values = {}
    faults: list[tuple[str, Problem]] = []
    for origin, (name, value) in given.items():
        try:
            values[name] = read_with(_rules()[name], value, Findings())
        except DocumentError as error:
            faults.append((origin, error.problems[0]))
    if faults:
        raise _refused(faults)
    return values


def _refused(faults: Sequence[tuple[str, Problem]]) -> UsageError:
    """The error with the first fault, where its value was given, and the number of the others."""
    (origin, first), *others = faults
    where = f"{origin}: {first.path}" if first.path else origin
    more = [f"{len(others)} more are wrong"] if others else []
    return UsageError(
        f"{where}: {first.message}", remedy="; ".join(filter(None, [first.remedy, *more]))
    )


def _settings_of(values: Values) -> Settings:
    groups: dict[str, Values] = {}
    for name, value in values.items():
        group, _, key = name.rpartition(".")
        groups.setdefault(group, {})[key] = value
    plain = groups.pop("", {})
    settings = Settings(given=frozenset(plain), **plain)
    changed = {
        name: getattr(settings, name).__replace__(given=frozenset(inner), **inner)
        for name, inner in groups.items()
    }
    return settings.__replace__(**changed)
