"""The connection between two agents, and its handshake."""

import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from connections import local_connection
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent.call_log import LastCall
from allranks.agent.channel import End, RankExit, RankHang, RankReport, StepEnded
from allranks.agent.gangs.local_ranks import Disturb, Inspection, Stop
from allranks.agent.nodes.connection import (
    FRAME_LIMIT,
    UNTRUSTED_LIMIT,
    ConnectionLostError,
    NodeConnection,
    is_proof,
    make_proof,
)
from allranks.agent.nodes.messages import FollowerProof, LeaderProof, Outputs, StopRanks
from allranks.agent.output import Output
from allranks.agent.program import StartRanks
from allranks.agent.stacks import Stacks
from allranks.protocol.typed_json import encode_line

TEXT = st.text(st.characters(exclude_categories=[]))
RANKS = st.integers(0, 9)
CALLS = st.builds(
    LastCall,
    group=TEXT,
    number=st.integers(1, 2**52),
    kind=TEXT,
    peer=st.none() | RANKS,
    dtype=TEXT,
    shape=TEXT,
    order=st.integers(0, 2**52),
    at=st.integers(-(2**63), 2**63 - 1),
    tag=st.integers(-(2**52), 2**52),
    mask=st.integers(0, 2**2048 - 1),
)
EXAMINATIONS = st.builds(
    Inspection,
    hangs=st.dictionaries(RANKS, st.builds(RankHang, stacks=st.builds(Stacks, TEXT), phase=TEXT)),
    calls=st.dictionaries(RANKS, st.lists(CALLS, max_size=3).map(tuple), max_size=3),
)
MESSAGES = st.lists(
    st.builds(LeaderProof, proof=TEXT)
    | st.builds(FollowerProof, node=RANKS, nonce=TEXT, proof=TEXT)
    | st.builds(StartRanks, gang=RANKS, environment=st.dictionaries(TEXT, TEXT), fresh=st.dictionaries(RANKS, TEXT))
    | st.builds(End, is_condemned=st.booleans())
    | st.builds(Disturb, how=TEXT)
    | st.builds(StopRanks, ranks=st.lists(RANKS).map(tuple), how=st.sampled_from(Stop))
    | EXAMINATIONS
    | st.builds(Outputs, ranks=st.dictionaries(RANKS, st.builds(Output, stdout=TEXT, stderr=TEXT)))
    | st.builds(RankReport, rank=RANKS, at=st.floats(0, 1e9), message=st.builds(StepEnded, nodeid=TEXT))
    | st.builds(RankExit, rank=RANKS, at=st.floats(0, 1e9), status=st.none() | st.integers(-64, 255)),
    max_size=5,
)
LAST, FIRST = LeaderProof(proof="last"), LeaderProof(proof="first")


def receive(connection, count):
    received = []
    while len(received) < count:
        # A message that arrived during a send is buffered, and no wait reports it.
        assert connection.has_message or connection.wait(time.monotonic() + 10)
        received += connection.receive()
        assert received or not connection.ended
    return received


@given(MESSAGES)
def test_messages_arrive_unchanged(messages):
    here, there = map(NodeConnection, local_connection())
    there.trust()
    try:
        for message in messages:
            here.send(message, 10)
        assert receive(there, len(messages)) == messages
    finally:
        here.close()
        there.close()


def test_messages_before_the_end_are_received(pair):
    pair[0].send(LAST, 10)
    pair[0].close()
    assert receive(pair[1], 1) == [LAST]
    pair[1].wait(time.monotonic() + 10)
    assert pair[1].receive() == []
    assert pair[1].ended == "is gone"


def test_a_message_in_parts_is_joined():
    raw, other = local_connection()
    connection = NodeConnection(other)
    data = encode_line(FIRST)
    for byte in struct.pack("!I", len(data)) + data[:-1]:
        raw.send(bytes([byte]))
        assert connection.receive() == []
    raw.send(data[-1:])
    assert receive(connection, 1) == [FIRST]
    raw.close()
    connection.close()


@pytest.mark.parametrize(
    "data", [b"[1]", b"{", b"\xff", b"1", b"[" * 900, b'["LeaderProof", {"proof": 1}]', b'["Proofs", {}]']
)
def test_an_invalid_message_ends_the_connection(data):
    raw, other = local_connection()
    connection = NodeConnection(other)
    raw.sendall(struct.pack("!I", len(data)) + data)
    connection.wait(time.monotonic() + 10)
    assert connection.receive() == []
    assert connection.ended == "sent an invalid message"
    raw.close()
    connection.close()


@pytest.mark.parametrize(("trusted", "size"), [(False, UNTRUSTED_LIMIT + 1), (True, FRAME_LIMIT + 1)])
def test_a_message_that_is_too_long_ends_the_connection(trusted, size):
    raw, other = local_connection()
    connection = NodeConnection(other)
    if trusted:
        connection.trust()
    raw.sendall(struct.pack("!I", size))
    connection.wait(time.monotonic() + 10)
    assert connection.receive() == []
    assert connection.ended == f"sent a message of {size} bytes"
    raw.close()
    connection.close()


def test_a_peer_that_does_not_read_is_lost(pair):
    with pytest.raises(ConnectionLostError, match="no longer reads its messages"):
        pair[0].send(LeaderProof(proof="x" * (32 << 20)), 0.2)


def test_a_peer_that_has_closed_the_connection_is_lost(pair):
    pair[1].close()
    with pytest.raises(ConnectionLostError, match="is gone"):
        _send_for_ever(pair[0])


def _send_for_ever(connection):
    while True:
        connection.send(FIRST, 1)


def test_two_sides_that_send_long_messages_do_not_deadlock(pair):
    for connection in pair:
        connection.trust()
    long = LeaderProof(proof="x" * (16 << 20))
    with ThreadPoolExecutor(2) as pool:
        received = pool.map(lambda connection: (connection.send(long, 30), receive(connection, 1))[1], pair)
        assert list(received) == [[long], [long]]


def test_a_message_that_arrives_during_a_send_is_available(pair):
    here, there = pair
    for end in pair:
        end.trust()
    there.send(FIRST, 10)
    with pytest.raises(ConnectionLostError, match="no longer reads"):
        here.send(LeaderProof(proof="x" * (32 << 20)), 0.2)
    assert here.has_message
    assert here.receive() == [FIRST]
    assert not here.has_message


NONCES = st.text(min_size=1)


@given(NONCES, NONCES, NONCES)
def test_a_proof_is_only_valid_for_its_token_role_node_and_nonces(token, here, there):
    proof = make_proof(token, "follower", 1, here, there)
    assert is_proof(proof, token, "follower", 1, here, there)
    assert not is_proof(proof, token, "leader", 1, here, there)
    assert not is_proof(proof, token, "follower", 2, here, there)
    assert not is_proof(proof, token, "follower", 1, here + "x", there)
    assert not is_proof(proof, token + "x", "follower", 1, here, there)
    assert is_proof(proof, token, "follower", 1, there, here) == (here == there)


@pytest.mark.parametrize("given_proof", ["", "é", "\ud800"])
def test_an_invalid_proof_is_rejected(given_proof):
    assert not is_proof(given_proof, "t", "leader", 1, "a", "b")
