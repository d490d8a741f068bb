"""The engine ``slurm``, and runs inside an allocation."""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from allranks.cli.command_parser import OptionGroup
from allranks.errors import ExitCode
from allranks.matrix.expand import Expansion
from allranks.plugin_manager import implements


@implements
def allranks_engines() -> Mapping[str, str]:
    """See :meth:`allranks.plugin_manager.Hooks.allranks_engines`."""
    return {"slurm": "allranks.plugins.slurm.engine:SlurmEngine"}


@implements
def allranks_options(command: str, groups: Mapping[str, OptionGroup]) -> None:
    """Add ``--inside``."""
    if command == "run":
        meaning = "be one run of all processes that srun, torchrun or mpirun has started, on their nodes and GPUs alone"
        groups["place"].add_argument("--inside", action="store_true", help=meaning)


@implements
def allranks_run(
    expansion: Expansion,
    results: Path,
    options: argparse.Namespace,
    run_here: Callable[[argparse.Namespace], ExitCode],
) -> ExitCode | None:
    """See :meth:`allranks.plugin_manager.Hooks.allranks_run`."""
    if not options.inside:
        return None
    from allranks.plugins.slurm.inside import run_inside  # noqa: PLC0415 - few runs are inside an allocation

    return run_inside(expansion, results, options, run_here)
