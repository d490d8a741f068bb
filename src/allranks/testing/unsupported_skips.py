"""A pytest plugin: a tagged test is skipped if the backend refuses it as unsupported.

``-p allranks.testing.unsupported_skips`` loads it. In a regression test of a backend the same error is a failure, so it
is not loaded by default. That one rank refuses what another carries out is an error: *ranks disagree*.
"""

from collections.abc import Generator

import pytest

from allranks.agent.marks import CONFORMANCE
from allranks.protocol.skip_codes import SkipCode
from allranks.protocol.unsupported import lack, says_unsupported
from allranks.protocol.xml_text import clipped
from allranks.testing.environment import RankEnvironment
from allranks.testing.skips import skip


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test whose fixtures the backend refuses, such as a sub-group."""
    return (yield from _skipping(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test whose operation the backend refuses."""
    return (yield from _skipping(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Leave the result of a test as it is if only its clean-up uses what the backend lacks."""
    try:
        return (yield)
    except Exception as error:
        if not _is_refusal(item, error):
            raise


def _skipping(item: pytest.Item) -> Generator[None, None, None]:
    try:
        return (yield)
    except Exception as error:
        if not _is_refusal(item, error):
            raise
        refusal = _refusal_in(error)
        words = " ".join(str(refusal).split()) or type(refusal).__name__
        skip(SkipCode.GENERIC, lack(RankEnvironment.read().backend, f"support for this: {clipped(words, 300)}"))


def _is_refusal(item: pytest.Item, error: Exception) -> bool:
    return item.get_closest_marker(CONFORMANCE) is not None and says_unsupported(_refusal_in(error))


def _refusal_in(error: Exception) -> BaseException:
    """The error itself; of ``pytest.raises`` that another message was expected, the error with that message."""
    return error.__context__ if isinstance(error, AssertionError) and error.__context__ else error
