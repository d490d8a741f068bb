"""The engine ``slurm``: submits each job with ``sbatch``, and reads its files in a folder that all nodes share."""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, Self

from allranks.agent.evidence import remove_tree
from allranks.engines.archive import check_links
from allranks.engines.base import Engine, Finding, JobEnvironment, JobSpec, Leftovers, MakeEnvironment, Progress
from allranks.engines.gpus import Inventory
from allranks.engines.package import copied_package
from allranks.errors import EngineAbsentError, EngineError
from allranks.matrix.model import Image, Matrix
from allranks.ownership import Owner, host_id
from allranks.plugins.slurm.agent.node_container import AgentFolders
from allranks.plugins.slurm.agent.node_files import NodeOrder, write_whole
from allranks.plugins.slurm.allocation import OWNER_HEARTBEAT, Allocation
from allranks.plugins.slurm.container import PYTHON, SECCOMP, agent_container, docker_options
from allranks.plugins.slurm.file_calls import call_in_thread
from allranks.plugins.slurm.keys import Slurm
from allranks.plugins.slurm.queue import SlurmQueue, without_slurm_variables
from allranks.plugins.slurm.settings import slurm_settings
from allranks.plugins.slurm.shared_folder_job import SharedFolderJob, job_environment, make_folder, running
from allranks.plugins.slurm.submission import job_name, request, script
from allranks.user_cache import cache_folder

_COMMANDS: Final = ("sbatch", "squeue", "scancel", "srun")

_PING: Final = 30.0
"""Seconds for the controller's answer."""

_UNBOUNDED: Final = 1_000_000_000
"""Cores, or MiB of memory: in effect no limit, because SLURM itself schedules its nodes."""

_OWNER: Final = "owner.json"
"""File in a job's folder: the run and the host of its orchestrator."""

_ANSWER: Final = 60.0
"""Seconds for the answer of the shared file system."""

_SUBMITTED: Final = "submitted"
"""File in the folder of a job that SLURM has accepted: SLURM's number for it."""


