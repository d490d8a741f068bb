"""Which errors say that a backend lacks something."""

import pytest

from allranks.protocol.unsupported import is_lack, lack, says_unsupported


@pytest.mark.parametrize(
    "error",
    [
        NotImplementedError(),
        RuntimeError("No backend type associated with device type cpu"),
        RuntimeError("Backend mine does not support reduce"),
        ValueError("monitored_barrier is only implemented for GLOO backend."),
        RuntimeError("Unsupported data type Half"),
        RuntimeError("AVG is not supported"),
    ],
    ids=str,
)
def test_a_refusal_says_that_something_is_unsupported(error):
    assert says_unsupported(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Timed out waiting for 10000ms"),
        AssertionError("this is not supported"),
        TypeError("unsupported operand type(s) for +: 'int' and 'str'"),
        KeyError("does not support"),
    ],
    ids=str,
)
def test_any_other_error_does_not(error):
    assert not says_unsupported(error)


def test_a_lack_is_known_by_its_words_and_its_backend():
    assert is_lack("mine", lack("mine", "sparse tensors"))
    assert not is_lack("mine", "mine is slow today")
    assert not is_lack("mine", lack("gloo", "sparse tensors"))
