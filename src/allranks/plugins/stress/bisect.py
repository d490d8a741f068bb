"""``allranks bisect``: which axis of the matrix, or which commit, decides whether a test fails."""

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
from allranks.errors import EngineError, ExitCode, UsageError
from allranks.plugins.stress.command import RepeatOptions
from allranks.plugins.stress.hooks import BISECT_CODES
from allranks.plugins.stress.repeated_cells import Counted, Trial, jobs_of_one_suite, most_rounds, repeat_until
from allranks.protocol.rates import needed, unseen_rate

if TYPE_CHECKING:
    from allranks.plugins.stress.deciding_axis import CellRate, DecidingAxis

_MOST: Final = 1000
"""Repetitions of the test in a cell, or at a commit, unless another number is asked for."""


def _confidence(text: str) -> float:
    """Parse a confidence in percent.

    Raises:
        argparse.ArgumentTypeError: The text is none.
    """
    try:
        found = float(text.removesuffix("%")) / 100
    except ValueError:
        found = math.nan
    if not 0.5 <= found < 1:
        msg = f"{text!r} is no confidence: take 50 to 99.99 percent"
        raise argparse.ArgumentTypeError(msg)
    return found


_SURE = "what to find, and how surely"


@dataclass(frozen=True, kw_only=True)
class Options(RepeatOptions):
    """The options of ``allranks bisect``."""

    usage: ClassVar = "allranks bisect TEST [CELL ...] [--git GOOD..BAD] [options]"

    git: str | None = option(
        "--git GOOD..BAD",
        _SURE,
        "find the commit of this repository after which the test fails (default: the axis that decides)",
    )
    confidence: float = option(
        "--confidence PERCENT",
        _SURE,
        "how sure the answer has to be, in percent (default: 99)",
        type=_confidence,
        default=0.99,
    )
    most: int = option(
        "--most N",
        _SURE,
        f"repeat the test N times at most in a cell, or at a commit (default: {_MOST})",
        type=whole(1, 1_000_000),
        default=_MOST,
    )
    json: bool = json_option(_SURE)


def run(options: Options) -> ExitCode:
    """Find what decides."""
    expansion, options = read_request(options)
    check_pytest_args(options.pytest_args)
    jobs = jobs_of_one_suite(expansion, selected_jobs(expansion, options))
    trial = Trial(expansion=expansion, options=options, results=results_of(expansion, options))
    if options.git is not None:
        from allranks.plugins.stress.bisect_commits import find_commit  # noqa: PLC0415 - git is needed for commits alone

        return find_commit(trial, jobs, options.git)
    if len(jobs) < 2:
        msg = f"{jobs[0].cell.id} is the only cell that is selected, and no axis can decide."
        raise UsageError(msg, remedy="Select more cells (`allranks plan` lists them), or name commits: --git GOOD..BAD")
    counted = [Counted(job=job) for job in jobs]
    return _answer(counted, _repeated(trial, counted), options)


def _repeated(trial: Trial, counted: Sequence[Counted]) -> "Sequence[DecidingAxis]":
    """Repeat the test in each cell until an axis decides, or there is none or nothing to decide.

    Raises:
        EngineError: No job could run it, for the infrastructure.
        UsageError: Nor for its own sake.
    """
    from allranks.plugins.stress.deciding_axis import deciding_axes  # noqa: PLC0415 - no other command needs it

    most, confidence = trial.options.most, trial.options.confidence
    found: list[DecidingAxis] = []

    def is_enough() -> bool:
        worst = max(counted, key=lambda each: each.bad / max(1, each.runs))
        found[:] = deciding_axes(rates_of(counted), confidence, most_rounds(most))
        passes = min(most, needed(worst.bad, worst.runs, 1 - confidence))
        return bool(found) and all(each.bad or each.why or each.runs >= passes for each in counted)

    (warn if trial.options.json else say)(
        f"repeating the test in {len(counted)} cells, results in {_here(trial.results)}"
    )
    code = repeat_until(is_enough, trial, counted)
    is_enough()
    if not any(each.runs for each in counted) and code is not ExitCode.NOTHING_RAN:
        kind = EngineError if code is ExitCode.INFRASTRUCTURE else UsageError
        msg = "The test could not be run in any cell."
        raise kind(msg, why=f"{counted[0].job.cell.id}: {counted[0].why}")
    return found


def rates_of(counted: Sequence[Counted]) -> "list[CellRate]":
    """The rates of the jobs that ran the test, by their axes; the image is one of these if there are several."""
    from allranks.plugins.stress.deciding_axis import CellRate  # noqa: PLC0415 - see _repeated

    names_images = len({each.job.image.name for each in counted}) > 1
    return [
        CellRate(
            cell=each.job.cell.id,
            axes={**each.job.cell.axes(), **({"image": each.job.image.name} if names_images else {})},
            bad=each.bad,
            runs=each.runs,
        )
        for each in counted
        if each.runs
    ]


def _answer(counted: Sequence[Counted], found: "Sequence[DecidingAxis]", options: Options) -> ExitCode:
    from allranks.plugins.stress.deciding_axis import in_words  # noqa: PLC0415 - see _repeated

    ran = [each for each in counted if each.runs]
    if not ran:
        code, words = ExitCode.NOTHING_RAN, "did not run in any cell"
    elif not any(each.bad for each in ran):
        code, least = ExitCode.TESTS_FAILED, min(each.runs for each in ran)
        bound = 100 * unseen_rate(least, 1 - options.confidence)
        words = (
            f"never failed in {least:,} repetitions in each of {len(ran)} cells: a rate of {bound:.2g} % or more would "
            f"have shown, confidence {100 * options.confidence:g} %"
        )
    else:
        code, words = ExitCode.OK if found else ExitCode.TESTS_FAILED, in_words(found, rates_of(ran))
    nodeid = next((each.nodeid for each in ran), "the test")
    if options.json:
        say_json(
            exit_code=int(code),
            test=nodeid,
            answer=words,
            deciding=[_object(each.axis, each.also, each.predicate, each.confidence) for each in found],
            cells=[{"cell": e.job.cell.id, "bad": e.bad, "runs": e.runs, "why": e.why or None} for e in counted],
        )
        return code
    for each in counted:
        say(f"  {each.job.cell.id:<32} {f'{each.bad:,} of {each.runs:,} failed' if each.runs else each.why}")
    say(f"{nodeid} {words}")
    say(f"exit code {code:d}: {BISECT_CODES[code]}")
    return code


def _object(axis: str, also: Sequence[str], predicate: str, confidence: float) -> Mapping[str, object]:
    return {"axis": axis, "also": list(also), "predicate": predicate, "confidence": round(confidence, 6)}


def _here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
