"""The axes of a matrix: their names, their order and the type of their values."""

from collections.abc import Mapping
from functools import lru_cache

from packaging.version import Version

AXES = ("backend", "world_size", "gpu_count", "init_method", "nodes", "torch")
"""The axes in their fixed order: the order of a cell's id and of a session's signature."""

ALWAYS_NAMED = AXES[:4]
"""The axes that are in every signature; the others are there where some cell needs them."""

NO_TORCH = ""
"""The one value on the axis ``torch`` of a matrix that does not have that axis."""

AxisValue = str | int

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


def comparable(axis: str, value: AxisValue | tuple[AxisValue, ...]) -> object:
    """What one or several values on an axis are compared by: ``2.9.1`` is before ``2.14``, ``2.14`` is ``2.14.0``."""
    if type_of_axis[axis] is not Version:
        return value
    return tuple(_version(str(each)) for each in value) if isinstance(value, tuple) else _version(str(value))


@lru_cache  # the same few versions are compared at every cell
def _version(text: str) -> Version:
    return Version(text or "0.dev0")  # NO_TORCH is before all others


def is_version(text: str) -> bool:
    """True for one exact version, as torch writes its own: ``2.14.1``, ``2.15.0.dev20261101+cu130``."""
    try:
        version = Version(text)
    except ValueError:  # no version, or a number with more digits than Python reads
        return False
    return str(version) == text and len(version.release) > 1 and not version.epoch
