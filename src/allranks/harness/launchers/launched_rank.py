"""A rank that a test has started itself: a fork of the launching process, and what it writes down and reports."""

import gc
import os
import time
import unittest
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from _pytest._code import Traceback

from allranks.harness.channel import End, Report, Run, decode_command, send_report
from allranks.harness.events import EventLog, rank_events
from allranks.harness.gangs.late_imports import ImportWatch
from allranks.harness.gangs.symptoms import is_symptom
from allranks.harness.outcome import Outcome, SkipKind
from allranks.harness.phases import MESSAGE_LIMIT, Phase, shorten, skip_with_code
from allranks.harness.ranks.printing import flush_output
from allranks.harness.ranks.rank import seed_everything
from allranks.harness.ranks.rank_setup import live


@dataclass(frozen=True, kw_only=True)
class RankTerms:
    """One test as its ranks need to know it.

    Attributes:
        nodeid: Its name in the report.
        seed: What every rank starts from.
        expects_failure: A failure is what the test is marked to come to (xfail).
    """

    nodeid: str
    seed: int
    expects_failure: bool = False


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of one rank among those that are started together.

    Attributes:
        results: Folder of its files.
        commands: Descriptor that the launching process's commands come from.
        reports: Descriptor that reports go to.
    """

    rank: int
    world_size: int
    results: Path
    commands: int
    reports: int


class LaunchedRank:
    """What a rank does besides its test: events for the report, and reports to the launching process.

    Args:
        place: Its place.
    """

    def __init__(self, place: Place) -> None:
        self.number = place.rank
        self.world_size = place.world_size
        self._place = place
        self._events = EventLog(rank_events(place.results, place.rank))
        self._running: RankTerms | None = None
        self._began = 0.0
        self._told: Exception | None = None
        self._imports = ImportWatch()

    def start(self, terms: RankTerms, body: Callable[[], object]) -> bool:
        """Do what comes before the first test, whose trouble this rank's is; returns whether it went well."""
        phase, error = _attempt("setup", body)
        if phase.outcome is not Outcome.PASSED:
            self._begin(terms)
            self._conclude(terms, phase)
        self._report(phase, error)
        return phase.outcome is Outcome.PASSED

    def run(self, terms: RankTerms, body: Callable[[], object]) -> Outcome:
        """Run one test to its end."""
        self._begin(terms)
        self._running, self._told, self._began = terms, None, time.monotonic()
        # The launching process has set the test up; of a rank that hangs it is then said that it did so in the call.
        self._write_phase(terms, Phase(when="setup", outcome=Outcome.PASSED, duration=0.0))
        os.environ["ALLRANKS_SEED"] = str(terms.seed)
        seed_everything(terms.seed)
        phase, error = _attempt("call", body)
        self._conclude(terms, phase, is_told=error is not None and error is self._told)
        self._report(phase, error)
        return phase.outcome

    def tell(self, error: Exception) -> None:
        """Say at once that the running test has gone wrong, before it cleans up."""
        if self._running is None:
            return
        self._told = error
        phase = _ended_by(error, "call", time.monotonic() - self._began)
        self._write_phase(self._running, phase)
        flush_output()
        self._report(phase, error, is_final=False)

    def end(self, terms: RankTerms, body: Callable[[], object]) -> None:
        """Do what comes after the last test, whose trouble this rank's is."""
        phase, error = _attempt("teardown", body)
        if phase.outcome.is_bad:
            self._conclude(terms, phase)
        self._report(phase, error)

    def commands(self) -> Iterator[Run | End]:
        """What the launching process says, as it comes."""
        with os.fdopen(self._place.commands, "rb") as lines:
            yield from map(decode_command, lines)

    def _begin(self, terms: RankTerms) -> None:
        self._events.write(
            "test_started", nodeid=terms.nodeid, rank=self.number, world_size=self.world_size, seed=terms.seed
        )

    def _conclude(self, terms: RankTerms, phase: Phase, *, is_told: bool = False) -> None:
        if not is_told:
            self._write_phase(terms, phase)
        flush_output()
        self._events.write("test_finished", nodeid=terms.nodeid, outcome=phase.outcome)

    def _write_phase(self, terms: RankTerms, phase: Phase) -> None:
        written = _as_expected(phase) if terms.expects_failure else phase
        self._events.write("phase", nodeid=terms.nodeid, rank=self.number, **written.fields())

    def _report(self, phase: Phase, error: BaseException | None, *, is_final: bool = True) -> None:
        report = Report(outcome=phase.outcome, message=phase.message, is_symptom=is_symptom(error), is_final=is_final)
        if is_final:
            report = replace(report, imported=self._imports.take())
        send_report(self._place.reports, report)


