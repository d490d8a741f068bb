import itertools
import struct

from hypothesis import given
from hypothesis import strategies as st

from allranks.engines.agent_output import STDOUT, FrameReader


def frame(stream: int, payload: bytes) -> bytes:
    return struct.pack(">BxxxL", stream, len(payload)) + payload


frames = st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40)), max_size=8)


def joined(found):
    """The output of each stream, joined."""
    for stream, parts in itertools.groupby(found, key=lambda piece: piece[0]):
        if payload := b"".join(part for _, part in parts):
            yield stream, payload


@given(frames, st.lists(st.integers(min_value=0), max_size=12))
def test_payloads_come_out_the_same_however_the_bytes_are_cut(wanted, places):
    data = b"".join(frame(*piece) for piece in wanted)
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    reader = FrameReader()
    found = [piece for start, end in itertools.pairwise(edges) for piece in reader.feed(data[start:end])]
    assert list(joined(found)) == list(joined(piece for piece in wanted if piece[1]))


def test_a_payload_does_not_wait_for_the_end_of_its_frame():
    reader = FrameReader()
    data = frame(STDOUT, b"hello")
    assert list(reader.feed(data[:-1])) == [(STDOUT, b"hell")]
    assert list(reader.feed(data[-1:])) == [(STDOUT, b"o")]


def test_a_frame_that_claims_four_gigabytes_is_not_gathered():
    reader = FrameReader()
    assert list(reader.feed(struct.pack(">BxxxL", STDOUT, 0xFFFFFFFF))) == []
    for _ in range(64):
        assert [len(payload) for _, payload in reader.feed(bytes(1 << 20))] == [1 << 20]
    assert sum(len(value) for value in vars(reader).values() if isinstance(value, bytes)) == 0


def test_an_empty_frame_yields_nothing():
    assert list(FrameReader().feed(frame(2, b"") + frame(STDOUT, b"x"))) == [(STDOUT, b"x")]
