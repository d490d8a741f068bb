"""The search for the first bad commit, in a history without branches."""

import math

from hypothesis import given
from hypothesis import strategies as st

from allranks.plugins.stress.commit_search import suspects

SIZE = 40


def between(goods, bad):
    """The commits after the last good one, those in the middle first."""
    left = range(max(map(int, goods)) + 1, int(bad) + 1)
    return sorted(map(str, left), key=lambda commit: abs(int(commit) - (left.start + left.stop - 1) // 2))


@given(st.integers(1, SIZE), st.sets(st.integers(1, SIZE - 1)))
def test_it_finds_the_first_bad_commit_or_all_that_may_be_it(first, broken):
    asked = []

    def judge(commit):
        asked.append(commit)
        return None if int(commit) in broken else int(commit) >= first

    found = sorted(map(int, suspects("0", str(SIZE), between, judge)))
    assert found[0] <= first <= found[-1]
    assert set(found[:-1]) <= broken, "what could be tested is no longer suspected"
    assert len(asked) == len(set(asked))
    if not broken:
        assert found == [first]
        assert len(asked) <= math.ceil(math.log2(SIZE)) + 1


def test_after_a_commit_that_is_skipped_one_further_away_is_tried():
    asked = []
    suspects("0", str(SIZE), between, lambda commit: asked.append(int(commit)))
    assert abs(asked[1] - asked[0]) > 3
