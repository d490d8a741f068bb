"""The supervisor's side of its fork server: starts it, reads what it collects, and has it fork ranks."""

import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from allranks.agent import linux
from allranks.agent.channel import Outgoing, receive
from allranks.agent.diagnose.flight_recorder import FlightRecorder
from allranks.agent.diagnose.stacks import STACKS_SIGNAL, StackFile, wait_for_stacks
from allranks.agent.evidence import remove_tree
from allranks.agent.gangs.local_ranks import (
    Echo,
    LocalRanks,
    Pending,
    RankProcess,
    open_rank,
    stack_files,
)
from allranks.agent.job_end import JobEnd
from allranks.agent.job_plugins import functions
from allranks.agent.orphans import GANG_VARIABLE, Mark, owner_of
from allranks.agent.program import (
    LAUNCHER_RANK,
    LINE_LIMIT,
    Finish,
    Forked,
    Reply,
    ServerStart,
    SessionEnded,
    StartRanks,
    encode_message,
    launcher_folder,
    parse_reply,
)
from allranks.agent.stacks import Stacks
from allranks.protocol.config import AgentConfig, Folders, Selection
from allranks.protocol.records import Imported, Record
from allranks.protocol.typed_json import RecordError

START_TIMEOUT = 60.0
"""Seconds to fork ranks: hooks of the suite may run meanwhile, and hang."""

SESSION_END_TIMEOUT = 20.0
"""Seconds for pytest to end its session, with hooks of the suite."""

REPORT_TIMEOUT = 300.0
"""Seconds for pytest to end a session in which coverage is combined and reported."""

_POLL_INTERVAL = 0.5
STACKS = "stacks-agent.txt"
"""The file in the results folder with the stacks of a fork server."""


class ForkServerError(Exception):
    """The fork server has ended, does not answer, or sends invalid data; the message is a predicate of it."""


