"""Reads a results folder, judges it job by job, and writes the merged reports into it.

Merging needs only the files: no torch, engine or matrix file, and not the machine of the run. It is idempotent, and
processes that merge the same folder wait for each other. The tests of one job at a time are in memory.
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
from allranks.report.input_rule import DEFAULT_RULE, InputRule
from allranks.report.judge.accounting import account, input_errors
from allranks.report.judge.baseline import Baseline
from allranks.report.judge.rules import VerdictPolicy
from allranks.report.judged import CellSuite, MergedRun, SuiteRow
from allranks.report.junit import JUnitWriter, reject_foreign
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
"""Called with each job and its tests, which are discarded afterwards."""


def merge(  # noqa: PLR0913 - all but one are keyword-only and have a default
    folder: Path,
    rule: InputRule = DEFAULT_RULE,
    *,
    policy: SkipPolicy | None = None,
    allowed: Collection[str] = (),
    environ: Mapping[str, str] = os.environ,
    observers: Sequence[Observer] = (),
    baseline: Baseline | None = None,
    junit_form: JUnitForm | None = None,
) -> MergedRun:
    """Merge a folder with a run, with parts of a run, or with the XML of ranks.

    Args:
        folder: The folder with the results, to which the reports are written.
        rule: Which of its files are the XML of ranks, and which are ignored.
        policy: Whether environment skips count as skips or passes; None for the policy of the run's matrix file, or
            else of the sandcastle variables.
        allowed: Additional XML attributes that do not affect the outcome.
        environ: The variables of sandcastle and of the CI service.
        observers: Called with each job's tests, in the order of the report. A ``SectionMaker`` adds a section to it.
            Any other observer that raises an AllranksError is not called again, and the result includes the error.
        baseline: The expected numbers of executed tests; None for the baseline in the matrix file.
        junit_form: Options of ``junit.xml``; None for the default.

    Raises:
        UsageError: There is nothing to judge.
        ResultsError: The reports cannot be written, or would overwrite a file of another program.
    """
    root = Path(os.path.realpath(folder))  # Path.resolve raises for circular links
    if root.is_file():
        msg = f"{folder} is a file, not a results folder."
        raise UsageError(msg, remedy=f"Give its folder, or show the file alone: allranks show {folder}")
    if not root.is_dir():
        msg = f"There is no results folder {folder}."
        raise UsageError(
            msg, remedy="Create one with `allranks run`, or give the folder of a run: allranks report DIR."
        )
    try:
        with hold(root / LOCK_NAME):
            reject_foreign(root / JUNIT_NAME, is_merged_report)
            reject_foreign(root / PAGE_NAME, is_page)
            reject_foreign(root / JSON_NAME, is_report_json)
            reject_foreign(root / SUMMARY_NAME, is_summary)
            makers = [observer for observer in observers if isinstance(observer, SectionMaker)]
            for name in (name for maker in makers for name in maker.files):
                reject_foreign(root / name, is_report_json)
            gathered = gather(root, rule)
            if gathered.is_empty:
                raise nothing_found(root, gathered, rule)
            verdict_policy = _verdict_policy(gathered, policy, environ)
            suites = chain(input_errors(gathered), account(gathered, verdict_policy, baseline, allowed))
            run, form = _run(root, gathered, verdict_policy.skip), junit_form or JUnitForm()
            return _write(run, suites, observers, form, environ)
    except OSError as error:
        msg = f"The report of {folder} cannot be written."
        raise ResultsError(
            msg,
            why=f"{error.filename or folder}: {error.strerror}.",
            remedy="Make the folder writable, free disk space, or merge a copy of it.",
        ) from error


def _verdict_policy(gathered: Gathered, policy: SkipPolicy | None, environ: Mapping[str, str]) -> VerdictPolicy:
    of_run = gathered.manifest.policy if gathered.manifest else JudgingPolicy()
    return VerdictPolicy(skip=policy or of_run.skip or _sandcastle(environ), mixed_skip=of_run.mixed_skip)


def _run(folder: Path, gathered: Gathered, policy: SkipPolicy) -> MergedRun:
    """The run before any of its jobs has been judged."""
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
    makers = [GuardedMaker(observer) for observer in observers if isinstance(observer, SectionMaker)]
    others = [_GuardedObserver(observer) for observer in observers if not isinstance(observer, SectionMaker)]
    evidence = Evidence()
    page = PageWriter(run.page)
    with JsonWriter(run.folder / JSON_NAME) as report_json:
        with JUnitWriter(run.junit, form) as junit:
            rows = tuple(_rows(suites, (junit.add, report_json.add, evidence.add, page.add, *makers, *others)))
        merged = replace(run, suites=rows, junit_files=junit.files, blames=evidence.of_groups())
        sections = {maker.name: maker.section(merged) for maker in makers}
        merged = replace(merged, sections={name: section for name, section in sections.items() if section})
        report_json.write(merged)
    page.write(merged, evidence)
    write_summary(merged, environ)
    return replace(merged, errors=tuple(observer.error for observer in others if observer.error))


class _GuardedObserver:
    """Calls an observer until it fails, and keeps its error: the report must not be lost."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.error: AllranksError | None = None

    def __call__(self, suite: CellSuite) -> None:
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
