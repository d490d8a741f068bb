"""The settings of the slurm engine: ``[slurm]`` of the matrix file, and the user's own file."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from allranks.matrix.model import Matrix
from allranks.matrix.tables import declared_tables, read_table
from allranks.matrix.toml_file import exists, read


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """``[slurm]``, whose keys are declared in ``tables.json``."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    spool: str | None = None  # the folder of its jobs, which all nodes share; None for one in the user's cache
    jobs: int = 100  # how many jobs are in SLURM's queue or on its nodes at most
    # What agents run in, as ``RUNTIME:IMAGE``, with its python3 and what is installed there; None for an environment
    # that allranks makes from ``[images]``.
    container: str | None = None
    extra: tuple[str, ...] = ()  # further arguments for sbatch


def settings_of(matrix: Matrix | None = None) -> Slurm:
    """The settings of a matrix file, with the keys of the user's own file in their place.

    Args:
        matrix: The matrix; None for the user's settings alone.

    Raises:
        MatrixError: The user's file is wrong.
    """
    settings = Slurm(**_expanded(matrix.tables.get("slurm", {}))) if matrix else Slurm()
    path = user_file()
    if path is None or not exists(path):
        return settings
    table = read(path)
    own = _expanded(read_table(table, declared_tables()["slurm"]))
    return replace(settings, **{name: own[name] for name in table.values})


def _expanded(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with this user's variables and home folder in the name of the container's image."""
    if (container := values.get("container")) is None:
        return dict(values)
    runtime, _, image = container.partition(":")
    image = os.path.expandvars(f"$HOME{image[1:]}" if image.startswith("~/") else image)
    return {**values, "container": f"{runtime}:{image}"}


def user_file() -> Path | None:
    """The user's own file (XDG Base Directory Specification); None if this user has no home folder."""
    try:
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    except RuntimeError:
        return None
    return base / "allranks" / "slurm.toml"
