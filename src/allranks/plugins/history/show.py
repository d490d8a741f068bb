"""``allranks show``: prints the testcases of a JUnit report, written by allranks or another program."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, ClassVar, Final

from allranks.cli.options import json_option
from allranks.cli.parser import CommandOptions, flag, option, whole
from allranks.cli.printing import say
from allranks.errors import ExitCode, UsageError, counted
from allranks.protocol.tracebacks import excerpt
from allranks.protocol.xml_text import for_terminal, readable

if TYPE_CHECKING:
    from allranks.junit import ReportedCase, ReportedRank
    from allranks.report.judged import Counts

_IN_MEMORY: Final = 1 << 24


_SHOW = "what to show"


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of ``allranks show``."""

    usage: ClassVar = "allranks show FILE [options]"

    file: Path = option("FILE", "what to read", "junit.xml, or the folder that has it", type=Path)
    failed: bool = flag("--failed", _SHOW, "only tests that failed; with --rank, on that rank")
    rank: int | None = option("--rank N", _SHOW, "only this rank's outcomes, and only of its tests", type=whole())
    json: bool = json_option(_SHOW)


def run(options: Options) -> ExitCode:
    """Print the testcases."""
    from allranks.report.judged import Counts  # noqa: PLC0415 - only for a report

    counts = Counts()
    cases = _counted(_cases(options), counts)
    if options.json:
        _print_json(options, cases, counts)
        return ExitCode.OK
    for case in cases:
        for line in _lines(case, options.rank):
            say(for_terminal(line))
    for note in filter(None, _problem_and_note(options.file)):
        say(for_terminal(note))
    say(f"{counted(counts.tests, 'test')}: {counts.words}" if counts.tests else "no such test")
    return ExitCode.OK


def _counted(cases: Iterator["ReportedCase"], counts: "Counts") -> Iterator["ReportedCase"]:
    for case in cases:
        counts.add(case.verdict, case.time or 0.0, skip_but_pass="skip_but_pass" in case.facts, flaky=case.is_flaky)
        yield case


def _cases(options: Options) -> Iterator["ReportedCase"]:
    try:
        from allranks import junit  # noqa: PLC0415 - no other command needs junitparser
    except ModuleNotFoundError as error:
        if error.name != "junitparser":
            raise
        msg = "Reading reports needs the package junitparser, which is not installed."
        raise UsageError(msg, remedy="Install it: pip install junitparser.") from None
    for case in junit.stream(options.file, rank=options.rank):
        own = None if options.rank is None else case.rank(options.rank)
        if not options.failed or (case.is_bad if own is None else own.outcome.is_bad):
            yield case


def _problem_and_note(file: Path) -> tuple[str, str]:
    """Why the report cannot be trusted, and what is unusual in it; both may be empty."""
    from allranks.junit.report_reader import problem_and_note  # noqa: PLC0415 - as above

    return problem_and_note(file)


def _lines(case: "ReportedCase", rank: int | None) -> Iterator[str]:
    """A line for a testcase, followed by the details of its failure."""
    own = None if rank is None else case.rank(rank)
    what = case.verdict.value if own is None else f"rank {own.rank} {own.outcome.replace('_', ' ')}"
    seconds = case.time if own is None or own.time is None else own.time
    where = f" ({case.file}:{case.line})" if case.is_bad and case.file and case.line else ""
    job = readable(f"{case.cell} / {case.job}" if case.cell else case.job)
    yield f"{what:<8} {seconds or 0.0:8.2f} s  {job}: {readable(case.nodeid)}{where}"
    if case.is_bad if own is None else own.outcome.is_bad:
        yield from _details(case, own)


def _details(case: "ReportedCase", own: "ReportedRank | None") -> Iterator[str]:
    failed = own or next((rank for rank in case.ranks if rank.leads), case)
    yield from (f"    {line}" for line in case.message.splitlines()[:3] if own is None)
    if own is None and case.ranks:
        yield f"    ranks: {case.facts['ranks']}"
    yield from (f"      {line}" for line in excerpt(failed.text, case.file, case.message))


def _print_json(options: Options, cases: Iterator["ReportedCase"], counts: "Counts") -> None:
    """Print one object after the whole report has been read, so that an error leaves standard output empty."""
    with SpooledTemporaryFile(max_size=_IN_MEMORY, mode="w+", encoding="utf-8") as spool:
        for index, case in enumerate(cases):
            spool.write(",\n" if index else "")
            spool.write(json.dumps(_object(case, options.rank)))
        spool.seek(0)
        say(f'{{"schema": 1, "file": {json.dumps(str(options.file))}, "tests": [')
        for line in spool:
            say(line.rstrip("\n"))
    problem, note = _problem_and_note(options.file)
    summary = {"counts": counts.as_object, "problem": problem or None, "note": note or None}
    say(f"], {json.dumps(summary)[1:]}")


def _object(case: "ReportedCase", number: int | None) -> dict[str, object]:
    return {
        **case.own_row,
        "axes": dict(case.axes),
        "ranks": [asdict(rank) for rank in case.ranks if number in {None, rank.rank}],
        "attempts": [asdict(attempt) for attempt in case.attempts],
    }
