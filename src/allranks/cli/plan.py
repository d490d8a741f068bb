"""``allranks plan``: lists the cells of the matrix, and distributes their jobs over CI machines."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from typing import ClassVar

from allranks.cli.existing_tests import files_in_no_suite
from allranks.cli.options import run_id
from allranks.cli.parser import existing_file, flag, option, whole, writable_file
from allranks.cli.printing import say, warn
from allranks.cli.selection import (
    Selection,
    TestSelectionOptions,
    read_request,
    selected_cells,
    selected_jobs,
    selected_suites,
)
from allranks.cli.variables import PLAN_FILE_VARIABLE
from allranks.errors import ExitCode, counted
from allranks.matrix.axes import AXES, NO_TORCH
from allranks.matrix.cell_images import image_for
from allranks.matrix.expand import Expansion
from allranks.matrix.jobs import chosen_suites, optional_suites, plan
from allranks.matrix.model import DURATIONS_FILE, Cell, Job, Matrix
from allranks.protocol.xml_text import for_log

MOST_DROPPED_SHOWN = 200
"""The maximum number of dropped cells listed by name (in JSON: for each rule); beyond that, counts are more useful."""

MOST_ENTRIES = 256
"""GitHub's limit on jobs in a matrix (https://docs.github.com/actions/reference/limits)."""

MINUTES_PER_ENTRY = 20
"""The default minutes of work per machine; starting a machine takes one or two."""

_SHOWN = "what to show"
_MACHINES = "with --format github"


@dataclass(frozen=True, kw_only=True)
class Options(TestSelectionOptions, Selection):
    """The options of ``allranks plan``."""

    usage: ClassVar = "allranks plan [CELL | TEST ...] [options] [-- PYTEST-ARGUMENT ...]"

    explain: bool = flag("--explain", _SHOWN, "also show each dropped cell and the rule that dropped it")
    requests: bool = flag("--requests", _SHOWN, "show the requests that engines would get, as JSON")
    format: str = option(
        "--format",
        _SHOWN,
        "json: the plan for programs; github: the job matrix of a workflow",
        choices=("table", "json", "github"),
        default="table",
    )
    json: bool = flag("--json", _SHOWN, "the same as --format json")
    plan_file: Path | None = option(
        "--plan-file FILE",
        _MACHINES,
        f"write the plan to this file; {PLAN_FILE_VARIABLE} on each machine names it",
        type=writable_file,
    )
    max_entries: int = option(
        "--max-entries N",
        _MACHINES,
        f"at most N machines (default, and GitHub's limit: {MOST_ENTRIES})",
        type=whole(1, MOST_ENTRIES),
        default=MOST_ENTRIES,
    )
    minutes_per_entry: int = option(
        "--minutes-per-entry N",
        _MACHINES,
        f"minutes of work per machine; fewer minutes need more machines (default: {MINUTES_PER_ENTRY})",
        type=whole(1),
        default=MINUTES_PER_ENTRY,
    )
    durations: Path | None = option(
        "--durations FILE",
        _MACHINES,
        f"durations of tests, to balance machines (default: {DURATIONS_FILE} next to the matrix file)",
        type=existing_file,
    )


def run(options: Options) -> ExitCode:
    """Show the plan."""
    expansion, options = read_request(options)
    if options.requests:
        return _show_requests(expansion, options)
    if options.format == "github":
        return _plan_machines(expansion, options)
    cells, suites = selected_cells(expansion, options), selected_suites(expansion, options)
    if options.json or options.format == "json":
        say(render_json(expansion, cells, suites))
    else:
        say("\n".join((render_table(expansion.matrix, cells, suites), *files_in_no_suite(expansion.matrix))))
        if options.explain:
            say("\n" + render_explanation(expansion))
    return ExitCode.OK


