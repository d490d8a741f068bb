"""Reads a run folder, judges it, and writes the merged reports into it.

Files only: nothing here needs torch, an engine, the matrix file or the machine that the run was on. Merging again
writes the same again, and two processes that merge one folder wait for each other.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from allranks.errors import ResultsError, UsageError
from allranks.locking import hold
from allranks.report.accounting import account, damaged_manifest
from allranks.report.folder import Attempt, Manifest, is_merged_report, read_attempts, read_foreign, read_manifest
from allranks.report.junit import write_junit
from allranks.report.model import MergedRun, SkipPolicy
from allranks.report.summary import write_summary
from allranks.report.verdict import Setting

JUNIT_NAME: Final = "junit.xml"
SUMMARY_NAME: Final = "summary.md"
LOCK_NAME: Final = ".merge.lock"


def merge(
    folder: Path,
    *,
    policy: SkipPolicy | None = None,
    mixed_skip: Sequence[str] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> MergedRun:
    """Merges a run folder, or any folder with the JUnit XML of ranks below it.

    Args:
        folder: Where the results lie, and where ``junit.xml`` and ``summary.md`` are written.
        policy: How environment skips are read; None for what the run's matrix file says, else for what the sandcastle
            variables say.
        mixed_skip: Node ids (``fnmatch`` patterns) whose ranks may disagree on a skip; None for those of the run's
            matrix file.
        environ: Where the sandcastle variables are looked up.

    Raises:
        UsageError: The folder is not there, or nothing in it is a result.
        ResultsError: The reports cannot be written, or would overwrite a file of somebody else.
    """
    root = folder.resolve()
    if not root.is_dir():
        msg = f"There is no results folder {folder}."
        raise UsageError(msg, remedy="Give the folder of a run: results/latest.")
    try:
        with hold(root / LOCK_NAME):
            return _merge(root, policy, mixed_skip, environ)
    except OSError as error:
        msg = f"The report of {folder} cannot be made."
        raise ResultsError(
            msg,
            why=f"{error.filename or folder}: {error.strerror}.",
            remedy="Make the folder writable, or merge a copy of it.",
        ) from error


def _merge(
    folder: Path, policy: SkipPolicy | None, mixed_skip: Sequence[str] | None, environ: Mapping[str, str]
) -> MergedRun:
    _refuse_foreign_report(folder / JUNIT_NAME)
    manifest, problem = read_manifest(folder)
    setting = Setting(
        skip=policy or (manifest.skip if manifest else None) or _sandcastle(environ),
        mixed_skip=tuple(mixed_skip if mixed_skip is not None else manifest.mixed_skip if manifest else ()),
    )
    suites = account(manifest, _attempts(folder, manifest), setting)
    if problem:
        suites = (damaged_manifest(problem), *suites)
    if not suites and manifest is None:
        msg = f"There is nothing to merge in {folder}."
        raise UsageError(
            msg,
            why="It has no run.json, and no XML file lies below it.",
            remedy="Give the folder of a run (results/latest), or a folder with the JUnit XML of ranks.",
        )
    merged = MergedRun(
        folder=folder,
        junit=folder / JUNIT_NAME,
        summary=folder / SUMMARY_NAME,
        run_id=manifest.run_id if manifest else folder.name,
        suites=suites,
        policy=setting.skip,
        planned=frozenset(f"{job.cell}/{job.suite}" for job in manifest.jobs) if manifest else None,
    )
    write_junit(merged.suites, merged.junit)
    write_summary(merged)
    return merged


def _refuse_foreign_report(junit: Path) -> None:
    if junit.exists() and not is_merged_report(junit):
        msg = f"{junit} is not a report of allranks."
        raise ResultsError(
            msg,
            why="Merging writes its report there, and would overwrite it.",
            remedy="Move it into a folder below; it is then read as a result.",
        )


def _attempts(folder: Path, manifest: Manifest | None) -> tuple[Attempt, ...]:
    ours = read_attempts(folder)
    return ours if ours or manifest else read_foreign(folder)


def _sandcastle(environ: Mapping[str, str]) -> SkipPolicy:
    """``pass`` on sandcastle, told as torch tells it (testing/_internal/common_utils.py, ``IS_SANDCASTLE``)."""
    on = environ.get("SANDCASTLE") == "1" or environ.get("TW_JOB_USER") == "sandcastle"
    return "pass" if on else "skip"
