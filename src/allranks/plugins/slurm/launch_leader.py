"""Process 0 of a launch: waits for the other processes, assigns nodes to jobs, and ends all with the run."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from allranks.agent.evidence import remove_tree
from allranks.engines.base import JobSpec, MakeEnvironment, Progress, RunningJob
from allranks.engines.package import copied_package
from allranks.engines.process import ProcessEngine
from allranks.errors import AllranksError, EngineError, ExitCode, counted
from allranks.interruption import ignore_signals
from allranks.matrix.model import Limits, Matrix
from allranks.plugins.slurm.agent.node_files import GO, NodeOrder, is_gone, is_there
from allranks.plugins.slurm.allocation import Allocation, JobStatus
from allranks.plugins.slurm.launch_files import (
    PACKAGE,
    POLL_INTERVAL,
    SESSION,
    SHARE_REMEDY,
    HeartbeatMonitor,
    LaunchedJob,
    Member,
    Session,
    member_path,
    read_file,
    reject_running_launch,
    unusable_folder,
    write,
)
from allranks.plugins.slurm.launch_follower import LaunchedNode
from allranks.plugins.slurm.shared_folder_job import (
    SharedFolderJob,
    job_environment,
    last_change,
    make_folder,
    running,
)
from allranks.plugins.slurm.submission import job_name

_DEAD: Final = 600.0
"""Seconds after the last heartbeat of all processes of a launch until another launch removes its folder."""

_EXIT_TIMEOUT: Final = 10.0
"""Seconds for the other processes to read the exit code and end."""


class LaunchLeader:
    """The nodes of a launch, and the queue of the jobs on several of them.

    Each other node runs one such job at a time. Jobs that may start get their nodes in the order of submission.

    Args:
        members: All processes, by rank.
        own: The node of this process.
        silence: Seconds without a heartbeat after which a process counts as lost.
    """

    def __init__(self, members: Sequence[Member], own: LaunchedNode, silence: float) -> None:
        self.folder = folder = own.folder
        self.lost: set[int] = set()
        self._members = members
        self._ranks = node_leaders(members)
        self._own = own
        self._followers = {rank: HeartbeatMonitor(member_path(folder, rank), silence) for rank in self._ranks[1:]}
        self._jobs: dict[str, LaunchedJob] = {}
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="launch", daemon=True)

    @property
    def nodes(self) -> int:
        """The number of the launcher's nodes."""
        return len(self._ranks)

    def start(self) -> None:
        """Start the session."""
        self._thread.start()

    def submit(self, job: LaunchedJob) -> None:
        """Queue a job whose folder is complete."""
        with self._lock:
            self._jobs[job.name] = job

    def cancel(self, name: str) -> None:
        """Free the nodes of a job; its supervisors end when they see the stop file, or that the folder is gone."""
        with self._lock:
            self._jobs.pop(name, None)

    def status(self, name: str) -> JobStatus:
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                return JobStatus(end="not in the queue")
            hosts = ", ".join(self._members[rank].host for rank in job.ranks or sorted(self.lost))
            if job.ranks:
                return JobStatus(nodes=hosts, is_running=True)
            if job.nodes > self.nodes - len(self.lost):
                return JobStatus(end="too large for the nodes that are left", cause=f"lost a node ({hosts})")
            return JobStatus(waiting=f"queued (waits for {job.nodes} of {counted(self.nodes, 'node')})")

    def cause_at_end(self, _name: str) -> str:
        return ""  # the launcher ends no single job

    def _run(self) -> None:
        """Monitor the other processes until the session ends. This thread also starts the supervisors of this node."""
        while not self._is_closing.is_set():
            self._own.heartbeat()
            self._find_lost()
            with self._lock:
                self._assign_nodes()
                jobs = tuple(job for job in self._jobs.values() if job.ranks)
            session = Session(nonces=nonces_of(self._members), jobs=jobs)
            if session != self._session:
                with suppress(OSError):  # the disk is full for now
                    write(self.folder / SESSION, session)
                    self._session = session
            self._own.update_jobs(jobs)
            self._is_closing.wait(POLL_INTERVAL)
        self._own.close()

    def _find_lost(self) -> None:
        for rank, follower in self._followers.items():
            if rank not in self.lost and (follower.is_lost() or is_gone(member_path(self.folder, rank))):
                self.lost.add(rank)

    def _assign_nodes(self) -> None:
        """Assign nodes to the jobs that may start, in the order of submission."""
        busy = {rank for job in self._jobs.values() for rank in job.ranks}
        alive = [rank for rank in self._ranks[1:] if rank not in self.lost]
        free = [rank for rank in alive if rank not in busy]
        for name, job in self._jobs.items():
            others = job.nodes - 1
            if job.ranks or others > len(alive) or not is_there(self.folder / name / GO):
                continue
            if others > len(free):
                return
            self._jobs[name] = replace(job, ranks=(0, *free[:others]))
            free = free[others:]

    def close(self) -> None:
        """End the supervisors of this node, and start no more."""
        self._is_closing.set()
        if self._thread.is_alive():  # an interrupt may arrive before the start
            self._thread.join()


