"""Decisions about delays: pure functions of seed, rank and call."""

from collections import Counter

import pytest

from allranks.plugins.stress.agent.skew import (
    LEVELS,
    MOST_CALLS,
    Delay,
    LateRank,
    drawn_delays,
    drawn_outside,
    format_delays,
    late_rank,
    lateness,
    max_delay,
    parse_delays,
)


def drawn(level, seeds=400, calls=20):
    """Each late rank of two, and its delays."""
    ranks = [late_rank(LEVELS[level], seed, rank) for seed in range(seeds) for rank in range(2)]
    return [(rank, [rank.delay(call) for call in range(calls)]) for rank in ranks if rank is not None]


def test_decisions_are_the_same_for_the_same_seed_rank_and_call():
    assert drawn("heavy", seeds=20) == drawn("heavy", seeds=20)
    assert late_rank(LEVELS["heavy"], 2, 0) == LateRank(seed=2, rank=0, share=1.0, longest=0.01, most=2.0), (
        "of every version"
    )


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


DELAYS = (
    Delay(rank=1, kind="before", call=2, seconds=0.04),
    Delay(rank=1, kind="after", call=2, seconds=0.0012),
    Delay(rank=0, kind="before", call=0, seconds=1.23),
)


def test_delays_that_are_named_are_the_only_ones():
    skew = format_delays(DELAYS)
    assert skew == "1:before:2:40ms,1:after:2:1.2ms,0:before:0:1230ms"
    assert parse_delays(skew) == DELAYS
    assert [lateness(skew, 7, 1).delay(call) for call in range(4)] == [(0, 0), (0, 0), (0.04, 0.0012), (0, 0)]
    assert lateness(skew, 7, 2) is None
    assert max_delay(skew, 8) == pytest.approx(1.2712)


def test_no_delays_are_a_skew_of_their_own():
    assert format_delays([]) == "off"
    assert (parse_delays("off"), lateness("off", 7, 0), max_delay("off", 8)) == ((), None, 0)


def test_what_the_supervisor_does_is_drawn_from_the_seed_and_can_be_named():
    drawn = [drawn_outside("heavy", seed, 2) for seed in range(400)]
    assert drawn == [drawn_outside("heavy", seed, 2) for seed in range(400)]
    kinds = Counter(delay.kind for some in drawn for delay in some)
    assert kinds.keys() == {"joining", "stopped", "throttled", "crowded", "busy"}
    assert sum(not some for some in drawn) > 100, "most repetitions are left alone"
    for some in drawn:
        named = drawn_outside(format_delays(some), 8, 2)
        assert [(delay.rank, delay.kind, delay.call) for delay in named] == [(e.rank, e.kind, e.call) for e in some]
        assert sum(delay.seconds for delay in some) <= max_delay("heavy", 2) - 2 * LEVELS["heavy"].most


def test_calls_are_delayed_only_as_delays_of_calls_have_it():
    named = lateness("1:stopped:2:40ms,1:joining:0:40ms,1:busy:2:40ms", 7, 1)
    assert [named.delay(call) for call in range(4)] == [(0, 0)] * 4


@pytest.mark.parametrize("text", ["", "1:before:2", "1:beside:2:40ms", "1:before:2:40s", "1:before:2:40ms,", "heavier"])
def test_what_names_no_delay_is_refused(text):
    with pytest.raises(ValueError, match="is not a delay"):
        parse_delays(text)


def test_the_delays_of_a_repetition_can_be_named_and_end_with_the_rank_s_share():
    for seed in range(40):
        delays = drawn_delays("heavy", seed, 2)
        for rank in range(2):
            own = [delay for delay in delays if delay.rank == rank and delay.kind in {"before", "after"}]
            assert sum(delay.seconds for delay in own) <= LEVELS["heavy"].most + 1e-9
            drawn, left = lateness("heavy", seed, rank), LEVELS["heavy"].most
            if drawn is None:
                assert not own
                continue
            named = lateness(format_delays(delays), seed, rank)
            for call in range(1, min(MOST_CALLS, 50)):
                if max(drawn.delay(call)) < left / 100:
                    assert named.delay(call) == pytest.approx(drawn.delay(call), rel=0.01)
                left -= max(drawn.delay(call))
