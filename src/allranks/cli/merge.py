"""``allranks merge`` and ``allranks report``: one report of results, and whether it is good."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.cli.command_parser import CommandParser, OptionGroup, one_of
from allranks.cli.options import (
    RESULTS_VARIABLE,
    add_json,
    add_quiet,
    number,
    remark,
    results_here,
    say,
    say_json,
    say_verdict,
    writable_file,
)
from allranks.errors import MEANING, ExitCode
from allranks.plugin_manager import add_plugin_options, section_makers
from allranks.protocol.records import MOST_RANKS
from allranks.report.input_rule import JOBS, ONE_JOB, InputRule, RankPattern
from allranks.runner.ci_service import ci_service

if TYPE_CHECKING:
    from allranks.report.judge.baseline import Baseline
    from allranks.report.judged import MergedRun


def add(parser: CommandParser) -> None:
    """Declare the arguments of ``allranks merge``."""
    parser.usage = "allranks merge DIR [options]"
    group = parser.add_argument_group("what to read")
    meaning = "a run's folder, one with parts of a run from several machines, or one with the JUnit XML of ranks"
    group.add_argument("folder", type=Path, metavar="DIR", help=meaning)
    _add_rule(group)
    meaning = "an attribute that your suites add to the XML, as pytest's record_xml_attribute does; repeatable"
    group.add_argument("--allow-attribute", dest="allowed", action="append", default=[], metavar="NAME", help=meaning)
    _add_judgement(parser.add_argument_group("the verdict"))
    _add_form(parser.add_argument_group("what is written"), "merge")
    parser.set_defaults(command=_merge)


def add_report(parser: CommandParser) -> None:
    """Declare the arguments of ``allranks report``."""
    parser.usage = "allranks report [DIR] [options]"
    group = parser.add_argument_group("what to read")
    meaning = (
        f"same as for merge (default: the newest run in ${RESULTS_VARIABLE}, or in results beside the matrix file)"
    )
    group.add_argument("folder", nargs="?", type=Path, metavar="DIR", help=meaning)
    _add_rule(group)
    group.add_argument("--open", action="store_true", help="then open the page in a browser")
    _add_judgement(parser.add_argument_group("the verdict"))
    _add_form(parser.add_argument_group("what is written"), "report")
    parser.set_defaults(command=_report, allowed=[])


_POLICIES = ("skip", "pass")
_LAYOUTS = ("pytorch",)


def _add_rule(group: OptionGroup) -> None:
    """Declare which files of a folder are results."""
    meaning = (
        f"which files are the XML of ranks; a placeholder is a part of one name (default: {JOBS.text}, or "
        f"{ONE_JOB.text} if DIR itself has such files)"
    )
    group.add_argument("--ranks-xml", type=RankPattern, metavar="PATTERN", help=meaning)
    meaning = "how many ranks each job has, if neither its XML nor the id of its cell states it"
    group.add_argument("--world-size", type=_world_size, metavar="N", help=meaning)
    meaning = "accept files below DIR that could have results and are not read; * matches /, too; repeatable"
    group.add_argument("--ignore", action="append", default=[], metavar="GLOB", help=meaning)


def _world_size(text: str) -> int:
    size = number(text)
    if not 0 < size <= MOST_RANKS:
        msg = f"{text!r} is no number of ranks: take 1 to {MOST_RANKS}"
        raise argparse.ArgumentTypeError(msg)
    return size


def _add_judgement(group: OptionGroup) -> None:
    meaning = "read environment skips as skips or as passes"
    group.add_argument("--policy", type=one_of(_POLICIES), choices=_POLICIES, help=meaning)
    meaning = "fail where fewer tests executed than this file records"
    group.add_argument("--baseline", type=Path, metavar="FILE", help=meaning)
    group.add_argument(
        "--allow-nothing-ran", action="store_true", help="accept that every test was skipped or deselected"
    )


def _add_form(group: OptionGroup, command: str) -> None:
    """Declare what is written beside the report, and in which form that is."""
    add_json(group)
    add_quiet(group, "print problems and the verdict alone")
    meaning = "record the executed tests in this file"
    group.add_argument("--update-baseline", type=writable_file, metavar="FILE", help=meaning)
    meaning = "also write the files of PyTorch's --save-xml, into the folder's test-reports (default: none)"
    group.add_argument("--layout", type=one_of(_LAYOUTS), choices=_LAYOUTS, help=meaning)
    meaning = "update this file with the durations of tests, for even shards (default: none)"
    group.add_argument("--durations", type=writable_file, metavar="FILE", help=meaning)
    add_plugin_options(command, {"results": group})
    group.add_argument(
        "--cell-in-classname",
        dest="classname",
        action="store_const",
        const="cell",
        default="pytest",
        help="begin class names in junit.xml with cell and suite, for clients that ignore suites",
    )


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
                "place": each.place,
                "test": each.nodeid,
                "kind": each.kind.value,
                "message": each.message,
                "alike": each.alike,
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


def _merge(options: argparse.Namespace) -> ExitCode:
    return _merged(options)[1]


def _report(options: argparse.Namespace) -> ExitCode:
    import webbrowser  # noqa: PLC0415 - its import takes as long as a small plan

    if options.folder is None:
        options.folder = Path(os.environ.get(RESULTS_VARIABLE) or results_here(), "latest")
    page, code = _merged(options)
    if options.open and not webbrowser.open(page.as_uri()):
        (remark if options.json else say)(f"no browser could be started: open {page}")
    return code


def _merged(options: argparse.Namespace) -> tuple[Path, ExitCode]:
    """Merge, write and print the report; return its page and the exit code."""
    from allranks.report.durations import Meter, keep_durations  # noqa: PLC0415
    from allranks.report.judge.baseline import update_baseline  # noqa: PLC0415 - no plan needs it
    from allranks.report.judge.exit_code import exit_code  # noqa: PLC0415
    from allranks.report.junit_case import JUnitForm  # noqa: PLC0415
    from allranks.report.merging import merge  # noqa: PLC0415
    from allranks.report.pytorch_layout import PyTorchLayout  # noqa: PLC0415
    from allranks.report.summary import first_cause, render_problems  # noqa: PLC0415
    from allranks.report.summary import render_table as render_results  # noqa: PLC0415
    from allranks.runner.console import console_for  # noqa: PLC0415
    from allranks.runner.ledger import complete_dead_runs  # noqa: PLC0415

    complete_dead_runs(options.folder)
    meter = Meter()
    layout = PyTorchLayout(Path(os.path.realpath(options.folder))) if options.layout else None
    merged = merge(
        options.folder,
        InputRule(pattern=options.ranks_xml, world_size=options.world_size, ignore=tuple(options.ignore)),
        policy=options.policy,
        allowed=options.allowed,
        observers=[
            *section_makers(options, None),
            *([meter.add] if options.durations else []),
            *([layout.add] if layout else []),
        ],
        baseline=_baseline(options),
        junit_form=JUnitForm(classname=options.classname),
    )
    if options.durations:
        keep_durations(options.durations, meter.durations, remark if options.json else say)
    if options.update_baseline:
        update_baseline(options.update_baseline, merged.suites)
    code = exit_code(merged, nothing_ran_allowed=options.allow_nothing_ran)
    report = "\n        ".join(map(str, merged.junit_files))
    tell_of = render_problems if options.detail == "quiet" else render_results
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


def _baseline(options: argparse.Namespace) -> "Baseline | None":
    """The baseline to compare with: empty if it is to be renewed, None for the one in the run's manifest."""
    from allranks.report.judge.baseline import read_baseline  # noqa: PLC0415 - no plan needs it

    if options.update_baseline:
        return {}
    return read_baseline(options.baseline) if options.baseline else None
