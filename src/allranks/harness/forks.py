"""The supervisor's side of its fork server: starts it, reads what it collects, orders ranks."""

import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from json import dumps
from pathlib import Path

from allranks.harness import linux
from allranks.harness.channel import receive
from allranks.harness.config import AgentConfig, Folders
from allranks.harness.evidence import is_full
from allranks.harness.gangs.local_ranks import LocalRanks, stack_files
from allranks.harness.gangs.rank_process import ConnectionEnds, Echo, RankProcess, open_ends
from allranks.harness.job_end import JobEnd
from allranks.harness.launchers.driver_account import DRIVER, driver_folder
from allranks.harness.nodes.node import Orders
from allranks.harness.program import LINE_LIMIT, Asked, Finish, Forked, SessionEnded, StartGang, Told, line_of, told_by
from allranks.harness.stacks.flight_recorder import FlightRecorder
from allranks.harness.stacks.stacks import STACKS_SIGNAL, StackFile, innermost, wait_for_stacks
from allranks.records import Imported, Record
from allranks.typed_json import RecordError

MUSTER_PATIENCE = 60.0
"""Seconds for ranks to be forked: hooks of the suite may run in that, and hang."""

SESSION_END_PATIENCE = 20.0
"""Seconds for pytest to end its session: hooks of the suite run in that, too."""

REPORT_PATIENCE = 300.0
"""Seconds for that where coverage is combined and reported in it."""

_PIECE = 1 << 20
_LOOK_AGAIN = 0.5
STACKS = "stacks-agent.txt"
"""The file in the results folder that gets the stacks of a fork server."""


class ForkServerError(Exception):
    """The fork server is gone, does not answer, or makes no sense; the message says which, and what is known of it."""


