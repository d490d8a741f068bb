from dataclasses import replace

from allranks.harness.nodes.node import CollectionDigest, CollectionFailure, difference

ROLL = CollectionDigest(tests=("a", "b", "c"), torch="2", python="3")


def test_equal_rolls_have_no_difference():
    assert difference(ROLL, replace(ROLL), 1) == ""


def test_a_roll_comes_back_from_its_message():
    roll = replace(ROLL, failures=(CollectionFailure(nodeid="a", text="x"),))
    assert CollectionDigest.from_message(roll.as_message()) == roll


def test_versions_are_compared_before_tests():
    assert (
        difference(ROLL, CollectionDigest(torch="2", python="3.1"), 2)
        == "Node 0 has Python 3, and node 2 has Python 3.1."
    )


def test_different_hardware_is_named():
    said = difference(ROLL, replace(ROLL, lacks="no GPU"), 1)
    assert said == "The nodes have different hardware; node 0: nothing is lacking; node 1: no GPU."


def test_tests_of_one_node_alone_are_named():
    assert difference(ROLL, replace(ROLL, tests=("a", "b", "c", "d")), 1) == (
        "Nodes 0 and 1 have collected different tests; only on node 1: d."
    )


def test_a_test_that_one_node_has_twice_is_a_difference():
    assert "different orders" in difference(ROLL, replace(ROLL, tests=("a", "a", "b", "c")), 1)
