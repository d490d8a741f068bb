"""``allranks plan``: the cells of the matrix, and how their jobs are divided among the machines of a CI."""

import argparse

from allranks.commands.options import add_durations, add_plan_file, add_selection, number, run_id
from allranks.commands.output import remark, say
from allranks.commands.selection import chosen_jobs, selected_cells
from allranks.errors import ExitCode
from allranks.matrix.declaration import load
from allranks.matrix.expand import Expansion, expand
from allranks.matrix.render import render_explanation, render_json, render_table
from allranks.schedule.machines.wishes import MINUTES_PER_ENTRY, MOST_ENTRIES

_FORMATS = "json is for programs, github the job matrix of a workflow"


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``allranks plan``."""
    add_selection(parser)
    parser.add_argument("--explain", action="store_true", help="also show each dropped cell and the rule that did it")
    parser.add_argument("--format", choices=("table", "json", "github"), default="table", help=_FORMATS)
    _add_machines(parser)
    parser.usage = "allranks plan [CELL ...] [options] [-- PYTEST-ARGUMENT ...]"
    parser.set_defaults(command=_plan)


def _add_machines(parser: argparse.ArgumentParser) -> None:
    """How jobs are divided among the machines of a CI."""
    group = parser.add_argument_group("with --format github")
    add_plan_file(group, "write the plan here, for each machine's `allranks run --plan-file FILE --pack PACK`")
    group.add_argument(
        "--max-entries",
        type=_entries,
        default=MOST_ENTRIES,
        metavar="N",
        help=f"no more machines than this (default, and GitHub's limit: {MOST_ENTRIES})",
    )
    group.add_argument(
        "--minutes-per-entry",
        type=_minutes,
        default=MINUTES_PER_ENTRY,
        metavar="N",
        help=f"what a machine should have to do: fewer minutes, more machines (default: {MINUTES_PER_ENTRY})",
    )
    add_durations(group, "what tests took, for even packs (default: the file that the matrix file names)")


def _plan(options: argparse.Namespace) -> ExitCode:
    expansion = expand(load(options.matrix))
    if options.format == "github":
        return _plan_machines(expansion, options)
    cells, suites = selected_cells(expansion, options), options.suite or None
    if options.format == "json":
        say(render_json(expansion, cells, suites))
        return ExitCode.OK
    say(render_table(expansion.matrix, cells, suites))
    if options.explain:
        say("\n" + render_explanation(expansion))
    return ExitCode.OK


def _plan_machines(expansion: Expansion, options: argparse.Namespace) -> ExitCode:
    from allranks.report.durations_file import read_durations  # noqa: PLC0415 - no other plan needs them
    from allranks.schedule.machines.planning import PlanOptions, plan_machines  # noqa: PLC0415
    from allranks.schedule.machines.wishes import Wishes  # noqa: PLC0415

    durations = options.durations or expansion.matrix.root / expansion.matrix.durations
    plan_options = PlanOptions(
        run_id=run_id(),
        pytest_args=options.pytest_args,
        durations=read_durations(durations, remark),
        wishes=Wishes(most=options.max_entries, minutes=options.minutes_per_entry),
        plan_file=options.plan_file,
    )
    entries, notes = plan_machines(expansion, chosen_jobs(expansion, options), plan_options)
    for note in notes:
        remark(note)
    say(entries)
    return ExitCode.OK


def _entries(text: str) -> int:
    entries = number(text)
    if not 1 <= entries <= MOST_ENTRIES:
        msg = f"{text!r} entries: GitHub takes from 1 to {MOST_ENTRIES} in a job matrix"
        raise argparse.ArgumentTypeError(msg)
    return entries


def _minutes(text: str) -> int:
    minutes = number(text)
    if minutes < 1:
        msg = f"{text!r} is no time: take 1 minute or more"
        raise argparse.ArgumentTypeError(msg)
    return minutes
