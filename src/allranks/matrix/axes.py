"""The axes of a matrix: their names, their order and the type of their values."""

from collections.abc import Callable, Mapping

from allranks.matrix.versions import version_key

AXES = ("backend", "world_size", "gpu_count", "init_method", "nodes", "torch")
"""The axes in their fixed order: the order of a cell's id and of a session's signature."""

ALWAYS_NAMED = AXES[:4]
"""The axes that are in every signature; the others are there where some cell needs them."""

NO_TORCH = ""
"""The one value on the axis ``torch`` of a matrix that does not have that axis."""

AxisValue = str | int


class Version(str):
    """The type of an axis whose values are written as names, and ordered as versions."""

    __slots__ = ()


type_of_axis: Mapping[str, type] = {
    "backend": str,
    "world_size": int,
    "gpu_count": int,
    "init_method": str,
    "nodes": int,
    "torch": Version,
}


def written_type(axis: str) -> type:
    """The type of a value on an axis as files and command lines have it."""
    return int if type_of_axis[axis] is int else str


def key_of(axis: str) -> Callable[[AxisValue], object]:
    """What values on an axis are compared by."""
    return _version_key if type_of_axis[axis] is Version else _itself


def _version_key(value: AxisValue) -> object:
    return version_key(str(value))


def _itself(value: AxisValue) -> object:
    return value
