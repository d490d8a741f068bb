"""The settings of the slurm engine: ``[slurm]`` of the matrix file, and the user's own file."""

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from allranks.errors import shown
from allranks.matrix.model import Slurm
from allranks.matrix.toml_file import Table, exists, read

RUNTIMES: Final = ("apptainer", "charliecloud", "docker", "pyxis")
"""What runs containers on the nodes of clusters; pyxis is the SLURM plugin of enroot."""


def read_slurm(table: Table) -> Slurm:
    """The settings in a table.

    Raises:
        MatrixError: A key or a value is wrong.
    """
    table.only(*(each.name for each in fields(Slurm)))
    return Slurm(
        partition=table.text("partition", None, "gpu"),
        account=table.text("account", None, "my-project"),
        qos=table.text("qos", None, "normal"),
        spool=table.text("spool", None, "/shared/me/allranks"),
        jobs=table.whole("jobs", Slurm.jobs, at_least=1),
        container=_container(table),
        extra=table.texts("extra"),
    )


def _container(table: Table) -> str | None:
    """``RUNTIME:IMAGE``, with this user's variables and home folder in the name of the image."""
    name = "container"
    told = table.text(name, None, "apptainer:/shared/me/torch.sif")
    if told is None:
        return None
    runtime, _, image = told.partition(":")
    if runtime not in RUNTIMES or not image.strip():
        right = ", ".join(f'"{each}:IMAGE"' for each in RUNTIMES)
        raise table.error(name, f"{shown(told)} names no image of a known runtime", f"Write one of {right}.")
    return f"{runtime}:{os.path.expandvars(f'$HOME{image[1:]}' if image.startswith('~/') else image)}"


def user_file() -> Path | None:
    """The user's own file (XDG Base Directory Specification); None if this user has no home folder."""
    try:
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    except RuntimeError:
        return None
    return base / "allranks" / "slurm.toml"


def with_user_file(settings: Slurm) -> Slurm:
    """The settings, with the keys of the user's own file in their place.

    Raises:
        MatrixError: That file is wrong.
    """
    path = user_file()
    if path is None or not exists(path):
        return settings
    table = read(path)
    own = read_slurm(table)
    return replace(settings, **{name: getattr(own, name) for name in table.values})
