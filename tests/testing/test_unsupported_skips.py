"""The plugin that skips tests if the backend reports an operation as unsupported."""

from types import SimpleNamespace

import pytest

from allranks.agent.environment_skips import EnvironmentSkip
from allranks.protocol.unsupported import is_lack
from allranks.testing import unsupported_skips

REFUSAL = RuntimeError("No backend type associated with device type cpu")


@pytest.fixture(autouse=True)
def backend(monkeypatch):
    monkeypatch.setattr(
        unsupported_skips, "RankEnvironment", SimpleNamespace(read=lambda: SimpleNamespace(backend="mine"))
    )


def item(*markers):
    return SimpleNamespace(get_closest_marker=lambda name: name if name in markers else None)


def ending_in(error, hook, test):
    """Run a hook around a function that raises."""
    wrapper = hook(test)
    next(wrapper)
    try:
        wrapper.throw(error)
    except StopIteration as end:
        return end.value


@pytest.mark.parametrize("hook", [unsupported_skips.pytest_runtest_setup, unsupported_skips.pytest_runtest_call])
def test_an_unsupported_operation_in_a_tagged_test_is_a_skip_that_names_the_backend(hook):
    with pytest.raises(EnvironmentSkip) as skip:
        ending_in(REFUSAL, hook, item("conformance"))
    assert is_lack("mine", str(skip.value.msg))
    assert "No backend type" in skip.value.msg


def test_an_unsupported_operation_instead_of_the_expected_error_is_a_skip():
    with pytest.raises(AssertionError) as mismatch, pytest.raises(RuntimeError, match="Split sizes"):
        raise REFUSAL
    with pytest.raises(EnvironmentSkip, match="No backend type"):
        ending_in(mismatch.value, unsupported_skips.pytest_runtest_call, item("conformance"))


@pytest.mark.parametrize(
    ("error", "markers"), [(AssertionError("1 is not 2"), ["conformance"]), (REFUSAL, [])], ids=["failure", "no tags"]
)
def test_other_values_are_compared_as_in_unittest(error, markers):
    with pytest.raises(type(error)) as raised:
        ending_in(error, unsupported_skips.pytest_runtest_call, item(*markers))
    assert raised.value is error


def test_an_unsupported_operation_in_the_teardown_does_not_change_the_result():
    assert ending_in(REFUSAL, unsupported_skips.pytest_runtest_teardown, item("conformance")) is None
    with pytest.raises(RuntimeError):
        ending_in(REFUSAL, unsupported_skips.pytest_runtest_teardown, item())
