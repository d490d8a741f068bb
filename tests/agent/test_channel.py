"""The connection between a supervisor and a rank, including invalid data and data of other processes."""

import concurrent.futures
import itertools
import json
import os
import selectors
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent import linux
from allranks.agent.call_log import Wait
from allranks.agent.channel import (
    MESSAGE_LIMIT,
    Debugging,
    End,
    GpuLost,
    HiddenError,
    LaunchedEnd,
    Leaving,
    Message,
    PhasesEnded,
    RankEnd,
    RankPrinted,
    Released,
    RepeatsRanks,
    RunTest,
    SharesOutcome,
    StepEnded,
    encode_message,
    link_pair,
    receive,
)
from allranks.protocol.outcomes import Outcome, Phase, SkipKind
from allranks.protocol.records import Passed, RankEnded
from allranks.protocol.typed_json import RecordError


def test_a_patched_json_module_changes_no_report(monkeypatch):
    report = StepEnded(nodeid="t.py::test", restored=("the umask",))
    before = encode_message(report)
    monkeypatch.setattr(json, "dumps", None)
    assert encode_message(report) == before


TEXT = st.text(st.characters(exclude_categories=[]), max_size=30)
PHASES = st.builds(
    Phase,
    when=st.sampled_from(["setup", "call", "teardown"]),
    outcome=st.sampled_from(Outcome),
    duration=st.floats(0, 1e9),
    message=TEXT,
    text=TEXT,
    stdout=TEXT,
    stderr=TEXT,
    skip_kind=st.none() | st.sampled_from(SkipKind),
    skip_code=st.none() | st.integers(72, 89),
    gpus_needed=st.none() | st.integers(1, 100),
)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
ENDS = st.builds(
    Passed,
    nodeid=TEXT,
    ranks=st.lists(st.integers(0, 9), max_size=2).map(tuple),
    arrived=st.lists(st.floats(0, 1e9), max_size=2).map(tuple),
    seconds=st.lists(st.floats(0, 1e9), max_size=2).map(tuple),
    world_size=st.integers(1, 9),
    at=st.floats(0, 1e9),
) | st.builds(
    RankEnded,
    nodeid=TEXT,
    rank=st.integers(0, 9),
    outcome=st.sampled_from(Outcome),
    world_size=st.integers(1, 9),
    arrived=st.floats(0, 1e9),
    message=TEXT,
    at=st.floats(0, 1e9),
    phases=st.just(()),
    observed=st.just(0.0),
    caused_by=st.none() | st.integers(0, 9),
    skip_kind=st.none() | st.sampled_from(SkipKind),
    skip_code=st.none(),
    gpus_needed=st.none(),
)
WAITS = st.builds(Wait, order=st.integers(0, 9), seconds=st.none() | st.floats(0, 1e9))
MESSAGES = st.one_of(
    st.builds(
        StepEnded,
        nodeid=TEXT,
        phases=st.lists(PHASES, max_size=3).map(tuple),
        early_skip=st.booleans(),
        restored=TEXTS,
        left=TEXTS,
        has_exited=st.booleans(),
        unchecked_children=TEXTS,
        cold_starts=TEXTS,
        imported=TEXTS,
    ),
    st.builds(
        PhasesEnded,
        nodeid=TEXT,
        phases=st.lists(PHASES, min_size=1, max_size=3).map(tuple),
        is_symptom=st.booleans(),
        waits_for=st.none() | WAITS,
        had_failed=st.booleans(),
    ),
    st.builds(GpuLost, nodeid=TEXT, message=TEXT),
    st.builds(Leaving, nodeid=TEXT, status=st.integers(-100, 255), reason=TEXT),
    st.builds(Debugging, is_waiting=st.booleans(), has_quit=st.booleans()),
    st.builds(LaunchedEnd, nodeid=TEXT, end=ENDS),
    st.builds(Released, nodeid=TEXT, world_size=st.integers(1, 9)),
    st.builds(RepeatsRanks, nodeid=TEXT, when=TEXT),
    st.builds(SharesOutcome, nodeid=TEXT),
    st.builds(HiddenError, nodeid=TEXT, phase=PHASES),
    st.builds(RankPrinted, rank=st.integers(0, 9), line=TEXT),
)
COMMANDS = st.builds(
    RunTest,
    index=st.integers(0, 9),
    nodeid=TEXT,
    following=st.none() | st.integers(0, 9),
    seed=st.integers(0, 2**32 - 1),
) | st.builds(End, is_condemned=st.booleans())
PASSED, FAILED = StepEnded(nodeid="t"), GpuLost(nodeid="t", message="why")
END = End(is_condemned=True)


class Pair:
    """Both ends of a connection; this process is the rank."""

    def __init__(self):
        self.link, theirs = link_pair()
        self.link.pid = os.getpid()
        self.theirs = theirs
        self.rank = RankEnd(theirs)

    def send(self, data):
        while data:
            data = data[os.write(self.theirs, data) :]

    def disconnect(self):
        self.rank._commands.close()
        self.rank._socket.close()

    def in_a_child(self, deed):
        """Run a function in a forked child, and wait for its end."""
        pid = os.fork()
        if pid == 0:
            try:
                deed()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.link.close()
        self.disconnect()


