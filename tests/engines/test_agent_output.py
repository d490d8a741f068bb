"""Records in an agent's output, which arrives in pieces of any size."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.engines import agent_output as stream_module
from allranks.engines.agent_output import SEPARATOR, Damage, RecordReader
from allranks.protocol.records import Finished, Notice, Printed, encode

HELLO = Notice(text="hello")


def framed(record) -> bytes:
    return SEPARATOR + encode(record) + b"\n"


def read(*pieces: bytes):
    stream = RecordReader()
    return [record for piece in pieces for record in stream.feed(piece)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


texts = st.text(max_size=20)
records = st.builds(lambda text, rank: Printed(rank=rank, line=text), texts, st.integers(0, 9))
noise = st.binary(max_size=30).map(lambda data: data.replace(SEPARATOR, b""))


@given(st.lists(st.one_of(records, noise), max_size=8), st.lists(st.integers(min_value=0), max_size=12))
def test_records_come_out_the_same_however_the_bytes_are_cut(items, places):
    data = b"".join(item if isinstance(item, bytes) else framed(item) for item in items)
    assert read(*cut(data, places)) == [item for item in items if not isinstance(item, bytes)]


@given(st.binary(max_size=200), st.lists(st.integers(min_value=0), max_size=12))
def test_any_bytes_at_all_give_the_same_however_they_are_cut(data, places):
    assert read(*cut(data, places)) == read(data)


def test_a_record_is_given_out_as_soon_as_its_line_is_complete():
    stream = RecordReader()
    data = framed(HELLO)
    assert list(stream.feed(data[:-1])) == []
    assert list(stream.feed(data[-1:])) == [HELLO]


def test_what_is_no_record_is_kept_as_output():
    stream = RecordReader()
    assert list(stream.feed(b"Traceback\n" + framed(HELLO) + b"ImportError: x")) == [HELLO]
    assert stream.output == "Traceback\nImportError: x"


def test_a_line_that_something_else_has_begun_hides_no_record():
    stream = RecordReader()
    assert list(stream.feed(b"half a line" + framed(HELLO))) == [HELLO]
    assert stream.output == "half a line"


def test_notes_join_the_output():
    stream = RecordReader()
    list(stream.feed(b"out\n"))
    stream.add_output(b"err\n")
    assert stream.output == "out\nerr"


def test_only_the_end_of_a_long_output_is_kept():
    stream = RecordReader()
    for number in range(10_000):
        list(stream.feed(b"line %d\n" % number))
    assert len(stream.output) <= 8000
    assert stream.output.endswith("line 9999")


def test_output_that_is_not_text_is_still_readable():
    stream = RecordReader()
    list(stream.feed(b"\xff\xfe\n"))
    assert stream.output == "\ufffd\ufffd"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'["Notice",{"text":', "is not JSON"),
        (b'{"event":["x"],"at":1}', "is not a record: a name and an object"),
        (b'["Notice",{"text":5}]', "has '5' as text of Notice"),
        (b'["Telegram",{}]', "is of an unknown kind: 'Telegram'"),
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_damage_has_its_location_and_its_reason(line, why):
    before = framed(HELLO)
    assert read(before + SEPARATOR + line + b"\n") == [HELLO, Damage(f"record 2, from byte {len(before)} on, {why}")]


def test_the_record_behind_one_that_was_cut_short_is_read():
    [damage, record] = read(framed(HELLO)[:-9] + framed(HELLO))
    assert (type(damage), record) == (Damage, HELLO)


def test_damage_is_reported_once():
    assert [type(found) for found in read((SEPARATOR + b"x\n") * 9 + framed(HELLO))] == [Damage, Notice]


def test_the_beginning_of_a_record_at_the_end_of_the_stream_is_nothing():
    assert read(framed(HELLO)[:-1]) == []


def test_a_record_that_is_too_long_is_reported_and_later_ones_are_read(monkeypatch):
    monkeypatch.setattr(stream_module, "LINE_LIMIT", 100)
    monkeypatch.setattr("allranks.protocol.records.LINE_LIMIT", 100)
    [damage] = read(SEPARATOR + b"x" * 101)
    assert damage.what.startswith("record 1, from byte 0 on, has 101 bytes")
    pieces = [SEPARATOR, *[b"x" * 60] * 40, b"\n", framed(Finished(status=0))]
    assert [type(found) for found in read(*pieces)] == [Damage, Finished]


def test_a_stream_keeps_no_more_than_a_line_and_its_last_words():
    stream = RecordReader()
    for _ in range(64):
        assert list(stream.feed(b"x" * (1 << 20))) == []
    assert len(stream._output) <= 16_000
    assert stream._line is None


def test_no_byte_of_a_record_is_looked_at_twice(monkeypatch):
    looked_at = 0

    class Counting:
        def search(self, data, place):
            nonlocal looked_at
            found = END.search(data, place)
            looked_at += (found.end() if found else len(data)) - place
            return found

    END = stream_module._END  # noqa: N806 - a constant
    monkeypatch.setattr(stream_module, "_END", Counting())
    line = framed(Notice(text="x" * 100_000))
    assert len(read(*(line[place : place + 7] for place in range(0, len(line), 7)))) == 1
    assert looked_at == len(line) - 1
