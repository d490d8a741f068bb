"""``allranks merge`` and ``allranks report``: one report of results, and whether it is good."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.commands.options import RESULTS_VARIABLE, say, writable_file
from allranks.errors import ExitCode

if TYPE_CHECKING:
    from allranks.report.baseline import Baseline


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``allranks merge``."""
    parser.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        help="a run's folder, one with parts of a run from several machines, or any with ranks' JUnit XML",
    )
    _add_form(parser)
    parser.set_defaults(command=_merge)


def add_report(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``allranks report``."""
    newest = Path(os.environ.get(RESULTS_VARIABLE) or "results", "latest")
    parser.add_argument(
        "folder", nargs="?", type=Path, metavar="DIR", default=newest, help=f"same as for merge (default: {newest})"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    _add_form(parser)
    parser.set_defaults(command=_report)


def _add_form(parser: argparse.ArgumentParser) -> None:
    """Declare how results are read and how the report is written."""
    parser.add_argument("--policy", choices=("skip", "pass"), help="read environment skips as skips or as passes")
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="fail where fewer tests executed than this file records"
    )
    parser.add_argument(
        "--update-baseline", type=writable_file, metavar="FILE", help="record the executed tests in this file"
    )
    parser.add_argument(
        "--cell-in-classname",
        dest="classname",
        action="store_const",
        const="cell",
        default="pytest",
        help="begin class names in junit.xml with cell and suite, for clients that ignore suites",
    )
    parser.add_argument(
        "--strict-xsd",
        dest="schema",
        action="store_const",
        const="narrow",
        default="wide",
        help="write junit.xml as the schemas of Jenkins and Surefire both accept it: one suite, cells in class names",
    )
    meaning = "update this file with the durations of tests, for even shards (default: none)"
    parser.add_argument("--durations", type=writable_file, metavar="FILE", help=meaning)
    parser.add_argument("--allow-nothing-ran", action="store_true", help="accept a run without tests (exit code 5)")


def _merge(options: argparse.Namespace) -> ExitCode:
    return _merged(options)[1]


def _report(options: argparse.Namespace) -> ExitCode:
    import webbrowser  # noqa: PLC0415 - its import takes as long as a small plan

    page, code = _merged(options)
    if options.open and not webbrowser.open(page.as_uri()):
        say(f"no browser could be started: open {page}")
    return code


def _merged(options: argparse.Namespace) -> tuple[Path, ExitCode]:
    """Merge, write and print the report; return its page and the exit code."""
    from allranks.report.baseline import update_baseline  # noqa: PLC0415 - no plan needs it
    from allranks.report.durations import Meter, keep_durations  # noqa: PLC0415
    from allranks.report.judged import exit_code  # noqa: PLC0415
    from allranks.report.junit_case import JUnitForm  # noqa: PLC0415
    from allranks.report.merging import merge  # noqa: PLC0415
    from allranks.report.summary import render_table as render_results  # noqa: PLC0415
    from allranks.schedule.console import console_for  # noqa: PLC0415
    from allranks.schedule.ledger import complete_dead_runs  # noqa: PLC0415
    from allranks.schedule.run_jobs import MEANING  # noqa: PLC0415

    complete_dead_runs(options.folder)
    meter = Meter()
    merged = merge(
        options.folder,
        policy=options.policy,
        observers=[meter.add] if options.durations else [],
        baseline=_baseline(options),
        junit_form=JUnitForm(schema=options.schema, classname=options.classname),
    )
    if options.durations:
        keep_durations(options.durations, meter.durations, say)
    if options.update_baseline:
        update_baseline(options.update_baseline, merged.suites)
    code = exit_code(merged, nothing_ran_allowed=options.allow_nothing_ran)
    report = "\n        ".join(map(str, merged.junit_files))
    with console_for(say) as console:
        console.say(f"{render_results(merged)}\n\nreport: {report}\npage: {merged.page}")
        console.annotate(merged)
    say(f"exit code {code:d}: {MEANING[code]}")
    return merged.page, code


def _baseline(options: argparse.Namespace) -> "Baseline | None":
    """The baseline to compare with: empty if it is to be renewed, None for the one in the run's manifest."""
    from allranks.report.baseline import read_baseline  # noqa: PLC0415 - no plan needs it

    if options.update_baseline:
        return {}
    return read_baseline(options.baseline) if options.baseline else None
