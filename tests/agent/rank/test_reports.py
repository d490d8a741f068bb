"""Phases from pytest's reports, including invalid reports of hooks."""

import sys
import unittest

import pytest
from _pytest._code.code import ReprFileLocation
from _pytest.doctest import ReprFailDoctest
from hypothesis import given
from hypothesis import strategies as st
from torch.multiprocessing import ProcessRaisedException

from allranks.agent.environment_skips import EnvironmentSkip
from allranks.agent.rank.reports import Subtests, phase_of, session_aborted
from allranks.protocol.outcomes import MESSAGE_LIMIT, TEXT_LIMIT, Outcome, Phase, SkipKind
from allranks.protocol.skip_codes import SkipCode


def report(outcome, when="call", longrepr=None, **more):
    return pytest.TestReport("n", ("f", 1, "n"), {}, outcome, longrepr, when, **more)


def of(report, error=None):
    return phase_of(report, error, 1.5)


@pytest.mark.parametrize(("when", "outcome"), [("setup", "errored"), ("call", "failed"), ("teardown", "errored")])
def test_a_failure_outside_of_the_call_is_an_error(when, outcome):
    assert of(report("failed", when, "why"), ValueError()).outcome == outcome


def test_the_duration_of_a_phase_is_measured_by_the_rank():
    assert of(report("passed", duration=7.0)) == Phase(when="call", outcome=Outcome.PASSED, duration=1.5)


@pytest.mark.parametrize("code", [0, 1, 71, 90, "text", None, [], 76.5])
def test_an_exit_with_another_code_is_a_crash(code):
    assert of(report("failed", longrepr="why"), SystemExit(code)).outcome is Outcome.CRASHED


@pytest.mark.parametrize(("code", "kind"), [(72, SkipKind.ENVIRONMENT), (74, SkipKind.HARDWARE)])
@pytest.mark.parametrize("when", ["setup", "call"])
def test_an_exit_with_one_of_torchs_codes_is_a_skip(code, kind, when):
    phase = of(report("failed", when, longrepr="why"), SystemExit(code))
    assert (phase.outcome, phase.skip_kind, phase.skip_code) == (Outcome.SKIPPED, kind, code)


@pytest.mark.parametrize(
    ("error", "needed"),
    [
        (EnvironmentSkip(SkipCode.MULTI_GPU_8, "8 of 16", 16), 16),
        (EnvironmentSkip(SkipCode.NO_CUDA, "", 4), 4),
        (EnvironmentSkip(SkipCode.NO_CUDA), 1),
        (EnvironmentSkip(SkipCode.SMALL_WORLD_SIZE), None),
        (SystemExit(81), 4),
        (SystemExit(72), None),
        (pytest.skip.Exception("not today"), None),
    ],
)
def test_a_skip_keeps_the_number_of_required_gpus(error, needed):
    assert of(report("skipped", "call", longrepr="why"), error).gpus_needed == needed


@pytest.mark.parametrize("code", [72, 74, 77])
def test_an_exit_with_one_of_torchs_codes_in_the_tear_down_is_a_crash(code):
    phase = of(report("failed", "teardown", longrepr="why"), SystemExit(code))
    assert (phase.outcome, phase.skip_kind, phase.skip_code) == (Outcome.CRASHED, None, None)


@pytest.mark.parametrize("failure", [AssertionError("the cause"), pytest.fail.Exception("the cause")])
def test_an_exit_after_an_assertion_that_failed_is_no_skip(failure):
    def leave():
        try:
            raise failure
        finally:
            sys.exit(77)

    with pytest.raises(SystemExit) as left:
        leave()
    phase = of(report("failed", longrepr="SystemExit: 77"), left.value)
    assert (phase.outcome, phase.skip_code) == (Outcome.CRASHED, None)
    assert phase.message == f"{type(failure).__name__}: the cause; then SystemExit: 77"


def test_the_message_of_a_group_has_its_first_exception():
    group = ExceptionGroup("many", [ExceptionGroup("inner", [ValueError("the cause\nand more")]), KeyError()])
    phase = of(report("failed", longrepr="ExceptionGroup: many (2 sub-exceptions)"), group)
    assert phase.message == "ExceptionGroup: many (2 sub-exceptions): ValueError: the cause"


class NoTextError(Exception):
    """An exception without a repr."""

    def __str__(self):
        raise LookupError


def message_of(error):
    """The message for an exception in a report of pytest."""

    def fail():
        raise error

    with pytest.raises(type(error)) as caught:
        fail()
    return of(report("failed", longrepr=caught.getrepr()), error).message


