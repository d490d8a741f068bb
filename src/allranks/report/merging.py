"""Reads a run folder, judges it job by job, and writes the merged reports into it.

Only files are needed: no torch, engine, matrix file or the machine of the run. Merging is idempotent, and processes
that merge the same folder wait for each other. At most one job's tests are in memory at a time.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

from allranks.errors import AllranksError, ResultsError, UsageError
from allranks.report.axis_correlation import Evidence
from allranks.report.folder import is_merged_report
from allranks.report.gathering import Gathered, gather, nothing_found
from allranks.report.input_rule import USUAL, InputRule
from allranks.report.judge.accounting import account, troubled_input
from allranks.report.judge.baseline import Baseline
from allranks.report.judge.rules import VerdictPolicy
from allranks.report.judged import CellSuite, MergedRun, SuiteRow
from allranks.report.junit import JUnitWriter, refuse_foreign
from allranks.report.junit_case import JUnitForm
from allranks.report.page.writer import PageWriter, is_page
from allranks.report.report_json import JsonWriter, is_report_json
from allranks.report.results import SkipPolicy
from allranks.report.run_files import JudgingPolicy
from allranks.report.section import GuardedMaker, SectionMaker
from allranks.report.summary import is_summary, write_summary
from allranks.user_cache import hold

JUNIT_NAME: Final = "junit.xml"
PAGE_NAME: Final = "report.html"
JSON_NAME: Final = "report.json"
SUMMARY_NAME: Final = "summary.md"
LOCK_NAME: Final = ".merge.lock"

Observer = Callable[[CellSuite], None]
"""Receives each job with its tests, before these are dropped."""


def merge(  # noqa: PLR0913 - all but one are keyword-only and have a default
    folder: Path,
    rule: InputRule = USUAL,
    *,
    policy: SkipPolicy | None = None,
    allowed: Collection[str] = (),
    environ: Mapping[str, str] = os.environ,
    observers: Sequence[Observer] = (),
    baseline: Baseline | None = None,
    junit_form: JUnitForm | None = None,
) -> MergedRun:
    """Merges the folder of a run, a folder with parts of a run below it, or a folder with the XML of ranks.

    It is a UsageError if there is nothing to judge, and a ResultsError if the reports cannot be written, or would
    overwrite a file that allranks did not write.

    Args:
        folder: The folder with the results, to which ``junit.xml``, ``report.html`` and ``summary.md`` are
            written.
        rule: Which of its files are the XML of ranks, and which need not be read.
        policy: How environment skips are read; None for the policy of the run's matrix file, or else of the
            sandcastle variables.
        allowed: Attributes in XML that say nothing about the outcome, besides those that are known.
        environ: Has the sandcastle variables, and names the run of a CI service.
        observers: Called with each job's tests, in the order of the report. A ``SectionMaker`` adds a section to it. If
            another one raises an AllranksError, it is not called again, and the result has its error.
        baseline: The numbers of executed tests in a good run; None for the baseline that the matrix file names.
        junit_form: The form of ``junit.xml``; None for the usual one.
    """
    root = Path(os.path.realpath(folder))  # Path.resolve raises for circular links
    if root.is_file():
        msg = f"{folder} is a file, and the results of a run are a folder."
        raise UsageError(msg, remedy=f"Report the folder that it is in, or see it alone: allranks show {folder}")
    if not root.is_dir():
        msg = f"There is no results folder {folder}."
        raise UsageError(msg, remedy="Make one (allranks run), or name the folder of a run: allranks report DIR.")
    try:
        with hold(root / LOCK_NAME):
            refuse_foreign(root / JUNIT_NAME, is_merged_report)
            refuse_foreign(root / PAGE_NAME, is_page)
            refuse_foreign(root / JSON_NAME, is_report_json)
            refuse_foreign(root / SUMMARY_NAME, is_summary)
            makers = [observer for observer in observers if isinstance(observer, SectionMaker)]
            for name in (name for maker in makers for name in maker.files):
                refuse_foreign(root / name, is_report_json)
            gathered = gather(root, rule)
            if gathered.is_empty:
                raise nothing_found(root, gathered, rule)
            setting = _setting(gathered, policy, environ)
            suites = chain(troubled_input(gathered), account(gathered, setting, baseline, allowed))
            run, form = _run(root, gathered, setting.skip), junit_form or JUnitForm()
            return _write(run, suites, observers, form, environ)
    except OSError as error:
        msg = f"The report of {folder} cannot be made."
        raise ResultsError(
            msg,
            why=f"{error.filename or folder}: {error.strerror}.",
            remedy="Make the folder writable, or merge a copy of it.",
        ) from error


def _setting(gathered: Gathered, policy: SkipPolicy | None, environ: Mapping[str, str]) -> VerdictPolicy:
    told = gathered.manifest.policy if gathered.manifest else JudgingPolicy()
    return VerdictPolicy(skip=policy or told.skip or _sandcastle(environ), mixed_skip=told.mixed_skip)


def _run(folder: Path, gathered: Gathered, policy: SkipPolicy) -> MergedRun:
    """The run, before any of its suites has been judged."""
    return MergedRun(
        folder=folder,
        junit=folder / JUNIT_NAME,
        page=folder / PAGE_NAME,
        summary=folder / SUMMARY_NAME,
        run_id=gathered.run_id,
        is_own=gathered.is_own,
        suites=(),
        policy=policy,
        manifest=gathered.manifest,
    )


def _write(
    run: MergedRun,
    suites: Iterable[CellSuite],
    observers: Sequence[Observer],
    form: JUnitForm,
    environ: Mapping[str, str],
) -> MergedRun:
    makers = [GuardedMaker(each) for each in observers if isinstance(each, SectionMaker)]
    others = [_Kept(each) for each in observers if not isinstance(each, SectionMaker)]
    evidence = Evidence()
    page = PageWriter(run.page)
    with JsonWriter(run.folder / JSON_NAME) as machine:
        with JUnitWriter(run.junit, form) as junit:
            rows = tuple(_rows(suites, (junit.add, machine.add, evidence.add, page.add, *makers, *others)))
        merged = replace(run, suites=rows, junit_files=junit.files, blames=evidence.of_groups())
        sections = {maker.name: maker.section(merged) for maker in makers}
        merged = replace(merged, sections={name: section for name, section in sections.items() if section})
        machine.write(merged)
    page.write(merged, evidence)
    write_summary(merged, environ)
    return replace(merged, errors=tuple(each.error for each in others if each.error))


class _Kept:
    """Calls an observer until it fails, and keeps its error: the report must not be lost."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.error: AllranksError | None = None

    def __call__(self, suite: CellSuite) -> None:
        """Take a job with its tests."""
        if self.error is None:
            try:
                self._observer(suite)
            except AllranksError as error:
                self.error = error


def _rows(suites: Iterable[CellSuite], observers: Sequence[Observer]) -> Iterator[SuiteRow]:
    for suite in suites:
        for observer in observers:
            observer(suite)
        yield suite.row


def _sandcastle(environ: Mapping[str, str]) -> SkipPolicy:
    """``pass`` on sandcastle, detected as torch does (testing/_internal/common_utils.py, ``IS_SANDCASTLE``)."""
    on = environ.get("SANDCASTLE") == "1" or environ.get("TW_JOB_USER") == "sandcastle"
    return "pass" if on else "skip"
