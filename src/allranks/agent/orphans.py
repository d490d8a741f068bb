"""Kills processes that outlive the rank that started them, except those that clean up."""

import re
import secrets
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Self

from allranks.agent import clock, linux

REAP_TIMEOUT = 2.0
"""Seconds for the status of a process that has ended: a debugger that traces it gets it first, and may keep it."""

_ORPHANS_TIMEOUT = 10.0
"""Seconds for all orphans of a gang, which may start new ones: the rest ends with the job's container or host."""

_JANITORS = re.compile(r"multiprocessing\.resource_tracker|(^|/)torch_shm_manager\b")
"""Command lines of processes that remove shared memory once all their clients are gone, and then exit."""

_SERVER = re.compile(r"from multiprocessing\.forkserver import main|'allranks\.warm_server'")

JANITOR_TIMEOUT = 3.0
"""Seconds for that; ``torch_shm_manager`` waits for two before it begins (torch 2.13)."""


@dataclass(frozen=True, kw_only=True)
class KilledOrphan:
    """A process that outlived the rank that had started it, and was killed."""

    rank: int | None  # the rank that started it; None if unknown
    pid: int
    command: str  # its command line
    has_survived: bool = False  # it could not be killed: it belongs to another user, or the kernel holds it


GANG_VARIABLE = "ALLRANKS_GANG_MARK"
LAUNCH_VARIABLE = "ALLRANKS_LAUNCH_MARK"
"""The variables with the marks of a gang's ranks, and of those that a test has launched."""

_OWNER = 16
NOBODY = f"{'0' * _OWNER}-00000"
"""The mark in the environment of a process that forks ranks, which overwrite it."""


