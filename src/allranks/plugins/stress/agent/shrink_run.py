"""Shrinks the delays of failures on gangs of the job itself, once its repetitions are done."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from allranks.agent import evidence
from allranks.agent.channel import RunTest
from allranks.agent.program import Program
from allranks.agent.supervisor.test_loop import End
from allranks.plugins.stress.agent.settings import Stress
from allranks.plugins.stress.agent.shrinking import sentence, shrink
from allranks.plugins.stress.agent.skew import (
    LEVELS,
    Delay,
    delays_of,
    drawn_delays,
    milliseconds,
    outside_in,
    skew_of,
    stretch,
)
from allranks.plugins.stress.agent.stress_run import Repetitions, seconds_of, was_bad
from allranks.protocol.config import AgentConfig, TimeLimit
from allranks.protocol.records import GangReady, GangStarted, LeftBehind, Notice, TestStarted
from allranks.protocol.repetitions import OFF

SEARCH: Final = 180.0
"""Seconds for all searches of a job."""

CONFIRM: Final = 30.0
"""Seconds for the repetitions of one result."""

_LEARNED: Final = 3
"""Repetitions without delays that tell how long a good one takes."""

_LATER, _TIMES = 1.0, 5.0
"""What takes so many seconds, so many times as long as a good repetition, and its delays, hangs in all likelihood."""

_TAIL: Final = 1 << 18
"""Bytes at the end of a rank's log in which the delays of its last repetition are."""


class Trials:
    """Repetitions of one test that a search asks for, with other delays each time.

    Args:
        failed: The repetition whose seed they have.
        index: The test's.
        shares_ranks: False if each repetition has ranks of its own.
        run_gang: Runs some of them on a gang.
        results: The folder of the ranks' logs.

    Attributes:
        places: Where the delays of a result are that its ranks have told.
        shown: The ends of the last repetition that failed with them.
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
        self.places: dict[str, str] = {}
        self.shown: Sequence[End] = ()
        self._failed = failed
        self._index = index
        self._shares_ranks = shares_ranks
        self._run_gang = run_gang
        self._results = results
        self._last_bad: Sequence[End] = ()
        self._skew = ""
        self._begun = self._runs = self._bad = self._tries = self._enough = 0
        self._until = self._slowest = 0.0

    def limited(self, program: Program) -> Program:
        """The program with a limit for its test by which a hang is known early, once a good repetition is known."""
        if not self._slowest:
            return program
        terms = list(program.options)
        value = round(_LATER + _TIMES * self._slowest + stretch(self._skew, 1), 1)
        if value < terms[self._index].limit.seconds:
            limit = TimeLimit(value=value, setting="the limit of this search")
            terms[self._index] = replace(terms[self._index], limit=limit)
        return replace(program, options=tuple(terms))

    def learn(self, until: float) -> None:
        """Find out how long a good repetition takes."""
        self.count_until(until)(OFF, _LEARNED, 1)

    def count_until(self, until: float) -> Callable[[str, int, int], tuple[int, int]]:
        """A count for a search (see :mod:`allranks.plugins.stress.agent.shrinking`) that has time until then."""

        def count(skew: str, tries: int, enough: int) -> tuple[int, int]:
            self._skew, self._tries, self._enough, self._until = skew, tries, enough, until
            self._begun = self._runs = self._bad = 0
            while self._goes_on:
                self._run_gang(self, self._index)
            return self._bad, self._runs

        return count

    def confirm(self, skew: str, tries: int, enough: int) -> tuple[int, int]:
        """Count for the result of a search, and keep what shows it."""
        counted = self.count_until(time.monotonic() + CONFIRM)(skew, tries, enough)
        if skew != OFF:
            self.shown, self.places = self._last_bad, _places(delays_of(skew), self._results)
        return counted

    def made(self, delays: Sequence[Delay]) -> Sequence[Delay]:
        """Those that ranks have told of at the end of their output, and what was done from outside."""
        told = _places(delays, self._results)
        return [each for each in delays if str(each) in told or not each.is_of_a_call]

    @property
    def _goes_on(self) -> bool:
        return self._begun < self._tries and self._bad < self._enough and time.monotonic() < self._until

    def steps(self, _: Sequence[int]) -> Iterator[tuple[int, int]]:
        yield self._index, self._index
        while self._shares_ranks and self._goes_on:
            yield self._index, self._index

    def begin(self, _: int) -> int:
        self._begun += 1
        return self._failed.number

    def drawn(self, command: RunTest, _: int) -> RunTest:
        return replace(command, seed=self._failed.seed, instructions=self._skew)

    def disturbance(self, command: RunTest, ranks: int, *, is_joining: bool) -> str:
        return outside_in(command.instructions, command.seed, ranks, is_joining=is_joining)

    def take(self, started: TestStarted, ends: Sequence[End]) -> None:
        if (bad := was_bad(started, ends)) is not None:
            self._runs, self._bad = self._runs + 1, self._bad + bad
        if bad:
            self._last_bad = ends
        elif bad is not None and self._skew == OFF:
            self._slowest = max(self._slowest, seconds_of(ends))

    def note(self, record: GangStarted | GangReady | LeftBehind | Notice) -> None:
        """Ignore what the repetitions themselves have told already."""


def shrink_failures(  # noqa: PLR0913, PLR0917 - one call
    repetitions: Repetitions,
    stress: Stress,
    program: Program,
    config: AgentConfig,
    results: Path,
    run_gang: Callable[[Trials, int], None],
) -> None:
    """Find the delays that each test's most frequent failure needs, as far as there is time, and have them reported.

    Args:
        repetitions: They have ended.
        stress: How they were made.
        program: Their tests.
        config: The job's.
        results: The folder of the ranks' logs.
        run_gang: Runs trials of a test on a gang.
    """
    skew, until = stress.skew, time.monotonic() + SEARCH
    for failed in repetitions.typical_failures() if skew in LEVELS else ():
        index = program.tests.index(failed.nodeid)
        terms, delays = program.options[index], drawn_delays(skew, failed.seed, config.world_size)
        if terms.launches or config.launches_ranks or not delays or time.monotonic() >= until:
            continue
        trials = Trials(failed, index, shares_ranks=terms.shares_ranks, run_gang=run_gang, results=results)
        trials.learn(until)
        shrunk = shrink(delays, trials.count_until(until), trials.confirm, trials.made)
        shown = trials.shown if shrunk.delays else ()
        repetitions.explain(failed, sentence(shrunk, trials.places), skew_of(shrunk.delays), shown)


def _places(delays: Sequence[Delay], results: Path) -> dict[str, str]:
    """Where delays are, by their text: ``before allreduce (call 2 at test_x.py:41)``."""
    found = {}
    logs = {rank: evidence.read_end(results / f"rank-{rank}.log", _TAIL) for rank in {each.rank for each in delays}}
    for delay in delays:
        told = re.escape(f"--skew: {milliseconds(delay.seconds)} ms {delay.place} ")
        line = re.compile(rf"{told}(?P<what>\S.*) \(call {delay.call}(?P<where> .*)?\)$", re.MULTILINE)
        if matches := list(line.finditer(logs[delay.rank])):
            where = f"{f'call {delay.call}' if delay.call else ''}{matches[-1]['where'] or ''}".strip()
            found[str(delay)] = f"{delay.place} {matches[-1]['what']}{where and f' ({where})'}"
    return found