@pytest.fixture
def pair():
    with Pair() as pair:
        yield pair


def test_a_rank_sends_whatever_a_test_has_patched(pair, monkeypatch):
    monkeypatch.setattr(socket.socket, "sendall", None, raising=False)
    pair.rank.send(PASSED)
    assert pair.link.read() == [PASSED]


def test_a_default_timeout_of_sockets_does_not_affect_a_rank():
    socket.setdefaulttimeout(1e-9)
    try:
        pair = Pair()
    finally:
        socket.setdefaulttimeout(None)
    with pair, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(pair.rank.command)
        concurrent.futures.wait([waiting], 0.05)
        pair.link.send(END)
        assert waiting.result() == END


@given(COMMANDS)
def test_a_command_arrives_as_it_was_sent(command):
    with Pair() as pair:
        pair.link.send(command)
        assert pair.rank.command() == command


def test_commands_arrive_in_order_until_the_end(pair):
    sent = [RunTest(index=0, nodeid="t", following=1), END]
    for command in sent:
        pair.link.send(command)
    pair.link.close()
    assert [pair.rank.command() for _ in range(3)] == [*sent, None]


def test_a_command_to_a_dead_rank_is_dropped(pair):
    pair.disconnect()
    pair.link.send(END)
    assert pair.link.read() == []
    assert pair.link.at_end


def test_a_command_to_a_rank_that_reads_nothing_does_not_block(pair):
    sent = [RunTest(index=number, nodeid="x" * 100_000, following=None) for number in range(10)]
    for command in sent:
        pair.link.send(command)
    assert pair.rank.command() == sent[0]


LENGTHS = [1, 200_000, 219_000, 1_000_000, 3_000_000]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("letter", ["x", "\\", "\U0001f4a5"])
def test_a_command_of_any_length_arrives_whole_however_late_the_rank_reads(pair, length, letter):
    sent = [RunTest(index=number, nodeid=letter * length, following=None) for number in range(2)]
    for command in sent:
        pair.link.send(command)
    with ThreadPoolExecutor(1) as thread:
        received = thread.submit(lambda: [pair.rank.command() for _ in sent])
        while pair.link.is_sending:
            assert is_writable(pair.link.descriptor)
            pair.link.flush()
        assert received.result() == sent


def is_writable(descriptor):
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_WRITE)
        return bool(selector.select(20))


@pytest.mark.parametrize("length", LENGTHS)
def test_a_command_that_a_rank_does_not_read_breaks_the_connection(pair, length):
    pair.link.send(RunTest(index=0, nodeid="x" * length, following=None))
    pair.rank._socket.shutdown(socket.SHUT_RD)
    pair.link.send(END)
    assert not pair.link.is_sending
    assert pair.link.read() == []
    assert pair.link.at_end


def test_the_reports_before_a_failed_send_still_count(pair):
    pair.rank.send(FAILED)
    pair.rank._socket.shutdown(socket.SHUT_RD)
    pair.link.send(END)
    assert pair.link.read() == [FAILED]
    assert pair.link.at_end


@pytest.mark.parametrize(
    "line", [b'["StepEnded", {}]', b"[]", b'["Run", {}]', b'["End", {"is_condemned": 1}]', b'"End"']
)
def test_an_invalid_command_is_a_record_error(pair, line):
    pair.link.socket.sendall(line + b"\n")
    with pytest.raises(RecordError):
        pair.rank.command()


def test_a_report_to_a_dead_supervisor_raises(pair):
    pair.link.close()
    with pytest.raises(BrokenPipeError):
        pair.rank.send(PASSED)


def test_nothing_to_read_is_no_end(pair):
    assert pair.link.read() == []
    assert not pair.link.at_end


def test_the_end_is_read_with_the_last_report(pair):
    pair.rank.send(FAILED)
    pair.disconnect()
    assert pair.link.read() == [FAILED]
    assert pair.link.at_end
    assert not pair.link.is_garbled


def test_an_incomplete_report_is_ignored(pair):
    pair.send(encode_message(FAILED)[:-9])
    pair.disconnect()
    assert pair.link.read() == []
    assert pair.link.at_end


@given(st.lists(MESSAGES, max_size=3), st.data())
def test_reports_survive_any_split_of_their_bytes(reports, data):
    sent = b"".join(map(encode_message, reports))
    cuts = sorted({0, len(sent), *data.draw(st.lists(st.integers(0, len(sent)), max_size=5))})
    with Pair() as pair:
        arrived = []
        for start, stop in itertools.pairwise(cuts):
            pair.send(sent[start:stop])
            arrived += pair.link.read()
        assert arrived == reports
        assert not pair.link.at_end


