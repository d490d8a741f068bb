"""The messages between a supervisor and a rank, over one pair of sockets, and what the supervisor learns of the rank.

Each message is one line of JSON. A rank answers each command with any number of messages, of which the last is a
:class:`StepEnded`. The kernel attaches the sender's process id to every piece (``SO_PASSCRED``, unix(7)): data that a
child of the rank has sent is discarded.
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
from allranks.protocol.records import Passed, RankEnded
from allranks.protocol.typed_json import RecordError, by_name, decode_line, encode_line

MESSAGE_LIMIT: Final = 4 << 20
"""Bytes of one message: a phase with its texts takes a fifth of it at most."""

_Socket: Final = socket.socket
"""The class as first imported: a test may have replaced it since, as pytest-socket does."""

_PIECE: Final = 1 << 16
_PIECES: Final = 16
_CREDENTIALS: Final = struct.Struct("3i")


@dataclass(frozen=True, kw_only=True)
class RunTest:
    """Run the test at `index`; `following` is the gang's next test, None when this is its last."""

    index: int
    nodeid: str  # its node id; a rank refuses if its own test at that index has another one
    following: int | None
    seed: int = 0  # the seed of every rank
    instructions: str = ""  # from the plug-in that repeats the test to its part in the ranks


@dataclass(frozen=True, kw_only=True)
class End:
    """Tear down what is left and end.

    A rank that is not condemned reports after tear-down and exits at the second command of this kind: until then its
    peers may need what it holds, such as the server of a store.
    """

    is_condemned: bool  # a bad outcome has ended this gang: any later failure is its consequence


@dataclass(frozen=True, kw_only=True)
class _AboutTest:
    """A message of a rank; one about another test than the running one changes nothing."""

    nodeid: str = ""  # the test that it is about; empty for a start and an end


@dataclass(frozen=True, kw_only=True)
class PhasesEnded(_AboutTest):
    """Phases of the step have ended, and the step goes on; plain passes travel with a later message."""

    phases: tuple[Phase, ...]  # at least one
    is_symptom: bool = False  # what went wrong follows from a failure of a peer, if any rank has one of its own
    # What the rank had waited for when it failed: if a peer did not come there, the failure follows from that.
    waits_for: Wait | None = None
    had_failed: bool = False  # the test had failed of something else before it waited

    @property
    def tells_of_trouble(self) -> bool:
        """Whether a phase has gone wrong."""
        return any(phase.outcome.is_bad for phase in self.phases)


@dataclass(frozen=True, kw_only=True)
class StepEnded(_AboutTest):
    """The rank is ready for tests, has run one, or has torn down; its outcome is that of all its phases."""

    phases: tuple[Phase, ...] = ()  # those that no earlier message had
    # The test was skipped where no peer can wait in it: before its call, or by the only rank. The only rank also sets
    # it after an expected failure, which no peer was in.
    early_skip: bool = False
    restored: tuple[str, ...] = ()  # names of the state that the test had changed, and that is as before again
    # Names of the state that it left changed: no single assignment restores that with certainty.
    left: tuple[str, ...] = ()
    has_exited: bool = False  # it raised SystemExit, which pytest does not clean up after
    # Of a test that passed, which of its subtests were skipped, in words that are equal on all ranks up to the first
    # colon, and the reason of the first; empty for none.
    skipped_subtests: str = ""
    # How processes that the test had started failed, in words, although it passed.
    unchecked_children: tuple[str, ...] = ()
    cold_starts: tuple[str, ...] = ()  # why processes could not be started warm; each reason once for a rank
    imported: tuple[str, ...] = ()  # after the last step: modules to import once for all later ranks


@dataclass(frozen=True, kw_only=True)
class GpuLost(_AboutTest):
    """The GPU of a rank that cannot start does not compute."""

    message: str  # why, in one line


