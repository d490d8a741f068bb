"""Process 0 of a launch: waits for the others, gives nodes to jobs, and ends all with the run."""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from allranks.agent.evidence import remove_tree
from allranks.agent.node_files import GO, is_there
from allranks.engines.launch_files import (
    BEAT,
    LOOK_AGAIN,
    SESSION,
    Member,
    PlacedJob,
    Pulse,
    Session,
    path_of,
    read_file,
    refuse_living,
    write,
)
from allranks.engines.launched_node import LaunchedNode
from allranks.engines.slurm_queue import QueuedJob, Sighting
from allranks.errors import AllranksError, EngineError, ExitCode, counted
from allranks.interruption import deaf

_DEAD: Final = 600.0
"""Seconds after the last sign of life of all processes of a launch until another one removes its folder."""

_FAREWELL: Final = 10.0
"""Seconds for the others to see how the run has ended."""


@dataclass
class _Entry:
    """A submitted job: how many nodes it needs, those that it has, and its state in SLURM's words."""

    nodes: int
    ranks: tuple[int, ...] = ()
    state: str = "PENDING"


class LaunchLeader:
    """The nodes of a launch, and the queue of the jobs on several of them.

    A node other than this one runs one such job at a time; the jobs get their nodes in the order of their turns.

    Args:
        folder: The folder that all processes of the launch share.
        members: All of them, by rank.
        own: The supervisors of this node.
        silence: Seconds without a sign of life after which a process counts as dead.
    """

    def __init__(self, folder: Path, members: Sequence[Member], own: LaunchedNode, silence: float) -> None:
        self.folder = folder
        self._members = {member.rank: member for member in members}
        self._own = own
        now = time.monotonic()
        self._pulses = {member.rank: Pulse(silence, now) for member in members[1:]}
        self._lost: set[int] = set()
        self._entries: dict[str, _Entry] = {}
        self._changed = threading.Condition()
        self._session = Session(nonces=tuple(member.nonce for member in members), nodes=elected(members))
        self._is_closing = False
        self._next_beat = now
        self._thread = threading.Thread(target=self._run, name="launch", daemon=True)

    @property
    def nodes(self) -> int:
        """How many nodes the launcher has."""
        return len(self._session.nodes)

    def start(self) -> None:
        """Begin the session."""
        self._thread.start()

    def submit(self, name: str, nodes: int) -> None:
        """Queue a job whose folder, of that name, is complete."""
        with self._changed:
            self._entries[name] = _Entry(nodes)

    def look(self, name: str) -> Sighting:
        """See :meth:`allranks.engines.allocation.Queue.look`."""
        with self._changed:
            entry = self._entries.get(name)
            if entry is None:
                return Sighting(absences=2, answered=time.monotonic())
            hosts = ", ".join(self._members[rank].host for rank in entry.ranks or sorted(self._lost))
            why = f"waits for {entry.nodes} of {counted(self.nodes, 'node')}"
            job = QueuedJob(number="", state=entry.state, reason=why, nodes=hosts)
        return Sighting(job=job, last=job, answered=time.monotonic())

    def look_at_end(self, name: str) -> Sighting:
        """See :meth:`allranks.engines.allocation.Queue.look_at_end`."""
        return self.look(name)

    def cancel(self, name: str) -> None:
        """See :meth:`allranks.engines.allocation.Queue.cancel`."""
        with self._changed:
            if entry := self._entries.get(name):
                entry.state = "CANCELLED"

    def forget(self, name: str) -> None:
        """Free the nodes of a job."""
        with self._changed:
            self._entries.pop(name, None)

    def _run(self) -> None:
        """Follow the others until the session ends. The supervisors of this node are children of this thread."""
        while True:
            with self._changed:
                self._look_at_members()
                self._place()
                self._say()
                session, is_over = self._session, self._is_closing
            if is_over:
                self._own.close()
                return
            self._own.follow(session)
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing, LOOK_AGAIN)

    def _look_at_members(self) -> None:
        now = time.monotonic()
        for rank in self._session.nodes[1:]:
            if rank not in self._lost:
                member = read_file(path_of(self.folder, rank), Member)
                has_left = member is not None and member.has_left
                if self._pulses[rank].is_lost(member.beat if member else None, now) or has_left:
                    self._lost.add(rank)

    def _place(self) -> None:
        """Give nodes to the jobs that have their turn, the first one first."""
        living = [rank for rank in self._session.nodes if rank not in self._lost]
        waiting = [(name, entry) for name, entry in self._entries.items() if entry.state == "PENDING"]
        for _, entry in waiting:
            if entry.nodes > len(living):
                entry.state = "NODE_FAIL"
        busy = {rank for entry in self._entries.values() for rank in entry.ranks}
        for name, entry in waiting:
            if entry.state != "PENDING" or not is_there(self.folder / name / GO):
                continue
            free = [rank for rank in living[1:] if rank not in busy]
            if len(free) < entry.nodes - 1:
                return
            entry.ranks = (0, *free[: entry.nodes - 1])
            entry.state = "RUNNING"
            busy.update(entry.ranks)

    def _say(self) -> None:
        """Write what is new, or a sign of life."""
        jobs = tuple(
            PlacedJob(name=name, ranks=entry.ranks) for name, entry in self._entries.items() if entry.state == "RUNNING"
        )
        now = time.monotonic()
        if jobs != self._session.jobs or now >= self._next_beat:
            self._session = replace(self._session, jobs=jobs, beat=self._session.beat + 1)
            self._next_beat = now + BEAT
            with suppress(OSError):  # the disk is full for now
                write(self.folder / SESSION, self._session)

    def close(self, code: ExitCode) -> None:
        """Tell the others how the run has ended, wait until they have seen it, and remove the folder."""
        with self._changed:
            self._is_closing = True
            self._entries.clear()
            self._changed.notify_all()
        self._thread.join()
        others = [member for member in self._members.values() if member.rank not in self._lost]
        dismiss(self.folder, replace(self._session, jobs=(), exit_code=int(code)), others)


