"""Which failures are the same, and failed_ranks they are."""

import pytest

from allranks.errors import ExitCode
from allranks.report.failure_groups import Failure, GroupKey, OwnFailures, failed_ranks, grouped
from allranks.report.failure_groups import signature as of
from allranks.report.results import VerdictKind


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("tensor at 0x7f12ab is gone", "tensor at 0x55 is gone"),
        ("rank 3 waited", "rank 17 waited"),
        ("ranks 2-6 are missing", "rank 1 is missing"),
        ("ranks 0, 2-6 and 9 waited", "rank 1 waited"),
        ("connect to 127.0.0.1:29500 failed", "connect to 127.0.0.1:4711 failed"),
        ("timed out after 60.2 s", "timed out after 61 s"),
        ("no file /tmp/a1/store", "no file /tmp/b2/store"),
        ("/repo/suite/t.py:31: no", "/build/x/t.py:7: no"),
        ("pid 123 died", "pid 4567 died"),
        ("Mismatched elements: 31 / 1024 (3.0%)", "Mismatched elements: 2 / 1024 (0.2%)"),
        ("1.0 != 2.5e-03", "1.0 != 3.0"),
        ("assert [5.0, 5.0] == [6, 6]", "assert [1.0, 1.0] == [2, 2]"),
        ("3f2a1b9c-0000-1111-2222-333344445555 lost", "7f2a1b9c-0000-4111-2222-333344445555 lost"),
    ],
)
def test_numbers_addresses_ranks_and_folders_make_no_difference(one: str, other: str):
    assert of(one) == of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 'a'", "KeyError: 'b'"),
        ("signal 6", "signal 11"),
        ("exit code 72", "exit code 74"),
        ("SIGABRT (6)", "SIGSEGV (11)"),
        ("/repo/a.py is gone", "/repo/b.py is gone"),
        ("all_reduce_2 failed", "all_reduce_3 failed"),
    ],
)
def test_words_and_the_kinds_of_ends_make_one(one: str, other: str):
    assert of(one) != of(other)


@pytest.mark.parametrize(
    ("ranks", "world", "words"),
    [
        ({31}, 64, "rank 31"),
        (range(64), 64, "all 64 ranks"),
        ({3, 11}, 4, "2 of 4 ranks: 3, 11"),
        (range(3, 64, 8), 64, "8 of 64 ranks: 3, 11, 19, 27, …"),
        ([*range(8), 20], 64, "9 of 64 ranks: 0-7, 20"),
    ],
)
def test_ranks_are_named(ranks, world: int, words: str):
    assert failed_ranks({world: OwnFailures(frozenset(ranks))}) == [words]


def test_errors_of_jobs_come_first_and_interrupted_jobs_last():
    def error(reason: str, code: ExitCode, *, is_of_job: bool = True) -> Failure:
        return Failure(
            job="c / s",
            nodeid=reason,
            kind=VerdictKind.ERROR,
            message="",
            reason=reason,
            is_of_job=is_of_job,
            code=code,
        )

    failures = [
        error("interrupted", ExitCode.INTERRUPTED, is_of_job=True),
        error("failed", ExitCode.TESTS_FAILED),
        error("job", ExitCode.UNACCOUNTED, is_of_job=True),
    ]
    assert [failure.reason for failure in grouped([failures], {})] == ["job", "failed", "interrupted"]


def test_a_group_names_its_other_functions():
    first, *others = (
        Failure(
            job="c / s",
            nodeid=f"{function}[0]",
            kind=VerdictKind.FAILURE,
            message="differs",
            key=GroupKey("failure", "failed", "differs"),
            functions=(function,),
        )
        for function in ("a.py::one", "a.py::one", "b.py::two")
    )
    (group,) = grouped([[first], others], {})
    assert (group.nodeid, group.impact) == ("a.py::one[0]", "3 tests; also b.py::two")