class SlurmEngine(Engine):
    """Submits jobs to the queue of a cluster, which gives them nodes and GPUs.

    Args:
        settings: ``[slurm]`` of the matrix file and of the user's file.
        package: A folder that this host and all nodes share: it holds the package ``allranks`` and nothing else. By
            default :meth:`prepare` copies it next to the jobs' folders.
    """

    name = "slurm"
    has_queue = True

    def __init__(self, settings: Slurm, package: Path | None = None) -> None:
        self._settings = settings
        self._package = package or Path()
        self._queue = SlurmQueue()

    @classmethod
    def detect(cls, *, is_requested: bool = True) -> Self:  # noqa: ARG003
        # The controller need not answer now: jobs can wait for it.
        missing = [command for command in _COMMANDS if shutil.which(command) is None]
        if missing:
            msg = "This host is not part of a SLURM cluster."
            remedy = "Run allranks on a host that can submit jobs."
            raise EngineAbsentError(msg, why=f"There is no {missing[0]} here.", remedy=remedy)
        return cls(slurm_settings())

    def prepare(self, matrix: Matrix, progress: Progress, _uses: ExitStack | None) -> MakeEnvironment:
        self._settings = slurm_settings(matrix)
        self.most_jobs = self._settings.jobs
        self._package = copied_package(self._spool / "package")
        if container := self._settings.container:
            return partial(in_container, container=container)
        from allranks.engines.process_environments import environment_of  # noqa: PLC0415 - clean-up does not need it

        return partial(environment_of, root=matrix.root, process=matrix.process, progress=progress)

    @property
    def _spool(self) -> Path:
        """The folder of the jobs' folders, which this host and all nodes share."""
        spool = self._settings.spool
        return Path(os.path.expandvars(spool)).expanduser() if spool else cache_folder() / "slurm"

    def capacity(self) -> tuple[int, int]:
        return _UNBOUNDED, _UNBOUNDED

    def check(self, _inventory: Inventory) -> Iterator[Finding]:
        yield _check_controller()
        yield _check_spool(self._spool)

    @contextmanager
    def start(self, spec: JobSpec, _held: Sequence[int] = ()) -> Iterator[SharedFolderJob]:
        folder = self._make_folder(spec)
        try:
            self._submit(spec, folder)
            with self._running(spec, folder) as job:
                yield job
        finally:
            _remove(folder)

    def adopt(self, spec: JobSpec) -> AbstractContextManager[SharedFolderJob] | None:
        """Take over a job of an earlier orchestrator of this run.

        A submitted job that runs only some of its tests is canceled instead: its results would be mistaken for those of
        the whole job.

        Raises:
            EngineError: It belongs to an orchestrator on another host that was alive less than a minute ago.
        """
        folder = self._spool / job_name(spec)
        if spec.agent.only is not None or not folder.is_dir():
            return None
        _reject_live_owner(folder)
        if not (folder / _SUBMITTED).exists() or not _is_whole(folder):  # SLURM may have accepted it anyway
            with suppress(EngineError):
                self._queue.cancel(folder.name)
            _remove(folder)
            return None
        return self._take_over(spec, folder)

    @contextmanager
    def _take_over(self, spec: JobSpec, folder: Path) -> Iterator[SharedFolderJob]:
        _claim(folder, _owner_json(spec))
        try:
            with self._running(spec, folder) as job:
                yield job
        finally:
            _remove(folder)

    @contextmanager
    def _running(self, spec: JobSpec, folder: Path) -> Iterator[SharedFolderJob]:
        number = (folder / _SUBMITTED).read_text(encoding="utf-8")
        self._queue.watch(folder.name)
        allocation = Allocation(self._queue, folder, f"SLURM job {number}", owner_file=folder / _OWNER)
        try:
            with running(allocation, spec) as job:
                yield job
        finally:
            self._queue.forget(folder.name)

    def _make_folder(self, spec: JobSpec) -> Path:
        folder = self._spool / job_name(spec)
        container = self._settings.container
        texts = {_OWNER: _owner_json(spec), "job.sh": script(spec, folder, self._package, container)}
        if container:
            check_links(spec.files)
            texts[SECCOMP.name] = SECCOMP.read_text(encoding="utf-8")
        order = NodeOrder(
            python=spec.python or "",
            code=str(spec.code),
            container=agent_container(container, AgentFolders(job=folder, code=spec.code, package=self._package)),
            options=docker_options(container, spec, folder),
        )
        make_folder(folder, spec, order, texts)
        return folder

    def _submit(self, spec: JobSpec, folder: Path) -> None:
        if spec.python is None:
            msg = f"job {spec.job_id} names no interpreter"
            raise EngineError(msg)
        variables = job_environment(spec, folder, self._package, without_slurm_variables(os.environ))
        if self._settings.container:  # no other folder of this host is mounted in it
            variables["PYTHONPATH"] = str(self._package)
        try:
            number = self._queue.submit(request(spec, folder, self._settings), variables)
            _note_submitted(folder, number)
        except EngineError:
            with suppress(EngineError):  # it may have accepted the job without answering in time
                self._queue.cancel(folder.name)
            raise

    def clean_up(self, *, is_dry_run: bool = False) -> Leftovers:
        """Cancel the jobs of this host's dead runs, and remove their folders."""
        dead, unknown = [], []
        for folder, owner in self._folders():
            if not owner.is_here:
                unknown.append(f"SLURM job {folder.name}")
            if owner.is_dead:
                with suppress(EngineError):
                    if not is_dry_run:
                        self._queue.cancel(folder.name)
                        remove_tree(folder)
                    dead.append(f"SLURM job {folder.name}")
        return Leftovers(dead, unknown)

    def _folders(self) -> Iterator[tuple[Path, Owner]]:
        for file in sorted(self._spool.glob(f"*/{_OWNER}")):
            with suppress(OSError, ValueError, KeyError, TypeError):
                if file.stat().st_uid == os.geteuid():
                    owner = json.loads(file.read_text(encoding="utf-8"))
                    yield file.parent, Owner(str(owner["run"]), str(owner["host"]))


