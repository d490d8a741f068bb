"""``allranks bisect``: finds the axis of the matrix, or the commit, that decides whether a test fails."""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from allranks.cli.options import json_option
from allranks.cli.parser import option, whole
from allranks.cli.printing import say, say_json, warn
from allranks.cli.run import check_pytest_args, results_of
from allranks.cli.selection import read_request, selected_jobs
from allranks.errors import EngineError, ExitCode, UsageError, counted
from allranks.plugins.stress.command import RepeatOptions
from allranks.plugins.stress.hooks import BISECT_CODES
from allranks.plugins.stress.repeated_cells import JobTally, Repeater, jobs_of_one_suite, max_rounds, repeat_until
from allranks.protocol.rates import needed, unseen_rate

if TYPE_CHECKING:
    from allranks.plugins.stress.deciding_axis import CellRate, DecidingAxis

_MOST: Final = 1000
"""The default for the most repetitions of the test in a cell, or at a commit."""


def _confidence(text: str) -> float:
    try:
        found = float(text.removesuffix("%")) / 100
    except ValueError:
        found = math.nan
    if not 0.5 <= found < 1:
        msg = f"{text!r} is not a confidence: use 50 to 99.99 percent"
        raise argparse.ArgumentTypeError(msg)
    return found


_GOAL = "what to find, and with which confidence"


@dataclass(frozen=True, kw_only=True)
class Options(RepeatOptions):
    """The options of ``allranks bisect``."""

    usage: ClassVar = "allranks bisect TEST [CELL ...] [--git GOOD..BAD] [options]"

    git: str | None = option(
        "--git GOOD..BAD",
        _GOAL,
        "find the commit at which the test starts to fail (default: the axis that decides)",
    )
    confidence: float = option(
        "--confidence PERCENT",
        _GOAL,
        "the confidence that the answer needs, in percent (default: 99)",
        type=_confidence,
        default=0.99,
    )
    most: int = option(
        "--most N",
        _GOAL,
        f"repeat the test at most N times in a cell, or at a commit (default: {_MOST})",
        type=whole(1, 1_000_000),
        default=_MOST,
    )
    json: bool = json_option(_GOAL)


def run(options: Options) -> ExitCode:
    """Find the axis or the commit."""
    expansion, options = read_request(options)
    check_pytest_args(options.pytest_args)
    jobs = jobs_of_one_suite(expansion, selected_jobs(expansion, options))
    repeater = Repeater(expansion=expansion, options=options, results=results_of(expansion, options))
    if options.git is not None:
        from allranks.plugins.stress.bisect_commits import find_commit  # noqa: PLC0415 - only commits need git

        return find_commit(repeater, jobs, options.git)
    if len(jobs) < 2:
        msg = f"No axis can decide, because only one cell is selected: {jobs[0].cell.id}."
        raise UsageError(msg, remedy="Select more cells (`allranks plan` lists them), or name commits: --git GOOD..BAD")
    tallies = [JobTally(job=job) for job in jobs]
    return _answer(tallies, _find_axes(repeater, tallies), options)


def _find_axes(repeater: Repeater, tallies: Sequence[JobTally]) -> "Sequence[DecidingAxis]":
    """Repeat the test in each cell until an axis decides, or the most repetitions are done.

    Raises:
        EngineError: No job could run it, due to the infrastructure.
        UsageError: No job could run it, due to the test.
    """
    from allranks.plugins.stress.deciding_axis import deciding_axes  # noqa: PLC0415 - no other command needs it

    most, confidence = repeater.options.most, repeater.options.confidence
    found: list[DecidingAxis] = []

    def is_enough() -> bool:
        worst = max(tallies, key=lambda tally: tally.bad / max(1, tally.runs))
        found[:] = deciding_axes(cell_rates(tallies), confidence, max_rounds(most))
        passes = min(most, needed(worst.bad, worst.runs, 1 - confidence))
        return bool(found) and all(tally.bad or tally.why or tally.runs >= passes for tally in tallies)

    results = repeater.results
    shown = results.relative_to(Path.cwd()) if results.is_relative_to(Path.cwd()) else results
    (warn if repeater.options.json else say)(f"repeating the test in {len(tallies)} cells, results in {shown}")
    code = repeat_until(is_enough, repeater, tallies)
    is_enough()
    if not any(tally.runs for tally in tallies) and code is not ExitCode.NOTHING_RAN:
        kind = EngineError if code is ExitCode.INFRASTRUCTURE else UsageError
        msg = "The test could not be run in any cell."
        raise kind(msg, why=f"{tallies[0].job.cell.id}: {tallies[0].why}")
    return found


def cell_rates(tallies: Sequence[JobTally]) -> "list[CellRate]":
    """The rates of the jobs that ran the test, by axes; if there are several images, the image counts as an axis."""
    from allranks.plugins.stress.deciding_axis import CellRate  # noqa: PLC0415 - see _find_axes

    has_images = len({tally.job.image.name for tally in tallies}) > 1
    return [
        CellRate(
            cell=tally.job.cell.id,
            axes={**tally.job.cell.axes(), **({"image": tally.job.image.name} if has_images else {})},
            bad=tally.bad,
            runs=tally.runs,
        )
        for tally in tallies
        if tally.runs
    ]


def _answer(tallies: Sequence[JobTally], found: "Sequence[DecidingAxis]", options: Options) -> ExitCode:
    from allranks.plugins.stress.deciding_axis import verdict_text  # noqa: PLC0415 - see _find_axes

    ran = [tally for tally in tallies if tally.runs]
    if not ran:
        code, answer = ExitCode.NOTHING_RAN, "did not run in any cell"
    elif not any(tally.bad for tally in ran):
        code, least = ExitCode.TESTS_FAILED, min(tally.runs for tally in ran)
        bound = 100 * unseen_rate(least, 1 - options.confidence)
        answer = (
            f"never failed in {counted(least, 'repetition')} per cell: a rate of {bound:.2g} % or more would "
            f"have shown, confidence {100 * options.confidence:g} %"
        )
    else:
        code, answer = ExitCode.OK if found else ExitCode.TESTS_FAILED, verdict_text(found, cell_rates(ran))
    nodeid = next((tally.nodeid for tally in ran), "the test")
    if options.json:
        say_json(
            exit_code=int(code),
            test=nodeid,
            answer=answer,
            deciding=list(map(_object, found)),
            cells=[{"cell": t.job.cell.id, "bad": t.bad, "runs": t.runs, "why": t.why or None} for t in tallies],
        )
        return code
    for tally in tallies:
        say(f"  {tally.job.cell.id:<32} {f'{tally.bad:,} of {tally.runs:,} failed' if tally.runs else tally.why}")
    say(f"{nodeid} {answer}")
    say(f"exit code {code:d}: {BISECT_CODES[code]}")
    return code


def _object(found: "DecidingAxis") -> Mapping[str, object]:
    confidence = round(found.confidence, 6)
    return {"axis": found.axis, "also": list(found.also), "predicate": found.predicate, "confidence": confidence}
