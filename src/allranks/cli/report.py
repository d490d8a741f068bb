"""``allranks report``: one report of results, and whether it is good."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from allranks.cli.options import json_option, newest_run, quiet_option
from allranks.cli.parser import CommandOptions, flag, option, whole, writable_file
from allranks.cli.printing import remark, say, say_json, say_verdict
from allranks.cli.variables import RESULTS_VARIABLE
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
        "a run's folder, one with parts of a run from several machines, or one with the JUnit XML of ranks; several "
        "are read as one folder, the nearest that has them all, into which the report goes "
        f"(default: the newest run in ${RESULTS_VARIABLE}, or in results beside the matrix file)",
        nargs="*",
        type=Path,
    )
    ranks_xml: RankPattern | None = option(
        "--ranks-xml PATTERN",
        _READ,
        "which files are the XML of ranks; a placeholder is a part of one name (default: "
        f"{JOBS.text}, or {ONE_JOB.text} if DIR itself has such files)",
        type=RankPattern,
    )
    world_size: int | None = option(
        "--world-size N",
        _READ,
        "how many ranks each job has, if neither its XML nor the id of its cell states it",
        type=whole(1, MOST_RANKS),
    )
    ignore: tuple[str, ...] = option(
        "--ignore GLOB",
        _READ,
        "accept files below DIR that could have results and are not read; * matches /, too; repeatable",
        action="append",
    )
    allowed: tuple[str, ...] = option(
        "--allow-attribute NAME",
        _READ,
        "an attribute that your suites add to the XML, as pytest's record_xml_attribute does; repeatable",
        action="append",
    )
    policy: Literal["skip", "pass"] | None = option(
        "--policy", _VERDICT, "read environment skips as skips or as passes", choices=("skip", "pass")
    )
    baseline: Path | None = option(
        "--baseline FILE", _VERDICT, "fail where fewer tests executed than this file records", type=Path
    )
    allow_nothing_ran: bool = flag("--allow-nothing-ran", _VERDICT, "accept that every test was skipped or deselected")
    opens: bool = flag("--open", _WRITTEN, "then open the page in a browser")
    json: bool = json_option(_WRITTEN)
    quiet: bool = quiet_option(_WRITTEN, "print problems and the verdict alone")
    update_baseline: Path | None = option(
        "--update-baseline FILE", _WRITTEN, "record the executed tests in this file", type=writable_file
    )
    layout: str | None = option(
        "--layout",
        _WRITTEN,
        "also write the files of PyTorch's --save-xml, into the folder's test-reports (default: none)",
        choices=("pytorch",),
    )
    durations: Path | None = option(
        "--durations FILE",
        _WRITTEN,
        "update this file with the durations of tests, for even shards (default: none)",
        type=writable_file,
    )
    cell_in_classname: bool = flag(
        "--cell-in-classname",
        _WRITTEN,
        "begin class names in junit.xml with cell and suite, for clients that ignore suites",
    )


def run(options: Options) -> ExitCode:
    """Report the results in a folder, and show the page if that is asked for."""
    page, code = _report(options)
    if options.opens:
        import webbrowser  # noqa: PLC0415 - its import takes as long as a small plan

        if not webbrowser.open(page.as_uri()):
            (remark if options.json else say)(f"no browser could be started: open {page}")
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
                "place": each.job,
                "test": each.nodeid,
                "kind": each.kind.value,
                "message": each.message,
                "alike": each.more,
                "cells": each.cells,
                "packs": each.packs,
                "ranks": {world: sorted(of.ranks) for world, of in each.ranks.items()},
                "blame": each.blame.predicate if each.blame else None,
            }
            for each in merged.failures
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
    """The nearest folder that has these."""
    for folder in folders:
        if not folder.is_dir():
            msg = f"There is no folder {folder}."
            raise UsageError(msg, remedy="Name folders of results that are there.")
    common = Path(os.path.commonpath(folders))
    if common in folders:
        msg = f"{common} has the other folders, and a folder is read with all below it."
        raise UsageError(msg, remedy=f"Name that folder alone: allranks report {common}")
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
    for each in only or (folder,):
        complete_dead_runs(each)
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
        keep_durations(options.durations, meter.durations, remark if options.json else say)
    if options.update_baseline:
        update_baseline(options.update_baseline, merged.suites)
    code = exit_code(merged, nothing_ran_allowed=options.allow_nothing_ran)
    report = "\n        ".join(map(str, merged.junit_files))
    tell_of = render_problems if options.quiet else render_results
    tell = remark if options.json else say
    with console_for(tell) as console:
        if not options.json and (told := tell_of(merged)):
            written = f"\nPyTorch's layout: {layout.folder}" if layout and not merged.errors else ""
            console.say(f"{told}\n\nreport: {report}\npage: {merged.page}{written}")
        console.annotate(merged)
    if code and (service := ci_service()):
        service.tell_cause(first_cause(merged, code))
    if options.json:
        say_json(**_object(merged, code))
    else:
        say_verdict(code)
    if merged.errors:
        raise merged.errors[0]
    return merged.page, code


def _baseline(options: Options) -> "Baseline | None":
    """The baseline to compare with: empty if it is to be renewed, None for the one in the run's manifest."""
    from allranks.report.judge.baseline import read_baseline  # noqa: PLC0415 - no plan needs it

    if options.update_baseline:
        return {}
    return read_baseline(options.baseline) if options.baseline else None
