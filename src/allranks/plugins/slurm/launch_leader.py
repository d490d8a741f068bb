"""Process 0 of a launch: waits for the others, gives nodes to jobs, and ends all with the run."""

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
from allranks.plugins.slurm.allocation import Allocation, Place
from allranks.plugins.slurm.launch_files import (
    LOOK_AGAIN,
    PACKAGE,
    SESSION,
    SHARE,
    LaunchedJob,
    Member,
    Pulse,
    Session,
    path_of,
    read_file,
    refuse_living,
    unusable,
    write,
)
from allranks.plugins.slurm.launch_follower import LaunchedNode
from allranks.plugins.slurm.shared_folder_job import (
    SharedFolderJob,
    last_change,
    make_folder,
    running,
    variables_of_job,
)
from allranks.plugins.slurm.submission import job_name

_DEAD: Final = 600.0
"""Seconds after the last sign of life of all processes of a launch until another one removes its folder."""

_FAREWELL: Final = 10.0
"""Seconds for the others to see how the run has ended."""


class LaunchLeader:
    """The nodes of a launch, and the queue of the jobs on several of them.

    A node other than this one runs one such job at a time; the jobs get their nodes in the order of their turns.

    Args:
        members: All processes, by rank.
        own: The node of this process.
        silence: Seconds without a sign of life after which a process counts as lost.
    """

    def __init__(self, members: Sequence[Member], own: LaunchedNode, silence: float) -> None:
        self.folder = folder = own.folder
        self.lost: set[int] = set()
        self._members = members
        self._ranks = elected(members)
        self._own = own
        self._pulses = {rank: Pulse(path_of(folder, rank), silence) for rank in self._ranks[1:]}
        self._jobs: dict[str, LaunchedJob] = {}
        self._changing = threading.Lock()
        self._session: Session | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="launch", daemon=True)

    @property
    def nodes(self) -> int:
        """How many nodes the launcher has."""
        return len(self._ranks)

    def start(self) -> None:
        """Begin the session."""
        self._thread.start()

    def submit(self, job: LaunchedJob) -> None:
        """Queue a job whose folder is complete."""
        with self._changing:
            self._jobs[job.name] = job

    def cancel(self, name: str) -> None:
        """Free the nodes of a job, whose supervisors end by what they see in its folder."""
        with self._changing:
            self._jobs.pop(name, None)

    def look(self, name: str) -> Place:
        with self._changing:
            job = self._jobs.get(name)
            if job is None:
                return Place(end="not in the queue")
            hosts = ", ".join(self._members[rank].host for rank in job.ranks or sorted(self.lost))
            if job.ranks:
                return Place(nodes=hosts, is_running=True)
            if job.nodes > self.nodes - len(self.lost):
                return Place(end="too large for the nodes that are left", cause=f"lost a node ({hosts})")
            return Place(waiting=f"queued (waits for {job.nodes} of {counted(self.nodes, 'node')})")

    def cause_at_end(self, _name: str) -> str:
        """See :meth:`allranks.plugins.slurm.allocation.Queue.cause_at_end`: a job that has nodes ends by itself."""
        return ""

    def _run(self) -> None:
        """Follow the others until the session ends. The supervisors of this node are children of this thread."""
        while not self._is_closing.is_set():
            self._own.beat()
            self._look_for_lost()
            with self._changing:
                self._place()
                jobs = tuple(job for job in self._jobs.values() if job.ranks)
            session = Session(nonces=nonces_of(self._members), jobs=jobs)
            if session != self._session:
                with suppress(OSError):  # the disk is full for now
                    write(self.folder / SESSION, session)
                    self._session = session
            self._own.follow(jobs)
            self._is_closing.wait(LOOK_AGAIN)
        self._own.close()

    def _look_for_lost(self) -> None:
        for rank, pulse in self._pulses.items():
            if rank not in self.lost and (pulse.is_lost() or is_gone(path_of(self.folder, rank))):
                self.lost.add(rank)

    def _place(self) -> None:
        """Give nodes to the jobs that have their turn, the first one first."""
        busy = {rank for job in self._jobs.values() for rank in job.ranks}
        living = [rank for rank in self._ranks[1:] if rank not in self.lost]
        free = [rank for rank in living if rank not in busy]
        for name, job in self._jobs.items():
            others = job.nodes - 1
            if job.ranks or others > len(living) or not is_there(self.folder / name / GO):
                continue
            if others > len(free):
                return
            self._jobs[name] = replace(job, ranks=(0, *free[:others]))
            free = free[others:]

    def close(self) -> None:
        """End the supervisors of this node, and begin no more."""
        self._is_closing.set()
        if self._thread.is_alive():  # an interrupt may come before it was started
            self._thread.join()


