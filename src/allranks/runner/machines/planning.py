"""Plans CI machines, and renders the plan as GitHub's job matrix."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from allranks.engines import AUTO
from allranks.engines.registry import engine_names
from allranks.errors import MatrixError, UsageError, counted, did_you_mean, listed, shown
from allranks.matrix.expand import Expansion
from allranks.matrix.model import Job, Matrix
from allranks.protocol.xml_text import clipped
from allranks.runner.durations import Durations
from allranks.runner.machines.batches import Batch, Division, divide_jobs
from allranks.runner.machines.plan_file import plan_document, reference, write_plan
from allranks.runner.results_folder import facts_of, new_manifest, with_planned_jobs

LARGEST_OUTPUT: Final = 1 << 19
"""Characters: GitHub takes 1 MiB of outputs from a job, and counts two bytes for each character
(https://docs.github.com/actions/reference/workflows-and-actions/workflow-syntax#jobsjob_idoutputs)."""

LONGEST_DESCRIPTION: Final = 80
"""Maximum length of an entry's description, which is part of the name of a workflow's job."""


def render_entries(document: Mapping[str, Any], division: Division, jobs: Sequence[Job]) -> str:
    """One JSON object, on one line, for ``strategy.matrix``."""
    entries = [_entry(document, batch, [jobs[number] for number in batch.jobs]) for batch in division.batches]
    text = json.dumps({"include": entries}, separators=(",", ":"))
    if len(text) > LARGEST_OUTPUT:
        what = f"The job matrix has {len(text):,} characters, over GitHub's limit of {LARGEST_OUTPUT:,}."
        raise UsageError(what, remedy="Use shorter runner labels, or fewer entries: --max-entries")
    return text


def _entry(document: Mapping[str, Any], batch: Batch, jobs: Sequence[Job]) -> dict[str, Any]:
    return {
        "slug": batch.slug,
        "batch": reference(document, batch),
        "runs_on": list(batch.rule.labels),
        "hosted": batch.rule.hosted,
        "image": batch.image,
        "engine": batch.rule.engine or "auto",
        "timeout_minutes": batch.job_minutes,
        "step_timeout_minutes": batch.step_minutes,
        "limit_seconds": 60 * batch.run_minutes,
        "cells": describe(jobs),
        "gpus": batch.gpus,
        "seconds": round(batch.seconds, 1),
        "jobs": len(jobs),
    }


def describe(jobs: Sequence[Job]) -> str:
    """A short description of the jobs of an entry."""
    cells = list(dict.fromkeys(job.cell.id for job in jobs))
    if len(cells) > 1:
        text = f"{len(cells)} cells, {cells[0]} to {cells[-1]}"
    else:
        text = jobs[0].id if len(jobs) == 1 else f"{cells[0]}, {len(jobs)} suites"
    return clipped(text, LONGEST_DESCRIPTION)


def render_notes(division: Division) -> list[str]:
    """A summary of the batches, as lines."""
    jobs, entries = (
        sum(len(batch.jobs) for batch in division.batches),
        counted(len(division.batches), "entry", "entries"),
    )
    lines = [f"{counted(jobs, 'job')} in {entries} of the job matrix"]
    if division.guessed:
        lines.append(f"jobs that were never measured, with estimated durations: {division.guessed}")
    for group in division.groups:
        least, most = min(batch.seconds for batch in group), max(batch.seconds for batch in group)
        where, jobs = group[0].rule.runs_on, sum(len(batch.jobs) for batch in group)
        minutes = f"{_minutes(least)} to {_minutes(most)}" if len(group) > 1 else _minutes(most)
        entries = counted(len(group), "entry", "entries")
        lines.append(f"{group[0].image or 'no image'} on {where}: {counted(jobs, 'job')} in {entries} of {minutes} min")
    return lines


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of a plan of machines."""

    run_id: str
    pytest_args: tuple[str, ...]
    durations: Durations
    most: int  # the maximum number of entries, one for each machine
    minutes: int  # the intended duration of a machine's work
    plan_file: Path | None  # where the plan is written, if anywhere


def plan_machines(expansion: Expansion, jobs: Sequence[Job], options: PlanOptions) -> tuple[str, list[str]]:
    """Write the plan file; return the job matrix for GitHub Actions, and a summary as lines.

    Raises:
        MatrixError: A runner has an unknown engine.
        UsageError: The jobs cannot be divided, or the file cannot be written.
    """
    _check_engines(expansion.matrix)
    division = divide_jobs(expansion.matrix, jobs, options.durations, most=options.most, minutes=options.minutes)
    manifest = with_planned_jobs(new_manifest(options.run_id, facts_of(expansion), None), jobs, options.pytest_args)
    document = plan_document(manifest, expansion.matrix, division.batches, options.durations)
    entries = render_entries(document, division, jobs)
    if options.plan_file:
        write_plan(options.plan_file, document)
    return entries, render_notes(division)


def _check_engines(matrix: Matrix) -> None:
    """Reject unknown engines before a machine starts."""
    known = (AUTO, *engine_names())
    for rule in matrix.runners:
        if rule.engine is not None and rule.engine not in known:
            what = f"{matrix.path}:{rule.line}: runners.engine: {shown(rule.engine)} is not one of {listed(known)}."
            raise MatrixError(what, remedy=did_you_mean(rule.engine, known))
