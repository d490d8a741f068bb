"""The axes of a matrix: their names, their order and the type of their values."""

from collections.abc import Collection, Mapping
from functools import lru_cache

from packaging.version import Version

from allranks.errors import did_you_mean, shown

AXES = ("backend", "world_size", "gpu_count", "init_method", "nodes", "torch")
"""The axes in the order of cell ids and session signatures."""

ALWAYS_NAMED = AXES[:4]
"""The axes in every signature; the others are included only if a cell needs them."""

NO_TORCH = ""
"""The only value of ``torch`` in a matrix without that axis."""

AxisValue = str | int

type_of_axis: Mapping[str, type] = {
    "backend": str,
    "world_size": int,
    "gpu_count": int,
    "init_method": str,
    "nodes": int,
    "torch": Version,
}

BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl")
"""The process-group backends that torch registers itself (``torch.distributed.Backend``)."""

INIT_METHODS = ("env", "tcp", "file")

SMALLEST: Mapping[str, int] = {"world_size": 1, "gpu_count": 0, "nodes": 1}

LARGEST = 10_000
"""More ranks, GPUs or nodes than any test has; a larger number is a typo."""


def backend_problem(
    name: str, custom: Collection[str], own: str = "Add your own backend to matrix.custom_backends."
) -> tuple[str, str] | None:
    """Check the name of a backend.

    Args:
        name: The name.
        custom: The names of the user's backends.
        own: A sentence on how to use a backend that is not torch's.

    Returns:
        What is wrong and what to do; None for a valid name.
    """
    known = dict.fromkeys((*BACKENDS, *custom))
    if name in known:
        return None
    return f"{shown(name)} is not a supported backend", f"{did_you_mean(name, known)} {own}"


def written_type(axis: str) -> type:
    """The type of an axis's values in files and on command lines."""
    return int if type_of_axis[axis] is int else str


def comparable(axis: str, value: AxisValue) -> AxisValue | Version:
    """Convert a value for comparisons: ``2.9.1`` is before ``2.14``, and ``2.14`` equals ``2.14.0``."""
    return _version(str(value)) if type_of_axis[axis] is Version else value


@lru_cache  # the same few versions are compared for every cell
def _version(text: str) -> Version:
    return Version(text or "0.dev0")  # NO_TORCH is the smallest


def is_version(text: str) -> bool:
    """Whether a text is an exact version in torch's format: ``2.14.1``, ``2.15.0.dev20261101+cu130``."""
    try:
        version = Version(text)
    except ValueError:  # not a version, or a number with more digits than Python parses
        return False
    return str(version) == text and len(version.release) > 1 and not version.epoch