class LaunchEngine(ProcessEngine):
    """Runs the jobs of one node here, and spreads the others over the nodes of a launch.

    Args:
        leader: The session with the launcher's other processes.
    """

    def __init__(self, leader: LaunchLeader) -> None:
        super().__init__()
        self._leader = leader
        self._shared_package = Path()  # a folder that all nodes share, with the package ``allranks`` and nothing else
        self.nodes = leader.nodes
        self.answer = f"inside a launcher's {counted(self.nodes, 'node')}"

    def prepare(self, matrix: Matrix, progress: Progress, uses: ExitStack | None) -> MakeEnvironment:
        if self.nodes > 1:
            self._shared_package = copied_package(self._leader.folder / PACKAGE)
        return super().prepare(matrix, progress, uses)

    @contextmanager
    def start(self, spec: JobSpec, held: Sequence[int] = ()) -> Iterator[RunningJob]:
        started = self._spread(spec) if min(spec.agent.nodes, self.nodes) > 1 else super().start(spec, held)
        with started as job:
            yield job

    @contextmanager
    def _spread(self, spec: JobSpec) -> Iterator[SharedFolderJob]:
        """Start a job on several nodes, one agent on each."""
        folder = self._leader.folder / job_name(spec)
        variables = variables_of_job(spec, folder, self._shared_package, {})
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


def elected(members: Sequence[Member]) -> tuple[int, ...]:
    """The ranks of the processes that stand for their nodes: process 0, and each other node's local rank 0.

    Where the launcher does not report local ranks, a node's first process stands for it.
    """
    first = {member.place: member.rank for member in reversed(members)}
    return tuple(
        member.rank
        for member in members
        if member.rank == 0
        or (first[member.place] == member.rank if member.local_rank is None else member.local_rank == 0)
    )


def nonces_of(members: Sequence[Member | None]) -> tuple[str, ...]:
    """The nonces of processes; an empty one for each that has not come."""
    return tuple(member.nonce if member else "" for member in members)


def lead(node: LaunchedNode, world_size: int, limits: Limits, run: Callable[[LaunchLeader], ExitCode]) -> ExitCode:
    """Wait for all other processes, do the run, and end them with its exit code.

    Args:
        node: The node of this process.
        world_size: The number of processes.
        limits: Those of the matrix file.
        run: Does the run.

    Raises:
        EngineError: Some have not come in time, or the folder cannot be used.
    """
    refuse_living(node.path)
    members: list[Member | None] = [node.member, *[None] * (world_size - 1)]
    leader: LaunchLeader | None = None
    code = ExitCode.INFRASTRUCTURE
    try:
        leader = LaunchLeader(_assemble(node, members, limits.assembly), node, limits.silence)
        leader.start()
        code = run(leader)
    except AllranksError as error:
        code = error.exit_code
        raise
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
        raise
    finally:
        # The launcher may end all processes as soon as the first one has ended.
        with ignore_signals():
            if leader is not None:
                leader.close()
            others = {member.rank for member in members[1:] if member} - (leader.lost if leader else set())
            _dismiss(node.folder, Session(nonces=nonces_of(members), exit_code=int(code)), others)
    return code


def _assemble(node: LaunchedNode, members: list[Member | None], limit: float) -> list[Member]:
    """Wait some seconds for the files of all processes in the folder, which is emptied first; add what comes.

    Raises:
        EngineError: Some have not come in time, or the folder cannot be used.
    """
    folder, deadline = node.folder, time.monotonic() + limit
    try:
        remove_tree(folder)  # of an earlier launch of this name; a process that is early writes its file again
        write(node.path, node.member)
        _remove_dead(folder)
    except OSError as error:
        raise unusable(folder, error) from error
    while missing := [rank for rank, member in enumerate(members) if member is None]:
        if time.monotonic() > deadline:
            told = ", ".join(map(str, missing[:12])) + (" …" if len(missing) > 12 else "")
            msg = f"Of {len(members)} processes of the launcher, some left no file in {folder}: {told}."
            raise EngineError(msg, why=f"Process 0 looked for {limit:g} s (limits.assembly).", remedy=SHARE)
        for rank in missing:
            members[rank] = read_file(path_of(folder, rank), Member)
        time.sleep(LOOK_AGAIN / 5)
    return [member for member in members if member]


def _remove_dead(own: Path) -> None:
    """Remove the folders of launches whose processes were all killed at one time."""
    prefix, _, _ = own.name.rpartition("-")
    now = path_of(own, 0).stat().st_mtime  # by the clock of the file server
    for folder in own.parent.glob(f"{prefix}-*"):
        with suppress(OSError):
            files = [*folder.glob("*.json")] or [folder]  # a launch that is just beginning has none
            if all(now - path.stat().st_mtime > _DEAD for path in files):
                remove_tree(folder)


def _dismiss(folder: Path, session: Session, others: set[int]) -> None:
    """Tell others how the run has ended, wait until they have left, and remove the folder."""
    with suppress(OSError):
        write(folder / SESSION, session)
    deadline = time.monotonic() + _FAREWELL
    while others and time.monotonic() < deadline:
        others = {rank for rank in others if last_change(path_of(folder, rank)) is not None}
        time.sleep(LOOK_AGAIN / 5)
    remove_tree(folder)
