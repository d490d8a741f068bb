"""The messages between a supervisor and a rank over a pair of sockets, and the events that the supervisor derives.

Each message is one line of JSON. A rank replies to each command with any number of messages, the last of which is a
:class:`StepEnded`. The kernel attaches the sender's process id to all data (``SO_PASSCRED``, unix(7)); data from a
child of the rank is discarded.
"""

import array
import selectors
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, get_args

from allranks.agent.call_log import Calls, Wait
from allranks.agent.output import Output
from allranks.agent.stacks import Stacks
from allranks.protocol.outcomes import Phase
from allranks.protocol.records import Passed, RankEnded, TestSlow
from allranks.protocol.typed_json import RecordError, by_name, decode_line, encode_line

MESSAGE_LIMIT: Final = 4 << 20
"""Maximum size of a message in bytes; a phase with its texts takes at most a fifth of it."""

_Socket: Final = socket.socket
_send_all: Final = socket.socket.sendall
"""The class and its method as first imported: a test may replace them later, as pytest-socket does."""

_CHUNK: Final = 1 << 16
_MOST_CHUNKS: Final = 16
_CREDENTIALS: Final = struct.Struct("3i")


@dataclass(frozen=True, kw_only=True)
class RunTest:
    """Run a test."""

    index: int  # of the test in the collection
    nodeid: str  # of that test; a rank that collected another test at this index reports an error
    following: int | None  # index of the gang's next test; None for the last
    seed: int = 0  # of all ranks
    instructions: str = ""  # from the plug-in that repeats the test, for its part in the ranks


@dataclass(frozen=True, kw_only=True)
class End:
    """Tear down the remaining fixtures and end.

    The ranks of a gang that has not failed get two of these commands: they tear down and report after the first, and
    exit after the second. Until then, a peer may need a rank's resources, such as the server of a store.
    """

    is_condemned: bool  # a bad outcome has ended this gang, so later failures are secondary


@dataclass(frozen=True, kw_only=True)
class _AboutTest:
    """A message from a rank, which is ignored unless it is about the running test."""

    nodeid: str = ""  # of the test; empty for the start and the end of the rank


@dataclass(frozen=True, kw_only=True)
class PhasesEnded(_AboutTest):
    """Phases have ended, and the step continues; plain passes are sent with a later message."""

    phases: tuple[Phase, ...]  # at least one
    is_symptom: bool = False  # the failure is secondary if any rank has a failure of its own
    waits_for: Wait | None = None  # what the rank waited for when it failed: a peer that never arrived is the cause
    had_failed: bool = False  # the test had already failed for another reason before it waited

    @property
    def has_failed(self) -> bool:
        return any(phase.outcome.is_bad for phase in self.phases)


@dataclass(frozen=True, kw_only=True)
class StepEnded(_AboutTest):
    """The rank is ready for tests, has run one, or has torn down; all phases of the step decide its outcome."""

    phases: tuple[Phase, ...] = ()  # those that were in no earlier message
    # The test was skipped before its call, or by the only rank, so that no peer can be waiting in it. Also set after an
    # expected failure of the only rank.
    early_skip: bool = False
    restored: tuple[str, ...] = ()  # names of the state that the test changed and the rank restored
    left: tuple[str, ...] = ()  # names of the state that the test changed and that cannot be restored with certainty
    has_exited: bool = False  # it raised SystemExit, after which pytest does not clean up
    # Which subtests of a passed test were skipped (identical on all ranks up to the first colon), and the first reason.
    skipped_subtests: str = ""
    unchecked_children: tuple[str, ...] = ()  # descriptions of child processes that failed although the test passed
    cold_starts: tuple[str, ...] = ()  # reasons why processes could not be started warm, each once per rank
    imported: tuple[str, ...] = ()  # after the last step: modules to import once for all later ranks


@dataclass(frozen=True, kw_only=True)
class GpuLost(_AboutTest):
    """The rank cannot start because its GPU failed a health check."""

    message: str  # one line


@dataclass(frozen=True, kw_only=True)
class Leaving(_AboutTest):
    """A rank's main thread is about to end its process."""

    status: int  # the exit status
    reason: str = ""  # of the skip that this status stands for in the installed torch; empty for none


@dataclass(frozen=True, kw_only=True)
class Debugging:
    """A debugger in the rank starts or stops waiting for a command."""

    is_waiting: bool
    has_quit: bool = False  # at the end of the wait: the user has quit the debugger, which ends the session


