"""What a machine leaves of a pack that it cannot run: a record of each job, with the reason.

The records are those of attempts that failed before they had an engine. A later attempt answers for them, as it does
for any failure of the infrastructure.
"""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from allranks.errors import AllranksError, ExitCode, as_bug
from allranks.report.merging import merge
from allranks.report.run_files import JobError, JobRecord, Manifest, PlannedJob, as_json
from allranks.runner.attempt_runner import INTERRUPTED
from allranks.runner.machines.plan_file import pack_called, read_plan
from allranks.runner.results_folder import (
    OthersJobError,
    as_results_error,
    change_manifest,
    has_begun,
    new_attempt_in,
    write_json,
)

_NAME: Final = re.compile(r"[A-Za-z0-9][\w.+@-]*", re.ASCII)
"""The names of runs, cells and suites: a plan that this machine has not compared with its matrix may hold any text."""


def recording_refusal(command: Callable[[], ExitCode], results: Path, plan_file: Path, pack: str | None) -> ExitCode:
    """Run a command; record an error or an interrupt as the result of each job of a pack that has not begun.

    What another process runs is left alone, and so is everything if the plan cannot be read. Without a pack, all of the
    plan's are meant. The command's errors pass.
    """
    try:
        code = command()
    except OthersJobError:
        raise
    except (Exception, KeyboardInterrupt) as error:
        with suppress(Exception):  # nothing may hide the error itself
            _record(results, plan_file, pack, _reason(error))
        raise
    if code is ExitCode.INTERRUPTED:
        with suppress(Exception):
            _record(results, plan_file, pack, INTERRUPTED)
    return code


def _reason(error: BaseException) -> JobError:
    if isinstance(error, Exception):
        return JobError.from_exception(error if isinstance(error, AllranksError) else as_bug(error))
    return INTERRUPTED


def _record(results: Path, plan_file: Path, pack: str | None, why: JobError) -> None:
    found = read_plan(plan_file)
    plan, own = found.manifest, found.jobs_of(None if pack is None else pack_called(found, pack).slug)
    names = {plan.run_id, *(name for job in own for name in job.key)}
    if not all(map(_NAME.fullmatch, names)):
        return

    def with_jobs(there: Manifest | None) -> Manifest:
        began = there or replace(plan, cells={}, jobs=())
        cells = {job.cell: plan.cells[job.cell] for job in own}
        more = [job for job in own if job.key not in {each.key for each in began.jobs}]
        return replace(began, cells={**cells, **began.cells}, jobs=(*began.jobs, *more))

    manifest = change_manifest(results, plan.run_id, with_jobs)
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