@dataclass(frozen=True)
class Mark:
    """Marks ranks that end together, and all processes that they start, wherever these go.

    A process inherits its rank's environment; one that only forks keeps its rank's memory, where the kernel looks for
    its initial environment.

    Args:
        variable: The variable that has the mark.
        owner: The gang or launch, as 16 characters that no other has.
    """

    variable: str
    owner: str

    @classmethod
    def of_gang(cls, number: int) -> Self:
        """The mark of the gang with this number in its job."""
        return cls(GANG_VARIABLE, f"{number:0{_OWNER}}")

    @classmethod
    def of_launch(cls) -> Self:
        """A mark that no other launch has."""
        return cls(LAUNCH_VARIABLE, secrets.token_hex(_OWNER // 2))

    def environment(self, rank: int) -> dict[str, str]:
        """The variable of a rank."""
        return {self.variable: f"{self.owner}-{rank:05}"}

    def rank_of(self, pid: int) -> int | None:
        """The rank that a process is, or comes from; None if it has another mark or none."""
        owner, rank = _marked(pid, self.variable)
        return rank if owner == self.owner else None

    def covers(self, pid: int, ranks: Collection[int]) -> bool:
        """Whether a process comes from these ranks: it bears the mark, or none and is in a session of theirs."""
        owner = owner_of(pid, self.variable)
        return owner == self.owner if owner else linux.session_of(pid) in ranks


def owner_of(pid: int, variable: str) -> str:
    """The owner of the mark that a process bears in this variable; empty for no mark."""
    return _marked(pid, variable)[0]


def _marked(pid: int, variable: str) -> tuple[str, int]:
    """The owner and the rank in the mark of a process; an empty owner for none."""
    found = next((each for each in linux.variables_of(pid) if each.startswith(f"{variable}=")), "")
    value = found.partition("=")[2]
    owner, _, rank = value.partition("-")
    return (owner, int(rank)) if rank.isdecimal() and value != NOBODY else ("", 0)


def bear_marks(environment: Mapping[str, str]) -> None:
    """Show the marks among these variables of a rank to whoever looks at this process, or at one that it forks."""
    for variable in (GANG_VARIABLE, LAUNCH_VARIABLE):
        if variable in environment:
            linux.overwrite_variable(variable, environment[variable])


Orphans = Callable[[Collection[int]], Collection[int]]
"""The children of this process that processes with these ids have left behind."""


def kill_group(leader: int) -> bool:
    """KILL a whole process group at once, except for processes that clean up; False if there is no such group."""
    # A stopped group starts no more processes, and does not compete for the processor.
    if not linux.signal_group(leader, signal.SIGSTOP):
        return False
    members = linux.members(leader)
    janitors = {pid for pid in members if _is_janitor(pid)}
    if not janitors:
        return linux.signal_group(leader, signal.SIGKILL)
    for pid in members - janitors:
        linux.signal_process(pid, signal.SIGKILL)
    for pid in janitors:
        linux.signal_process(pid, signal.SIGCONT)
    return True


def kill_orphans(
    orphans: Orphans, ranks: Mapping[int, int], stopped: Collection[int], mark: Mark | None = None
) -> list[KilledOrphan]:
    """Kill and reap processes that outlived ranks: this process, a subreaper, is their parent now.

    Processes that clean up may continue until :func:`end_children`. Orphans of `stopped` ranks are not reported.

    Args:
        orphans: Finds them.
        ranks: The number of each rank, by its process id.
        stopped: The process ids of ranks and other leaders of sessions that were stopped with all they had started.
        mark: Which the ranks bear.
    """
    pids = {number: pid for pid, number in ranks.items()}
    left: list[KilledOrphan] = []
    tried: set[int] = set()
    deadline = clock.monotonic() + _ORPHANS_TIMEOUT
    while clock.monotonic() < deadline:
        found = {pid for pid in set(orphans(ranks)) - tried - set(ranks) if not _is_janitor(pid)}
        if not found:
            break
        described = {pid: linux.describe(pid) for pid in found}
        marks = {pid: mark.rank_of(pid) for pid in found} if mark else {}
        idle = {pid for pid, process in described.items() if process and _is_idle_server(pid, process)}
        for leader in {process.session for process in described.values() if process} & ranks.keys():
            # As one group, because they might start more processes than can be killed one by one.
            kill_group(leader)
        lasting = _end_all(found)
        for pid, process in described.items():
            if process is None or pid in idle:
                continue
            number = marks.get(pid)
            leader = process.session if number is None else pids.get(number, 0)
            if not {leader, process.session} & set(stopped):
                survived = pid in lasting
                left.append(
                    KilledOrphan(rank=ranks.get(leader), pid=pid, command=process.command, has_survived=survived)
                )
        tried |= found
    return left


def end_children() -> None:
    """End the last processes of a job: unclaimed orphans, and ranks that were forked in vain."""
    tried: set[int] = set()
    begun = clock.monotonic()
    deadline = begun + JANITOR_TIMEOUT
    while clock.monotonic() < begun + _ORPHANS_TIMEOUT and (left := linux.children() - tried):
        # The processes that they serve have to be gone first.
        janitors = {pid for pid in left if _is_janitor(pid)}
        for pid in sorted(left, key=janitors.__contains__):
            if pid in janitors and linux.reap(pid, deadline - clock.monotonic()) is not None:
                continue
            if _end_all([pid]) and (process := linux.describe(pid)):
                print(f"process {pid} could not be ended: {process.command}", file=sys.stderr)
        tried |= left


def _end_all(pids: Collection[int]) -> set[int]:
    """KILL and reap children of this process; return those that live on: of another user, or held by the kernel."""
    killed = {pid for pid in pids if linux.signal_process(pid, signal.SIGKILL)}
    for pid in pids:
        linux.reap(pid, REAP_TIMEOUT if pid in killed else 0.0)
    return {pid for pid in pids if linux.describe(pid) is not None}


def _is_idle_server(pid: int, process: linux.LivingProcess) -> bool:
    """Whether a process only waits for its rank to end, to end too: a server without a child."""
    return _SERVER.search(process.command) is not None and not linux.descendants(pid)


def _is_janitor(pid: int) -> bool:
    process = linux.describe(pid)
    return process is not None and _JANITORS.search(process.command) is not None


def is_helper(pid: int) -> bool:
    """Whether Python or torch has started a process for itself: it runs nothing of the test's."""
    return _is_janitor(pid) or (_is_server(pid) and not _is_server(linux.parent_of(pid)))  # its forks have its command


def _is_server(pid: int) -> bool:
    process = linux.describe(pid)
    return process is not None and _SERVER.search(process.command) is not None
