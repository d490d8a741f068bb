import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from allranks.engine.stream import EventStream

FRAME = b"\x1e"


def framed(event: dict) -> bytes:
    return FRAME + json.dumps(event).encode() + b"\n"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


texts = st.text(max_size=20)
events = st.builds(lambda text, number: {"event": "e", "text": text, "n": number}, texts, st.integers())
noise = st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"").lstrip(FRAME) + b"\n")


@given(st.lists(st.one_of(events, noise), max_size=8), st.lists(st.integers(min_value=0), max_size=12))
def test_events_come_out_the_same_however_the_bytes_are_cut(items, places):
    data = b"".join(item if isinstance(item, bytes) else framed(item) for item in items)
    stream = EventStream()
    found = [event for piece in cut(data, places) for event in stream.feed(piece)]
    assert found == [item for item in items if isinstance(item, dict)]


def test_an_event_is_given_out_as_soon_as_its_line_is_complete():
    stream = EventStream()
    data = framed({"event": "a"})
    assert list(stream.feed(data[:-1])) == []
    assert list(stream.feed(data[-1:])) == [{"event": "a"}]


def test_what_is_no_event_is_kept_as_output():
    stream = EventStream()
    assert list(stream.feed(b"Traceback\n" + framed({"event": "a"}) + b"ImportError: x")) == [{"event": "a"}]
    assert stream.output == "Traceback\nImportError: x"


def test_notes_join_the_output():
    stream = EventStream()
    list(stream.feed(b"out\n"))
    stream.note(b"err\n")
    assert stream.output == "out\nerr"


def test_only_the_end_of_a_long_output_is_kept():
    stream = EventStream()
    for number in range(10_000):
        list(stream.feed(b"line %d\n" % number))
    assert len(stream.output) <= 8000
    assert stream.output.endswith("line 9999")


def test_a_torn_event_line_is_no_event_and_no_failure():
    assert list(EventStream().feed(FRAME + b'{"event": \n')) == []


def test_output_that_is_no_text_is_readable_all_the_same():
    stream = EventStream()
    list(stream.feed(b"\xff\xfe\n"))
    assert stream.output == "\ufffd\ufffd"
