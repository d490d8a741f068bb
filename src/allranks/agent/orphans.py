"""Kills processes that outlive the rank that started them, except resource trackers."""

import re
import secrets
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Self

from allranks.agent import clock, linux

REAP_TIMEOUT = 2.0
"""Seconds to wait for the exit status of a process: its debugger gets the status first, and may keep it."""

_ORPHANS_TIMEOUT = 10.0
"""Seconds to kill all orphans of a gang, which may start new ones; the rest ends with the job's container or host."""

_RESOURCE_TRACKERS = re.compile(r"multiprocessing\.resource_tracker|(^|/)torch_shm_manager\b")
"""Command lines of processes that remove shared memory after all their clients have ended, and then exit."""

_SERVERS = re.compile(r"from multiprocessing\.forkserver import main|'allranks\.warm_server'")
"""Command lines of processes that fork processes for ``multiprocessing``."""

_RESOURCE_TRACKER_TIMEOUT = 3.0
"""Seconds for resource trackers to exit; ``torch_shm_manager`` waits for 2 s before it begins (torch 2.13)."""


@dataclass(frozen=True, kw_only=True)
class KilledOrphan:
    """A process that outlived the rank that started it, and was killed."""

    rank: int | None  # the rank that started it; None if unknown
    pid: int
    command: str  # its command line
    has_survived: bool = False  # it could not be killed: another user's, or blocked in the kernel


GANG_VARIABLE = "ALLRANKS_GANG_MARK"
LAUNCH_VARIABLE = "ALLRANKS_LAUNCH_MARK"
"""The environment variables with the marks of a gang's ranks, and of ranks that a test has launched."""

_OWNER = 16
NOBODY = f"{'0' * _OWNER}-00000"
"""The mark in the environment of a process that forks ranks; the ranks overwrite it."""