class ForkServer:
    """A fork server, from its start to its end; any thread may ask it.

    Args:
        config: The job.
        folders: Its folders.
        environment: Variables of the process.
        log: Descriptor that gets what it prints.

    Attributes:
        torch: Version, as soon as it has told.
    """

    def __init__(self, config: AgentConfig, folders: Folders, environment: Mapping[str, str], log: int) -> None:
        self.torch = ""
        self._folders = folders
        self._stacks = StackFile(folders.results / STACKS)
        self._control, control = socket.socketpair()
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._handover, handover = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with control, handover:
            self.pid = start_process((control, handover), environment, log)
        self._pidfd = os.pidfd_open(self.pid)
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        self._status: int | None = None
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        with suppress(OSError):  # its end says the same
            self._control.sendall(_request(config, folders).encode() + b"\n")

    def told(self, end: JobEnd, patience: float | None = None) -> Iterator[Told]:
        """What it tells, as it comes, until it ends.

        Args:
            end: When the job is over.
            patience: Seconds for all of it; None for as long as the job has.

        Raises:
            ForkServerError: It makes no sense, or the time is up.
            HangupError: The job is to end.
            JobLimitError: The job's time is up.
        """
        deadline = None if patience is None else time.monotonic() + patience
        while True:
            while self._lines:
                told = self._parsed(self._lines.popleft())
                if isinstance(told, Imported):
                    self.torch = told.torch
                yield told
            if not self._fill(end, deadline):
                return

    def _take(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._lines.extend(lines)
            self._rest = bytearray(rest)
        else:
            self._rest += rest
        if len(self._rest) > LINE_LIMIT:
            msg = f"tells a line of more than {LINE_LIMIT} bytes"
            raise ForkServerError(msg)

    def _parsed(self, line: bytes) -> Told:
        try:
            return told_by(line)
        except RecordError as error:
            msg = f"tells a line that {error}"
            raise ForkServerError(msg) from error

    def _fill(self, end: JobEnd, deadline: float | None) -> bool:
        """Take in what has come, waited for; False where nothing more will."""
        while True:
            end.check()
            left = _LOOK_AGAIN if deadline is None else min(_LOOK_AGAIN, deadline - time.monotonic())
            if left < 0:
                msg = f"does not answer{self.whereabouts()}"
                raise ForkServerError(msg)
            with selectors.DefaultSelector() as selector:
                for source in (self._control, end):
                    selector.register(source, selectors.EVENT_READ)
                selector.register(self._pidfd, selectors.EVENT_READ)
                ready = {key.fd for key, _ in selector.select(min(left, end.remaining()))}
            if self._control.fileno() in ready:
                data, sender = self._receive()
                # What the suite has forked when it was imported may have the connection, too.
                self._take(data if sender == self.pid else b"")
                return bool(data)
            if self._pidfd in ready:
                # Whatever it has started may hold the connection open.
                return False

    def _receive(self) -> tuple[bytes, int]:
        try:
            return receive(self._control, _PIECE)
        except ConnectionResetError:
            # It has ended before it had read all that it was asked.
            return b"", 0

    def muster(self, muster: StartGang, ends: Sequence[ConnectionEnds], end: JobEnd) -> list[RankProcess]:
        """Have ranks forked; they have these ends then.

        Raises:
            OSError: The system has no process left; none of the ranks is left either.
            ForkServerError: The fork server is gone, or does not answer.
            HangupError: The job is to end.
            JobLimitError: The job's time is up.
        """
        with self._lock:
            self._ask(muster)
            for each in ends:
                with self._as_gone():
                    socket.send_fds(self._handover, [b"."], each.theirs)
            answer = self._answer(end)
        if answer.error or len(answer.pids) != len(ends):
            raise OSError(answer.error or "the fork server tells of other ranks than it was asked for")
        return [each.process(pid) for each, pid in zip(ends, answer.pids, strict=True)]

    def _answer(self, end: JobEnd) -> Forked:
        for told in self.told(end, MUSTER_PATIENCE):
            if isinstance(told, Forked):
                return told
        raise ForkServerError(self.ended())

    def _ask(self, asked: Asked) -> None:
        with self._as_gone():
            self._control.settimeout(MUSTER_PATIENCE)
            self._control.sendall(line_of(asked))

    @contextmanager
    def _as_gone(self) -> Iterator[None]:
        """Have what goes wrong with the connection mean that the fork server is gone."""
        try:
            yield
        except OSError as error:
            raise ForkServerError(self.ended()) from error

    def finish(
        self, finish: Finish, end: JobEnd, patience: float = SESSION_END_PATIENCE
    ) -> tuple[list[Record], SessionEnded | None]:
        """Have pytest end its session; what its hooks had to say, and how that ended, None where it did not.

        Raises:
            ForkServerError: It does not answer, or makes no sense.
            HangupError: The job is to end.
            JobLimitError: The job's time is up.
        """
        self._ask(finish)
        said: list[Record] = []
        for told in self.told(end, patience):
            if isinstance(told, SessionEnded):
                return said, told
            if isinstance(told, Record):
                said.append(told)
        return said, None

    def ended(self) -> str:
        """How it has ended, in words, as in "was killed by SIGSEGV"; it is killed where it has not."""
        status = self.close()
        if status is None:
            return "does not end"
        if status < 0:
            where = innermost(self._stacks.added())
            return f"was killed by {linux.signal_name(-status)}{f'; it was in {where}' if where else ''}"
        return f"ended with exit status {status}"

    def whereabouts(self) -> str:
        """Where it stands, in words, as in "; it is in file:line in name"; empty where that cannot be told."""
        with suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, STACKS_SIGNAL)
            where = innermost(wait_for_stacks({0: self._stacks}, {0: self.pid}).get(0, ""))
            return f"; it is in {where}" if where else ""
        return ""

    def close(self) -> int | None:
        """See to it that it has ended; its exit status, None where that cannot be had. Idempotent."""
        with self._closing:
            if self._status is None:
                self._status = self._end()
            return self._status

    def _end(self) -> int | None:
        if not linux.is_readable(self._pidfd, _LOOK_AGAIN):
            with suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            linux.is_readable(self._pidfd, MUSTER_PATIENCE)
        return linux.reap(self.pid, 2.0)

    def kill(self) -> None:
        """End it at once."""
        with suppress(OSError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self.close()


def _request(config: AgentConfig, folders: Folders) -> str:
    return dumps(
        {
            "supervisor": os.getpid(),
            "config": config.without_secrets().to_json(),
            "folders": {name: str(path) for name, path in vars(folders).items()},
        }
    )


def start_process(sockets: Sequence[socket.socket], environment: Mapping[str, str], log: int) -> int:
    """Start a fork server by exec; its process id."""
    numbers = [each.fileno() for each in sockets]
    process = subprocess.Popen(
        [sys.executable, "-m", "allranks.harness.fork_server", *map(str, numbers)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=dict(environment),
        pass_fds=numbers,
    )
    # Nobody but this module waits for it.
    process.returncode = 0
    return process.pid


class Family:
    """The children of the supervisor that no rank has left behind: its fork server, and the ranks of living gangs.

    Args:
        known: Process ids of children that are none of any gang's.
    """

    def __init__(self, *known: int) -> None:
        self._known = frozenset(known)
        self._ranks: dict[int, None] = {}
        self._expected = 0
        self._lock = threading.Lock()

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Ranks are being started: children of whom nobody knows before they have joined."""
        with self._lock:
            self._expected += 1
        try:
            yield
        finally:
            with self._lock:
                self._expected -= 1

    def join(self, pids: Sequence[int]) -> None:
        """These are ranks from now on."""
        with self._lock:
            self._ranks.update(dict.fromkeys(pids))

    def left_by(self, pids: Collection[int]) -> set[int]:
        """What these ranks, which have ended, left behind.

        While other gangs live or are started, that is what stayed in the sessions of these ranks: of a process that
        left them nobody can tell whose it is, before all gangs have ended.
        """
        # Who is a child by now has joined, or is still expected, when that is looked at.
        found = linux.children() - self._known - frozenset(pids)
        with self._lock:
            for pid in pids:
                self._ranks.pop(pid, None)
            others, is_last = frozenset(self._ranks), not self._ranks and not self._expected
        return {pid for pid in found - others if is_last or linux.session_of(pid) in pids}


@dataclass(eq=False, repr=False)
class LocalNode:
    """Has this node's fork server start the ranks of gangs.

    Attributes:
        server: The fork server.
        config: The job.
        folders: Its folders.
        family: The supervisor's children.
        end: When the job is over.
        echo: Gets each line that ranks print; None for nobody.
        records_flights: Ranks have torch's flight recorder.
    """

    server: ForkServer
    config: AgentConfig
    folders: Folders
    _: KW_ONLY
    family: Family
    end: JobEnd
    echo: Echo | None
    records_flights: bool
    _shared: Path | None = field(default=None, init=False)

    def of_lane(self, results: Path) -> "LocalNode":
        """The same node, for ranks whose files are in another folder."""
        return replace(self, folders=replace(self.folders, results=results))

    def _shared_folder(self, gang: int) -> Path:
        """The folder that a gang's ranks share; the one of the gang before goes where that has left no room."""
        if self._shared is not None and is_full(self.folders.shared):
            with suppress(RecursionError):  # a thousand folders in each other
                shutil.rmtree(self._shared, ignore_errors=True)
        self._shared = self.folders.shared / f"gang-{gang}"
        self._shared.mkdir(exist_ok=True)
        return self._shared

    def muster(self, orders: Orders) -> LocalRanks:
        """See :meth:`allranks.harness.nodes.node.Node.muster`.

        Raises:
            ForkServerError: The fork server is gone, or does not answer.
            HangupError: The job is to end.
            JobLimitError: The job's time is up.
        """
        shared = self._shared_folder(orders.gang)
        results, numbers, recorder = self.folders.results, [*self.config.local_ranks], None
        if orders.launches:
            results, numbers = driver_folder(self.folders.results), [DRIVER]
            results.mkdir(exist_ok=True)
        elif self.records_flights:
            recorder = FlightRecorder(results=results, shared=shared, gang=orders.gang)
        recording = recorder.environment(self.server.torch, os.environ) if recorder else {}
        stacks = stack_files(results, numbers)
        with self.family.expecting(), ExitStack() as undo:
            ends = [open_ends(number, None if orders.launches else self.echo, undo) for number in numbers]
            ranks = self.server.muster(
                StartGang(
                    ranks=tuple(numbers),
                    gang=orders.gang,
                    url=orders.url,
                    environment=tuple("=".join(each) for each in ({**orders.environment, **recording}).items()),
                    launches=orders.launches,
                    preload=tuple(orders.preload),
                    has_many_forks=orders.has_many_forks,
                    results=str(self.folders.results),
                ),
                ends,
                self.end,
            )
            self.family.join([rank.pid for rank in ranks])
            undo.pop_all()
        return LocalRanks(ranks, results, self.family.left_by, recorder, stacks=stacks, echo=self.echo)
