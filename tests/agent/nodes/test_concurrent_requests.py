"""Requests are sent to all nodes before one is waited for: a request takes as long as the slowest node."""

import pytest
from agent_run import CONFIG

from allranks.agent.channel import RankHang
from allranks.agent.gangs.gang import Gang
from allranks.agent.gangs.local_ranks import Inspection
from allranks.agent.job_end import JobEnd
from allranks.agent.nodes.node import NodeLostError, start_gang
from allranks.agent.output import Output
from allranks.agent.program import StartRanks


class Ranks:
    """One rank of a node, which notes requests, and when their results are waited for."""

    def __init__(self, rank, notes):
        self.ranks = self.pids = [rank]
        self._notes = notes

    def watch(self, selector):
        pass

    def send(self, order):
        pass

    def stop(self, ranks, how):
        self._notes.append(("stop", *ranks, how))

    def inspect(self, ranks, **_briefly):
        return self._requested(Inspection(hangs={rank: RankHang(phase="call") for rank in ranks}))

    def take_output(self, _title):
        return self._requested({self.ranks[0]: Output(stdout="hello")})

    def close(self):
        return self._requested(())

    def _requested(self, result):
        self._notes.append(("sent", *self.ranks))

        def wait():
            self._notes.append(("waited", *self.ranks))
            return result

        return wait


class Node:
    """A node that starts one rank, or cannot."""

    def __init__(self, rank, notes, error=None):
        self._rank = rank
        self._notes = notes
        self._error = error

    def start_ranks(self, _request):
        self._notes.append(("sent", self._rank))
        return self._started

    def _started(self):
        self._notes.append(("waited", self._rank))
        if self._error is not None:
            raise self._error
        return Ranks(self._rank, self._notes)


ALL_SENT_FIRST = [("sent", 0), ("sent", 1), ("sent", 2), ("waited", 0), ("waited", 1), ("waited", 2)]


@pytest.fixture
def gang():
    notes, end = [], JobEnd()
    yield Gang([Ranks(rank, notes) for rank in range(3)], limits=CONFIG.limits, journal=[], end=end), notes
    end.close()


def test_output_is_taken_from_all_nodes_at_once(gang):
    gang, notes = gang
    assert gang.take_output("t") == {rank: Output(stdout="hello") for rank in range(3)}
    assert notes == ALL_SENT_FIRST


def test_ranks_are_inspected_on_all_nodes_at_once(gang):
    gang, notes = gang
    assert set(gang._inspect({0, 2}).hangs) == {0, 2}
    assert notes == ALL_SENT_FIRST


@pytest.mark.thorough
def test_ranks_are_closed_on_all_nodes_at_once(gang):
    gang, notes = gang
    assert gang.close() == []
    assert [note for note in notes if note[0] != "stop"] == ALL_SENT_FIRST


def test_ranks_are_started_on_all_nodes_at_once():
    notes = []
    ranks = start_gang([Node(rank, notes) for rank in range(3)], StartRanks(gang=1))
    assert [node_ranks.ranks for node_ranks in ranks] == [[0], [1], [2]]
    assert notes == ALL_SENT_FIRST


@pytest.mark.parametrize("error", [OSError("no memory"), NodeLostError(1, "is gone"), RuntimeError("broken")])
def test_started_ranks_are_killed_if_another_node_fails(error):
    notes = []
    nodes = [Node(0, notes), Node(1, notes, error), Node(2, notes)]
    with pytest.raises(type(error), match=str(error)):
        start_gang(nodes, StartRanks(gang=1))
    assert [note for note in notes if note[0] == "stop"] == [("stop", 0, "kill"), ("stop", 2, "kill")]
