"""What a group of settings is: a frozen value that knows the description of each of its fields.

Every command makes the classes of all groups, so they do without `dataclasses`, which takes longer
to import than all of them to make.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, dataclass_transform

T = TypeVar("T")


class GroupField(NamedTuple):
    """A field of a group. `kind` is its annotation; `description` "": it is not a setting, but a
    group or what the agent notes itself.
    """

    name: str
    kind: Any
    default: Any
    description: str


class _Setting(NamedTuple):
    default: Any
    description: str


_FIELDS: dict[type, dict[str, GroupField]] = {}


def setting(default: T, description: str) -> T:
    """A field that is a setting."""
    made: Any = _Setting(default, description)
    found: T = made  # as type checkers take the default of a field
    return found


@dataclass_transform(frozen_default=True, kw_only_default=True)
def group(made: type[T]) -> type[T]:
    """The class with its fields known, those of `Group` first."""
    known = dict(_FIELDS.get(made.__bases__[0], {}))
    for name, kind in made.__annotations__.items():
        value = vars(made)[name]
        described = value if isinstance(value, _Setting) else _Setting(value, "")
        known[name] = GroupField(name, kind, *described)
        setattr(made, name, described.default)
    _FIELDS[made] = known
    return made


@group
class Group:
    """A part of the settings. `given`: the names in it that some source has set."""

    given: frozenset[str] = frozenset()

    if not TYPE_CHECKING:  # mypy knows the fields of each group, and that they are frozen

        def __init__(self, **values: Any) -> None:
            known = _FIELDS[type(self)]
            if unknown := values.keys() - known.keys():
                raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
            vars(self).update({name: one.default for name, one in known.items()}, **values)

        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(f"cannot assign to field {name!r}")

        def __delattr__(self, name: str) -> None:
            raise AttributeError(f"cannot delete field {name!r}")

    def __replace__(self, **changes: Any) -> Self:
        return type(self)(**{**vars(self), **changes})

    def __eq__(self, other: object) -> bool:
        """Equal settings are equal, wherever they come from."""
        if type(self) is not type(other):
            return NotImplemented
        return {**vars(self), "given": None} == {**vars(other), "given": None}

    def __hash__(self) -> int:
        return hash(type(self))  # fields with a default have to have one

    def __repr__(self) -> str:
        return f"{type(self).__name__}({vars(self)})"


def fields(of: type[Group] | Group) -> Mapping[str, GroupField]:
    """The fields of a group by name, in their order."""
    return _FIELDS[of if isinstance(of, type) else type(of)]
