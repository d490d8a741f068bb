"""Which failures are the same."""

import pytest
from runs import case, failed, rank

from allranks.report.failure_groups import message_of
from allranks.report.page import page
from allranks.report.page.page import Groups
from allranks.report.results import VerdictKind


def test_the_leading_rank_s_own_words_count_and_not_its_peers() -> None:
    assert message_of(failed("t", 2, "boom")) == message_of(failed("t", 4, "boom")) == "boom"


def test_a_rank_without_a_message_is_quoted_by_its_text() -> None:
    assert message_of(case("t", [rank(0, "failed", at=1, text="\n  first line\nsecond")])) == "first line"


def test_where_no_rank_leads_the_verdict_speaks() -> None:
    assert message_of(case("t", [rank(0), rank(1, "skipped", message="why")])).startswith("ranks disagree")


def test_the_same_words_of_a_failure_and_of_an_error_are_two_things() -> None:
    groups = Groups()
    first = groups.number_of(failed("t", message="boom"), "boom")
    second = groups.number_of(case("t", [rank(0, "errored", at=1, message="boom")]), "boom")
    assert (first, second) == (0, 1)
    assert [group.kind for group in groups.groups] == [VerdictKind.FAILURE, VerdictKind.ERROR]


def test_more_messages_than_can_be_told_apart_are_one_group_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_GROUPS", 3)
    groups = Groups()
    messages = [f"message {letter}" for letter in "abcdea"]
    numbers = [groups.number_of(failed("t", message=message), message) for message in messages]
    assert numbers == [0, 1, 2, 3, 3, 0]
    assert groups.groups[3].message.startswith("Other messages")