class ForkServer:
    """A fork server, from its start to its end; any thread may send it requests."""

    def __init__(self, config: AgentConfig, folders: Folders, environment: Mapping[str, str], log: int) -> None:
        self.torch = ""  # torch's version, once it is imported
        self._folders = folders
        self._stacks = StackFile(folders.results / STACKS)
        self._control, control = socket.socketpair()
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._control.setblocking(False)
        self._requests = Outgoing(self._control)
        self._handover, handover = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._handover.settimeout(START_TIMEOUT)
        with control, handover:
            self.pid = start_process((control, handover), environment, log)
        self._pidfd = os.pidfd_open(self.pid)
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        self._status: int | None = None
        self._killed_for_memory = linux.killed_for_memory()
        self._lock = threading.Lock()
        self._closing = threading.Lock()
        start = ServerStart(supervisor=os.getpid(), config=config.without_secrets(), folders=folders)
        self._requests.add(encode_message(start))

    def replies(self, end: JobEnd, timeout: float | None = None) -> Iterator[Reply]:
        """Yield replies as they arrive, until the server ends; an error if that takes more than `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            while self._lines:
                reply = self._parse(self._lines.popleft())
                if isinstance(reply, Imported):
                    self.torch = reply.torch
                yield reply
            if not self._wait_for_lines(end, deadline):
                return

    def _split(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._lines.extend(lines)
            self._rest = bytearray(rest)
        else:
            self._rest += rest
        if len(self._rest) > LINE_LIMIT:
            msg = f"sent a line of more than {LINE_LIMIT} bytes"
            raise ForkServerError(msg)

    def _parse(self, line: bytes) -> Reply:
        try:
            return parse_reply(line)
        except RecordError as error:
            msg = f"sent a line that {error}"
            raise ForkServerError(msg) from error

    def _wait_for_lines(self, end: JobEnd, deadline: float | None) -> bool:
        """Wait for data, and send unsent requests meanwhile; False if there will be no more data."""
        while True:
            end.check()
            left = _POLL_INTERVAL if deadline is None else min(_POLL_INTERVAL, deadline - time.monotonic())
            if left < 0:
                frame = self.current_frame()
                raise ForkServerError("does not answer" + (f"; it is in {frame}" if frame else ""))
            with selectors.DefaultSelector() as selector:
                selector.register(self._control, self._requests.events)
                for source in (end.fileno(), self._pidfd):
                    selector.register(source, selectors.EVENT_READ)
                ready = {key.fd: events for key, events in selector.select(min(left, end.remaining()))}
            events = ready.get(self._control.fileno(), 0)
            if events & selectors.EVENT_WRITE:
                self._requests.flush()
            if events & selectors.EVENT_READ:
                data, sender = self._receive()
                # Processes that the suite forked on import may hold the connection, too: discard their data.
                self._split(data if sender == self.pid else b"")
                return bool(data)
            if self._pidfd in ready:
                # The server has ended; its descendants may hold the connection open.
                return False

    def _receive(self) -> tuple[bytes, int]:
        try:
            return receive(self._control, 1 << 20)
        except ConnectionResetError:
            # It ended with unread requests.
            return b"", 0

    def select(self, selection: Selection) -> None:
        """Have the server collect these tests."""
        self._requests.add(encode_message(selection))

    def start_ranks(self, request: StartRanks, ranks: Sequence[RankProcess], end: JobEnd) -> None:
        """Fork ranks, and pass them their ends of the connections.

        Raises:
            OSError: The system cannot create more processes; none of the ranks is left.
        """
        with self._lock:
            self._requests.add(encode_message(request))
            for rank in ranks:
                try:
                    socket.send_fds(self._handover, [b"."], rank.rank_ends)
                except OSError as error:
                    raise ForkServerError(self.describe_exit()) from error
            answer = self._forked(end)
        if answer.error or len(answer.pids) != len(ranks):
            raise OSError(answer.error or "the fork server reports other ranks than requested")
        pidfds: list[int] = []
        with ExitStack() as undo:
            # From the first `note_fork` on nothing may fail: the caller would close some ends twice.
            for pid in answer.pids:
                pidfds.append(os.pidfd_open(pid))
                undo.callback(os.close, pidfds[-1])
            undo.pop_all()
        for rank, pid, pidfd in zip(ranks, answer.pids, pidfds, strict=True):
            rank.note_fork(pid, pidfd)

    def _forked(self, end: JobEnd) -> Forked:
        for reply in self.replies(end, START_TIMEOUT):
            if isinstance(reply, Forked):
                return reply
        raise ForkServerError(self.describe_exit())

    def finish(
        self, finish: Finish, end: JobEnd, timeout: float = SESSION_END_TIMEOUT
    ) -> tuple[list[Record], SessionEnded | None]:
        """Have pytest end its session; return the records of its hooks, and None if the server exited instead."""
        self._requests.add(encode_message(finish))
        records: list[Record] = []
        for reply in self.replies(end, timeout):
            if isinstance(reply, SessionEnded):
                return records, reply
            if isinstance(reply, Record):
                records.append(reply)
        return records, None

    def describe_exit(self) -> str:
        """Make sure that the server has ended, and describe how, as in "was killed by SIGSEGV"."""
        status = self.close()
        if status is None:
            return "does not end"
        if status < 0:
            how = linux.killed(-status, for_memory=linux.is_memory_kill(status, self._killed_for_memory))
            return f"was {how}{Stacks(self._stacks.added(), self._folders.code.resolve()).words}"
        return f"ended with exit status {status}"

    def current_frame(self) -> str:
        """Return the frame that the server is in, as in "file:line in name"; empty if unknown."""
        if not linux.signal_pidfd(self._pidfd, STACKS_SIGNAL):
            return ""
        with suppress(OSError):
            text = wait_for_stacks({0: self._stacks}, {0: self.pid}).get(0, "")
            return Stacks(text, self._folders.code.resolve()).innermost
        return ""

    def close(self) -> int | None:
        """Make sure that the server has ended; return its exit status, None if unknown. Idempotent."""
        with self._closing:
            if self._status is None:
                if not linux.is_readable(self._pidfd, _POLL_INTERVAL):
                    linux.signal_pidfd(self._pidfd, signal.SIGKILL)
                    linux.is_readable(self._pidfd, START_TIMEOUT)
                self._status = linux.reap(self.pid, 2.0)
            return self._status

    def kill(self) -> None:
        """End the server at once."""
        linux.signal_pidfd(self._pidfd, signal.SIGKILL)
        self.close()


def start_process(sockets: Sequence[socket.socket], environment: Mapping[str, str], log: int) -> int:
    """Start a fork server by exec; return its process id."""
    descriptors = [end.fileno() for end in sockets]
    process = subprocess.Popen(
        [sys.executable, "-m", "allranks.agent.collect.fork_server", *map(str, descriptors)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=dict(environment),
        pass_fds=descriptors,
    )
    # A Popen with a return code never waits for its process: only this module does.
    process.returncode = 0
    return process.pid


class RankRegistry:
    """Distinguishes the supervisor's children: its fork server, ranks of running gangs, and leftovers of ended ones."""

    def __init__(self, *known: int) -> None:
        self._known = frozenset(known)
        self._returned: frozenset[int] = frozenset()
        self._gangs: dict[Mark, frozenset[int]] = {}  # the ranks of running gangs, and of those being started
        self._lock = threading.Lock()

    @contextmanager
    def expecting(self, mark: Mark) -> Iterator[None]:
        """Allow for children with this mark that are being started, and are not registered yet."""
        with self._lock:
            self._gangs[mark] = frozenset()
        try:
            yield
        except BaseException:
            with self._lock:
                del self._gangs[mark]
            raise

    def register(self, mark: Mark, pids: Collection[int]) -> None:
        """Register the process ids of the ranks with this mark."""
        with self._lock:
            self._gangs[mark] = frozenset(pids)

    def leftovers_of(self, mark: Mark, pids: Collection[int]) -> set[int]:
        """Return the processes that ranks with this mark, which have ended, left behind; each is returned once.

        A leftover has this mark or that of an earlier gang, or has no mark and is in a session of one of these ranks.
        When no gang runs, every other child is a leftover: it may have emptied its environment and left its session.
        """
        # List the children first: each of them is then registered or expected when the lock is taken.
        children = linux.children()
        with self._lock:
            self._gangs.pop(mark, None)
            running = {other.owner for other in self._gangs}
            found = children - self._known.union(pids, *self._gangs.values()) - self._returned
            left = {pid for pid in found if _is_leftover(pid, pids, running)}
            # A process that cannot be killed is not returned again at the end of each later gang.
            self._returned = (self._returned & children) | left
        return left