@dataclass(frozen=True)
class Mark:
    """An environment variable that identifies ranks that end together, and all processes that they start.

    Processes inherit the variable. Forks also inherit the memory of their rank, from which the kernel shows the initial
    environment.

    Args:
        variable: The name of the variable.
        owner: A unique name of the gang or launch, of 16 characters.
    """

    variable: str
    owner: str

    @classmethod
    def of_gang(cls, number: int) -> Self:
        """The mark of the gang with this number in its job."""
        return cls(GANG_VARIABLE, f"{number:0{_OWNER}}")

    @classmethod
    def of_launch(cls) -> Self:
        """A unique mark for a launch."""
        return cls(LAUNCH_VARIABLE, secrets.token_hex(_OWNER // 2))

    def environment(self, rank: int) -> dict[str, str]:
        """The variable of a rank."""
        return {self.variable: f"{self.owner}-{rank:05}"}

    def rank_of(self, pid: int) -> int | None:
        """The rank of a process with this mark; None without it."""
        owner, rank = _marked(pid, self.variable)
        return rank if owner == self.owner else None

    def covers(self, pid: int, ranks: Collection[int]) -> bool:
        """Whether a process has this mark, or has no mark and is in a session of these ranks."""
        owner = owner_of(pid, self.variable)
        return owner == self.owner if owner else linux.session_of(pid) in ranks


def owner_of(pid: int, variable: str) -> str:
    """The owner in a mark of a process; empty for no mark."""
    return _marked(pid, variable)[0]


def _marked(pid: int, variable: str) -> tuple[str, int]:
    """The owner and the rank in a mark of a process; an empty owner for no mark."""
    prefix = f"{variable}="
    value = next((line.removeprefix(prefix) for line in linux.variables_of(pid) if line.startswith(prefix)), "")
    owner, _, rank = value.partition("-")
    return (owner, int(rank)) if rank.isdecimal() and value != NOBODY else ("", 0)


def show_marks(environment: Mapping[str, str]) -> None:
    """Write the marks among these variables into the initial environment of this process, which its forks inherit."""
    for variable in (GANG_VARIABLE, LAUNCH_VARIABLE):
        if variable in environment:
            linux.overwrite_variable(variable, environment[variable])


Orphans = Callable[[Collection[int]], Collection[int]]
"""Finds the children of this process that the processes with these ids left behind."""


def kill_group(leader: int) -> bool:
    """KILL a process group at once, except for resource trackers; False if there is no such group."""
    # A stopped group starts no more processes, and uses no CPU time.
    if not linux.signal_group(leader, signal.SIGSTOP):
        return False
    members = linux.members(leader)
    trackers = {pid for pid in members if _is_resource_tracker(pid)}
    if not trackers:
        return linux.signal_group(leader, signal.SIGKILL)
    for pid in members - trackers:
        linux.signal_process(pid, signal.SIGKILL)
    for pid in trackers:
        linux.signal_process(pid, signal.SIGCONT)
    return True


def kill_orphans(
    orphans: Orphans, ranks: Mapping[int, int], stopped: Collection[int], mark: Mark | None = None
) -> list[KilledOrphan]:
    """Kill and reap processes that outlived ranks and were adopted by this process, a subreaper.

    Resource trackers may continue until :func:`end_children`.

    Args:
        orphans: Finds the processes.
        ranks: The number of each rank, by its process id.
        stopped: The process ids of ranks and other session leaders whose orphans are not reported: all processes of
            their sessions were stopped.
        mark: The mark of the ranks.
    """
    pids = {number: pid for pid, number in ranks.items()}
    left: list[KilledOrphan] = []
    tried: set[int] = set()
    deadline = clock.monotonic() + _ORPHANS_TIMEOUT
    while clock.monotonic() < deadline:
        found = {pid for pid in set(orphans(ranks)) - tried - set(ranks) if not _is_resource_tracker(pid)}
        if not found:
            break
        described = {pid: linux.describe(pid) for pid in found}
        marks = {pid: mark.rank_of(pid) for pid in found} if mark else {}
        idle = {pid for pid, process in described.items() if process and _is_idle_server(pid, process)}
        for leader in {process.session for process in described.values() if process} & ranks.keys():
            # As a group, because they might start processes faster than these can be killed one by one.
            kill_group(leader)
        survivors = _kill_all(found)
        for pid, process in described.items():
            if process is None or pid in idle:
                continue
            number = marks.get(pid)
            leader = process.session if number is None else pids.get(number, 0)
            if not {leader, process.session} & set(stopped):
                survived = pid in survivors
                left.append(
                    KilledOrphan(rank=ranks.get(leader), pid=pid, command=process.command, has_survived=survived)
                )
        tried |= found
    return left


def end_children() -> None:
    """Kill the remaining children of this process at the end of a job, such as orphans without a mark."""
    tried: set[int] = set()
    begun = clock.monotonic()
    deadline = begun + _RESOURCE_TRACKER_TIMEOUT
    while clock.monotonic() < begun + _ORPHANS_TIMEOUT and (left := linux.children() - tried):
        # Resource trackers come last: they exit by themselves after their clients have ended.
        trackers = {pid for pid in left if _is_resource_tracker(pid)}
        for pid in sorted(left, key=trackers.__contains__):
            if pid in trackers and linux.reap(pid, deadline - clock.monotonic()) is not None:
                continue
            if _kill_all([pid]) and (process := linux.describe(pid)):
                print(f"process {pid} could not be killed: {process.command}", file=sys.stderr)
        tried |= left


def _kill_all(pids: Collection[int]) -> set[int]:
    """KILL and reap children of this process; return those that survive: another user's, or blocked in the kernel."""
    killed = {pid for pid in pids if linux.signal_process(pid, signal.SIGKILL)}
    for pid in pids:
        linux.reap(pid, REAP_TIMEOUT if pid in killed else 0.0)
    return {pid for pid in pids if linux.describe(pid) is not None}


def _is_idle_server(pid: int, process: linux.LivingProcess) -> bool:
    """Whether a process is a fork server without children, which exits after its rank."""
    return _SERVERS.search(process.command) is not None and not linux.descendants(pid)


def _is_resource_tracker(pid: int) -> bool:
    return _has_command(pid, _RESOURCE_TRACKERS)


def is_helper(pid: int) -> bool:
    """Whether a process is a helper of Python or torch, which runs no code of the test."""
    # The forks of a server have its command line.
    is_server = _has_command(pid, _SERVERS) and not _has_command(linux.parent_of(pid), _SERVERS)
    return is_server or _is_resource_tracker(pid)


def _has_command(pid: int, pattern: re.Pattern[str]) -> bool:
    process = linux.describe(pid)
    return process is not None and pattern.search(process.command) is not None
