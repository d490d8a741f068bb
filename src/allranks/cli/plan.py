"""``allranks plan``: lists the cells of the matrix, and divides their jobs among CI machines."""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import prod

from allranks.cli.command_parser import CommandParser, one_of
from allranks.cli.options import (
    add_selection,
    add_tests,
    chosen_jobs,
    chosen_names,
    existing_file,
    number,
    read_request,
    remark,
    run_id,
    say,
    selected_cells,
    writable_file,
)
from allranks.errors import ExitCode, counted
from allranks.matrix.axes import AXES, NO_TORCH
from allranks.matrix.cell_images import image_for
from allranks.matrix.expand import Expansion
from allranks.matrix.jobs import chosen_suites, plan, unnamed_suites
from allranks.matrix.model import Cell, Job, Matrix
from allranks.protocol.xml_text import for_log
from allranks.runner.machines.packs import MINUTES_PER_ENTRY, MOST_ENTRIES, PackOptions

MOST_DROPPED_SHOWN = 200
"""Dropped cells that are named one by one; beyond them a count per rule is more useful than the names."""


_FORMATS = ("table", "json", "github")


def add(parser: CommandParser) -> None:
    """Declare the arguments of ``allranks plan``."""
    parser.usage = "allranks plan [CELL | TEST ...] [options] [-- PYTEST-ARGUMENT ...]"
    parser.takes_pytest = True
    add_selection(parser)
    add_tests(parser.add_argument_group("which tests, and how (recorded by --plan-file; all jobs are planned)"))
    group = parser.add_argument_group("what to show")
    group.add_argument("--explain", action="store_true", help="also show each dropped cell and the rule that did it")
    meaning = "json is for programs, github the job matrix of a workflow"
    group.add_argument("--format", type=one_of(_FORMATS), choices=_FORMATS, default="table", help=meaning)
    group.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    parser.set_defaults(command=_plan)
    group = parser.add_argument_group("with --format github")
    meaning = "write the plan here, for each machine's `allranks run --plan-file FILE --pack PACK`"
    group.add_argument("--plan-file", type=writable_file, metavar="FILE", help=meaning)
    group.add_argument(
        "--max-entries",
        type=_entries,
        default=MOST_ENTRIES,
        metavar="N",
        help=f"no more machines than this (default, and GitHub's limit: {MOST_ENTRIES})",
    )
    group.add_argument(
        "--minutes-per-entry",
        type=_minutes,
        default=MINUTES_PER_ENTRY,
        metavar="N",
        help=f"what a machine should have to do: fewer minutes, more machines (default: {MINUTES_PER_ENTRY})",
    )
    meaning = "what tests took, for even packs (default: the file that the matrix file names)"
    group.add_argument("--durations", type=existing_file, metavar="FILE", help=meaning)


def _plan(options: argparse.Namespace) -> ExitCode:
    expansion = read_request(options)
    if options.format == "github":
        return _plan_machines(expansion, options)
    cells, suites = selected_cells(expansion, options), chosen_names(expansion, options)
    if options.format == "json":
        say(render_json(expansion, cells, suites))
    else:
        say(render_table(expansion.matrix, cells, suites))
        if options.explain:
            say("\n" + render_explanation(expansion))
    return ExitCode.OK


def _plan_machines(expansion: Expansion, options: argparse.Namespace) -> ExitCode:
    from allranks.report.durations import read_durations  # noqa: PLC0415 - no other plan needs them
    from allranks.runner.machines.planning import PlanOptions, plan_machines  # noqa: PLC0415

    plan_options = PlanOptions(
        run_id=run_id(),
        pytest_args=options.pytest_args,
        durations=read_durations(options.durations or expansion.matrix.root / expansion.matrix.durations, remark),
        wishes=PackOptions(most=options.max_entries, minutes=options.minutes_per_entry),
        plan_file=options.plan_file,
    )
    entries, notes = plan_machines(expansion, chosen_jobs(expansion, options), plan_options)
    remark("\n".join(map(for_log, notes)))
    say(entries)
    return ExitCode.OK


def _entries(text: str) -> int:
    if not 1 <= (entries := number(text)) <= MOST_ENTRIES:
        msg = f"{text!r} entries: GitHub takes from 1 to {MOST_ENTRIES} in a job matrix"
        raise argparse.ArgumentTypeError(msg)
    return entries