@dataclass(frozen=True, kw_only=True)
class Leaving(_AboutTest):
    """A rank's main thread is about to end its process."""

    status: int  # the exit status
    # The reason of the skip that it stands for, in the words of the installed torch; empty if it is none.
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Debugging:
    """A debugger now waits for a command in the rank, or no longer."""

    is_waiting: bool
    has_quit: bool = False  # with the end of the wait: the user has quit the debugger, and so the session


@dataclass(frozen=True, kw_only=True)
class LaunchedEnd(_AboutTest):
    """From a driver: the end of ranks that its test has started."""

    end: Passed | RankEnded


@dataclass(frozen=True, kw_only=True)
class Released(_AboutTest):
    """From a driver: its ranks, so many, start the test now."""

    world_size: int


@dataclass(frozen=True, kw_only=True)
class RepeatsRanks(_AboutTest):
    """From a driver: a phase of its own only repeats what its ranks have reported."""

    when: str  # the phase


@dataclass(frozen=True, kw_only=True)
class SharesOutcome(_AboutTest):
    """From a driver: its ranks are threads, which share one outcome."""


@dataclass(frozen=True, kw_only=True)
class HiddenError(_AboutTest):
    """From a driver: an error that pytest does not show."""

    phase: Phase


@dataclass(frozen=True, kw_only=True)
class RankPrinted:
    """From a driver: a line that one of its ranks has just printed."""

    rank: int
    line: str


Progress = (
    PhasesEnded | StepEnded | GpuLost | Leaving | LaunchedEnd | Released | RepeatsRanks | SharesOutcome | HiddenError
)
"""What a rank tells about its step."""

Message = Progress | Debugging | RankPrinted
"""What a rank tells."""

Command = RunTest | End
"""What a supervisor tells a rank."""

_COMMANDS: Final[Mapping[str, type[Command]]] = by_name(get_args(Command))
_MESSAGES: Final[Mapping[str, type[Message]]] = by_name(get_args(Message))


def encode_message(message: Command | Message) -> bytes:
    """The line of a message, with its line feed."""
    return encode_line(message) + b"\n"


class RankEnd:
    """A rank's own end of the connection."""

    def __init__(self, descriptor: int) -> None:
        self._socket = _Socket(fileno=descriptor)
        # A suite may have set a default timeout for all sockets, but waiting for slow peers must not time out.
        self._socket.settimeout(None)
        self._commands = self._socket.makefile("rb")

    def command(self) -> Command | None:
        """Wait for the next command; None when the supervisor has closed the connection."""
        line = self._commands.readline()
        return decode_line(line, _COMMANDS) if line else None

    def send(self, message: Message) -> None:
        """Send a message; a BrokenPipeError means that the supervisor is gone."""
        self._socket.sendall(encode_message(message))


