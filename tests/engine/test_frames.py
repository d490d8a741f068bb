import itertools
import struct

from hypothesis import given
from hypothesis import strategies as st

from allranks.engine.frames import STDOUT, FrameReader


def frame(stream: int, payload: bytes) -> bytes:
    return struct.pack(">BxxxL", stream, len(payload)) + payload


frames = st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40)), max_size=8)


@given(frames, st.lists(st.integers(min_value=0), max_size=12))
def test_frames_come_out_the_same_however_the_bytes_are_cut(wanted, places):
    data = b"".join(frame(*each) for each in wanted)
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    reader = FrameReader()
    found = [each for start, end in itertools.pairwise(edges) for each in reader.feed(data[start:end])]
    assert found == wanted


def test_a_frame_waits_for_its_last_byte():
    reader = FrameReader()
    data = frame(STDOUT, b"hello")
    assert list(reader.feed(data[:-1])) == []
    assert list(reader.feed(data[-1:])) == [(STDOUT, b"hello")]


def test_an_empty_frame_is_a_frame():
    assert list(FrameReader().feed(frame(2, b""))) == [(2, b"")]
