"""Finds the delays that failures need, by further repetitions on the job's own gangs after the regular ones."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from allranks.agent import evidence
from allranks.agent.channel import RunTest
from allranks.agent.program import Program
from allranks.agent.supervisor.test_loop import RepetitionRecord
from allranks.plugins.stress.agent.settings import Stress
from allranks.plugins.stress.agent.shrinking import sentence, shrink
from allranks.plugins.stress.agent.skew import (
    LEVELS,
    Delay,
    drawn_delays,
    format_delays,
    format_outside,
    max_delay,
    milliseconds,
    parse_delays,
)
from allranks.plugins.stress.agent.stress_run import Repetitions, seconds_of, was_bad
from allranks.protocol.config import AgentConfig, TimeLimit
from allranks.protocol.records import GangReady, GangStarted, LeftBehind, Notice, TestStarted
from allranks.protocol.repetitions import OFF

SEARCH: Final = 180.0
"""Seconds for all searches of a job."""

CONFIRM: Final = 30.0
"""Seconds for the repetitions that confirm one result."""

_CALIBRATION: Final = 3
"""Repetitions without delays that measure how long a passing repetition takes."""

_MARGIN, _FACTOR = 1.0, 5.0
"""A repetition probably hangs if it takes longer than this margin in seconds, plus this factor times the duration of a
passing repetition, plus its delays."""

_TAIL: Final = 1 << 18
"""Bytes at the end of a rank's log that contain the delays of its last repetition."""


class Trials:
    """Repetitions of one test for a search, with different delays each time.

    Args:
        failed: The repetition whose seed they use.
        index: The index of the test.
        shares_ranks: False if each repetition needs new ranks.
        run_gang: Runs some of them on a gang.
        results: The folder of the ranks' logs.

    Attributes:
        locations: The locations of a result's delays, as its ranks have logged them.
        shown: The ends of the last repetition that failed with the delays of the result.
    """

    def __init__(
        self,
        failed: TestStarted,
        index: int,
        *,
        shares_ranks: bool,
        run_gang: "Callable[[Trials, int], None]",
        results: Path,
    ) -> None:
        self.locations: dict[str, str] = {}
        self.shown: Sequence[RepetitionRecord] = ()
        self._failed = failed
        self._index = index
        self._shares_ranks = shares_ranks
        self._run_gang = run_gang
        self._results = results
        self._last_bad: Sequence[RepetitionRecord] = ()
        self._skew = ""
        self._begun = self._runs = self._bad = self._tries = self._enough = 0
        self._until = self._slowest = 0.0

    def limited(self, program: Program) -> Program:
        """The program with a shorter limit for its test, once the duration of a passing repetition is known."""
        if not self._slowest:
            return program
        options = list(program.options)
        value = round(_MARGIN + _FACTOR * self._slowest + max_delay(self._skew, 1), 1)
        if value < options[self._index].limit.seconds:
            limit = TimeLimit(value=value, setting="the limit of this search")
            options[self._index] = replace(options[self._index], limit=limit)
        return replace(program, options=tuple(options))

    def calibrate(self, until: float) -> None:
        """Measure how long a passing repetition takes."""
        self.count_until(until)(OFF, _CALIBRATION, 1)

    def count_until(self, until: float) -> Callable[[str, int, int], tuple[int, int]]:
        """A count for a search (see :mod:`allranks.plugins.stress.agent.shrinking`) that stops at this time."""

        def count(skew: str, tries: int, enough: int) -> tuple[int, int]:
            self._skew, self._tries, self._enough, self._until = skew, tries, enough, until
            self._begun = self._runs = self._bad = 0
            while self._continues:
                self._run_gang(self, self._index)
            return self._bad, self._runs

        return count

    def confirm(self, skew: str, tries: int, enough: int) -> tuple[int, int]:
        """Count for the result of a search, and keep a failed repetition to show."""
        counts = self.count_until(time.monotonic() + CONFIRM)(skew, tries, enough)
        if skew != OFF:
            self.shown, self.locations = self._last_bad, _locations(parse_delays(skew), self._results)
        return counts

    def delays_made(self, delays: Sequence[Delay]) -> Sequence[Delay]:
        """The delays that ranks have logged at the end of their output, and those by the supervisor."""
        logged = _locations(delays, self._results)
        return [delay for delay in delays if str(delay) in logged or not delay.is_at_call]

    @property
    def _continues(self) -> bool:
        return self._begun < self._tries and self._bad < self._enough and time.monotonic() < self._until

    def steps(self, _: Sequence[int]) -> Iterator[tuple[int, int]]:
        yield self._index, self._index
        while self._shares_ranks and self._continues:
            yield self._index, self._index

    def begin(self, _: int) -> int:
        self._begun += 1
        return self._failed.number

    def drawn(self, command: RunTest, _: int) -> RunTest:
        return replace(command, seed=self._failed.seed, instructions=self._skew)

    def disturbance(self, command: RunTest, ranks: int, *, is_joining: bool) -> str:
        return format_outside(command.instructions, command.seed, ranks, is_joining=is_joining)

    def take(self, started: TestStarted, ends: Sequence[RepetitionRecord]) -> None:
        if (bad := was_bad(started, ends)) is not None:
            self._runs, self._bad = self._runs + 1, self._bad + bad
        if bad:
            self._last_bad = ends
        elif bad is not None and self._skew == OFF:
            self._slowest = max(self._slowest, seconds_of(ends))

    def note(self, record: GangStarted | GangReady | LeftBehind | Notice) -> None:
        """Ignore it: the regular repetitions have already reported such records."""