def _is_leftover(pid: int, ranks: Collection[int], running: Collection[str]) -> bool:
    owner = owner_of(pid, GANG_VARIABLE)
    if owner:
        return owner not in running
    return not running or linux.session_of(pid) in ranks


@dataclass(kw_only=True, eq=False, repr=False)
class LocalNode:
    """Starts the ranks of gangs through this node's fork server."""

    server: ForkServer
    config: AgentConfig
    folders: Folders
    registry: RankRegistry
    end: JobEnd
    echo: Echo | None  # called with each line that ranks print
    uses_flight_recorder: bool

    def with_results_dir(self, results: Path) -> "LocalNode":
        """Return this node, for ranks with their files in another folder."""
        return replace(self, folders=replace(self.folders, results=results))

    def start_ranks(self, request: StartRanks) -> Pending[LocalRanks]:
        return lambda: self._start_ranks(request)

    def _start_ranks(self, request: StartRanks) -> LocalRanks:
        shared = self.folders.of_gang(request.gang)
        shared.mkdir(exist_ok=True)
        results, numbers, recorder = self.folders.results, [*self.config.local_ranks], None
        if request.launches:
            results, numbers = launcher_folder(self.folders.results), [LAUNCHER_RANK]
            results.mkdir(exist_ok=True)
        elif self.uses_flight_recorder:
            recorder = FlightRecorder(results=results, shared=shared, gang=request.gang)
        recording = recorder.environment(self.server.torch, os.environ) if recorder else {}
        stacks = stack_files(results, numbers)
        mark = Mark.of_gang(request.gang)
        with ExitStack() as undo, self.registry.expecting(mark):
            undo.callback(remove_tree, shared)
            echo = None if request.launches else self.echo
            ranks = [open_rank(number, echo, undo) for number in numbers]
            own = replace(
                request,
                ranks=tuple(numbers),
                results=self.folders.results,
                environment={**request.environment, **recording},
            )
            self.server.start_ranks(own, ranks, self.end)
            self.registry.register(mark, [rank.pid for rank in ranks])
            undo.pop_all()
        return LocalRanks(
            ranks,
            results,
            partial(self.registry.leftovers_of, mark),
            recorder,
            stacks=stacks,
            echo=self.echo,
            mark=mark,
            shared=shared,
            disturbers=tuple(functions(self.config, "disturbing")),
            code=self.folders.code.resolve(),
        )