def dismiss(folder: Path, session: Session, members: Iterable[Member]) -> None:
    """Tell others how the run has ended, wait until they have seen it, and remove the folder."""
    with suppress(OSError):
        write(folder / SESSION, session)
    others = {member.rank for member in members} - {0}
    deadline = time.monotonic() + _FAREWELL
    while others and time.monotonic() < deadline:
        there = {rank: read_file(path_of(folder, rank), Member) for rank in others}
        others = {rank for rank, member in there.items() if member is None or not member.has_left}
        time.sleep(LOOK_AGAIN / 5)
    remove_tree(folder)


def elected(members: Sequence[Member]) -> tuple[int, ...]:
    """The ranks of the processes that stand for their nodes: process 0, and each other node's local rank 0.

    Where the launcher does not say local ranks, a node's first process stands for it.
    """
    first = {member.place: member.rank for member in reversed(members)}
    local = [member.local_rank for member in members]
    return tuple(
        member.rank
        for member, own in zip(members, local, strict=True)
        if member.rank == 0 or (own == 0 if own is not None else first[member.place] == member.rank)
    )


def assemble(folder: Path, own: Member, world_size: int, limit: float) -> list[Member]:
    """Wait for the files of all processes, for some seconds, in a folder that has no others.

    Raises:
        EngineError: Some have not come in time, or the folder cannot be used.
    """
    refuse_living(folder / SESSION, Session)
    found = {own.rank: own}
    ending = LaunchEnding()
    try:
        remove_tree(folder)  # of an earlier launch of this name; a process that is early writes its file again
        write(path_of(folder, own.rank), own)
        _forget_dead(folder)
        _find(folder, found, world_size, limit)
    except OSError as error:
        raise unusable(folder, error) from error
    except KeyboardInterrupt:
        ending.code = ExitCode.INTERRUPTED
        raise
    finally:
        if len(found) < world_size:
            nonces = tuple(found[rank].nonce if rank in found else "" for rank in range(world_size))
            with deaf():
                dismiss(folder, Session(nonces=nonces, nodes=(), exit_code=int(ending.code)), found.values())
    return [found[rank] for rank in range(world_size)]


def _forget_dead(own: Path) -> None:
    """Remove the folders of launches whose processes were all killed at one time."""
    prefix, _, _ = own.name.rpartition("-")
    now = path_of(own, 0).stat().st_mtime  # by the clock of the file server
    for folder in own.parent.glob(f"{prefix}-*"):
        with suppress(OSError):
            files = [*folder.glob("*.json")] or [folder]  # a launch that is just beginning has none
            if all(now - path.stat().st_mtime > _DEAD for path in files):
                remove_tree(folder)


def _find(folder: Path, found: dict[int, Member], world_size: int, limit: float) -> None:
    """Add the processes that come within this limit, in seconds.

    Raises:
        EngineError: Some have not come.
    """
    deadline = time.monotonic() + limit
    while len(found) < world_size:
        missing = [rank for rank in range(world_size) if rank not in found]
        if time.monotonic() > deadline:
            told = ", ".join(map(str, missing[:12])) + (" …" if len(missing) > 12 else "")
            msg = f"Of {world_size} processes of the launcher, some left no file in {folder}: {told}."
            raise EngineError(msg, why=f"Process 0 looked for {limit:g} s (limits.assembly).", remedy=SHARE)
        for rank in missing:
            if (member := read_file(path_of(folder, rank), Member)) and not member.has_left:
                found[rank] = member
        time.sleep(LOOK_AGAIN / 5)


SHARE: Final = "Name a folder that all nodes of the launcher share: --results DIR."


def unusable(folder: Path, error: OSError) -> EngineError:
    """The error of a folder that cannot be written."""
    msg = f"The processes of the launcher cannot meet in {folder}."
    return EngineError(msg, why=f"{error.strerror or error}.", remedy=SHARE)


@contextmanager
def leading(leader: LaunchLeader) -> Iterator["LaunchEnding"]:
    """Lead the session until the context ends; the others end with the exit code that it has then."""
    ending = LaunchEnding()
    leader.start()
    try:
        yield ending
    except AllranksError as error:
        ending.code = error.exit_code
        raise
    except KeyboardInterrupt:
        ending.code = ExitCode.INTERRUPTED
        raise
    finally:
        # The launcher may end all processes as soon as the first one has ended.
        with deaf():
            leader.close(ending.code)


@dataclass
class LaunchEnding:
    """How a run ends."""

    code: ExitCode = ExitCode.INFRASTRUCTURE