GARBAGE = [
    b"\n",
    b"x\n",
    b'{"event": ["x"], "at": 1}\n',
    b'["StepEnded"]\n',
    b'["PhasesEnded", {"phases": [{"when": "call", "outcome": "splendid", "duration": 1}]}]\n',
    b'["PhasesEnded", {}]\n',
    b'["StepEnded", {"nodeid": "t", "more": 1}]\n',
    b'["LaunchedEnd", {"end": {"nodeid": "t"}}]\n',
    b'["LaunchedEnd", {"end": ["Finished", {"status": 0}]}]\n',
    b'["Run", {"index": 0, "nodeid": "t", "following": null}]\n',
    b"[" * 100_000 + b"\n",
    b"\xff\xfe\n",
    b"1" * 5000 + b"\n",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_messages_after_invalid_data_are_ignored(pair, garbage):
    pair.rank.send(PASSED)
    pair.send(garbage)
    pair.rank.send(PASSED)
    assert pair.link.read() == [PASSED]
    assert pair.link.is_garbled
    assert pair.link.at_end
    pair.rank.send(PASSED)
    assert pair.link.read() == []


@given(st.lists(st.binary(max_size=60), max_size=4), st.booleans())
def test_any_bytes_are_reports_or_garbage(pieces, has_valid_start):
    with Pair() as pair:
        if has_valid_start:
            pair.rank.send(PASSED)
        for piece in pieces:
            pair.send(piece)
            assert all(isinstance(report, Message) for report in pair.link.read())


def test_a_large_report_arrives_complete(pair):
    report = StepEnded(
        nodeid="t", phases=(Phase(when="call", outcome=Outcome.FAILED, duration=1.0, text="\U0001f4a5" * 65_536),)
    )
    arrived = []
    sender = os.fork()
    if sender == 0:
        pair.rank.send(report)
        os._exit(0)
    pair.link.pid = sender
    while not arrived and linux.is_readable(pair.link.descriptor, 20):
        arrived += pair.link.read()
    os.waitpid(sender, 0)
    assert arrived == [report]


def test_a_message_that_is_too_long_is_invalid_and_dropped(pair):
    sender = os.fork()
    if sender == 0:
        pair.link.close()
        try:
            for _ in range(2 * MESSAGE_LIMIT >> 16):
                pair.send(b"x" * (1 << 16))
        finally:
            os._exit(0)
    pair.link.pid = sender
    while not pair.link.is_garbled and linux.is_readable(pair.link.descriptor, 20):
        assert pair.link.read() == []
    assert pair.link.is_garbled
    pair.link.close()
    os.waitpid(sender, 0)


def test_reading_a_flood_is_bounded(pair):
    sender = os.fork()
    if sender == 0:
        pair.link.close()
        try:
            while True:
                pair.rank.send(PASSED)
        finally:
            os._exit(0)
    pair.link.pid = sender
    assert linux.is_readable(pair.link.descriptor, 20)
    assert pair.link.read()
    assert not pair.link.at_end
    pair.link.close()
    os.waitpid(sender, 0)


def test_messages_of_a_forked_child_are_discarded_with_a_notice(pair):
    pair.rank.send(PASSED)
    pair.in_a_child(lambda: pair.rank.send(FAILED))
    pair.rank.send(PASSED)
    assert pair.link.read() == [PASSED, PASSED]
    assert pair.link.has_foreign_data


def test_without_foreign_data_nothing_is_noted(pair):
    pair.rank.send(PASSED)
    pair.link.read()
    assert not pair.link.has_foreign_data


def test_a_child_cannot_break_into_a_message_of_the_ranks_own(pair):
    line = encode_message(PASSED)
    pair.send(line[:20])
    pair.in_a_child(lambda: pair.send(b"garbage\n"))
    pair.send(line[20:])
    assert pair.link.read() == [PASSED]
    assert not pair.link.is_garbled


def test_the_end_of_a_child_is_not_the_ranks(pair):
    pair.in_a_child(pair.disconnect)
    assert pair.link.read() == []
    assert not pair.link.at_end


def descriptors():
    return sorted(Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("count", [1, 200])
def test_descriptors_that_are_sent_along_are_closed(pair, count):
    before = descriptors()
    with Path("/proc/self/stat").open() as file:
        socket.send_fds(pair.rank._socket, [encode_message(PASSED)], [file.fileno()] * count)
    assert pair.link.read() == [PASSED]
    assert descriptors() == before


def test_the_kernel_reports_the_sender_of_data(pair):
    pair.send(b"own")
    pair.in_a_child(lambda: pair.send(b"child's"))
    data, sender = receive(pair.link.socket, 100)
    assert (data, sender) == (b"own", os.getpid())
    data, sender = receive(pair.link.socket, 100)
    assert data == b"child's"
    assert sender not in (0, os.getpid())


def test_a_connection_reset_by_the_rank_is_at_its_end(pair):
    pair.link.send(END)
    pair.disconnect()  # with an unread command, which is an error on the other side
    pair.link.read()
    pair.link.read()
    assert pair.link.at_end


def test_a_message_is_one_line_of_json():
    assert json.loads(encode_message(FAILED)) == ["GpuLost", {"nodeid": "t", "message": "why"}]
    assert encode_message(GpuLost(message="a\nb")).count(b"\n") == 1
