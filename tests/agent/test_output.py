"""The output of a rank: truncated in the middle, and read without blocking."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent import output
from allranks.agent.output import Excerpt, Output, OutputLog, OutputStream


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


@given(st.lists(st.binary(max_size=300), max_size=30))
def test_short_text_is_unchanged(parts):
    excerpt = Excerpt()
    for part in parts:
        excerpt.add(part)
    assert excerpt.text() == b"".join(parts).decode("utf-8", "replace")


def test_a_long_text_is_cut_in_the_middle(monkeypatch):
    monkeypatch.setattr(output, "KEPT", 8)
    excerpt = Excerpt()
    for letter in b"abcdefghijklmnopqrstuvwxyz":
        excerpt.add(bytes([letter]))
    start, middle, end = excerpt.text().split("\n")
    assert (start, end[-4:]) == ("abcd", "wxyz")
    cut = int(middle.split()[1])
    assert len(start) + cut + len(end) == 26


@given(st.lists(st.binary(min_size=1, max_size=400), max_size=60))
def test_memory_is_bounded(parts):
    excerpt = Excerpt()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "KEPT", 64)
        for part in parts:
            excerpt.add(part)
            start, _, end = excerpt.text().rpartition(" bytes cut …\n")
            assert len(end) <= (32 if start else 64)


def test_a_stream_returns_the_output_since_the_last_call(pipe):
    stream = OutputStream(pipe[0])
    os.write(pipe[1], b"one\n")
    assert stream.take() == "one\n"
    os.write(pipe[1], b"two")
    assert stream.peek() == "two"
    assert stream.take() == "two"
    assert stream.take() == ""


def test_peek_keeps_the_output(pipe):
    stream = OutputStream(pipe[0])
    os.write(pipe[1], b"words")
    assert [stream.peek(), stream.peek()] == ["words", "words"]


def test_a_stream_without_writers_is_at_its_end():
    reading, writing = os.pipe()
    stream = OutputStream(reading)
    os.write(writing, b"last")
    os.close(writing)
    stream.drain()
    assert (stream.take(), stream.at_end) == ("last", True)
    os.close(reading)


def test_complete_lines_are_echoed_and_the_rest_at_the_end_of_the_test(pipe):
    lines = []
    stream = OutputStream(pipe[0], lines.append)
    os.write(pipe[1], b"one\ntw")
    stream.drain()
    assert lines == ["one"]
    os.write(pipe[1], b"o\nthree")
    stream.take()
    assert lines == ["one", "two", "three"]


def test_a_line_without_end_is_echoed_in_pieces(pipe):
    lines = []
    stream = OutputStream(pipe[0], lines.append)
    for _ in range(3):
        os.write(pipe[1], b"x" * 60_000)
        stream.drain()
    stream.take()
    assert sum(map(len, lines)) == 180_000
    assert max(map(len, lines)) < 130_000


def test_a_log_names_the_test_of_each_output(tmp_path):
    log = OutputLog(tmp_path / "rank-0.log")
    log.add("t::a", Output(stdout="out", stderr="err\n"))
    log.add("t::b", Output())
    log.add("t::c", Output(stdout="more\n"))
    assert (tmp_path / "rank-0.log").read_text() == (
        "--- stdout of t::a ---\nout\n--- stderr of t::a ---\nerr\n--- stdout of t::c ---\nmore\n"
    )


def test_a_log_is_cut_at_its_limit_with_a_notice(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "LOG_LIMIT", 100)
    log = OutputLog(tmp_path / "rank-0.log")
    for _ in range(9):
        log.add("t::a", Output(stdout="x" * 40))
    text = (tmp_path / "rank-0.log").read_text()
    assert text.endswith("--- this file has reached its limit ---\n")
    assert len(text) < 200
