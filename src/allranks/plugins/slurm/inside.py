"""``allranks run --inside``: the processes of a launcher, such as srun or torchrun, form one run on its nodes."""

import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.cli.options import gpu_mode
from allranks.errors import ExitCode, UsageError
from allranks.matrix.expand import Expansion
from allranks.protocol.launcher_variables import LaunchedProcess, launched_process

if TYPE_CHECKING:
    from allranks.cli.run import Options
    from allranks.engines.base import Engine

# Engines are imported late, because no other command needs them.


def run_inside(
    expansion: Expansion,
    results: Path,
    options: "Options",
    run_here: "Callable[[Engine | None], ExitCode]",
) -> ExitCode:
    """Orchestrate the run in process 0 of a launcher; in other processes, serve it and return its exit code.

    Args:
        expansion: The matrix.
        results: The folder of all runs, which all nodes share.
        options: The options of the command.
        run_here: Runs the command on an engine.

    Raises:
        UsageError: No launcher has started this process, or an option cannot be combined with ``--inside``.
        EngineError: The processes do not find each other, or process 0 is gone.
    """
    process = _launched(options)
    if process.world_size > 1:
        return _with_others(expansion, results, options, process, run_here)
    from allranks.engines.process import ProcessEngine  # noqa: PLC0415

    engine = ProcessEngine()
    engine.answer = "inside a launcher's 1 node"
    return run_here(engine)


def _launched(options: "Options") -> LaunchedProcess:
    process = launched_process(os.environ)
    if process is None:
        msg = "--inside needs a launcher, but none has started this process."
        why = "Neither RANK and WORLD_SIZE (torchrun, pods) nor the variables of srun or mpirun are set."
        remedy = "Drop --inside, or start allranks with a launcher: srun --ntasks-per-node=1 allranks run --inside …"
        raise UsageError(msg, why=why, remedy=remedy)
    if options.engine not in {"auto", "process"}:
        msg = f"--inside runs jobs as processes on the launcher's nodes, and the engine {options.engine} does not."
        raise UsageError(msg, remedy="Use --engine process, or drop --inside.")
    if options.pdb_rank is not None:
        msg = "--pdb-rank needs a terminal for itself, and the processes of a launcher share this one."
        raise UsageError(msg, remedy="Debug it on one machine, without --inside.")
    return process


def _with_others(
    expansion: Expansion,
    results: Path,
    options: "Options",
    process: LaunchedProcess,
    run_here: "Callable[[Engine | None], ExitCode]",
) -> ExitCode:
    from allranks.engines.gpus import chosen_inventory  # noqa: PLC0415
    from allranks.ownership import host_id  # noqa: PLC0415
    from allranks.plugins.slurm.launch_files import Member  # noqa: PLC0415
    from allranks.plugins.slurm.launch_follower import LaunchedNode, follow  # noqa: PLC0415

    own = Member(
        rank=process.rank,
        nonce=secrets.token_hex(8),
        local_rank=process.local_rank,
        host=socket.gethostname(),
        node_id=host_id(),
    )
    gpus = chosen_inventory(gpu_mode(), options.gpus)
    node = LaunchedNode(results.resolve() / f".inside-{process.launch}", own, gpus, os.environ)
    if process.rank > 0:
        return follow(node, expansion.matrix.limits)
    from allranks.plugins.slurm.launch_leader import LaunchEngine, LaunchLeader, lead  # noqa: PLC0415

    def run(leader: LaunchLeader) -> ExitCode:
        return run_here(LaunchEngine(leader))

    return lead(node, process.world_size, expansion.matrix.limits, run)