def _minutes(text: str) -> int:
    if (minutes := number(text)) < 1:
        msg = f"{text!r} is no time: take 1 minute or more"
        raise argparse.ArgumentTypeError(msg)
    return minutes


def render_table(matrix: Matrix, cells: Sequence[Cell], suite_names: Sequence[str] | None = None) -> str:
    """The cells, one per line: id, axes, image and suites."""
    jobs_of = {cell: plan(matrix, [cell], suite_names) for cell in cells}
    axes = [axis for axis in AXES if any(axis in cell.told_axes() for cell in cells)]
    rows = [("cell", *axes, "image", "suites")]
    for cell, jobs in jobs_of.items():
        suites = ", ".join(_names(jobs)) or "none"
        rows.append((cell.id, *map(str, cell.told_axes().values()), image_for(matrix, cell).name, suites))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    planned = [job.suite.name for jobs in jobs_of.values() for job in jobs]
    idle = [suite.name for suite in chosen_suites(matrix, suite_names) if suite.name not in planned]
    notes = [f"The suite {name} runs in none of these cells." for name in idle]
    unnamed = [suite.name for suite in unnamed_suites(matrix, cells)] if suite_names is None else []
    notes += [f"Only when --suite names them: {', '.join(unnamed)}."] if unnamed else []
    total = f"{counted(len(jobs_of), 'cell')}, {counted(len(planned), 'job')}"
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, "", total, *notes])


def render_explanation(expansion: Expansion) -> str:
    """The dropped points under the rule that dropped them; only counts if there are very many."""
    total = sum(map(len, expansion.dropped.values()))
    points = prod(map(len, expansion.matrix.axes.values()))
    room, end = MOST_DROPPED_SHOWN, ":" if expansion.dropped else "."
    lines = [f"{counted(total, 'dropped cell')} of {counted(points, 'combination')}{end}"]
    for rule, cells in expansion.dropped.items():
        lines += ["", f"{rule.reason}  (line {rule.line}: {rule.when.source})"]
        lines += [f"  {cell.id}" for cell in cells[:room]]
        if len(cells) > room:
            lines.append(f"  … and {len(cells) - room:,} more" if room else f"  {counted(len(cells), 'cell')}")
        room -= min(room, len(cells))
    return "\n".join(lines)


def render_json(expansion: Expansion, cells: Sequence[Cell], suite_names: Sequence[str] | None = None) -> str:
    """The plan in JSON, for programs.

    One object with ``schema`` (1; a change that breaks readers raises it), ``file`` (the matrix file's path),
    ``axes`` (axis → list of values), ``cells`` and ``dropped``. A cell has ``id``, ``axes`` (axis → value), ``image``
    (a name), ``suites`` (list of names), ``by_name`` (list of the suites that run there only when ``--suite`` names
    them), ``environment`` (name → value) and ``jobs`` (list of job ids). An entry of ``dropped`` has ``rule`` (the
    text of ``when``), ``reason``, ``line``, ``count`` and ``cells`` (ids, the first 200 at most).
    """
    document = {
        "schema": 1,
        "file": str(expansion.matrix.path),
        "axes": {axis: list(values) for axis, values in expansion.matrix.axes.items() if values != (NO_TORCH,)},
        "cells": [_cell_object(expansion.matrix, cell, suite_names) for cell in cells],
        "dropped": [
            {
                "rule": rule.when.source,
                "reason": rule.reason,
                "line": rule.line,
                "count": len(cells),
                "cells": [cell.id for cell in cells[:MOST_DROPPED_SHOWN]],
            }
            for rule, cells in expansion.dropped.items()
        ],
    }
    return json.dumps(document, indent=2)


def _names(jobs: Iterable[Job]) -> Iterator[str]:
    """The names of a cell's jobs, with all shards of a suite as one: ``torch-rpc@1of4…4of4``."""
    for _, group in groupby(jobs, key=lambda job: job.suite.name):
        first, *_ = suite_jobs = list(group)
        if first.shard and len(suite_jobs) == first.shard.count:
            yield f"{first.name}…{first.shard.count}of{first.shard.count}"
        else:
            yield from (job.name for job in suite_jobs)


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
