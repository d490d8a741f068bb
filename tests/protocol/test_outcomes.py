"""How rank numbers are shown."""

import pytest

from allranks.protocol.outcomes import compact_numbers, named_ranks


@pytest.mark.parametrize(
    ("ranks", "compact", "named"),
    [
        ((), "", "ranks "),
        ((3,), "3", "rank 3"),
        ((0, 1, 2, 3), "0-3", "ranks 0-3"),
        ((5, 0, 1, 7, 8, 9), "0,1,5,7-9", "ranks 0, 1, 5, 7-9"),
    ],
)
def test_ranks_are_in_order_and_long_runs_are_ranges(ranks, compact, named):
    assert (compact_numbers(ranks), named_ranks(ranks)) == (compact, named)
