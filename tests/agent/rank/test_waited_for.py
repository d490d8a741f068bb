"""The wait that a failure may follow from: only exceptions of waits are marked, whatever their message."""

import asyncio

import pytest

from allranks.agent.call_log import Wait
from allranks.agent.rank.reports import failed_before, waited_for, with_cause

WAIT = Wait(7, 0.5)


def raised_by(act):
    try:
        act()
    except BaseException as error:  # noqa: BLE001 - whatever it raises
        return error
    return None


def failed(kind=RuntimeError):
    """An exception like that of a call of torch.distributed."""
    error = kind("words that nobody knows")
    error.allranks_wait = WAIT
    return error


def fail():
    raise failed()


def wraps():
    try:
        fail()
    except RuntimeError as error:
        raise LookupError from error


def wraps_twice():
    try:
        wraps()
    except LookupError as error:
        raise OSError from error


def says_so():
    try:
        fail()
    except RuntimeError:
        pytest.fail("no answer")


def fails_in_the_handler():
    try:
        fail()
    except RuntimeError:
        [].pop()


def hides_it():
    try:
        fail()
    except RuntimeError:
        raise LookupError from None


def fails_on_the_way_out():
    try:
        fail()
    finally:
        {}.pop("nothing")


def leaves():
    try:
        fail()
    except RuntimeError:
        raise SystemExit(3) from None


def waits_in_a_task():
    async def wait():
        await asyncio.to_thread(fail)

    asyncio.run(wait())


def groups():
    message = "two"
    raise ExceptionGroup(message, [failed(), ExceptionGroup("one", [failed(OSError)])])


MAKE_SOMETHING_OF_IT = [
    fail,
    wraps,
    wraps_twice,
    says_so,
    fails_in_the_handler,
    hides_it,
    fails_on_the_way_out,
    leaves,
    waits_in_a_task,
    groups,
]


@pytest.mark.parametrize("act", MAKE_SOMETHING_OF_IT)
def test_exceptions_raised_after_a_failed_wait_may_follow_from_it(act):
    assert waited_for(raised_by(act)) == WAIT


SAID = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer, timed out"


@pytest.mark.parametrize(
    "error",
    [
        None,
        AssertionError("the operation timed out"),
        RuntimeError(SAID),
        TimeoutError("timed out"),
        KeyError("connection closed by peer"),
        ExceptionGroup("two", [failed(), KeyError()]),
    ],
)
def test_messages_decide_nothing(error):
    assert waited_for(error) is None


@pytest.mark.parametrize(
    "error", [AssertionError(), RuntimeError(SAID), SystemExit(1), ExceptionGroup("a", [KeyError()])]
)
def test_a_failure_during_a_wait_may_follow_from_it(error):
    assert waited_for(error, WAIT) == WAIT


def test_the_first_of_several_waits_counts():
    later = failed()
    later.allranks_wait = Wait(8, 0.001)
    later.__context__ = failed()
    assert waited_for(later) == WAIT


@pytest.mark.parametrize(
    ("first", "has_own"),
    [
        (AssertionError("the cause"), True),
        (pytest.fail.Exception("the cause"), True),
        (ValueError("the cause"), False),
        (failed(), False),
    ],
)
def test_an_assertion_before_the_wait_is_the_ranks_own_failure(first, has_own):
    def waits_in_finally():
        try:
            raise first
        finally:
            fail()

    error = raised_by(waits_in_finally)
    assert (waited_for(error) is None) is has_own
    assert failed_before(error) is (None if hasattr(first, "allranks_wait") else first)


def test_the_message_starts_with_the_failure_before_the_wait():
    def waits_in_finally():
        cause = ValueError("the cause")
        try:
            raise cause
        finally:
            fail()

    assert with_cause("lost", raised_by(waits_in_finally)) == "ValueError: the cause; then lost"


def test_an_exception_whose_attributes_raise_follows_from_nothing():
    class Mute(RuntimeError):  # noqa: N818 - what a suite might call it
        def __getattribute__(self, name):
            raise KeyError

    assert waited_for(Mute()) is None


def test_a_circle_of_exceptions_ends():
    one, other = KeyError(), KeyError()
    one.__context__, other.__context__ = other, one
    assert waited_for(one) is None


def test_an_exception_can_declare_that_it_follows_from_a_wait():
    class Waited(Exception):  # noqa: N818 - what a suite might call it
        allranks_symptom = True

    assert waited_for(Waited()) == Wait()
