"""Searches the commits between a good and a bad one for the first bad one, like ``git bisect``."""

from collections.abc import Callable, Collection, Sequence

Between = Callable[[Collection[str], str], Sequence[str]]
"""The ancestors of a bad commit, including itself, that are not ancestors of a good one; best candidates first."""

_LEAPS = 3
"""Parts of the list of candidates: after a commit that cannot be tested, the search continues in the next part, because
the neighbors of that commit are probably broken as well."""


def suspects(good: str, bad: str, between: Between, judge: Callable[[str], bool | None]) -> Sequence[str]:
    """The commits that may be the first bad one: one, or several if those between could not be tested.

    Args:
        good: A commit without the failure, an ancestor of the bad one.
        bad: A commit with the failure.
        between: Lists the remaining candidates.
        judge: Whether a commit is bad; None if it cannot be tested.
    """
    goods, skipped, in_a_row = [good], set[str](), 0
    while True:
        suspected = between(goods, bad)
        left = [commit for commit in suspected if commit != bad and commit not in skipped]
        if not left:
            return suspected
        commit = left[len(left) * (in_a_row % _LEAPS) // _LEAPS]
        is_bad = judge(commit)
        in_a_row = in_a_row + 1 if is_bad is None else 0
        if is_bad is None:
            skipped.add(commit)
        elif is_bad:
            bad = commit
        else:
            goods.append(commit)
