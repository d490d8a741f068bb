"""The engine ``slurm``, and runs inside an allocation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.cli.parser import flag
from allranks.errors import ExitCode
from allranks.plugin_manager import implements

if TYPE_CHECKING:
    from allranks.cli.run import Options
    from allranks.engines.base import Engine
    from allranks.matrix.expand import Expansion


@dataclass(frozen=True, kw_only=True)
class LaunchedOptions:
    """The options that this plug-in adds to ``allranks run``."""

    inside: bool = flag(
        "--inside",
        "where to run",
        "turn all processes that srun, torchrun or mpirun has started into one run on their nodes and GPUs",
    )


@implements
def allranks_engines() -> Mapping[str, str]:
    """Add ``slurm``."""
    return {"slurm": "allranks.plugins.slurm.engine:SlurmEngine"}


@implements
def allranks_options(command: str) -> type | None:
    """Add ``--inside``."""
    return LaunchedOptions if command == "run" else None


@implements
def allranks_run(
    expansion: "Expansion",
    results: Path,
    options: "Options",
    run_here: "Callable[[Engine | None], ExitCode]",
) -> ExitCode | None:
    """Run inside an allocation with ``--inside``."""
    if not options.added[LaunchedOptions].inside:
        return None
    from allranks.plugins.slurm.inside import run_inside  # noqa: PLC0415 - few runs are inside an allocation

    return run_inside(expansion, results, options, run_here)