NO_TEXT = f"{NoTextError.__module__}.NoTextError: <exception str() failed>"
OF_ONE = "ExceptionGroup: one (1 sub-exception): "
ENDED = "Process 1 terminated with the following error:"
CHILD = f"\n\n-- {ENDED}\nTraceback (most recent call last):\n  File\nValueError: full\n"
OF_CHILD = f"torch.multiprocessing.spawn.ProcessRaisedException: {ENDED} ValueError: full"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("\n\n  the cause\nmore"), "RuntimeError: the cause"),
        (RuntimeError("\n--- \n"), "RuntimeError"),
        (RuntimeError(), "RuntimeError"),
        (NoTextError(), NO_TEXT),
        (ExceptionGroup("one", [ValueError("\n\nthe cause")]), f"{OF_ONE}ValueError: the cause"),
        (ExceptionGroup("one", [NoTextError()]), f"{OF_ONE}{NO_TEXT}"),
        (ProcessRaisedException(CHILD, 1, 7), OF_CHILD),
        (ExceptionGroup("one", [ProcessRaisedException(CHILD, 1, 7)]), f"{OF_ONE}{OF_CHILD}"),
    ],
)  # fmt: skip
def test_the_headline_names_the_original_error(error, message):
    assert message_of(error) == message


def test_a_generic_exception_has_its_cause_in_the_headline():
    error = RuntimeError()
    error.__cause__ = ValueError("\nthe cause")
    assert message_of(error) == "RuntimeError: ValueError: the cause"


def test_a_hook_can_turn_an_expected_failure_into_a_failure():
    made = report("failed")
    made.wasxfail = "known"
    assert of(made).outcome is Outcome.FAILED


def test_the_message_of_a_warning_about_an_exception_has_that_exception():
    warning = pytest.PytestUnraisableExceptionWarning("Exception ignored in: f")
    warning.__cause__ = ValueError("the cause")
    phase = of(report("failed", longrepr="PytestUnraisableExceptionWarning: Exception ignored in: f"), warning)
    assert phase.message.endswith("ignored in: f: ValueError: the cause")


class Leaves(unittest.TestCase):
    """Exits in the way that the name of its test says; pytest does not collect it."""

    def in_tear_down(self):
        pass

    def in_clean_up(self):
        self.addCleanup(sys.exit, 77)

    def tearDown(self):
        if self._testMethodName == "in_tear_down":
            sys.exit(77)


class KeepsError(unittest.TestResult):
    def addError(self, _, error):  # noqa: N802 - unittest's
        self.error = error[1]


@pytest.mark.parametrize("name", ["in_tear_down", "in_clean_up"])
def test_an_exit_in_a_tear_down_of_unittest_is_a_crash(name):
    result = KeepsError()
    Leaves(name).run(result)
    assert of(report("failed", longrepr="why"), result.error).outcome is Outcome.CRASHED


def skipped(when="call"):
    return report("skipped", when, ("f.py", 3, "Skipped: not here"))


def test_a_skip_keeps_its_reason():
    phase = of(skipped("setup"), pytest.skip.Exception("not here"))
    assert (phase.outcome, phase.skip_kind, phase.message, phase.text) == (
        Outcome.SKIPPED,
        SkipKind.PLAIN,
        "not here",
        "not here",
    )


def test_a_skip_of_ours_has_its_code():
    phase = of(skipped(), EnvironmentSkip(SkipCode.NO_CUDA, "no GPU"))
    assert (phase.skip_kind, phase.skip_code) == (SkipKind.HARDWARE, 74)


@pytest.mark.parametrize(("outcome", "mark"), [("skipped", "xfailed"), ("passed", "xpassed")])
def test_an_expected_failure_has_its_reason(outcome, mark):
    made = report(outcome)
    made.wasxfail = "known"
    phase = of(made, ValueError() if outcome == "skipped" else None)
    assert (phase.outcome, phase.message, phase.skip_kind) == (mark, "known", None)


def test_the_message_is_the_first_meaningful_line():
    assert of(report("failed", longrepr="\n  \nfirst\nsecond"), ValueError()).message == "first"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("Expected:\n    4\nGot:\n    3", "Expected: 4 Got: 3 f.py:2: DocTestFailure"),
        ("Expected nothing\nGot:\n    3", "Expected nothing Got: 3 f.py:2: DocTestFailure"),
        ("UNEXPECTED EXCEPTION: ValueError('no')\n", "UNEXPECTED EXCEPTION: ValueError('no') f.py:2: DocTestFailure"),
    ],
)
def test_the_message_of_a_doctest_has_the_actual_output(output, message):
    location = ReprFileLocation("f.py", 2, "DocTestFailure")
    failed = ReprFailDoctest([(location, ["001 ", "002 >>> add(1, 2)", *output.split("\n")])])
    assert of(report("failed", longrepr=failed)).message == message


def serialized(function, style):
    """The text of a failure, as plugins send it between processes."""
    with pytest.raises(BaseException) as info:  # noqa: PT011 - any
        function()
    return str(info.getrepr(style=style))


def fails():
    message = "E is not F"
    raise ValueError(message)


def fails_from():
    try:
        fails()
    except ValueError as error:
        message = "of two lines\nand another"
        raise LookupError(message) from error