@dataclass(frozen=True, kw_only=True)
class LaunchedEnd(_AboutTest):
    """From a launcher: ranks that its test started have ended."""

    end: Passed | RankEnded


@dataclass(frozen=True, kw_only=True)
class Released(_AboutTest):
    """From a launcher: its ranks start the test now."""

    world_size: int


@dataclass(frozen=True, kw_only=True)
class RepeatsRanks(_AboutTest):
    """From a launcher: a phase of its own only repeats what its ranks have reported."""

    when: str  # the phase


@dataclass(frozen=True, kw_only=True)
class SharesOutcome(_AboutTest):
    """From a launcher: its ranks are threads, which share one outcome."""


@dataclass(frozen=True, kw_only=True)
class HiddenError(_AboutTest):
    """From a launcher: an error that pytest does not show."""

    phase: Phase


@dataclass(frozen=True, kw_only=True)
class RankPrinted:
    """From a launcher: one of its ranks printed a line."""

    rank: int
    line: str


Progress = (
    PhasesEnded | StepEnded | GpuLost | Leaving | LaunchedEnd | Released | RepeatsRanks | SharesOutcome | HiddenError
)
"""Messages of a rank about its step."""

Message = Progress | Debugging | RankPrinted | TestSlow
"""Messages of a rank; a launcher reports a slow test of its ranks."""

Command = RunTest | End
"""Messages of a supervisor to a rank."""

_COMMANDS: Final[Mapping[str, type[Command]]] = by_name(get_args(Command))
_MESSAGES: Final[Mapping[str, type[Message]]] = by_name(get_args(Message))


def encode_message(message: Command | Message) -> bytes:
    """The line of a message, with its line feed."""
    return encode_line(message) + b"\n"


class RankEnd:
    """The rank's end of the connection."""

    def __init__(self, descriptor: int) -> None:
        self._socket = _Socket(fileno=descriptor)
        # A suite may have set a default timeout for sockets, but waiting for a command must not time out.
        self._socket.settimeout(None)
        self._commands = self._socket.makefile("rb")

    def command(self) -> Command | None:
        """Wait for the next command; None when the supervisor has closed the connection."""
        line = self._commands.readline()
        return decode_line(line, _COMMANDS) if line else None

    def send(self, message: Message) -> None:
        """Send a message; a BrokenPipeError means that the supervisor has ended."""
        _send_all(self._socket, encode_message(message))


