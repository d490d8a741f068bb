"""The leader's side of connections to followers, without agents."""

import threading
from dataclasses import replace

import pytest
from agent_run import CONFIG
from long_lists import quick

from allranks.agent import clock
from allranks.agent.channel import RankReport, StepEnded
from allranks.agent.nodes import leader
from allranks.agent.nodes.leader import FollowerLink, Leader, RemoteRanks
from allranks.agent.nodes.messages import GetTime, Time
from allranks.agent.nodes.node import CollectionDigest, CollectionFailure
from allranks.protocol.config import TimeLimit

DIGEST = CollectionDigest(tests=("a",), torch="2", python="3")


def test_the_first_of_two_collection_digests_counts(pair):
    here, there = pair
    here.trust()
    failed = replace(DIGEST, failures=(CollectionFailure(nodeid="a", text="broken"),))
    for digest in (failed, CollectionDigest(failures=failed.failures)):
        there.send(digest, 10)
    failures, notices = Leader(replace(CONFIG, nodes=2), {1: here}).compare(DIGEST)
    assert failures == [CollectionFailure(nodeid="a", text="On node 1: broken")]
    assert notices == []


class OtherHost:
    """An agent on a host whose monotonic clock is ahead by some seconds, and which answers with delays."""

    def __init__(self, connection, ahead, delays=()):
        self.requests = 0
        self._connection = connection
        self._ahead = ahead
        self._delays = iter(delays)
        connection.trust()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def now(self):
        return clock.monotonic() + self._ahead

    def _serve(self):
        while self._connection.wait(clock.monotonic() + 60):
            for message in self._connection.receive():
                if isinstance(message, GetTime):
                    self.requests += 1
                    clock.sleep(next(self._delays, 0.0))
                    self._connection.send(Time(now=self.now()), 10)
            if self._connection.ended:
                return

    def join(self):
        self._thread.join()

    def report(self, rank, at, nodeid):
        self._connection.send(RankReport(rank=rank, at=at, message=StepEnded(nodeid=nodeid)), 10)


@pytest.fixture
def link(pair):
    pair[0].trust()
    return FollowerLink(1, pair[0], TimeLimit(value=10, setting="limits.silence"))


@pytest.fixture
def other_host(pair):
    """Starts the agent of another host."""
    hosts = []

    def start(ahead, delays=()):
        hosts.append(OtherHost(pair[1], ahead, delays))
        return hosts[-1]

    yield start
    pair[0].end()
    for host in hosts:
        host.join()


def test_silent_nodes_are_waited_for_at_the_same_time(pair, connect):
    silence = TimeLimit(value=1, setting="limits.silence")
    pair[0].trust()
    links = [FollowerLink(number, end, silence) for number, end in enumerate((pair[0], connect()), start=1)]
    began = clock.monotonic()
    answers = [link.request(GetTime(), Time) for link in links]
    assert [answer() for answer in answers] == [None, None]
    assert clock.monotonic() - began < 1.9
    assert all("did not answer" in link.lost for link in links)


AHEADS = [0.0, 1.0, -1.0, 3600.0, -3600.0, 1e7]


@pytest.mark.parametrize("ahead", quick(1, AHEADS))
@pytest.mark.parametrize("delays", quick(1, map(pytest.param, [(), (0.2,), (0.2, 0.0, 0.2, 0.2, 0.2)])))
def test_the_clock_offset_comes_from_the_shortest_round_trip(other_host, link, ahead, delays):
    other_host(ahead, delays)
    link.compare_clocks()
    assert link.ahead == pytest.approx(ahead, abs=0.09)


def test_clocks_are_compared_again_after_a_while(other_host, link, monkeypatch):
    host = other_host(5.0)
    link.compare_clocks()
    link.compare_clocks()
    assert host.requests == 5
    monkeypatch.setattr(leader, "_CLOCK_VALID_FOR", 0.0)
    link.compare_clocks()
    assert host.requests == 10


@pytest.mark.parametrize("ahead", AHEADS)
def test_event_times_are_converted_to_the_leaders_clock(other_host, link, ahead):
    host = other_host(ahead)
    link.compare_clocks()
    ranks = RemoteRanks(link, {2: 100, 3: 101})
    happened, at = clock.now(), host.now()
    clock.sleep(0.2)  # on its way
    host.report(2, at, nodeid="t")
    assert link._connection.wait(clock.monotonic() + 10)
    [event] = ranks._read_events()
    assert event.at == pytest.approx(happened, abs=0.09)


def test_no_event_is_in_the_future(other_host, link):
    host = other_host(0.0)
    link.compare_clocks()
    host.report(2, host.now() + 1000, nodeid="t")
    assert link._connection.wait(clock.monotonic() + 10)
    [event] = RemoteRanks(link, {2: 100})._read_events()
    assert event.at <= clock.now()