def shrink_failures(  # noqa: PLR0913, PLR0917 - one call
    repetitions: Repetitions,
    stress: Stress,
    program: Program,
    config: AgentConfig,
    results: Path,
    run_gang: Callable[[Trials, int], None],
) -> None:
    """Find and report the delays that each test's most frequent failure needs, if there is enough time.

    Args:
        repetitions: The job's repetitions, which have ended.
        stress: Their settings.
        program: Their tests.
        config: The configuration of the job.
        results: The folder of the ranks' logs.
        run_gang: Runs trials of a test on a gang.
    """
    skew, until = stress.skew, time.monotonic() + SEARCH
    for failed in repetitions.typical_failures() if skew in LEVELS else ():
        index = program.tests.index(failed.nodeid)
        options, delays = program.options[index], drawn_delays(skew, failed.seed, config.world_size)
        if options.launches or config.launches_ranks or not delays or time.monotonic() >= until:
            continue
        trials = Trials(failed, index, shares_ranks=options.shares_ranks, run_gang=run_gang, results=results)
        trials.calibrate(until)
        shrunk = shrink(delays, trials.count_until(until), trials.confirm, trials.delays_made)
        shown = trials.shown if shrunk.delays else ()
        repetitions.explain(failed, sentence(shrunk, trials.locations), format_delays(shrunk.delays), shown)


def _locations(delays: Sequence[Delay], results: Path) -> dict[str, str]:
    """The locations of delays, by the delays' text: ``before allreduce (call 2 at test_x.py:41)``."""
    found = {}
    logs = {rank: evidence.read_end(results / f"rank-{rank}.log", _TAIL) for rank in {delay.rank for delay in delays}}
    for delay in delays:
        prefix = re.escape(f"--skew: {milliseconds(delay.seconds)} ms {delay.kind} ")
        line = re.compile(rf"{prefix}(?P<what>\S.*) \(call {delay.call}(?P<where> .*)?\)$", re.MULTILINE)
        if matches := list(line.finditer(logs[delay.rank])):
            where = f"{f'call {delay.call}' if delay.call else ''}{matches[-1]['where'] or ''}".strip()
            found[str(delay)] = f"{delay.kind} {matches[-1]['what']}{where and f' ({where})'}"
    return found
