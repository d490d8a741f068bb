"""The axes of a matrix: their names, their order and the type of their values."""

from collections.abc import Mapping

AXES = ("backend", "world_size", "gpu_count", "init_method", "nodes")
"""The axes in their fixed order: the order of a cell's id and of a session's signature."""

AxisValue = str | int

type_of_axis: Mapping[str, type] = {
    "backend": str,
    "world_size": int,
    "gpu_count": int,
    "init_method": str,
    "nodes": int,
}
