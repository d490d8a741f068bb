"""What tests show of a backend, by their markers: ``conformance(operation="all_reduce")``."""

from collections.abc import Iterable, Iterator

import pytest

from allranks.agent.marks import CONFORMANCE
from allranks.agent.program import batches
from allranks.protocol.records import Tagged

_LONGEST = 60
"""Characters of a value: it is the label of a row or a column."""


def tagged(items: Iterable[pytest.Item]) -> Iterator[Tagged]:
    """The tags of tests that have some, with tests of equal tags together."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for item in items:
        if tags := tags_of(item):
            groups.setdefault(tags, []).append(item.nodeid)
    for tags, tests in groups.items():
        for part in batches(tests):
            yield Tagged(tests=part, tags=tags)


def tags_of(item: pytest.Item) -> tuple[str, ...]:
    """The tags of a test, each as ``name=value``: of two markers with one name for a value, the closest counts.

    A value may name parameters of the test in braces (``feature="{reduction}"``). A parameter ``dtype`` is a tag of
    its own.
    """
    tags: dict[str, object] = {}
    for mark in reversed(list(item.iter_markers(CONFORMANCE))):
        tags.update(mark.kwargs)
    if not tags:
        return ()
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if "dtype" in parameters:
        tags.setdefault("dtype", parameters["dtype"])
    return tuple(f"{name}={_told(value, parameters)}" for name, value in sorted(tags.items()))


def _told(value: object, parameters: dict[str, object]) -> str:
    text = str(value).removeprefix("torch.")
    for name, given in parameters.items():
        text = text.replace(f"{{{name}}}", str(given))
    return text[:_LONGEST]
