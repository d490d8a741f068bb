import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.harness.events import RECORD_SEPARATOR, EventLog, append_events, parse_lines, read_events, write_all


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def kinds(path):
    return [event["event"] for event in read_events(path)]


def test_an_event_is_there_when_write_returns(path):
    log = EventLog(path)
    log.write("began", rank=1, text="two\nlines\x00")
    [event] = read_events(path)
    assert (event["event"], event["rank"], event["text"]) == ("began", 1, "two\nlines\x00")
    assert event["at"] > 0
    log.close()


def test_a_second_log_appends(path):
    for kind in ("first", "second"):
        log = EventLog(path)
        log.write(kind)
        log.close()
    assert kinds(path) == ["first", "second"]


def test_a_line_torn_by_a_kill_costs_no_line_before_or_after_it(path):
    path.write_bytes(b'{"event": "whole"}\n{"event": "to')
    log = EventLog(path)
    log.write("rank_ended")
    log.close()
    assert kinds(path) == ["whole", "rank_ended"]


def test_appended_events_do_not_become_the_end_of_a_torn_line(path):
    path.write_bytes(b'{"event": "to')
    append_events(path, [{"event": "one"}, {"event": "two"}])
    assert kinds(path) == ["one", "two"]


def test_a_missing_file_has_no_events(path):
    assert read_events(path) == []


@pytest.mark.parametrize("line", [b"", b"not json", b"[]", b"3", b'{"no": "kind"}', b"\xff\xfe", b'{"event": "to'])
def test_a_foreign_line_is_left_out(line):
    assert list(parse_lines([line, b'{"event": "ours"}'])) == [{"event": "ours"}]


def test_the_stream_gets_each_event_framed(path):
    reading, writing = os.pipe()
    log = EventLog(path, writing)
    log.write("one")
    log.write("two")
    data = os.read(reading, 65536)
    assert data.count(RECORD_SEPARATOR) == 2
    assert data.startswith(RECORD_SEPARATOR)
    assert [event["event"] for event in parse_lines(data.splitlines())] == ["one", "two"]
    for descriptor in (reading, writing):
        os.close(descriptor)
    log.close()


def test_a_stream_without_a_reader_costs_the_file_nothing(path):
    reading, writing = os.pipe()
    os.close(reading)
    log = EventLog(path, writing)
    log.write("one")
    log.write("two")
    assert kinds(path) == ["one", "two"]
    os.close(writing)
    log.close()


def test_a_line_longer_than_a_pipe_is_written_whole(tmp_path):
    data = b"x" * 300_000
    with (tmp_path / "long").open("wb") as file:
        write_all(file.fileno(), data)
    assert (tmp_path / "long").read_bytes() == data


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text()), max_size=4))
def test_any_fields_survive_one_line(fields):
    line = json.dumps({**fields, "event": "any"}).encode()
    assert b"\n" not in line
    assert list(parse_lines([RECORD_SEPARATOR + line])) == [{**fields, "event": "any"}]
