"""What ``allranks plan`` prints: the cells as a table, the dropped cells with their reasons, both as JSON."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from allranks.matrix.axes import AXES, NO_TORCH
from allranks.matrix.expand import Dropped, Expansion, cell_at
from allranks.matrix.model import Cell, Job, Matrix
from allranks.matrix.plan import chosen_suites, image_for, plan, unnamed_suites

MOST_DROPPED_SHOWN = 200
"""Dropped cells that are named one by one; beyond them a count per rule says more than the names."""

SCHEMA = 1


def render_table(matrix: Matrix, cells: Sequence[Cell], suite_names: Sequence[str] | None = None) -> str:
    """The cells, one a line: id, axes, image and suites."""
    jobs_of = {cell: plan(matrix, [cell], suite_names) for cell in cells}
    axes = [axis for axis in AXES if any(axis in cell.told_axes() for cell in cells)]
    head: tuple[str, ...] = ("cell", *axes, "image", "suites")
    rows = [head, *(_row(matrix, cell, _names(jobs)) for cell, jobs in jobs_of.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    planned = [job.suite.name for jobs in jobs_of.values() for job in jobs]
    idle = [suite.name for suite in chosen_suites(matrix, suite_names) if suite.name not in planned]
    notes = [f"The suite {name} runs in none of these cells." for name in idle]
    unnamed = [suite.name for suite in unnamed_suites(matrix, cells)] if suite_names is None else []
    notes += [f"Only when --suite names them: {', '.join(unnamed)}."] if unnamed else []
    total = f"{_counted(len(jobs_of), 'cell')}, {_counted(len(planned), 'job')}"
    return "\n".join([*(_line(row, widths) for row in rows), "", total, *notes])


def render_explanation(expansion: Expansion) -> str:
    """The dropped points under the rule that dropped them; counts alone where they are very many."""
    total = sum(expansion.dropped_by.values())
    head = f"{_counted(total, 'dropped cell')} of {_counted(expansion.grid.size, 'combination')}"
    room = MOST_DROPPED_SHOWN
    lines = [f"{head}{':' if expansion.removed else '.'}"]
    for dropped in expansion.removed:
        lines += ["", *_explained(expansion, dropped, room)]
        room -= min(room, dropped.points.bit_count())
    return "\n".join(lines)


def render_json(expansion: Expansion, cells: Sequence[Cell], suite_names: Sequence[str] | None = None) -> str:
    """The plan for machines.

    One object with ``schema`` (1; a change that breaks readers raises it), ``file`` (the matrix file's path),
    ``axes`` (axis → list of values), ``cells`` and ``dropped``. A cell has ``id``, ``axes`` (axis → value), ``image``
    (a name), ``suites`` (list of names), ``by_name`` (list of the suites that run there when ``--suite`` names them,
    and not by default), ``environment`` (name → value) and ``jobs`` (list of job ids). An entry of ``dropped`` has
    ``rule`` (the text of ``when``), ``reason``, ``line``, ``count`` and ``cells`` (ids, the first 200 at most).
    """
    document = {
        "schema": SCHEMA,
        "file": str(expansion.matrix.path),
        "axes": {axis: list(values) for axis, values in expansion.grid.axes.items() if values != (NO_TORCH,)},
        "cells": [_cell_object(expansion.matrix, cell, suite_names) for cell in cells],
        "dropped": [_dropped_object(expansion, dropped) for dropped in expansion.removed],
    }
    return json.dumps(document, indent=2)


def _row(matrix: Matrix, cell: Cell, suites: Iterable[str]) -> tuple[str, ...]:
    return (cell.id, *map(str, cell.told_axes().values()), image_for(matrix, cell).name, ", ".join(suites) or "none")


def _names(jobs: Iterable[Job]) -> Iterator[str]:
    """The names of a cell's jobs; all shards of a suite as one: ``torch-rpc@1of4…4of4``."""
    by_suite: dict[str, list[Job]] = {}
    for job in jobs:
        by_suite.setdefault(job.suite.name, []).append(job)
    for suite_jobs in by_suite.values():
        first = suite_jobs[0]
        if first.shard and len(suite_jobs) == first.shard.count:
            yield f"{first.name}…{first.shard.count}of{first.shard.count}"
        else:
            yield from (job.name for job in suite_jobs)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _explained(expansion: Expansion, dropped: Dropped, room: int) -> Iterator[str]:
    count = dropped.points.bit_count()
    yield f"{dropped.rule.reason}  (line {dropped.rule.line}: {dropped.rule.when.source})"
    yield from (f"  {cell_id}" for cell_id in islice(_ids(expansion, dropped), room))
    if count > room:
        yield f"  … and {count - room:,} more" if room else f"  {_counted(count, 'cell')}"


def _ids(expansion: Expansion, dropped: Dropped) -> Iterator[str]:
    return (cell_at(point).id for point in expansion.grid.points(dropped.points))


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _cell_object(matrix: Matrix, cell: Cell, suite_names: Sequence[str] | None) -> Mapping[str, object]:
    jobs = plan(matrix, [cell], suite_names)
    return {
        "id": cell.id,
        "axes": cell.told_axes(),
        "image": image_for(matrix, cell).name,
        "suites": list(dict.fromkeys(job.suite.name for job in jobs)),
        "by_name": [suite.name for suite in unnamed_suites(matrix, [cell])],
        "environment": matrix.environment_of(cell),
        "jobs": [job.id for job in jobs],
    }


def _dropped_object(expansion: Expansion, dropped: Dropped) -> Mapping[str, object]:
    return {
        "rule": dropped.rule.when.source,
        "reason": dropped.rule.reason,
        "line": dropped.rule.line,
        "count": dropped.points.bit_count(),
        "cells": list(islice(_ids(expansion, dropped), MOST_DROPPED_SHOWN)),
    }