class Outgoing:
    """What is to be sent over a non-blocking socket: all of it, in order, as the other side makes room.

    Attributes:
        has_failed: The other side takes no more data, and what it has not taken was dropped.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.has_failed = False
        self._socket = connection
        self._unsent = bytearray()

    @property
    def is_waiting(self) -> bool:
        """Whether something waits for room: then :meth:`flush` has to be called when the socket is writable."""
        return bool(self._unsent)

    @property
    def events(self) -> int:
        """The events for which a selector has to watch the socket: data, and room if something waits for it."""
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.is_waiting else 0)

    def add(self, data: bytes) -> None:
        """Send data after what still waits; never blocks."""
        if not self.has_failed:
            self._unsent += data
            self.flush()

    def flush(self) -> None:
        """Send what there is room for; never blocks."""
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
    is_garbled: bool = False  # it has sent something other than a message: later data is not trusted
    has_strangers: bool = False  # processes other than the rank have sent something, which was discarded
    _rest: bytearray = field(default_factory=bytearray)
    _outgoing: Outgoing = field(init=False)

    def __post_init__(self) -> None:
        """Make the queue of the socket."""
        self._outgoing = Outgoing(self.socket)

    @property
    def descriptor(self) -> int:
        """Readable when data has arrived."""
        return self.socket.fileno()

    @property
    def is_sending(self) -> bool:
        """Whether a part of a command waits for room: then :meth:`flush` has to be called when there is some."""
        return self._outgoing.is_waiting

    @property
    def events(self) -> int:
        """The events for which a selector has to watch :attr:`descriptor`."""
        return self._outgoing.events

    def send(self, command: Command) -> None:
        """Send a command, as far as there is room; never blocks."""
        self._outgoing.add(encode_message(command))
        self._end_if_broken()

    def flush(self) -> None:
        """Send more of the commands that wait for room; never blocks."""
        self._outgoing.flush()
        self._end_if_broken()

    def _end_if_broken(self) -> None:
        """End a connection over which a command could not be sent: its descriptor becomes readable."""
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

    def take_strangers(self) -> bool:
        """Whether other processes have sent something since the last call."""
        had, self.has_strangers = self.has_strangers, False
        return had

    def _garble(self) -> None:
        self.at_end = self.is_garbled = True
        self._rest.clear()

    def _fill(self) -> None:
        for _ in range(_PIECES):
            try:
                data, sender = receive(self.socket, _PIECE)
            except BlockingIOError:
                return
            except OSError:
                data, sender = b"", 0
            if not data:
                self.at_end = True
                return
            if sender != self.pid:
                self.has_strangers = True
                continue
            start = len(self._rest)
            self._rest += data
            if len(self._rest) > MESSAGE_LIMIT and b"\n" not in self._rest[start:]:
                self._garble()
                return

    def close(self) -> None:
        """Close it."""
        self.socket.close()


def receive(connection: socket.socket, size: int) -> tuple[bytes, int]:
    """Receive data from a socket with ``SO_PASSCRED``, and its sender's process id; the kernel mixes no two senders."""
    data, ancillary, _, _ = connection.recvmsg(size, socket.CMSG_SPACE(_CREDENTIALS.size))
    return data, _sender(ancillary)


def _sender(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The process that has sent a piece; 0 if unknown. Descriptors that came with it are closed."""
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
    """Both ends of a new connection: the supervisor's, and the descriptor of the rank's."""
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    own.setblocking(False)
    return Link(own), theirs.detach()


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """A rank has sent a message."""

    rank: int
    message: Progress | Debugging
    at: float  # seconds since the epoch, on the clock of the leading agent
    has_strangers: bool = False  # other processes have sent data in the rank's place, which was discarded
    calls: Calls | None = None  # what it has called in the running test, if its step is over


@dataclass(frozen=True, kw_only=True)
class RankExit:
    """A rank's process has ended."""

    rank: int
    status: int | None  # exit code, negative for a signal; None if unknown
    at: float  # seconds since the epoch, on the clock of the leading agent
    cut_off: str = ""  # why the supervisor killed it, in words: what it had done to its connection; empty if it did not
    by_memory_killer: bool = False  # the kernel killed it when memory ran out
    stacks: Stacks = field(default_factory=Stacks)  # stacks that a fatal signal left in its stack file
    output: Output = field(default_factory=Output)  # its last output
    lost: str = ""  # why its status is unknown; empty if it is known
    waits_for: Wait | None = None  # what it waited for, or had last waited for without success
    calls: Calls | None = None  # what it had called in the running test
    was_told_to_stop: bool = False  # it is lost with its node, whose agent was told to stop


RankEvent = RankReport | RankExit


@dataclass(frozen=True, kw_only=True)
class RankHang:
    """Where a rank hangs that has not ended its step."""

    stacks: Stacks = field(default_factory=Stacks)  # its stacks
    held: str = ""  # what keeps it from running, in words; empty for nothing
    phase: str = ""  # of its test, in words; empty if unknown
    waits_for: Wait | None = None  # as of :class:`RankExit`
    children: str = ""  # where the processes are that it has started, in words; empty if unknown
    child_stacks: str = ""  # their stacks