def fails_while():
    try:
        fails()
    finally:
        {}["no such key"]


def fails_in_group():
    message = "several"
    raise ExceptionGroup(message, [ValueError("one"), ExceptionGroup(message, [TypeError("two")])])


IN_A_CLASS = """\
self = <test_a.TestCase object at 0x7f>

    def test_method(self):
        left, right = [1], [2]
>       assert left == right
E       AssertionError: they differ
E       assert [1] == [2]
E
E         At index 0 diff: 1 != 2

test_a.py:5: AssertionError"""
NO_FIXTURE = """\
file /code/test_a.py, line 1
  def test_a(absent): pass
E       fixture 'absent' not found
>       available fixtures: cache, capsys
>       use 'pytest --fixtures [testpath]' for help on them.

/code/test_a.py:1"""
DOCTEST = """\
001 Add.
002 >>> add(1, 2)
Expected:
    4
Got:
    3

/code/a.py:2: DocTestFailure"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((serialized(fails, style), "ValueError: E is not F") for style in ("long", "short", "native")),
        (serialized(fails, "value"), "E is not F"),
        *((serialized(fails_from, style), "LookupError: of two lines") for style in ("long", "short", "native")),
        *((serialized(fails_while, style), "KeyError: 'no such key'") for style in ("long", "short", "native")),
        (serialized(fails_in_group, "long"), "ExceptionGroup: several (2 sub-exceptions)"),
        (serialized(fails_in_group, "native"), "ExceptionGroup: several (2 sub-exceptions)"),
        (IN_A_CLASS, "AssertionError: they differ"),
        (f"{IN_A_CLASS}\n\nDuring handling of the above exception:\n\nE   OSError: gone", "OSError: gone"),
        (NO_FIXTURE, "fixture 'absent' not found"),
        (DOCTEST, "Expected: 4 Got: 3 /code/a.py:2: DocTestFailure"),
        ("E   \nE   ValueError: after an empty line\n\na.py:1: ValueError", "ValueError: after an empty line"),
        (":-1: running the test CRASHED with signal 11", ":-1: running the test CRASHED with signal 11"),
        ("usage failed\n   spec failed: 1\n   no details", "usage failed"),
        ("E", "E"),
        (("test_a.py", 3, "Skipped: no GPU"), "Skipped: no GPU"),
    ],
)
def test_the_message_of_a_text_is_its_last_exception(text, message):
    assert of(report("failed", longrepr=text)).message == message


def test_an_aborted_session_is_reported_even_if_its_exception_has_no_repr():
    class Untold(KeyboardInterrupt):
        def __repr__(self):
            raise ValueError

    assert "Untold" in session_aborted(Untold()).message


def test_texts_are_bounded():
    phase = of(report("failed", longrepr="x" * 1_000_000, sections=[("Captured stdout call", "y" * 1_000_000)]))
    assert len(phase.message) < MESSAGE_LIMIT + 100
    assert len(phase.text) < TEXT_LIMIT + 100
    assert len(phase.stdout) < TEXT_LIMIT + 100


def spoil(name, value):
    made = report("failed", longrepr="why")
    setattr(made, name, value)
    return made


@given(
    st.sampled_from(["outcome", "when", "longrepr", "sections", "wasxfail", "keywords", "duration"]),
    st.sampled_from([None, 3, object(), [], "", "passed", "skipped", ("f", 1), [("a",)]]),
)
def test_an_invalid_report_is_still_a_phase(name, value):
    phase = of(spoil(name, value), ValueError())
    assert phase.when in ("setup", "call", "teardown")
    assert isinstance(phase.outcome, Outcome)
    assert isinstance(phase.message, str)


@pytest.mark.parametrize("longrepr", [3, object(), ["x"]])
def test_an_invalid_report_does_not_pass(longrepr):
    assert of(spoil("longrepr", longrepr), ValueError()).outcome.is_bad


@pytest.mark.parametrize(("kind", "outcome", "is_good"), [
    ("SubtestReport", "passed", True), ("SubTestReport", "skipped", True), ("SubtestReport", "failed", False),
    ("TestReport", "passed", False),
])  # fmt: skip
def test_only_failed_subtests_are_phases(kind, outcome, is_good):
    made = type(kind, (pytest.TestReport,), {})("n", ("f", 1, "n"), {}, outcome, None, "call")
    assert Subtests().take(made) is is_good


def test_skipped_subtests_are_listed_with_the_first_reason():
    subtests, kind = Subtests(), type("SubtestReport", (pytest.TestReport,), {})
    for outcome, reason in [("passed", None), ("skipped", "no"), ("failed", "why"), ("skipped", "neither")]:
        subtests.take(kind("n", ("f", 1, "n"), {}, outcome, reason and ("f", 1, reason), "call"))
    assert subtests.skipped == "skipped subtests #2, #4 of 4: no"
