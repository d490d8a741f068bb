"""The search for the delays that a failure needs, against oracles that know them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.plugins.stress.agent.shrinking import Shrunk, sentence, shrink, smallest, tries_for
from allranks.plugins.stress.agent.skew import Delay, drawn_delays, parse_delays

PARTS = st.sets(st.integers(0, 60), min_size=1)


def late(rank=1, call=2, seconds=0.04, kind="before"):
    return Delay(rank=rank, kind=kind, call=call, seconds=seconds)


class Race:
    """A test that fails at a rate if some ranks are late for long enough, and at another rate otherwise.

    Args:
        needed: The seconds for which each rank has to be late at a call.
    """

    def __init__(self, needed, rate=1.0, otherwise=0.0, seed=7):
        self.needed, self.rate, self.otherwise = needed, rate, otherwise
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.asked = 0

    def count(self, skew, tries, enough):
        late = {(delay.rank, delay.kind, delay.call): delay.seconds for delay in parse_delays(skew)}
        has_all = all(late.get(key, 0) >= seconds for key, seconds in self.needed.items())
        bad = runs = 0
        while runs < tries and bad < enough:
            runs += 1
            bad += self.random.random() < (self.rate if has_all else self.otherwise)
        self.asked += runs
        return bad, runs


@given(PARTS, st.data())
def test_what_has_to_come_together_is_all_that_is_left(parts, data):
    needed = data.draw(st.sets(st.sampled_from(sorted(parts)), min_size=1))
    assert set(smallest(sorted(parts), lambda some: needed <= set(some))) == needed


@given(PARTS, st.integers(0, 2**32))
def test_nothing_of_the_result_can_be_left_out_whatever_fails(parts, salt):
    parts = tuple(sorted(parts))

    def fails(some):
        return tuple(some) == parts or (bool(some) and hash((salt, *some)) % 3 == 0)

    found = list(smallest(parts, fails))
    assert fails(found)
    assert len(found) == 1 or not any(fails(found[:index] + found[index + 1 :]) for index in range(len(found)))


def test_a_search_of_few_among_many_asks_little():
    asked = []
    smallest(range(800), lambda some: not asked.append(1) and 517 in some)
    assert len(asked) <= 20


@pytest.mark.parametrize("rate", [1.0, 0.7, 0.3])
def test_the_delay_that_matters_is_found_at_any_rate_and_shortened(rate):
    drawn = drawn_delays("heavy", 2, 2)
    longest = max(drawn, key=lambda item: item.seconds)
    race = Race({(longest.rank, longest.kind, longest.call): longest.seconds / 3}, rate, seed=1)
    found = shrink(drawn, race.count, race.count)
    [delay] = found.delays
    assert (delay.rank, delay.kind, delay.call) == (longest.rank, longest.kind, longest.call)
    assert longest.seconds / 3 <= delay.seconds <= longest.seconds
    assert found.bad >= found.runs * rate / 3
    assert (found.bad_without, found.runs_without) == (0, 200)


def test_a_delay_at_the_edge_is_made_longer_until_it_shows_the_failure_each_time():
    class Edge(Race):
        def count(self, skew, tries, enough):
            [delay] = parse_delays(skew) or [late(seconds=0)]
            self.rate = min(1.0, delay.seconds / 0.02)
            return super().count(skew, tries, enough)

    race = Edge({(1, "before", 2): 0.01})
    found = shrink([late(seconds=0.045)], race.count, race.count)
    assert (found.bad, found.delays[0].seconds) == (10, 0.0225)


def test_of_many_delays_those_that_were_made_are_searched_first():
    drawn = [late(call=call) for call in range(400)]
    race = Race({(1, "before", 2): 0.04})
    assert shrink(drawn, race.count, race.count, lambda some: some[:4]).delays == (late(seconds=0.08),)
    asked = race.asked
    assert shrink(drawn, race.count, race.count, lambda some: some[7:9]).delays == (late(seconds=0.08),)
    assert race.asked - asked > asked


def test_delays_of_calls_are_named_if_they_are_enough():
    drawn = [late(kind="stopped", call=20), *(late(call=call) for call in range(1, 30))]

    class Either(Race):
        def count(self, skew, tries, enough):
            self.rate = 1.0 if "stopped" in skew or ":before:2:" in skew else 0.0
            return super().count(skew, tries, enough)

    race = Either({})
    assert shrink(drawn, race.count, race.count).delays == (late(seconds=0.04 / 32),)


@pytest.mark.parametrize("outside", ["stopped", "throttled", "crowded"])
@pytest.mark.parametrize(("kind", "call"), [("before", 0), ("after", 3), ("after", 40)])
def test_a_disturbed_rank_is_named_by_the_call_at_which_it_may_be_late_instead(outside, kind, call):
    stopped = late(kind=outside, call=20)
    needed = (stopped.rank, kind, call)

    class Either(Race):
        def count(self, skew, tries, enough):
            found = {(delay.rank, delay.kind, delay.call) for delay in parse_delays(skew)}
            self.rate = float(bool(found & {needed, (1, outside, 20)}))
            return super().count(skew, tries, enough)

    race = Either({})
    [found] = shrink([late(rank=0), stopped, late(rank=0, call=4)], race.count, race.count).delays
    assert (found.rank, found.kind, found.call) == (needed if call < 8 else (1, outside, 20))


def test_two_delays_that_are_needed_together_are_both_found():
    drawn = [late(rank, call) for rank in (0, 1) for call in range(30)]
    race = Race({(0, "before", 7): 0.03, (1, "before", 2): 0.001})
    assert shrink(drawn, race.count, race.count).delays == (late(0, 7, 0.08), late(1, 2, 0.04 / 16))


def test_a_test_that_fails_without_delays_as_often_is_not_searched():
    race = Race({}, rate=0.8)
    found = shrink([late()], race.count, race.count)
    assert found.delays == ()
    assert found.bad_without > 30
    assert sentence(found, {}).startswith(
        f"fails {found.bad} of {found.runs} times with the delays of its most frequent failure, "
    )


def test_a_background_of_other_failures_does_not_lead_astray():
    race = Race({(1, "before", 2): 0.01}, rate=1.0, otherwise=0.02)
    found = shrink([late(call=call) for call in range(40)], race.count, race.count)
    assert found.delays == (late(seconds=0.02),)


@pytest.mark.parametrize(("with_them", "is_beyond_chance"), [((1, 10), False), ((4, 10), True), ((10, 10), True)])
def test_delays_that_change_the_rate_no_more_than_chance_are_not_named(with_them, is_beyond_chance):
    race = Race({(1, "before", 2): 0.01})
    found = shrink([late()], race.count, lambda skew, *_: (9, 200) if skew == "off" else with_them)
    assert bool(found.delays) is is_beyond_chance
    assert (found.bad_without, found.runs_without) == (9, 200)


def test_what_does_not_fail_again_is_said():
    race = Race({}, rate=0.0)
    found = shrink([late()], race.count, race.count)
    assert found == Shrunk(runs=60)
    assert sentence(found, {}) == "the delays of its most frequent failure did not reproduce it: 0 of 60 failed"


def test_a_search_without_time_keeps_what_it_has():
    race = Race({(1, "before", 2): 0.01})
    drawn = [late(call=call) for call in range(40)]

    def search(*question):
        return race.count(*question) if race.asked < 20 else (0, 0)

    found = shrink(drawn, search, race.count)
    assert 1 < len(found.delays) < 40
    assert late() in found.delays
    assert found.bad == 10


@pytest.mark.parametrize(("bad", "runs", "tries"), [(10, 10, 4), (9, 10, 6), (5, 10, 18), (1, 10, 60), (0, 10, 60)])
def test_a_question_is_asked_as_often_as_the_rate_demands(bad, runs, tries):
    assert tries_for(bad, runs) == tries


def test_the_sentence_names_rank_delay_and_place_of_each_side():
    shrunk = Shrunk(delays=(late(),), bad=9, runs=10, bad_without=0, runs_without=200)
    where = {str(late()): "before allreduce (call 2 at test_x.py:41)"}
    assert sentence(shrunk, where) == (
        "fails 9 of 10 times if rank 1 is 40 ms late before allreduce (call 2 at test_x.py:41), 0 of 200 without"
    )
    many = Shrunk(delays=(late(call=0), *(late(call=call) for call in range(1, 5))), bad=1, runs=1)
    assert sentence(many, {}) == (
        "fails 1 of 1 times if rank 1 is 40 ms late before the test and rank 1 is 40 ms late before its call 1 "
        "and rank 1 is 40 ms late before its call 2 and 2 more delays, 0 of 0 without"
    )


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("joining", "rank 1 joins its gang 40 ms late"),
        ("stopped", "rank 1 is stopped for 40 ms, 2 ms into the test"),
        ("throttled", "rank 1 has a fifth of a core for 40 ms, 2 ms into the test"),
        ("crowded", "rank 1 shares its core with busy processes for 40 ms, 2 ms into the test"),
        ("busy", "1 busy processes run for 40 ms, 2 ms into the test"),
    ],
)
def test_the_sentence_says_what_was_done_from_outside(kind, words):
    shrunk = Shrunk(delays=(late(kind=kind),), bad=9, runs=10, runs_without=200)
    assert sentence(shrunk, {}) == f"fails 9 of 10 times if {words}, 0 of 200 without"
