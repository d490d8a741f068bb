"""If a machine cannot run its batch, records the error as the result of each job of the batch.

A job's record is an attempt without an engine. A later attempt replaces it, like any infrastructure error.
"""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from allranks.errors import AllranksError, ExitCode, as_error
from allranks.report.merging import merge
from allranks.report.run_files import JobError, JobRecord, Manifest, PlannedJob, as_json
from allranks.runner.attempt_runner import INTERRUPTED
from allranks.runner.machines.plan_file import find_batch, read_plan
from allranks.runner.results_folder import (
    JobTakenError,
    as_results_error,
    change_manifest,
    has_begun,
    new_attempt_in,
    write_json,
)

_NAME: Final = re.compile(r"[A-Za-z0-9][\w.+@-]*", re.ASCII)
"""Valid names of runs, cells and suites: a plan that was not compared with the matrix may contain any text."""


def recording_rejection(command: Callable[[], ExitCode], results: Path, plan_file: Path, batch: str | None) -> ExitCode:
    """Run a command. If it fails or is interrupted, record that as the result of each job that has not begun.

    Nothing is recorded if the plan cannot be read, or if another process runs the jobs.

    Args:
        command: The command; its exceptions are raised again.
        results: The folder of all runs.
        plan_file: The plan.
        batch: The batch with the jobs; None for all batches of the plan.
    """
    try:
        code = command()
    except JobTakenError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        with suppress(Exception):  # an error in recording must not hide this one
            _record(results, plan_file, batch, _reason(error))
        raise
    if code is ExitCode.INTERRUPTED:
        with suppress(Exception):
            _record(results, plan_file, batch, INTERRUPTED)
    return code


def _reason(error: BaseException) -> JobError:
    if isinstance(error, Exception):
        return JobError.from_exception(error if isinstance(error, AllranksError) else as_error(error))
    return INTERRUPTED


def _record(results: Path, plan_file: Path, batch: str | None, why: JobError) -> None:
    file = read_plan(plan_file)
    plan, own = file.manifest, file.jobs_of(None if batch is None else find_batch(file, batch).slug)
    names = {plan.run_id, *(name for job in own for name in job.key)}
    if not all(map(_NAME.fullmatch, names)):
        return

    def add_jobs(manifest: Manifest | None) -> Manifest:
        before = manifest or replace(plan, cells={}, jobs=())
        cells = {job.cell: plan.cells[job.cell] for job in own}
        known = {job.key for job in before.jobs}
        new = [job for job in own if job.key not in known]
        return replace(before, cells={**cells, **before.cells}, jobs=(*before.jobs, *new))

    manifest = change_manifest(results, plan.run_id, add_jobs)
    folder = results / plan.run_id
    for job in own:
        _record_job(folder / "cells" / job.cell / job.suite, job, manifest, why)
    merge(folder)


def _record_job(suite: Path, job: PlannedJob, manifest: Manifest, why: JobError) -> None:
    if has_begun(suite):
        return
    now, axes = time.time(), manifest.cells[job.cell]
    number, folder = new_attempt_in(suite)
    record = JobRecord(
        id=job.id,
        run_id=manifest.run_id,
        cell=job.cell,
        suite=job.suite,
        attempt=number,
        world_size=int(axes["world_size"]),
        nodes=int(axes.get("nodes", 1)),
        error=why,
        started=now,
        finished=now,
    )
    with as_results_error(folder):
        write_json(folder / "job.json", as_json(record))
