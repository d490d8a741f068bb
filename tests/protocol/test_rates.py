"""How many repetitions a rate demands, and when two rates differ."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.protocol.rates import chance_of_passes, log_chance, needed, percent, unseen_rate

counts = st.integers(1, 300).flatmap(lambda runs: st.tuples(st.integers(1, runs), st.just(runs)))


@given(counts, st.floats(0.001, 0.2))
def test_the_passes_that_a_rate_demands_are_the_fewest_with_that_risk(known, risk):
    passes = needed(*known, risk)
    assert chance_of_passes(*known, passes) <= risk < chance_of_passes(*known, passes - 1)


@given(counts, st.integers(1, 40))
def test_the_probability_of_passes_is_the_product_of_those_of_the_next_one(known, passes):
    """Of Jeffreys' posterior: after so many passes, the next has the probability that its mean says."""
    bad, runs = known
    product = math.prod((runs + each - bad + 0.5) / (runs + each + 1) for each in range(passes))
    assert chance_of_passes(bad, runs, passes) == pytest.approx(product, rel=1e-9)


@given(counts, st.floats(0.001, 0.2))
def test_a_higher_rate_demands_no_more_passes(known, risk):
    bad, runs = known
    assert needed(min(bad + 1, runs), runs, risk) <= needed(bad, runs, risk)


@given(counts, counts)
def test_the_chance_of_a_difference_is_fishers(one, other):
    (bad, runs), (other_bad, other_runs) = one, other
    whole = bad + other_bad
    ways = {
        k: math.comb(runs, k) * math.comb(other_runs, whole - k)
        for k in range(max(0, whole - other_runs), min(runs, whole) + 1)
    }
    side = min(sum(ways[k] for k in ways if k <= bad), sum(ways[k] for k in ways if k >= bad))
    exact = min(Fraction(1), Fraction(2 * side, sum(ways.values())))
    assert math.exp(log_chance(*one, *other)) == pytest.approx(float(exact), rel=1e-6)
    assert log_chance(*one, *other) == pytest.approx(log_chance(*other, *one), abs=1e-6)


def test_figures_that_a_reader_can_check():
    assert needed(10, 10, 0.01) == 2
    assert needed(1, 20, 0.01) > 200, "one failure says little of a rate"
    assert unseen_rate(298, 0.05) == pytest.approx(0.01, rel=0.01)
    assert math.exp(log_chance(31, 40, 0, 60)) < 1e-16
    assert log_chance(0, 0, 3, 5) == 0.0


@pytest.mark.parametrize(("confidence", "words"), [(0.99999, "over 99.9 %"), (0.9899, "98.9 %"), (0.95, "95 %")])
def test_a_confidence_is_not_rounded_up(confidence, words):
    assert percent(confidence) == words
