"""The engine ``slurm``: a job is one ``sbatch`` with a supervisor on each node."""

import hashlib
import json
import math
import os
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from allranks.engine.ownership import HOST_VARIABLE, RUN_VARIABLE, host_id, is_dead
from allranks.engine.process import environment, remove_tree
from allranks.engine.protocol import JobSpec
from allranks.engine.shared_folder_job import Allocation, SharedFolderJob, fill_folder
from allranks.engine.slurm_queue import SlurmQueue, outside_of_jobs
from allranks.errors import EngineError
from allranks.matrix.model import Slurm

_OWNER: Final = "owner.json"
"""File of a job's folder that names the job, and its owner's run and host."""


class SlurmEngine:
    """Submits jobs.

    Args:
        settings: ``[slurm]`` of the matrix file, and of the user's own.
        spool: The folder of the jobs' folders, which this host and all nodes share.
        package: A folder that they share, too: it holds the package ``allranks`` and nothing else.
    """

    name = "slurm"

    def __init__(self, settings: Slurm, spool: Path, package: Path) -> None:
        self._settings = settings
        self._spool = spool
        self._package = package
        self._queue = SlurmQueue()

    @contextmanager
    def start(self, spec: JobSpec, _held: Sequence[int] = ()) -> Iterator[SharedFolderJob]:
        """See :meth:`allranks.engine.protocol.Engine.start`."""
        folder = self._make_folder(spec)
        try:
            job = SharedFolderJob(self._submit(spec, folder), spec)
            try:
                yield job
            finally:
                job.stop()
                job.close()
        finally:
            self._queue.forget(folder.name)
            _remove(folder)

    def _make_folder(self, spec: JobSpec) -> Path:
        folder = self._spool / job_name(spec)
        try:
            self._spool.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
            owner = {"host": host_id(), "run": spec.run_id}
            (folder / _OWNER).write_text(json.dumps(owner), encoding="utf-8")
            fill_folder(folder, spec)
            (folder / "job.sh").write_text(script(spec, folder, self._package), encoding="utf-8")
        except OSError as error:
            remove_tree(folder)
            msg = f"A folder for {spec.job_id} could not be made in {self._spool}."
            remedy = "Free some space there, or name another shared folder: [slurm] spool."
            raise EngineError(msg, why=str(error), remedy=remedy) from error
        return folder

    def _submit(self, spec: JobSpec, folder: Path) -> Allocation:
        if spec.python is None:
            msg = f"job {spec.job_id} names no interpreter"
            raise EngineError(msg)
        allocation = Allocation(self._queue, folder)
        variables = environment(spec, folder, self._package, outside_of_jobs(os.environ))
        # SLURM is the owner of the processes, and gives them their GPUs; the node has its own folder and interface.
        own = ["TMPDIR", RUN_VARIABLE, HOST_VARIABLE, *(["CUDA_VISIBLE_DEVICES"] if spec.agent.gpu_count else [])]
        for name in own:
            variables.pop(name, None)
        try:
            number = self._queue.submit(request(spec, folder, self._settings), variables, folder.name)
        except EngineError:
            with suppress(EngineError):  # it may have taken the job and not answered in time
                self._queue.cancel(folder.name)
            raise
        allocation.number = f"SLURM job {number}"
        return allocation

    def remains(self) -> list[str]:
        """See :meth:`allranks.engine.protocol.Engine.remains`."""
        return [f"SLURM job {folder.name}" for folder, owner in self._folders() if owner.is_dead]

    def unjudged(self) -> list[str]:
        """See :meth:`allranks.engine.protocol.Engine.unjudged`."""
        return [f"SLURM job {folder.name}" for folder, owner in self._folders() if not owner.is_here]

    def vacate(self, gpus: Sequence[str]) -> None:
        """See :meth:`allranks.engine.protocol.Engine.vacate`: SLURM leases its GPUs itself."""

    def reap(self) -> list[str]:
        """Cancel the jobs of this host's dead runs, and remove their folders."""
        reaped = []
        for folder, owner in self._folders():
            if owner.is_dead:
                with suppress(EngineError):
                    self._queue.cancel(folder.name)
                    remove_tree(folder)
                    reaped.append(f"SLURM job {folder.name}")
        return reaped

    def _folders(self) -> Iterator[tuple[Path, "_Owner"]]:
        for folder in sorted(self._spool.glob(f"*/{_OWNER}")):
            with suppress(OSError, ValueError, KeyError, TypeError):
                if folder.stat().st_uid == os.geteuid():
                    told = json.loads(folder.read_text(encoding="utf-8"))
                    yield folder.parent, _Owner(str(told["run"]), str(told["host"]))


@dataclass(frozen=True)
class _Owner:
    """The owner of a job's folder."""

    run_id: str
    host: str

    @property
    def is_here(self) -> bool:
        """Whether its lock is visible from here: else whether it lives is unknown."""
        return self.host == host_id()

    @property
    def is_dead(self) -> bool:
        """Whether it is certain to be dead."""
        return self.is_here and is_dead(self.run_id)


def _remove(folder: Path) -> None:
    """Remove a job's folder; a node that is just ending may write into it until then."""
    deadline = time.monotonic() + 2.0
    while folder.exists() and time.monotonic() < deadline:
        remove_tree(folder)
        if folder.exists():
            time.sleep(0.05)


def job_name(spec: JobSpec) -> str:
    """The name of an attempt's job and of its folder, unique among all of this user's jobs."""
    text = f"{spec.run_id}.{spec.job_id}.{spec.attempt}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"allranks-{re.sub(r'[^A-Za-z0-9.@-]+', '_', text)[:120]}-{digest}"


def script(spec: JobSpec, folder: Path, package: Path) -> str:
    """The batch script: a supervisor on each node, started at once; one that ends does not end the others."""
    supervisor = package / "allranks" / "harness" / "node_supervisor.py"
    step = [
        *("srun", "--no-kill", "--kill-on-bad-exit=0", "--input=none", "--export=ALL"),
        *(f"--nodes={spec.agent.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={_cores(spec)}"),
        f"--output={folder / 'srun.log'}",
        *(spec.python or "python3", "-I", "-S", str(supervisor), str(folder)),
    ]
    return f"#!/bin/sh\nexec {shlex.join(step)}\n"


def _cores(spec: JobSpec) -> int:
    """The cores that a job asks for on each of its nodes: those of the node with the most ranks."""
    return max(spec.resources_on(node).cpus for node in range(spec.agent.nodes))


def request(spec: JobSpec, folder: Path, settings: Slurm) -> list[str]:
    """The arguments of sbatch for a job. The user's own come last, and win."""
    agent = spec.agent
    memory = max(spec.resources_on(node).memory_bytes for node in range(agent.nodes)) >> 20
    # Our own limit begins when the job is placed; SLURM's is the last resort.
    minutes = math.ceil((spec.resources.seconds + agent.limits.assembly) / 60) + 2
    chosen = {"partition": settings.partition, "account": settings.account, "qos": settings.qos}
    return [
        *("--parsable", "--no-requeue", "--no-kill", "--export=ALL"),
        f"--job-name={folder.name}",
        f"--chdir={folder}",
        f"--output={folder / 'batch.log'}",
        *(f"--nodes={agent.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={_cores(spec)}"),
        *(f"--mem={memory}M", f"--time={minutes}"),
        *([f"--gpus-per-node={agent.gpu_count // agent.nodes}"] if agent.gpu_count else []),
        *(f"--{name}={value}" for name, value in chosen.items() if value),
        *settings.extra,
        str(folder / "job.sh"),
    ]
