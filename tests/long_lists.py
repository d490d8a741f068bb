"""Shortens long lists of test parameters."""

from collections.abc import Iterable, Sequence

import pytest

_Parameters = type(pytest.param())


def quick(count: int, parameters: Iterable[object]) -> Sequence[object]:
    """Mark all but the first parameters as thorough.

    Args:
        count: How many are to run each time.
        parameters: As for ``pytest.mark.parametrize``; a tuple has a value for each argument,
            so a tuple for a single argument is ``pytest.param(tuple)``.
    """
    values = list(parameters)
    return [*values[:count], *map(_thorough, values[count:])]


def _thorough(parameters: object) -> object:
    if isinstance(parameters, _Parameters):
        return pytest.param(*parameters.values, marks=[*parameters.marks, pytest.mark.thorough], id=parameters.id)
    values = parameters if isinstance(parameters, tuple) else (parameters,)
    return pytest.param(*values, marks=pytest.mark.thorough)
