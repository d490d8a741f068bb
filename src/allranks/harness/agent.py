"""The agent: the one process of a job that imports torch, collects the suite, and leads gangs through it.

It starts no thread, never initialises CUDA and never runs a test itself, so its forks are clean.
"""

import argparse
import gc
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from allranks.harness.config import AgentConfig, Folders
from allranks.harness.events import JOURNAL, EventLog, read_events
from allranks.harness.hangup import leave_on_hangup
from allranks.harness.nodes.gate import NodesError, meet
from allranks.harness.nodes.roll import Roll, read_failures
from allranks.harness.nodes.wire import Wire, WireError
from allranks.harness.rank_xml import ranks_with_events, write_rank_xml
from allranks.harness.signals import let_in

STDIN = 0

SANDCASTLE = ("SANDCASTLE", "TW_JOB_USER")
"""Never passed on to ranks: whether a skip counts as a pass is decided when results are merged."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one job; its outcomes are in its results folder, never in the exit status.

    The exit status is 0 when the agent did its work, 130 when it was told to stop, 1 when it could not do it.
    """
    let_in()
    # What is imported and collected here lives as long as the job: looking for garbage in it would only
    # cost time and, in the forks, memory. Ranks turn the collector on again.
    gc.disable()
    options = _parse(arguments)
    folders = Folders(code=options.code, results=options.results, shared=options.shared)
    config = AgentConfig.read(options.config)
    stream = os.dup(1)
    _send_output_to(folders.results / "agent.log")
    journal = EventLog(folders.results / JOURNAL, stream)
    journal.write("agent_started", pid=os.getpid(), python=sys.version.split()[0])
    _set_environment(config)
    try:
        status = _work(config, folders, journal)
        _write_xml(config, folders.results)
        journal.write("agent_finished", status=status)
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError as error:
        # The results folder is full or gone: the stream is all that is left to say so on.
        status = 1
        journal.say("agent_failed", message=f"the agent cannot write its results: {error}")
    # Ending torch's interpreter politely costs a tenth of a second and can hang; all is written.
    os._exit(status)


def _write_xml(config: AgentConfig, results: Path) -> None:
    for rank in _told_ranks(config, results):
        write_rank_xml(results, rank, cell=config.cell, suite=config.suite, world_size=config.world_size)


def _told_ranks(config: AgentConfig, results: Path) -> set[int]:
    """The ranks that this agent has the whole story of: of several, the leader knows when things happened."""
    if config.nodes == 1:
        return {*config.local_ranks, *ranks_with_events(results)}
    return set() if config.node else set(config.local_ranks)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m allranks.harness")
    for name in ("config", "code", "results", "shared"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    return parser.parse_args(arguments)


def _send_output_to(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target in (1, 2):
        os.dup2(log, target)
    os.close(log)


def _set_environment(config: AgentConfig) -> None:
    os.environ.update(cell_environment(config, os.environ))
    for name in SANDCASTLE:
        os.environ.pop(name, None)


def cell_environment(config: AgentConfig, present: Mapping[str, str]) -> dict[str, str]:
    """The variables by which suites learn the cell, and those that keep forks clean unless the user set them."""
    defaults = {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
    return {
        **{name: value for name, value in defaults.items() if name not in present},
        "BACKEND": config.backend,
        "WORLD_SIZE": str(config.world_size),
        "INIT_METHOD": config.init_method,
        "ALLRANKS_GPU_COUNT": str(config.gpu_count),
        "GROUP_RANK": str(config.node),
    }


def _work(config: AgentConfig, folders: Folders, journal: EventLog) -> int:
    # While pytest captures, which it does as long as it collects, descriptor 0 is the null device.
    stdin = os.dup(STDIN)
    leave_on_hangup(stdin)
    try:
        wires = meet(config)
    except NodesError as error:
        journal.write("nodes_failed", message=str(error))
        return 1
    if config.nodes > 1:
        journal.write("nodes_met", nodes=sorted(wires))
    status = _work_with(wires, config, folders, journal, stdin)
    if config.node:
        _tell_failures(wires[0], folders, config.limits.silence)
    return status


def _tell_failures(leader: Wire, folders: Folders, timeout: float) -> None:
    """Have the leader know why this agent could not do its work, if it could not."""
    if failures := read_failures(read_events(folders.results / JOURNAL)):
        with suppress(WireError):  # then it has no need to know
            leader.send({"roll": Roll(failures=failures).as_message()}, timeout)


def _work_with(wires: Mapping[int, Wire], config: AgentConfig, folders: Folders, journal: EventLog, stdin: int) -> int:
    try:
        version = _import_torch(journal)
        if not is_torch_of(config.torch, version):
            message = f"the cell stands for torch {config.torch}, and the Python of this job has torch {version}"
            journal.write("agent_failed", message=message, other_torch=version)
            return 1
        if config.check_gpus:
            from allranks.harness.gpu_check import check_gpus  # noqa: PLC0415 - needs torch

            if not check_gpus(config.check_gpus, config.gpu_device, config.limits.gpu_check, journal):
                return 1
        from allranks.harness.collection.session import run_session  # noqa: PLC0415 - needs torch and pytest

        return run_session(config, folders, journal, stdin, wires)
    except ImportError as error:
        message = f"the Python of this job cannot import {error.name}: {error}"
        journal.write("agent_failed", message=message, cannot_import=error.name)
    except Exception:  # noqa: BLE001 - whatever broke the agent is the job's result
        journal.write("agent_failed", message="the agent broke down", text=traceback.format_exc())
    return 1


def _import_torch(journal: EventLog) -> str:
    began = time.time()
    import torch  # noqa: PLC0415 - imported here, and first, so that the journal has its time

    journal.write("imported", began=began, seconds=time.time() - began, torch=torch.__version__)
    return str(torch.__version__)


def is_torch_of(wanted: str, found: str) -> bool:
    """Whether an installed torch is what a cell stands for: ``2.13`` is ``2.13.0+cpu`` too, and nothing is any."""
    public = found if "+" in wanted else found.partition("+")[0]
    return not wanted or _without_zeros(public) == _without_zeros(wanted)


def _without_zeros(version: str) -> str:
    while version.endswith(".0"):
        version = version.removesuffix(".0")
    return version
