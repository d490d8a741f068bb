"""A pytest plugin that skips tests with conformance tags if the backend reports an operation as unsupported.

Load it with ``-p allranks.testing.unsupported_skips``. It is not loaded by default, because in a regression test of a
backend, the same error is a failure. If only some ranks report the operation as unsupported, the test fails: *ranks
disagree*.
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
    """Skip a test if the backend does not support an operation of its fixtures, such as creating a subgroup."""
    return (yield from _skipping(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test if the backend does not support one of its operations."""
    return (yield from _skipping(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Ignore unsupported operations in the teardown, so that they do not change the test's result."""
    try:
        return (yield)
    except Exception as error:
        if not _is_unsupported(item, error):
            raise


def _skipping(item: pytest.Item) -> Generator[None, None, None]:
    try:
        return (yield)
    except Exception as error:
        if not _is_unsupported(item, error):
            raise
        cause = _backend_error(error)
        message = " ".join(str(cause).split()) or type(cause).__name__
        skip(SkipCode.GENERIC, lack(RankEnvironment.read().backend, f"support for this: {clipped(message, 300)}"))


def _is_unsupported(item: pytest.Item, error: Exception) -> bool:
    return item.get_closest_marker(CONFORMANCE) is not None and says_unsupported(_backend_error(error))


def _backend_error(error: Exception) -> BaseException:
    """The error itself; if ``pytest.raises(match=...)`` expected a different message, the error that it caught."""
    return error.__context__ if isinstance(error, AssertionError) and error.__context__ else error
