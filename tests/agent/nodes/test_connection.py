"""What goes over a connection between two agents, and how each shows that it knows the token."""

import json
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from connections import local_connection
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.agent.nodes.connection import (
    FRAME_LIMIT,
    GREETING_LIMIT,
    ConnectionLostError,
    NodeConnection,
    is_proof,
    make_proof,
)

MESSAGES = st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text())), max_size=5)


def receive(connection, count):
    got = []
    while len(got) < count:
        # What came while something was sent is in memory, where no wait sees it.
        assert connection.has_message or connection.wait(time.monotonic() + 10)
        got += connection.receive()
        assert got or not connection.ended
    return got


@settings(max_examples=50)
@given(MESSAGES)
def test_messages_arrive_as_they_were_sent(messages):
    here, there = map(NodeConnection, local_connection())
    there.trust()
    try:
        for message in messages:
            here.send(message, 10)
        assert receive(there, len(messages)) == messages
    finally:
        here.close()
        there.close()


def test_the_last_messages_are_heard_before_the_end(pair):
    pair[0].send({"last": "words"}, 10)
    pair[0].close()
    assert receive(pair[1], 1) == [{"last": "words"}]
    pair[1].wait(time.monotonic() + 10)
    assert pair[1].receive() == []
    assert pair[1].ended == "is gone"


def test_a_message_in_pieces_is_one_message():
    raw, other = local_connection()
    connection = NodeConnection(other)
    data = json.dumps({"a": 1}).encode()
    for byte in struct.pack("!I", len(data)) + data[:-1]:
        raw.send(bytes([byte]))
        assert connection.receive() == []
    raw.send(data[-1:])
    assert receive(connection, 1) == [{"a": 1}]
    raw.close()
    connection.close()


@pytest.mark.parametrize("said", [b"[1]", b"{", b"\xff", b"1", b"[" * 900])
def test_what_is_no_object_ends_the_connection(said):
    raw, other = local_connection()
    connection = NodeConnection(other)
    raw.sendall(struct.pack("!I", len(said)) + said)
    connection.wait(time.monotonic() + 10)
    assert connection.receive() == []
    assert connection.ended == "sends what is no message"
    raw.close()
    connection.close()


@pytest.mark.parametrize(("trusted", "size"), [(False, GREETING_LIMIT + 1), (True, FRAME_LIMIT + 1)])
def test_a_message_that_is_too_long_is_not_even_read(trusted, size):
    raw, other = local_connection()
    connection = NodeConnection(other)
    if trusted:
        connection.trust()
    raw.sendall(struct.pack("!I", size))
    connection.wait(time.monotonic() + 10)
    assert connection.receive() == []
    assert connection.ended == f"sends a message of {size} bytes"
    raw.close()
    connection.close()


def test_whoever_does_not_read_is_given_up(pair):
    with pytest.raises(ConnectionLostError, match="takes nothing any more"):
        pair[0].send({"much": "x" * (32 << 20)}, 0.2)


def test_whoever_is_gone_cannot_be_spoken_to(pair):
    pair[1].close()
    with pytest.raises(ConnectionLostError, match="is gone"):
        _send_for_ever(pair[0])


def _send_for_ever(connection):
    while True:
        connection.send({}, 1)


def test_two_that_send_much_at_once_do_not_wait_for_each_other(pair):
    for connection in pair:
        connection.trust()
    long = {"much": "x" * (16 << 20)}
    with ThreadPoolExecutor(2) as pool:
        heard = pool.map(lambda connection: (connection.send(long, 30), receive(connection, 1))[1], pair)
        assert list(heard) == [[long], [long]]


def test_what_came_while_something_was_said_is_known_to_be_there(pair):
    here, there = pair
    for end in pair:
        end.trust()
    there.send({"first": 1}, 10)
    with pytest.raises(ConnectionLostError, match="takes nothing"):
        here.send({"long": "x" * (32 << 20)}, 0.2)
    assert here.has_message
    assert here.receive() == [{"first": 1}]
    assert not here.has_message


NONCES = st.text(min_size=1)


@given(NONCES, NONCES, NONCES)
def test_a_proof_holds_for_its_token_its_role_its_node_and_its_nonces_alone(token, here, there):
    proof = make_proof(token, "follower", 1, here, there)
    assert is_proof(proof, token, "follower", 1, here, there)
    assert not is_proof(proof, token, "leader", 1, here, there)
    assert not is_proof(proof, token, "follower", 2, here, there)
    assert not is_proof(proof, token, "follower", 1, here + "x", there)
    assert not is_proof(proof, token + "x", "follower", 1, here, there)
    assert is_proof(proof, token, "follower", 1, there, here) == (here == there)


@pytest.mark.parametrize("given_proof", [None, 1, "", [], "é", "\ud800"])
def test_what_is_no_proof_is_none(given_proof):
    assert not is_proof(given_proof, "t", "leader", 1, "a", "b")
