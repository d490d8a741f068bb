"""``allranks compare``: prints the differences between two runs, two versions of torch, or two cells."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from allranks.cli.options import json_option, newest_run
from allranks.cli.parser import CommandOptions, option
from allranks.cli.printing import say, say_json
from allranks.cli.variables import RESULTS_VARIABLE
from allranks.errors import ExitCode, UsageError, did_you_mean
from allranks.plugins.history.hooks import WORSE
from allranks.protocol.xml_text import readable

if TYPE_CHECKING:
    from allranks.plugins.history.comparison import ComparedJob, DifferentTest

_SHOWN = 50


_PAIR = "what to compare"


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of ``allranks compare``."""

    usage: ClassVar = "allranks compare A B [options]"

    a: str = option(
        "A",
        _PAIR,
        "a run: its folder, report.json or junit.xml; or part of one: torch=2.13.0, or a cell's id or a prefix of it",
    )
    b: str = option("B", _PAIR, "the same, compared with A")
    inside: Path | None = option(
        "--in RUN",
        _PAIR,
        f"the run that both are parts of (default: the newest in ${RESULTS_VARIABLE}, or in results)",
        type=Path,
    )
    json: bool = json_option(_PAIR)


def run(options: Options) -> ExitCode:
    """Compare the two."""
    from allranks.plugins.history.comparison import compare  # noqa: PLC0415 - no plan needs it

    before, after = _sides(options)
    found = list(compare(before, after))
    code = ExitCode.TESTS_FAILED if any(test.kind.is_worse for test in found) else ExitCode.OK
    if options.json:
        counts = Counter(test.kind.value for test in found)
        notes = {"a": _notes(before), "b": _notes(after)}
        say_json(exit_code=int(code), counts=counts, tests=list(map(_object, found)), notes=notes)
    else:
        for side, jobs in (("A", before), ("B", after)):
            for note in _notes(jobs):
                say(f"note on {side}: {readable(note)}")
        _say(found, code)
    return code


def _sides(options: Options) -> "tuple[Sequence[ComparedJob], Sequence[ComparedJob]]":
    from allranks.plugins.history.comparison import read_jobs_of  # noqa: PLC0415

    a, b = Path(options.a), Path(options.b)
    if options.inside is None and (a.exists() or b.exists()):
        for path in (a, b):
            if not path.exists():
                msg = f"There is no run {path}."
                remedy = "Give two runs, or two parts of one, as in `compare torch=2.13.0 torch=2.14.1`."
                raise UsageError(msg, remedy=remedy)
        return read_jobs_of(a), read_jobs_of(b)
    run = options.inside or newest_run()
    if not run.exists():
        msg = f"There is no run {run}."
        raise UsageError(msg, remedy="Name one with --in, or give two runs to compare.")
    jobs = read_jobs_of(run)
    return _part(jobs, options.a, run), _part(jobs, options.b, run)


def _part(jobs: "Sequence[ComparedJob]", text: str, run: Path) -> "Sequence[ComparedJob]":
    """The jobs of a run in the cells that a text selects: ``axis=value,...``, an id, or a prefix of ids."""
    if "=" in text:
        pairs = [pair.partition("=") for pair in text.split(",")]
        axes = {axis.strip(): value.strip() for axis, _, value in pairs}
        found = [job for job in jobs if all(job.axes.get(axis) == value for axis, value in axes.items())]
    else:
        found = [job for job in jobs if job.cell == text or job.cell.startswith(f"{text}-")]
    if not found:
        msg = f"{run} has no cell {text!r}."
        cells = dict.fromkeys(job.cell for job in jobs)
        values = dict.fromkeys(f"{axis}={value}" for job in jobs for axis, value in job.axes.items())
        raise UsageError(msg, why=did_you_mean(text, values if "=" in text else cells))
    return found


def _notes(jobs: "Sequence[ComparedJob]") -> list[str]:
    return list(dict.fromkeys(note for job in jobs for note in job.notes))


_WORDS = {
    "fails": "fails in B",
    "missing": "is missing in B",
    "skipped": "is skipped in B",
    "flaky": "is flaky in B",
    "other": "fails differently in B",
    "fixed": "is fixed in B",
    "runs": "runs in B, was skipped in A",
    "added": "is only in B",
}


def _say(found: "Sequence[DifferentTest]", code: ExitCode) -> None:
    from allranks.plugins.history.comparison import Difference  # noqa: PLC0415

    for kind in Difference:
        own = [test for test in found if test.kind is kind]
        if own:
            say(f"{_WORDS[kind.value]} ({len(own)}):")
        for test in own[:_SHOWN]:
            say(f"  {readable(test.nodeid)} ({readable(test.job)})")
            if kind.is_worse and test.after.message:
                say(f"      {readable(test.after.message)}")
        if len(own) > _SHOWN:
            say(f"  and {len(own) - _SHOWN} more: --json has all of them")
    if not found:
        say("no test differs")
    say(f"exit code {code:d}: {WORSE if code else 'B is not worse than A'}")


def _object(test: "DifferentTest") -> Mapping[str, object]:
    cell_a, cell_b = test.cells
    return {
        "difference": test.kind.value,
        "worse": test.kind.is_worse,
        "cell_a": cell_a,
        "cell_b": cell_b,
        "suite": test.suite,
        "test": test.nodeid,
        "a": test.before.status,
        "b": test.after.status,
        "message": test.after.message,
    }
