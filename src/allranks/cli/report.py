"""``allranks report``: merges results into one report, and judges them."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from allranks.cli.options import json_option, newest_run, quiet_option
from allranks.cli.parser import CommandOptions, flag, option, whole, writable_file
from allranks.cli.printing import say, say_json, say_verdict, warn
from allranks.cli.variables import RESULTS_VARIABLE
from allranks.colors import painted
from allranks.errors import MEANING, ExitCode, UsageError
from allranks.plugin_manager import section_makers
from allranks.protocol.records import MOST_RANKS
from allranks.report.input_rule import JOBS, ONE_JOB, InputRule, RankPattern
from allranks.runner.ci_service import ci_service

if TYPE_CHECKING:
    from allranks.report.judge.baseline import Baseline
    from allranks.report.judged import MergedRun


_READ = "what to read"
_VERDICT = "the verdict"
_WRITTEN = "what is written"


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of ``allranks report``."""

    usage: ClassVar = "allranks report [DIR ...] [options]"
    is_extended: ClassVar = True

    folders: tuple[Path, ...] = option(
        "DIR",
        _READ,
        "the folder of a run, of its parts from several machines, or of JUnit XML files of ranks; several folders are "
        "read as one run, whose report is written into their nearest common parent "
        f"(default: the newest run in ${RESULTS_VARIABLE}, or in results next to the matrix file)",
        nargs="*",
        type=Path,
    )
    ranks_xml: RankPattern | None = option(
        "--ranks-xml PATTERN",
        _READ,
        "paths of the ranks' XML files; a placeholder matches a part of one file or folder name (default: "
        f"{JOBS.text}, or {ONE_JOB.text} if DIR itself has such files)",
        type=RankPattern,
    )
    world_size: int | None = option(
        "--world-size N",
        _READ,
        "the number of ranks of each job, if neither its XML nor its cell id states it",
        type=whole(1, MOST_RANKS),
    )
    ignore: tuple[str, ...] = option(
        "--ignore GLOB",
        _READ,
        "allow files below DIR that may contain results and are not read; * also matches /; repeatable",
        action="append",
    )
    allowed: tuple[str, ...] = option(
        "--allow-attribute NAME",
        _READ,
        "allow an attribute that your suites add to the XML, as by pytest's record_xml_attribute; repeatable",
        action="append",
    )
    policy: Literal["skip", "pass"] | None = option(
        "--policy", _VERDICT, "count environment skips as skips or as passes", choices=("skip", "pass")
    )
    baseline: Path | None = option(
        "--baseline FILE", _VERDICT, "fail if fewer tests ran than this file records", type=Path
    )
    allow_nothing_ran: bool = flag("--allow-nothing-ran", _VERDICT, "allow all tests to be skipped or deselected")
    open_page: bool = flag("--open", _WRITTEN, "open the page in a browser afterwards")
    json: bool = json_option(_WRITTEN)
    quiet: bool = quiet_option(_WRITTEN, "print only problems and the verdict")
    update_baseline: Path | None = option(
        "--update-baseline FILE", _WRITTEN, "record the number of executed tests in this file", type=writable_file
    )
    layout: str | None = option(
        "--layout",
        _WRITTEN,
        "also write test-reports in the layout of PyTorch's --save-xml (default: none)",
        choices=("pytorch",),
    )
    durations: Path | None = option(
        "--durations FILE",
        _WRITTEN,
        "update this file with the durations of tests, to balance shards (default: none)",
        type=writable_file,
    )
    cell_in_classname: bool = flag(
        "--cell-in-classname",
        _WRITTEN,
        "prefix class names in junit.xml with cell and suite, for tools that ignore suites",
    )


def run(options: Options) -> ExitCode:
    """Report the results in a folder."""
    page, code = _report(options)
    if options.open_page:
        import webbrowser  # noqa: PLC0415 - a slow import

        if not webbrowser.open(page.as_uri()):
            (warn if options.json else say)(f"no browser could be started: open {page}")
    return code


