"""Tags that say which backend capability a test checks: the marker ``conformance(operation="all_reduce")``."""

from collections.abc import Iterable, Iterator

import pytest

from allranks.agent.marks import CONFORMANCE
from allranks.agent.program import batches
from allranks.protocol.grouping import by_key
from allranks.protocol.records import Tagged

_LONGEST_VALUE = 60
"""Characters; a value labels a row or a column of the conformance report."""


def tagged(items: Iterable[pytest.Item]) -> Iterator[Tagged]:
    """The tags of all tagged tests, grouped by equal tags."""
    groups = by_key((tags, item.nodeid) for item in items if (tags := tags_of(item)))
    for tags, tests in groups.items():
        for part in batches(tests):
            yield Tagged(tests=part, tags=tags)


def tags_of(item: pytest.Item) -> tuple[str, ...]:
    """The tags of a test as ``name=value``; if two markers set the same name, the closest one counts.

    A value may refer to parameters of the test in braces (``feature="{reduction}"``). A parameter called ``dtype``
    becomes a tag automatically.
    """
    tags: dict[str, object] = {}
    for mark in reversed(list(item.iter_markers(CONFORMANCE))):
        tags.update(mark.kwargs)
    if not tags:
        return ()
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if "dtype" in parameters:
        tags.setdefault("dtype", parameters["dtype"])
    return tuple(f"{name}={_format(value, parameters)}" for name, value in sorted(tags.items()))


def _format(value: object, parameters: dict[str, object]) -> str:
    text = str(value).removeprefix("torch.")
    for name, parameter in parameters.items():
        text = text.replace(f"{{{name}}}", str(parameter))
    return text[:_LONGEST_VALUE]
