"""Decisions about delays: pure functions of seed, rank and call."""

import pytest

from allranks.skew import LEVELS, LateRank, late_rank


def drawn(level, seeds=400, calls=20):
    """Each late rank of two, and its delays."""
    ranks = [late_rank(LEVELS[level], seed, rank) for seed in range(seeds) for rank in range(2)]
    return [(rank, [rank.delay(call) for call in range(calls)]) for rank in ranks if rank is not None]


def test_decisions_are_the_same_for_the_same_seed_rank_and_call():
    assert drawn("heavy", seeds=20) == drawn("heavy", seeds=20)
    assert late_rank(LEVELS["heavy"], 2, 0) == LateRank(seed=2, rank=0, share=1.0, longest=0.01), "of every version"


def test_about_half_of_the_ranks_are_late_each_by_itself():
    late = [tuple(late_rank(LEVELS["light"], seed, rank) is not None for rank in range(2)) for seed in range(400)]
    for either in (True, False):
        for other in (True, False):
            assert 60 < late.count((either, other)) < 140


@pytest.mark.parametrize("level", LEVELS)
def test_a_delay_is_before_or_after_a_call_and_within_the_level(level):
    for rank, delays in drawn(level):
        assert rank.longest <= LEVELS[level].longest
        for before, after in delays:
            assert not (before and after)
            assert max(before, after) <= rank.longest


def test_some_repetitions_delay_all_calls_and_some_a_few():
    shares = {rank.share: sum(map(any, delays)) / len(delays) for rank, delays in drawn("heavy", calls=200)}
    assert shares[1.0] == 1
    assert 0.3 < shares[0.5] < 0.7
    assert 0.02 < shares[0.125] < 0.25


def test_delays_are_of_all_magnitudes():
    longest = [max(map(max, delays)) for _, delays in drawn("heavy")]
    assert min(longest) < 0.005
    assert max(longest) > 0.3
