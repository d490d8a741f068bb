"""The judge of hostile cases sees each kind of lie."""

from dataclasses import replace

import pytest
from declaration import literal
from hostile_run import BYSTANDERS, COMMON, SIZE, Reported, Seen, judge
from truth import Truth, read_all

CASE = read_all()["returns_from_fork"]


def bystander() -> tuple[Reported, ...]:
    """The testcases of an innocent job, as they must be."""
    tests = literal(COMMON / "bystander.py", "TRUTH")["tests"]
    waits = (
        Reported(name=f"test_wait[{number}]", verdict="passed", ranks={0: "passed", 1: "passed"})
        for number in range(10)
    )
    rest = {name: dict(enumerate(ranks)) for name, ranks in tests.items() if not name.endswith("*")}
    verdicts = {"test_fails": "failure", "test_skips": "skipped"}
    return (
        *waits,
        *(Reported(name=name, verdict=verdicts.get(name, "passed"), ranks=ranks) for name, ranks in rest.items()),
    )


VICTIM = Reported(name="test_victim", verdict="failure", ranks={0: "passed", 1: "failed"})
HONEST = Reported(name="test_honest", verdict="passed", ranks={0: "passed", 1: "passed"})
ATTACK = Reported(name="test_attack", verdict="error", ranks={0: "aborted", 1: "crashed"})
AFTER = Reported(name="test_after", verdict="failure", ranks={0: "failed", 1: "passed"})
TESTS = (VICTIM, HONEST, ATTACK, AFTER)
SEEN = Seen(
    exit_code=1,
    suites={CASE.name: TESTS, **dict.fromkeys(BYSTANDERS, bystander())},
    greens={CASE.name: frozenset({(0, "test_victim"), (1, "test_honest")})},
    sizes={CASE.name: 1000},
    contradictions=(),
    left=(),
    output="exit code 1: tests failed",
)


def of_case(*tests: Reported) -> dict[str, object]:
    return {"suites": {**SEEN.suites, CASE.name: tests}}


def test_what_is_true_is_right():
    assert judge(CASE, SEEN) == ()


NOT_RUN = Reported(name="test_after", verdict="skipped", ranks={}, message="not run: the job ended before")


def test_a_test_that_its_jobs_end_kept_from_running_is_right():
    assert judge(CASE, replace(SEEN, **of_case(VICTIM, HONEST, ATTACK, NOT_RUN))) == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"exit_code": 0}, "exit code 0"),
        ({"exit_code": -9}, "it never ended"),
        ({"output": "This is a bug in allranks"}, "broke down"),
        ({"output": "x\nTraceback (most recent call last):\n"}, "traceback"),
        ({"output": "x\nFORGED"}, "a line of the terminal"),
        ({"left": ("process 7",)}, "left behind: process 7"),
        ({"contradictions": ("x differs",)}, "reports: x differs"),
        ({"sizes": {CASE.name: SIZE + (1 << 20)}}, "MiB"),
        ({"suites": {CASE.name: TESTS, BYSTANDERS[0]: bystander()}}, "bystander_last: test_fails: 0 in the report"),
        ({"suites": dict.fromkeys(BYSTANDERS, bystander())}, "the job is not bad"),
        (of_case(replace(VICTIM, verdict="passed"), HONEST, ATTACK, AFTER), "'test_victim': passed, and it is bad"),
        (of_case(replace(VICTIM, verdict="skipped"), HONEST, ATTACK, AFTER), "'test_victim': skipped, and it is bad"),
        (
            of_case(replace(VICTIM, ranks={0: "passed", 1: "missing"}), HONEST, ATTACK, AFTER),
            "rank 1 missing, not failed",
        ),
        (
            of_case(VICTIM, replace(HONEST, ranks={0: "failed", 1: "passed"}), ATTACK, AFTER),
            "rank 0 failed, not passed",
        ),
        (of_case(VICTIM, replace(NOT_RUN, name="test_honest"), ATTACK, AFTER), "rank 0 missing, not passed"),
        (of_case(VICTIM, HONEST, replace(ATTACK, ranks={0: "aborted", 1: "passed"}), AFTER), "rank 1 passed, not bad"),
        (
            of_case(VICTIM, HONEST, replace(ATTACK, ranks={0: "aborted", 1: "skipped"}), AFTER),
            "rank 1 skipped, not bad",
        ),
        (of_case(VICTIM, HONEST, replace(ATTACK, ranks={**ATTACK.ranks, 2: "passed"}), AFTER), "no such rank"),
        (of_case(VICTIM, HONEST, ATTACK), "test_after: 0 in the report, not 1"),
        (of_case(*TESTS, replace(HONEST, name="test_ghost")), "there is no such test"),
        ({"greens": {CASE.name: frozenset({(1, "test_victim")})}}, "rank-1.xml says that 'test_victim' passed"),
    ],
)
def test_what_is_not_true_is_told(change, words):
    problems = judge(CASE, replace(SEEN, **change))
    assert any(words in line for line in problems), problems


@pytest.mark.parametrize("words", [["green", "any"], {"ranks": ["any"], "unknown": 1}])
def test_an_unknown_word_in_a_declaration_is_rejected(words):
    with pytest.raises((ValueError, TypeError)):
        Truth.read(words)
