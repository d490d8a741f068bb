"""Who gets which tests, and what is heard of it, with workers that run none."""

import os
import time
from dataclasses import dataclass, field

import pytest
from allranks.harness.lanes.lane import Work
from allranks.harness.lanes.lanes import Errand, LaneLostError, Lanes, LaneTerms
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.harness import kernel
from allranks.harness.job_end import HangupError


@dataclass
class Heard:
    """A journal in memory."""

    events: list = field(default_factory=list)

    def write(self, event, **fields):
        self.events.append((event, fields.get("index")))

    def say(self, event, **fields):
        self.events.append((event, fields.get("index")))


@dataclass
class Worker:
    """Says which tests it was given; its tests do what `deeds` say."""

    journal: object
    deeds: dict

    def run_some(self, work):
        return sum(self.run(index) for index in work.indices)

    def run(self, index):
        self.journal.write("ran", index=index)
        deed = self.deeds.get(index, "pass")
        if deed == "break":
            msg = f"test {index} breaks its lane"
            raise RuntimeError(msg)
        if deed == "leave":
            os._exit(3)
        if deed == "wait":
            time.sleep(1000)
        return deed == "fail"


@pytest.fixture
def stdin():
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


class Trial:
    """Lanes with workers that run no tests.

    Attributes:
        journal: What was heard.
        bad: How many tests went wrong.
    """

    def __init__(self, folder, stdin, lanes, assemblies, deeds, *, maxfail=0):
        self.journal, self.bad, self.waiting, self.maxfail = Heard(), 0, list(assemblies), maxfail
        terms = LaneTerms(
            count=lanes,
            make_worker=lambda place: Worker(place.journal, deeds),
            journal=self.journal,
            results=folder,
            stdin=stdin,
        )
        self.lanes = Lanes(terms, Errand(next_work=self.next_work, note_bad=self.note_bad))

    def next_work(self):
        if not self.waiting or (self.maxfail and self.bad >= self.maxfail):
            return None
        return Work(indices=self.waiting.pop(0), first_gang=1)

    def note_bad(self, count):
        self.bad += count

    def ran(self):
        return [index for _, index in self.journal.events]


def assemblies_of(sizes):
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 3), max_size=8), st.integers(1, 4), st.sets(st.integers(0, 20)))
def test_each_test_is_run_once_and_an_assembly_in_its_order(tmp_path_factory, sizes, lanes, failing):
    reading, writing = os.pipe()
    try:
        assemblies = assemblies_of(sizes)
        deeds = dict.fromkeys(failing, "fail")
        trial = Trial(tmp_path_factory.getbasetemp(), reading, lanes, assemblies, deeds)
        trial.lanes.run()
        assert sorted(trial.ran()) == list(range(sum(sizes)))
        for indices in assemblies:
            assert [index for index in trial.ran() if index in indices] == indices
        assert trial.bad == sum(index in failing for index in range(sum(sizes)))
    finally:
        os.close(reading)
        os.close(writing)


def test_nothing_new_is_begun_when_there_is_to_be_no_more(tmp_path, stdin):
    trial = Trial(tmp_path, stdin[0], 1, assemblies_of([1] * 5), {1: "fail"}, maxfail=1)
    trial.lanes.run()
    assert trial.ran() == [0, 1]
    assert trial.waiting == [[2], [3], [4]]
    os.close(stdin[1])


def test_a_lane_that_breaks_says_why_and_stops_the_others(tmp_path, stdin):
    trial = Trial(tmp_path, stdin[0], 2, assemblies_of([1, 1, 1, 1]), {2: "break"})
    with pytest.raises(LaneLostError, match="test 2 breaks its lane"):
        trial.lanes.run()
    assert {0, 1, 2} <= set(trial.ran())
    os.close(stdin[1])


def test_a_lane_that_ends_unasked_is_named(tmp_path, stdin):
    trial = Trial(tmp_path, stdin[0], 1, assemblies_of([1, 1]), {0: "leave"})
    with pytest.raises(LaneLostError, match=r"lane 1, .* ended with exit status 3"):
        trial.lanes.run()
    assert trial.ran() == [0]
    os.close(stdin[1])


def test_the_end_of_standard_input_ends_it(tmp_path, stdin, monkeypatch):
    monkeypatch.setattr("allranks.harness.lanes.lanes.LAST_GRACE", 0.2)
    trial = Trial(tmp_path, stdin[0], 2, assemblies_of([1, 1]), {0: "wait", 1: "wait"})
    os.close(stdin[1])
    others = kernel.children()  # what other tests have started in this process
    with pytest.raises(HangupError):
        trial.lanes.run()
    assert kernel.children() <= others
