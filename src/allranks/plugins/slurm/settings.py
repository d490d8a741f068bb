"""The settings of the slurm engine: ``[slurm]`` of the matrix file, and the user's file."""

import os
from dataclasses import replace
from pathlib import Path

from allranks.matrix.keys import read_keys
from allranks.matrix.model import Matrix
from allranks.matrix.toml_file import exists, read
from allranks.plugins.slurm.keys import Slurm


def slurm_settings(matrix: Matrix | None = None) -> Slurm:
    """The settings of a matrix file, overridden by the user's file; both files' arguments for sbatch are used.

    Args:
        matrix: The matrix; None for only the user's settings.

    Raises:
        MatrixError: The user's file is wrong.
    """
    settings: Slurm = (matrix.tables.get("slurm") if matrix else None) or Slurm()
    path = user_file()
    if path is not None and exists(path):
        own = read_keys(read(path), Slurm)
        settings = replace(settings, **{**own, "extra": (*settings.extra, *own.get("extra", ()))})
    return replace(settings, container=_expanded(settings.container))


def _expanded(container: str | None) -> str | None:
    """The container, with environment variables and ``~`` expanded in its image's name."""
    if container is None:
        return None
    runtime, _, image = container.partition(":")
    return f"{runtime}:{os.path.expandvars(f'$HOME{image[1:]}' if image.startswith('~/') else image)}"


def user_file() -> Path | None:
    """The user's file (XDG Base Directory Specification); None if this user has no home folder."""
    try:
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    except RuntimeError:
        return None
    return base / "allranks" / "slurm.toml"