def _object(merged: "MergedRun", code: ExitCode) -> Mapping[str, object]:
    return {
        "exit_code": int(code),
        "meaning": MEANING[code],
        "run_id": merged.run_id or None,
        "policy": merged.policy,
        "counts": merged.counts.as_object,
        "jobs": [
            {"cell": suite.cell, "suite": suite.suite, "counts": suite.counts.as_object} for suite in merged.suites
        ],
        "failures": [
            {
                "place": failure.job,
                "test": failure.nodeid,
                "kind": failure.kind.value,
                "message": failure.message,
                "alike": failure.more,
                "cells": failure.cells,
                "batches": failure.batches,
                "ranks": {world: sorted(group.ranks) for world, group in failure.ranks.items()},
                "blame": failure.blame.predicate if failure.blame else None,
            }
            for failure in merged.failures
        ],
        "notes": merged.notes,
        **merged.section_objects,
        "files": {
            "junit": [str(file.absolute()) for file in merged.junit_files],
            "page": str(merged.page.absolute()),
            "summary": str(merged.summary.absolute()),
            "report": str(merged.page.with_name("report.json").absolute()),
        },
    }


def _common_folder(folders: Sequence[Path]) -> Path:
    """The nearest common parent."""
    for folder in folders:
        if not folder.is_dir():
            msg = f"There is no folder {folder}."
            raise UsageError(msg, remedy="Pass results folders that exist.")
    common = Path(os.path.commonpath(folders))
    if common in folders:
        msg = f"{common} already contains the other folders."
        raise UsageError(msg, remedy=f"Pass only that folder: allranks report {common}")
    return common


def _report(options: Options) -> tuple[Path, ExitCode]:
    """Merge, write and print the report; return its page and the exit code."""
    from allranks.report.judge.baseline import update_baseline  # noqa: PLC0415 - no plan needs it
    from allranks.report.judge.exit_code import exit_code  # noqa: PLC0415
    from allranks.report.junit_case import JUnitForm  # noqa: PLC0415
    from allranks.report.merging import merge  # noqa: PLC0415
    from allranks.report.pytorch_layout import PyTorchLayout  # noqa: PLC0415
    from allranks.report.summary import first_cause, render_problems  # noqa: PLC0415
    from allranks.report.summary import render_table as render_results  # noqa: PLC0415
    from allranks.runner.console import console_for  # noqa: PLC0415
    from allranks.runner.durations import Meter, keep_durations  # noqa: PLC0415
    from allranks.runner.ledger import complete_dead_runs  # noqa: PLC0415

    folders = options.folders or (newest_run(),)
    only = tuple(Path(os.path.realpath(folder)) for folder in folders) if len(folders) > 1 else ()
    folder = _common_folder(only) if only else folders[0]
    for results in only or (folder,):
        complete_dead_runs(results)
    meter = Meter()
    layout = PyTorchLayout(Path(os.path.realpath(folder))) if options.layout else None
    merged = merge(
        folder,
        InputRule(pattern=options.ranks_xml, world_size=options.world_size, ignore=options.ignore, only=only),
        policy=options.policy,
        allowed=options.allowed,
        observers=[
            *section_makers(options, None),
            *([meter.add] if options.durations else []),
            *([layout.add] if layout else []),
        ],
        baseline=_baseline(options),
        junit_form=JUnitForm(classname="cell" if options.cell_in_classname else "pytest"),
    )
    if options.durations:
        keep_durations(options.durations, meter.durations, warn if options.json else say)
    if options.update_baseline:
        update_baseline(options.update_baseline, merged.suites)
    code = exit_code(merged, nothing_ran_allowed=options.allow_nothing_ran)
    report = "\n        ".join(map(str, merged.junit_files))
    render = render_problems if options.quiet else render_results
    with console_for(warn if options.json else say) as console:
        if not options.json and (text := render(merged, partial(painted, stream=sys.stdout))):
            written = f"\nPyTorch's layout: {layout.folder}" if layout and not merged.errors else ""
            console.say(f"{text}\n\nreport: {report}\npage: {merged.page}{written}")
        console.annotate(merged)
    if code and (service := ci_service()):
        service.report_cause(first_cause(merged, code))
    if options.json:
        say_json(**_object(merged, code))
    else:
        say_verdict(code)
    if merged.errors:
        raise merged.errors[0]
    return merged.page, code


def _baseline(options: Options) -> "Baseline | None":
    """The baseline to compare with: empty if it is being updated, None for the one in the run's manifest."""
    from allranks.report.judge.baseline import read_baseline  # noqa: PLC0415 - no plan needs it

    if options.update_baseline:
        return {}
    return read_baseline(options.baseline) if options.baseline else None