def forget_rank() -> None:
    """Take what tells one rank from another out of this process's environment."""
    for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        os.environ.pop(name, None)


def be_launched_rank(place: Place, work: Callable[[LaunchedRank], int], variables: Mapping[str, str]) -> NoReturn:
    """Be a rank until `work` is done. Never returns: the fork must not run the launching process's code.

    Args:
        place: Its place.
        work: What it does; returns the exit status.
        variables: What its environment has besides.
    """

    def work_alone() -> int:
        # To look for garbage in what the launching process had made would only copy its memory.
        gc.freeze()
        # Threads of OpenMP do not survive a fork, and a team that the launching process had made would be waited for.
        torch.set_num_threads(1)
        return work(LaunchedRank(place))

    environment = {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_WORLD_SIZE": str(place.world_size),
        **variables,
    }
    live(work_alone, stacks=place.results / f"rank-{place.rank}.stacks.txt", environment=environment)


def _attempt(when: str, body: Callable[[], object]) -> tuple[Phase, BaseException | None]:
    began = time.monotonic()
    try:
        body()
    except BaseException as error:  # noqa: BLE001 - whatever a test raises is its result
        return _ended_by(error, when, time.monotonic() - began), error
    return Phase(when=when, outcome=Outcome.PASSED, duration=time.monotonic() - began), None


def _ended_by(error: BaseException, when: str, duration: float) -> Phase:
    """The phase that an exception ended."""
    skip = _skip_of(error)
    if skip is not None:
        kind, code, reason = skip
        return Phase(
            when=when,
            outcome=Outcome.SKIPPED,
            duration=duration,
            message=shorten(reason, MESSAGE_LIMIT),
            text=shorten(reason),
            skip_kind=kind,
            skip_code=code,
        )
    info = pytest.ExceptionInfo.from_exception(error)
    lines = (line for line in info.exconly(tryshort=True).splitlines() if line.strip())
    return Phase(
        when=when,
        outcome=_outcome(error, when),
        duration=duration,
        message=shorten(next(lines, ""), MESSAGE_LIMIT),
        text=shorten(str(info.getrepr(style="long", tbfilter=_tests_frames))),
    )


def _tests_frames(info: pytest.ExceptionInfo[BaseException]) -> Traceback:
    """The traceback without frames of allranks and of unittest; all of it where nothing else is there."""
    frames = info.traceback.filter(
        lambda frame: "/allranks/" not in str(frame.path) and "__unittest" not in frame.frame.f_globals
    )
    return frames or info.traceback


def _skip_of(error: BaseException) -> tuple[SkipKind, int | None, str] | None:
    coded = skip_with_code(error)
    if coded is None and isinstance(error, unittest.SkipTest | pytest.skip.Exception):
        return SkipKind.PLAIN, None, str(error)
    return coded


def _outcome(error: BaseException, when: str) -> Outcome:
    if isinstance(error, SystemExit | KeyboardInterrupt | pytest.exit.Exception):
        return Outcome.CRASHED
    if isinstance(error, pytest.xfail.Exception):
        return Outcome.XFAILED
    return Outcome.FAILED if when == "call" else Outcome.ERRORED


def _as_expected(phase: Phase) -> Phase:
    match phase.outcome:
        case Outcome.FAILED:
            return replace(phase, outcome=Outcome.XFAILED)
        case Outcome.PASSED if phase.when == "call":
            return replace(phase, outcome=Outcome.XPASSED)
    return phase