class Outgoing:
    """A queue of data to send over a non-blocking socket.

    Attributes:
        has_failed: The other side accepts no more data, and the rest of the queue was dropped.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.has_failed = False
        self._socket = connection
        self._unsent = bytearray()

    @property
    def is_waiting(self) -> bool:
        """Whether data is queued: then :meth:`flush` has to be called when the socket is writable."""
        return bool(self._unsent)

    @property
    def events(self) -> int:
        """The events for which a selector has to watch the socket."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.is_waiting else 0)

    def add(self, data: bytes) -> None:
        """Queue data, and send what the socket accepts; never blocks."""
        if not self.has_failed:
            self._unsent += data
            self.flush()

    def flush(self) -> None:
        """Send what the socket accepts; never blocks."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            self.has_failed = True
            self._unsent.clear()


@dataclass(eq=False)
class Link:
    """The supervisor's end of the connection to one rank."""

    socket: socket.socket  # from :func:`link_pair`
    pid: int = 0  # the rank's process; nothing is read before it is set
    at_end: bool = False  # the rank has closed its end
    is_garbled: bool = False  # it sent invalid data, so later data is ignored
    has_foreign_data: bool = False  # processes other than the rank sent data, which was discarded
    _rest: bytearray = field(default_factory=bytearray)
    _outgoing: Outgoing = field(init=False)

    def __post_init__(self) -> None:
        """Create the queue for the socket."""
        self._outgoing = Outgoing(self.socket)

    @property
    def descriptor(self) -> int:
        """Readable when data has arrived."""
        return self.socket.fileno()

    @property
    def is_sending(self) -> bool:
        """Whether a part of a command is queued: then :meth:`flush` has to be called when the socket is writable."""
        return self._outgoing.is_waiting

    @property
    def events(self) -> int:
        """The events for which a selector has to watch :attr:`descriptor`."""
        return self._outgoing.events

    def send(self, command: Command) -> None:
        """Queue a command, and send what the socket accepts; never blocks."""
        self._outgoing.add(encode_message(command))
        self._shut_down_if_broken()

    def flush(self) -> None:
        """Send more of the queued commands; never blocks."""
        self._outgoing.flush()
        self._shut_down_if_broken()

    def _shut_down_if_broken(self) -> None:
        """Make the descriptor readable if a command could not be sent."""
        if self._outgoing.has_failed:
            with suppress(OSError):  # the other side has closed it already
                self.socket.shutdown(socket.SHUT_RDWR)

    def read(self) -> list[Message]:
        """The messages that have arrived; each call reads a bounded number of bytes."""
        self._fill()
        if self.is_garbled or b"\n" not in self._rest:
            return []
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        messages: list[Message] = []
        try:
            for line in lines:
                messages.append(decode_line(line, _MESSAGES))  # noqa: PERF401 - those before a damaged one count
        except RecordError:
            self._garble()
        return messages

    def take_foreign_data(self) -> bool:
        """Whether other processes have sent data since the last call."""
        had, self.has_foreign_data = self.has_foreign_data, False
        return had

    def _garble(self) -> None:
        self.at_end = self.is_garbled = True
        self._rest.clear()

    def _fill(self) -> None:
        for _ in range(_MOST_CHUNKS):
            try:
                data, sender = receive(self.socket, _CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data, sender = b"", 0
            if not data:
                self.at_end = True
                return
            if sender != self.pid:
                self.has_foreign_data = True
                continue
            start = len(self._rest)
            self._rest += data
            if len(self._rest) > MESSAGE_LIMIT and b"\n" not in self._rest[start:]:
                self._garble()
                return

    def close(self) -> None:
        self.socket.close()


def receive(connection: socket.socket, size: int) -> tuple[bytes, int]:
    """Receive data and its sender's process id from a socket with ``SO_PASSCRED``; the data has only one sender."""
    data, ancillary, _, _ = connection.recvmsg(size, socket.CMSG_SPACE(_CREDENTIALS.size))
    return data, _sender(ancillary)


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The process id of the sender, 0 if unknown; attached descriptors are closed."""
    pid = 0
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS) and len(data) >= _CREDENTIALS.size:
            pid = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0]
        elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            _close_all(data)
    return pid


def _close_all(data: bytes) -> None:
    numbers = array.array("i")
    numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    for number in numbers:
        with suppress(OSError):
            socket.close(number)


def link_pair() -> tuple[Link, int]:
    """A new connection: the supervisor's end, and the descriptor of the rank's end."""
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    own.setblocking(False)
    return Link(own), theirs.detach()


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """A message of a rank has arrived."""

    rank: int
    message: Progress | Debugging | TestSlow
    at: float  # seconds since the epoch, on the clock of the lead node
    has_foreign_data: bool = False  # other processes sent data over the rank's connection, which was discarded
    calls: Calls | None = None  # its calls in the running test, if its step is over


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """A rank's process has ended."""

    rank: int
    status: int | None  # exit code, negative for a signal; None if unknown
    at: float  # seconds since the epoch, on the clock of the lead node
    kill_reason: str = ""  # why the supervisor killed it (how it misused its connection); empty if it did not
    by_memory_killer: bool = False  # the kernel killed it when memory ran out
    stacks: Stacks = field(default_factory=Stacks)  # written to its stack file after a fatal signal
    output: Output = field(default_factory=Output)  # its last output
    lost: str = ""  # why its status is unknown; empty if it is known
    waits_for: Wait | None = None  # its current wait, or its last failed one
    calls: Calls | None = None  # its calls in the running test
    was_told_to_stop: bool = False  # it was lost together with its node, whose agent received a request to stop


RankEvent = RankReport | RankExit


@dataclass(frozen=True, kw_only=True)
class RankHang:
    """The state of a rank that has not ended its step in time."""

    stacks: Stacks = field(default_factory=Stacks)
    held: str = ""  # a message with what keeps it from running; empty for nothing
    phase: str = ""  # of its test; empty if unknown
    waits_for: Wait | None = None  # as of :class:`RankExit`
    children: str = ""  # a message with where its child processes are; empty if unknown
    child_stacks: str = ""  # their stacks