def _owner_json(spec: JobSpec) -> str:
    is_whole = spec.agent.only is None
    return json.dumps({"host": host_id(), "name": socket.gethostname(), "run": spec.run_id, "is_whole": is_whole})


def _reject_live_owner(folder: Path) -> None:
    """Reject a job whose orchestrator is alive on another host; on this host, locks decide (allranks.ownership)."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        owner = json.loads((folder / _OWNER).read_text(encoding="utf-8"))
        silent = _server_time(folder) - (folder / _OWNER).stat().st_mtime
        if owner["host"] == host_id() or silent > 4 * OWNER_HEARTBEAT:
            return
        seen = f"{max(0.0, silent):.0f} s ago"
        msg = f"allranks on {owner['name']} is still running this run; its last sign of life was {seen}."
        why = f"Only one allranks process can control {folder.name}."
        raise EngineError(msg, why=why, remedy="If you killed that process, try again in a minute.")


def _server_time(folder: Path) -> float:
    """The time by the clock of the file server, which also sets the modification times of files."""
    probe = folder / f".now-{os.getpid()}"
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink()


def _claim(folder: Path, owner: str) -> None:
    """Take over the job of a dead orchestrator: of all processes on all hosts, the first to rename its file wins.

    The file is overwritten in place, because the spool may be full. Without it, other hosts would cancel the job.

    Raises:
        EngineError: Another process was first, or the file could not be changed.
    """
    claimed = folder / f".{_OWNER}.claimed"
    try:
        (folder / _OWNER).rename(claimed)
        with claimed.open("r+b") as file:
            file.truncate(file.write(owner.encode()))
        claimed.rename(folder / _OWNER)
    except FileNotFoundError as error:
        msg = f"Another allranks process has just taken over {folder.name}."
        why = "Only one allranks process can control a job."
        raise EngineError(msg, why=why, remedy="Let the other run continue.") from error
    except OSError as error:
        raise _not_writable(folder, error) from error


def _is_whole(folder: Path) -> bool:
    """Whether a job runs all of its tests; False if its folder does not have that information."""
    with suppress(OSError, ValueError, AttributeError):
        return json.loads((folder / _OWNER).read_text(encoding="utf-8")).get("is_whole") is True
    return False


def _note_submitted(folder: Path, number: str) -> None:
    try:
        write_whole(folder / _SUBMITTED, number)
    except OSError as error:
        raise _not_writable(folder, error) from error


def _not_writable(folder: Path, error: OSError) -> EngineError:
    msg = f"A job's folder could not be written to: {folder}."
    return EngineError(msg, why=str(error), remedy="Free some space there.")


def _remove(folder: Path) -> None:
    """Remove a job's folder, unless the shared file system hangs."""
    with suppress(OSError):
        call_in_thread(lambda: _remove_in_time(folder), _ANSWER)


def _remove_in_time(folder: Path) -> None:
    """Remove a job's folder; retry while a node that is just ending still writes into it."""
    deadline = time.monotonic() + 2.0
    while folder.exists() and time.monotonic() < deadline:
        remove_tree(folder)
        if folder.exists():
            time.sleep(0.05)


def in_container(_image: Image, *, container: str) -> JobEnvironment:
    """The environment of all cells with ``[slurm] container``: the container's own interpreter."""
    return JobEnvironment(image=container, python=PYTHON)


def _check_controller() -> Finding:
    try:
        ping = ("scontrol", "ping")
        done = subprocess.run(ping, capture_output=True, text=True, timeout=_PING, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("SLURM", f"scontrol ping failed ({error})", "Run scontrol ping.")
    is_up = "UP" in done.stdout
    text = "its controller answers" if is_up else "its controller does not answer; running jobs continue"
    return Finding("SLURM", text, "" if is_up else "Ask the administrators of the cluster.")


def _check_spool(folder: Path) -> Finding:
    present = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(present).free >> 30
    if not os.access(present, os.W_OK):
        return Finding("spool", f"{folder} is not writable", "Set another folder: [slurm] spool.")
    return Finding("spool", f"{free} GiB free in {folder}, which all nodes must see", "")
