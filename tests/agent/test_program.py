"""The messages between a fork server and its supervisor."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent.program import (
    FinalResult,
    Finish,
    Forked,
    ItemOptions,
    Program,
    SessionEnded,
    SkippedModule,
    StartRanks,
    batches,
    encode_message,
    parse_reply,
    parse_request,
)
from allranks.protocol.config import TimeLimit
from allranks.protocol.records import Imported, Notice, Record
from allranks.protocol.typed_json import RecordError

TEXT = st.text(st.characters(exclude_categories=[]), max_size=20)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
WHOLE = st.integers(-(2**63), 2**63 - 1)
SECONDS = st.floats(0, 1e9)
LIMITS = st.builds(TimeLimit, value=SECONDS, setting=TEXT, margin=SECONDS)
OPTIONS = st.builds(
    ItemOptions,
    gang=TEXTS,
    has_process_group=st.booleans(),
    limit=LIMITS,
    plugin_limit=st.none() | LIMITS,
    launches=st.booleans(),
    is_skipped=st.booleans(),
    test_group=TEXT,
    is_script=st.booleans(),
)
PROGRAMS = st.builds(
    Program,
    tests=TEXTS,
    options=st.lists(OPTIONS, max_size=3).map(tuple),
    skipped=st.lists(st.builds(SkippedModule, nodeid=TEXT, reason=TEXT), max_size=2).map(tuple),
    deselected=WHOLE,
    maxfail=WHOLE,
    is_collected_only=st.booleans(),
    prints_live=st.booleans(),
    missing_hardware=TEXT,
    python=TEXT,
)
TOLD = (
    PROGRAMS
    | st.builds(Forked, pids=st.lists(WHOLE, max_size=3).map(tuple), error=TEXT)
    | st.builds(SessionEnded, status=WHOLE, own=WHOLE)
    | st.builds(Notice, text=TEXT, nodeid=TEXT)
    | st.builds(Imported, torch=TEXT, seconds=st.floats(0, 1e9))
)
ASKED = st.builds(
    StartRanks,
    ranks=st.lists(WHOLE, max_size=3).map(tuple),
    gang=WHOLE,
    url=st.none() | TEXT,
    environment=st.dictionaries(TEXT, TEXT, max_size=3),
    fresh=st.dictionaries(st.integers(0, 99), TEXT, max_size=3),
    launches=st.booleans(),
    preload=TEXTS,
    has_many_forks=st.booleans(),
    results=st.sampled_from([Path(), Path("/results"), Path("a/\u00fc")]),
) | st.builds(Finish, tests=st.lists(st.builds(FinalResult, nodeid=TEXT, is_bad=st.booleans()), max_size=3).map(tuple))


@given(TOLD)
def test_a_reply_round_trips(reply):
    assert parse_reply(encode_message(reply)) == reply


@given(ASKED)
def test_a_request_round_trips(message):
    assert parse_request(encode_message(message)) == message


@given(TOLD | ASKED)
def test_a_message_is_one_line(message):
    line = encode_message(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1


@given(TOLD)
def test_a_reply_is_not_a_request(reply):
    with pytest.raises(RecordError):
        parse_request(encode_message(reply))


@given(ASKED)
def test_a_request_is_not_a_reply(message):
    with pytest.raises(RecordError):
        parse_reply(encode_message(message))


def assert_reads_or_refuses(read, kinds, line):
    try:
        found = read(line)
    except RecordError:
        return
    assert isinstance(found, kinds)


READERS = [(parse_reply, (Record, Program, Forked, SessionEnded)), (parse_request, (StartRanks, Finish))]


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_a_record_error(line):
    for read, kinds in READERS:
        assert_reads_or_refuses(read, kinds, line)


@given(TOLD | ASKED, st.data())
def test_a_damaged_line_is_a_message_or_a_record_error(message, data):
    line = bytearray(encode_message(message))
    index = data.draw(st.integers(0, len(line) - 1))
    line[index : index + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    for read, kinds in READERS:
        assert_reads_or_refuses(read, kinds, bytes(line))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"hello", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"{}", "is not a record"),
        (b'["Program", []]', "has no object as its Program"),
        (b'["Forked", {"pids": ["1"]}]', "as pids of Forked"),
        (b'["Program", {"options": [{}]}]', "lacks gang of ItemOptions"),
        (b'["SessionEnded", {"own": 0}]', "lacks status of SessionEnded"),
        (b'["StartRanks", {"ranks": [0], "gang": 1}]', "is of an unknown kind: 'StartRanks'"),
    ],
)
def test_the_error_has_the_reason_why_a_line_is_not_a_reply(line, why):
    with pytest.raises(RecordError) as error:
        parse_reply(line)
    assert why in str(error.value)


@pytest.mark.parametrize("line", [b'["Forked", {}]', b"[]", b"3", b'["StartRanks", {}]', b'["Finish", {"tests": [1]}]'])
def test_invalid_requests_are_rejected(line):
    with pytest.raises(RecordError):
        parse_request(line)


@pytest.mark.parametrize(("length", "most"), [(20, 2000), (3_000, 87), (200_000, 1), (900_000, 1)])
def test_tests_with_long_names_are_split_into_more_batches(length, most):
    names = [f"{number:04}{'n' * length}" for number in range(2 * most + 1)]
    parts = list(batches(names))
    assert list(map(len, parts)) == [most, most, 1]
    assert [name for part in parts for name in part] == names


def test_no_tests_make_no_batches():
    assert list(batches([])) == []