def _show_requests(expansion: Expansion, options: Options) -> ExitCode:
    from allranks.engines.base import JobEnvironment  # noqa: PLC0415
    from allranks.runner.request import AttemptOptions, job_spec  # noqa: PLC0415

    attempt = AttemptOptions(run_id="plan", number=1, seed=0, pytest_args=options.pytest_args)
    requests = [
        job_spec(expansion.matrix, job, JobEnvironment(image=job.image.name), attempt).to_json()
        for job in selected_jobs(expansion, options)
    ]
    say(json.dumps(requests, indent=1))
    return ExitCode.OK


def _plan_machines(expansion: Expansion, options: Options) -> ExitCode:
    from allranks.runner.durations import read_durations  # noqa: PLC0415 - no other plan needs them
    from allranks.runner.machines.planning import PlanOptions, plan_machines  # noqa: PLC0415

    plan_options = PlanOptions(
        run_id=run_id(),
        pytest_args=options.pytest_args,
        durations=read_durations(options.durations or expansion.matrix.root / DURATIONS_FILE, warn),
        most=options.max_entries,
        minutes=options.minutes_per_entry,
        plan_file=options.plan_file,
    )
    entries, notes = plan_machines(expansion, selected_jobs(expansion, options), plan_options)
    warn("\n".join(map(for_log, notes)))
    say(entries)
    return ExitCode.OK


def render_table(matrix: Matrix, cells: Sequence[Cell], suite_names: Sequence[str] | None = None) -> str:
    """The cells, one per line: id, axes, image and suites."""
    jobs_by_cell = {cell: plan(matrix, [cell], suite_names) for cell in cells}
    axes = [axis for axis in AXES if any(axis in cell.visible_axes() for cell in cells)]
    rows = [("cell", *axes, "image", "suites")]
    for cell, jobs in jobs_by_cell.items():
        suites = ", ".join(_names(jobs)) or "none"
        rows.append((cell.id, *map(str, cell.visible_axes().values()), image_for(matrix, cell).name, suites))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    planned = [job.suite.name for jobs in jobs_by_cell.values() for job in jobs]
    idle = [suite.name for suite in chosen_suites(matrix, suite_names) if suite.name not in planned]
    notes = [f"The suite {name} runs in none of these cells." for name in idle]
    optional = [suite.name for suite in optional_suites(matrix, cells)] if suite_names is None else []
    notes += [f"Not run by default (select with --suite): {', '.join(optional)}."] if optional else []
    total = f"{counted(len(jobs_by_cell), 'cell')}, {counted(len(planned), 'job')}"
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, "", total, *notes])


def render_explanation(expansion: Expansion) -> str:
    """The dropped cells by rule; only counts after the first 200."""
    total = sum(map(len, expansion.dropped.values()))
    points = prod(map(len, expansion.matrix.axes.values()))
    remaining, end = MOST_DROPPED_SHOWN, ":" if expansion.dropped else "."
    lines = [f"{counted(total, 'dropped cell')} of {counted(points, 'combination')}{end}"]
    for rule, cells in expansion.dropped.items():
        lines += ["", f"{rule.reason}  (line {rule.line}: {rule.when.source})"]
        lines += [f"  {cell.id}" for cell in cells[:remaining]]
        if len(cells) > remaining:
            more = len(cells) - remaining
            lines.append(f"  … and {more:,} more" if remaining else f"  {counted(len(cells), 'cell')}")
        remaining -= min(remaining, len(cells))
    return "\n".join(lines)


def render_json(expansion: Expansion, cells: Sequence[Cell], suite_names: Sequence[str] | None = None) -> str:
    """The plan as a JSON object; a change that breaks its readers increments ``schema``.

    ``by_name`` of a cell lists the suites that run only when ``--suite`` names them.
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
    """The names of a cell's jobs; all shards of a suite are one: ``torch-rpc@1of4…4of4``."""
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
        "axes": cell.visible_axes(),
        "image": image_for(matrix, cell).name,
        "suites": list(dict.fromkeys(job.suite.name for job in jobs)),
        "by_name": [suite.name for suite in optional_suites(matrix, [cell])],
        "environment": matrix.environment_of(cell),
        "jobs": [job.id for job in jobs],
    }
