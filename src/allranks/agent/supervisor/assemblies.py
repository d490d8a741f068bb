"""Splits a job's tests into assemblies: neighbours that one gang may run."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

from allranks.agent.program import ItemOptions


def assemblies(terms: Sequence[ItemOptions], indices: Iterable[int]) -> Iterator[list[int]]:
    """Split tests into runs of neighbours that one gang may run.

    Args:
        terms: How each collected test is run.
        indices: Tests, in their order.
    """
    for _, neighbours in itertools.groupby(indices, lambda index: terms[index].gang):
        yield list(neighbours)


def joined_by_group(terms: Sequence[ItemOptions], parts: Iterable[Sequence[int]]) -> list[list[int]]:
    """Assemblies of launcher tests, those of one test group as one: a worker runs it, and nothing of it overlaps."""
    joined: dict[tuple[str, int], list[int]] = {}
    for number, indices in enumerate(parts):
        group = terms[indices[0]].test_group
        joined.setdefault((group, -1 if group else number), []).extend(indices)
    return list(joined.values())


def first_assembly(terms: Sequence[ItemOptions], indices: Sequence[int]) -> list[int]:
    """The first of the :func:`assemblies` of some tests; there must be a test."""
    return next(assemblies(terms, indices))
