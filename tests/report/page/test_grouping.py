"""Which failures are the same, and what is said of them."""

import pytest
from runs import case, failed, job, rank

from allranks.report import failure_groups
from allranks.report.axis_correlation import Blame
from allranks.report.failure_groups import Failure, grouped, message_of
from allranks.report.results import RankResult, TestVerdict, VerdictKind


def wrong(number: int, outcome: str = "failed") -> RankResult:
    return rank(number, outcome, at=1.0, message="boom")


def groups(*tests: TestVerdict) -> list[Failure]:
    """The groups of failures of a run with one job for each test."""
    rows = [job(f"cell-{number}", "s", [test]).row for number, test in enumerate(tests)]
    return grouped((row.failures for row in rows), {})


def test_the_leading_rank_s_own_words_count_and_not_its_peers() -> None:
    assert message_of(failed("t", 2, "boom")) == message_of(failed("t", 4, "boom")) == "boom"


def test_a_rank_without_a_message_is_quoted_by_its_text() -> None:
    assert message_of(case("t", [rank(0, "failed", at=1, text="\n  first line\nsecond")])) == "first line"


def test_where_no_rank_leads_the_verdict_speaks() -> None:
    assert message_of(case("t", [rank(0), rank(1, "skipped", message="why")])).startswith("ranks disagree")


def test_the_same_words_of_a_failure_and_of_an_error_are_two_things() -> None:
    found = groups(case("t", [wrong(0)]), case("t", [wrong(0, "errored")]))
    assert [each.kind for each in found] == [VerdictKind.FAILURE, VerdictKind.ERROR]


def test_more_messages_than_a_job_or_a_run_separates_are_one_group_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_groups, "KEPT_FAILURES", 3)
    monkeypatch.setattr(failure_groups, "MOST_GROUPS", 4)
    jobs = [
        job(cell, "s", [failed("t", message=f"message {letter}") for letter in letters])
        for cell, letters in (("one", "abcdea"), ("two", "wxyz"))
    ]
    rows = [each.row.failures for each in jobs]
    blame = Blame(axis="backend", predicate="backend == 'nccl'", fails=1, passes=1)
    found = grouped(rows, {failure.key: blame for row in rows for failure in row if failure.key})
    assert [each.more for each in found] == [1, 0, 0, 0, 4]
    assert [each.blame for each in found] == [blame] * 4 + [None]
    assert found[-1].rank_message.startswith("Other failures")


def test_ranks_of_cells_with_different_world_sizes_are_not_mixed() -> None:
    (group,) = groups(case("t", [rank(0), wrong(1)]), case("t", [rank(0), rank(1), wrong(2)]))
    assert group.impact == "2 tests in 2 cells; rank 1 of 2; rank 2 of 3"


def test_a_rank_that_is_the_same_in_all_world_sizes_is_named_once() -> None:
    (group,) = groups(case("t", [rank(0), wrong(1)]), case("t", [rank(0), wrong(1), rank(2)]))
    assert group.impact == "2 tests in 2 cells; rank 1"


def test_ranks_that_differ_from_test_to_test_are_not_added_up() -> None:
    (group,) = groups(case("t", [wrong(0), rank(1)]), case("t", [rank(0), wrong(1)]))
    assert group.impact == "2 tests in 2 cells; different ranks of 2: 0, 1"


def test_all_ranks_of_each_cell_are_named_by_their_number() -> None:
    (group,) = groups(case("t", [wrong(0), wrong(1)]), case("t", [wrong(0), wrong(1), wrong(2)]))
    assert group.impact == "2 tests in 2 cells; all 2 ranks; all 3 ranks"
