"""``assertEqual`` for tensors."""

import unittest
from collections.abc import Callable, Mapping, Sequence

import torch


class TensorEquality(unittest.TestCase):
    """A ``unittest.TestCase`` whose ``assertEqual`` and ``assertNotEqual`` know tensors.

    Tensors, and mappings and sequences that hold tensors, are compared with :func:`torch.testing.assert_close`: within
    the tolerances of their types, NaN equal to NaN, on any device. A number, or a list of them, beside a tensor counts
    as a tensor of its type. Everything else is compared as unittest does.
    """

    def assertEqual(  # noqa: N802 - the name of unittest
        self,
        first: object,
        second: object,
        msg: object = None,
        *,
        atol: float | None = None,
        rtol: float | None = None,
    ) -> None:
        """Fail unless both are equal.

        Args:
            first: What came out.
            second: What should have.
            msg: More words for the error.
            atol: Absolute tolerance for tensors; give both or none.
            rtol: Relative tolerance for tensors.
        """
        if atol is None and not (_holds_tensor(first) or _holds_tensor(second)):
            super().assertEqual(first, second, msg)  # noqa: PT009 - this is unittest's own
            return
        actual, expected = _alike(first, second)
        if _is_same(actual, expected):
            return
        try:
            torch.testing.assert_close(
                actual, expected, atol=atol, rtol=rtol, equal_nan=True, check_device=False, msg=_with_words(msg)
            )
        except TypeError as error:
            # It raises this for what it cannot compare with a tensor, and that is never equal to one.
            raise self.failureException(self._formatMessage(_text(msg), str(error))) from None

    def assertNotEqual(self, first: object, second: object, msg: object = None) -> None:  # noqa: N802 - as above
        """Fail if both are equal."""
        if not (_holds_tensor(first) or _holds_tensor(second)):
            super().assertNotEqual(first, second, msg)  # noqa: PT009 - this is unittest's own
            return
        try:
            self.assertEqual(first, second)  # noqa: PT009 - this is the method above
        except AssertionError:
            return
        raise self.failureException(self._formatMessage(_text(msg), f"{first!r} and {second!r} are equal"))


def _holds_tensor(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_tensor(item) for item in value.values())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return any(_holds_tensor(item) for item in value)
    return isinstance(value, torch.Tensor)


def _is_same(first: object, second: object) -> bool:
    """Whether two tensors are the same in every element: the first call of ``assert_close`` imports for a second."""
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return False
    is_plain = first.layout == second.layout == torch.strided
    return is_plain and first.dtype == second.dtype and first.device == second.device and torch.equal(first, second)


def _alike(first: object, second: object) -> tuple[object, object]:
    """Both as tensors, where one is a tensor and the other is numbers."""
    if isinstance(first, torch.Tensor) and not isinstance(second, torch.Tensor):
        return first, _like(second, first)
    if isinstance(second, torch.Tensor) and not isinstance(first, torch.Tensor):
        return _like(first, second), second
    return first, second


def _like(value: object, tensor: torch.Tensor) -> object:
    if isinstance(value, int | float | complex | list | tuple) and not _holds_tensor(value):
        return torch.tensor(value, dtype=tensor.dtype, device=tensor.device)
    return value


def _text(words: object) -> str | None:
    return None if words is None else str(words)


def _with_words(words: object) -> Callable[[str], str] | None:
    return None if words is None else lambda text: f"{text}\n{words}"
