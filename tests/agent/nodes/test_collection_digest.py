from dataclasses import replace

import pytest

from allranks.agent.nodes.messages import MESSAGES
from allranks.agent.nodes.node import CollectionDigest, CollectionFailure, difference, notice
from allranks.protocol.typed_json import decode_line, encode_line

DIGEST = CollectionDigest(tests=("a", "b", "c"), torch="2", python="3")


def test_equal_digests_have_no_difference():
    assert difference(DIGEST, replace(DIGEST), 1) == ""


def test_a_digest_survives_encoding_and_decoding():
    digest = replace(DIGEST, failures=(CollectionFailure(nodeid="a", text="x"),))
    assert digest.shortened == digest
    assert decode_line(encode_line(digest), MESSAGES) == digest


def test_versions_are_compared_before_tests():
    assert (
        difference(DIGEST, CollectionDigest(torch="2", python="3.1"), 2)
        == "Node 0 has Python 3, and node 2 has Python 3.1."
    )


def test_different_hardware_is_named():
    text = difference(DIGEST, replace(DIGEST, missing_hardware="no GPU"), 1)
    assert text == "The nodes have different hardware; node 0: nothing is missing; node 1: no GPU."


def test_tests_that_only_one_node_has_are_named():
    assert difference(DIGEST, replace(DIGEST, tests=("a", "b", "c", "d")), 1) == (
        "Nodes 0 and 1 have collected different tests; only on node 1: d."
    )


def test_a_test_that_one_node_has_twice_is_a_difference():
    assert "different orders" in difference(DIGEST, replace(DIGEST, tests=("a", "a", "b", "c")), 1)


@pytest.mark.parametrize(
    ("other", "is_error", "is_notice"),
    [
        (("1", "2.8", ""), False, False),
        (("2.8", "1", ""), True, False),
        (("1", "2.9", ""), False, True),
        (("1", "3.9", ""), True, False),
        (("1", "2", ""), False, True),
        (("1", "2.8", "4"), True, False),
    ],
)
def test_parameter_values_of_the_same_tests_are_compared(other, is_error, is_notice):
    leader = replace(DIGEST, digests=("1", "2.8", ""))
    text = difference(leader, replace(DIGEST, digests=other), 1)
    assert text.startswith("Nodes 0 and 1 have different parameter values under the same ids: ") == is_error
    assert bool(text) == is_error
    assert bool(notice(leader, replace(DIGEST, digests=other), 1)) == is_notice
