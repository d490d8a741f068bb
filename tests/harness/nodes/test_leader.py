"""The leading agent, as far as it can be had without agents."""

from dataclasses import replace

from agent_run import CONFIG

from allranks.harness.nodes.leader import Leader
from allranks.harness.nodes.node import CollectionDigest, CollectionFailure

DIGEST = CollectionDigest(tests=("a",), torch="2", python="3")


def test_a_follower_that_tells_twice_what_it_could_not_collect_is_heard_once(pair):
    here, there = pair
    here.trust()
    failed = replace(DIGEST, failures=(CollectionFailure(nodeid="a", text="broken"),))
    for digest in (failed, CollectionDigest(failures=failed.failures)):
        there.send({"digest": digest.as_message()}, 10)
    failures, notices = Leader(replace(CONFIG, nodes=2), {1: here}).compare(DIGEST)
    assert failures == [CollectionFailure(nodeid="a", text="On node 1: broken")]
    assert notices == []
