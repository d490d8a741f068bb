"""Which failures are the same."""

import pytest
from runs import case, failed, rank

from allranks.report.page import page
from allranks.report.page.page import Groups, message_of, signature
from allranks.report.results import VerdictKind


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("tensor at 0x7f12ab is gone", "tensor at 0x55 is gone"),
        ("rank 3 waited", "rank 17 waited"),
        ("connect to 127.0.0.1:29500 failed", "connect to 127.0.0.1:4711 failed"),
        ("timed out after 60.2 s", "timed out after 61 s"),
        ("no file /tmp/a1/store", "no file /tmp/b2/store"),
        ("pid 123 died", "pid 4567 died"),
    ],
)
def test_what_differs_from_run_to_run_makes_no_difference(one: str, other: str) -> None:
    assert signature(one) == signature(other)


@pytest.mark.parametrize(
    ("one", "other"), [("1.0 != 2.0", "1.0 != 3.0"), ("KeyError: 'a'", "KeyError: 'b'"), ("signal 6", "signal 11")]
)
def test_what_a_test_says_makes_one(one: str, other: str) -> None:
    assert signature(one) != signature(other)


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
    numbers = [groups.number_of(failed("t"), f"message {letter}") for letter in "abcdea"]
    assert numbers == [0, 1, 2, 3, 3, 0]
    assert groups.groups[3].message.startswith("Other messages")