class LaunchEngine(ProcessEngine):
    """Runs jobs on one node here, and distributes larger jobs over the nodes of a launch."""

    def __init__(self, leader: LaunchLeader) -> None:
        super().__init__()
        self._leader = leader
        self._shared_package = Path()  # a folder that all nodes share: it holds the package ``allranks``
        self.nodes = leader.nodes
        self.answer = f"inside a launcher's {counted(self.nodes, 'node')}"

    def prepare(self, matrix: Matrix, progress: Progress, uses: ExitStack | None) -> MakeEnvironment:
        if self.nodes > 1:
            self._shared_package = copied_package(self._leader.folder / PACKAGE)
        return super().prepare(matrix, progress, uses)

    @contextmanager
    def start(self, spec: JobSpec, held: Sequence[int] = ()) -> Iterator[RunningJob]:
        is_distributed = min(spec.agent.nodes, self.nodes) > 1
        with self._start_distributed(spec) if is_distributed else super().start(spec, held) as job:
            yield job

    @contextmanager
    def _start_distributed(self, spec: JobSpec) -> Iterator[SharedFolderJob]:
        """Start a job with one agent on each of several nodes."""
        folder = self._leader.folder / job_name(spec)
        variables = job_environment(spec, folder, self._shared_package, {})
        job = LaunchedJob(
            name=folder.name,
            nodes=spec.agent.nodes,
            python=spec.python or "",
            package=str(self._shared_package),
            variables=tuple(f"{name}={value}" for name, value in variables.items()),
            gpus=tuple(spec.gpus),
            gpu_count=spec.agent.gpu_count,
        )
        make_folder(folder, spec, NodeOrder(python=job.python, code=str(spec.code)), {})
        self._leader.submit(job)
        try:
            with running(Allocation(self._leader, folder), spec) as started:
                yield started
        finally:
            self._leader.cancel(folder.name)
            remove_tree(folder)


def node_leaders(members: Sequence[Member]) -> tuple[int, ...]:
    """The ranks of the processes that serve their nodes: process 0, and local rank 0 of each other node.

    If the launcher does not report local ranks, the first process of each node serves it.
    """
    first = {member.node_id: member.rank for member in reversed(members)}
    return tuple(
        member.rank
        for member in members
        if member.rank == 0
        or (first[member.node_id] == member.rank if member.local_rank is None else member.local_rank == 0)
    )


def nonces_of(members: Sequence[Member | None]) -> tuple[str, ...]:
    """The nonces of processes; empty for a process that has not joined."""
    return tuple(member.nonce if member else "" for member in members)


def lead(node: LaunchedNode, world_size: int, limits: Limits, run: Callable[[LaunchLeader], ExitCode]) -> ExitCode:
    """Wait for all other processes, run, and end them with the run's exit code.

    Raises:
        EngineError: Some have not joined in time, or the folder cannot be used.
    """
    reject_running_launch(node.path)
    members: list[Member | None] = [node.member, *[None] * (world_size - 1)]
    leader: LaunchLeader | None = None
    code = ExitCode.INFRASTRUCTURE
    try:
        leader = LaunchLeader(_wait_for_members(node, members, limits.assembly), node, limits.silence)
        leader.start()
        code = run(leader)
    except AllranksError as error:
        code = error.exit_code
        raise
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
        raise
    finally:
        # The launcher may kill all processes as soon as the first one has ended.
        with ignore_signals():
            if leader is not None:
                leader.close()
            others = {member.rank for member in members[1:] if member} - (leader.lost if leader else set())
            _end_others(node.folder, Session(nonces=nonces_of(members), exit_code=int(code)), others)
    return code


def _wait_for_members(node: LaunchedNode, members: list[Member | None], limit: float) -> list[Member]:
    """Empty the folder, then wait for the files of all processes, and add them to `members`.

    Raises:
        EngineError: Some have not joined in time, or the folder cannot be used.
    """
    folder, deadline = node.folder, time.monotonic() + limit
    try:
        remove_tree(folder)  # of an earlier launch of this name; a process that was early writes its file again
        write(node.path, node.member)
        _remove_dead(folder)
    except OSError as error:
        raise unusable_folder(folder, error) from error
    while missing := [rank for rank, member in enumerate(members) if member is None]:
        if time.monotonic() > deadline:
            ranks = ", ".join(map(str, missing[:12])) + (" …" if len(missing) > 12 else "")
            msg = f"{len(missing)} of {len(members)} processes of the launcher left no file in {folder}: {ranks}."
            raise EngineError(msg, why=f"Process 0 waited for {limit:g} s (limits.assembly).", remedy=SHARE_REMEDY)
        for rank in missing:
            members[rank] = read_file(member_path(folder, rank), Member)
        time.sleep(POLL_INTERVAL / 5)
    return [member for member in members if member]


def _remove_dead(own: Path) -> None:
    """Remove the folders of launches whose processes were all killed at once."""
    prefix, _, _ = own.name.rpartition("-")
    now = member_path(own, 0).stat().st_mtime  # by the clock of the file server
    for folder in own.parent.glob(f"{prefix}-*"):
        with suppress(OSError):
            files = [*folder.glob("*.json")] or [folder]  # a launch that is just starting has no files
            if all(now - path.stat().st_mtime > _DEAD for path in files):
                remove_tree(folder)


def _end_others(folder: Path, session: Session, others: set[int]) -> None:
    """Publish the exit code, wait until the other processes have ended, and remove the folder."""
    with suppress(OSError):
        write(folder / SESSION, session)
    deadline = time.monotonic() + _EXIT_TIMEOUT
    while others and time.monotonic() < deadline:
        others = {rank for rank in others if last_change(member_path(folder, rank)) is not None}
        time.sleep(POLL_INTERVAL / 5)
    remove_tree(folder)
