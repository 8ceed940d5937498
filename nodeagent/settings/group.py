"""What a group of settings is: a frozen dataclass that is made quickly.

Every command makes the classes of all groups. The methods that `dataclass` would compile for each
of them take longer than all else here, so all groups share those of `Group`.
"""

from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

T = TypeVar("T")


def setting(default: T, description: str) -> T:
    """A field of a group."""
    made: T = field(default=default, metadata={"description": description})
    return made


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def group(made: type[T]) -> type[T]:
    """The class as a dataclass with the methods of `Group`."""
    return dataclass(init=False, eq=False, repr=False)(made)


@group
class Group:
    """A part of the settings. `given`: the names in it that some source has set."""

    given: frozenset[str] = frozenset()

    if not TYPE_CHECKING:  # mypy knows the fields of each group, and that they are frozen

        def __init__(self, **values: Any) -> None:
            known = {one.name: one for one in fields(self)}
            if unknown := values.keys() - known.keys():
                raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
            for name, one in known.items():
                default = one.default if one.default_factory is MISSING else one.default_factory()
                vars(self)[name] = values.get(name, default)

        def __setattr__(self, name: str, value: object) -> None:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name: str) -> None:
            raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other: object) -> bool:
        """Equal settings are equal, wherever they come from."""
        if type(self) is not type(other):
            return NotImplemented
        return {**vars(self), "given": None} == {**vars(other), "given": None}

    def __hash__(self) -> int:
        return hash(type(self))  # fields with a default have to have one

    def __repr__(self) -> str:
        return f"{type(self).__name__}({vars(self)})"
