"""Repeats one test in several cells, in rounds, and counts how often it failed in each."""

import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

from allranks.cli.run import run_jobs, run_options
from allranks.errors import ExitCode, UsageError
from allranks.interruption import RunInterrupted
from allranks.matrix.expand import Expansion
from allranks.matrix.jobs import plan
from allranks.matrix.model import Job
from allranks.plugins.stress.agent.settings import Stress
from allranks.plugins.stress.command import with_gangs, with_time_limits
from allranks.protocol.outcomes import named
from allranks.runner.results_folder import new_run_id

if TYPE_CHECKING:
    from allranks.plugins.stress.bisect import Options

_FIRST: Final = 10
"""Repetitions of the first round; each further round has as many as all rounds before it."""

ENOUGH: Final = 5
"""Failures after which a rate is known well enough: a more precise one would save few repetitions elsewhere."""

_MANY: Final = 20
"""Failures after which a test is not repeated any more: its rate is accurate to a third."""


@dataclass(kw_only=True)
class JobTally:
    """The results of a test in a job."""

    job: Job
    bad: int = 0
    runs: int = 0
    nodeid: str = ""  # empty before it has an outcome
    why: str = ""  # why it has no outcome

    @property
    def is_complete(self) -> bool:
        """True if more repetitions would not help."""
        return bool(self.why) or self.bad >= _MANY


@dataclass(frozen=True, kw_only=True)
class Repeater:
    """Repeats a test with the options of a command line."""

    expansion: Expansion  # its folder has the tests
    options: "Options"
    results: Path  # the folder of all runs

    def repeat(self, tallies: Iterable[JobTally], count: int, *, until_failure: bool = False) -> ExitCode:
        """Repeat the test `count` times in each of these jobs, add the results, and return the run's exit code.

        Raises:
            RunInterrupted: The run was interrupted.
            UsageError: More than one test is selected.
        """
        by_id = {tally.job.id: tally for tally in tallies}
        options, stress = self.options, Stress(count=count, skew=self.options.skew)
        jobs = [with_gangs(tally.job, options.gangs, options.engine) for tally in by_id.values()]
        expansion = with_time_limits(self.expansion, stress, jobs)
        shared = run_options(expansion, replace(options, plugins={"stress": asdict(stress)}))
        run_request = replace(
            shared,
            run_id=(run := new_run_id()),
            results=self.results,
            pytest_args=("-x", *options.pytest_args) if until_failure else options.pytest_args,
            policy=replace(shared.policy, fail_fast=False),
        )
        with redirect_stdout(_output_stream(options)):
            code = run_jobs(expansion, jobs, run_request)
        if code is ExitCode.INTERRUPTED:
            raise RunInterrupted
        report = json.loads((self.results / run / "report.json").read_text(encoding="utf-8"))
        for suite in report["suites"]:
            if tally := by_id.get(f"{suite['cell']}/{suite['suite']}"):
                _add(tally, suite["tests"])
        return code


def jobs_of_one_suite(expansion: Expansion, jobs: Sequence[Job]) -> list[Job]:
    """The jobs that have the test, each with its whole suite instead of a shard.

    Raises:
        UsageError: They belong to several suites.
    """
    suites = list(dict.fromkeys(job.suite.name for job in jobs))
    if len(suites) > 1:
        msg = f"The test is in several suites: {', '.join(suites)}."
        raise UsageError(msg, why="Suites may run it differently.", remedy=f"Name one of them: --suite {suites[0]}")
    cells = list(dict.fromkeys(job.cell for job in jobs))
    all_jobs = plan(expansion.matrix, cells, suites)
    return [replace(job, shard=None) for job in all_jobs if job.shard is None or job.shard.number == 1]


def repeat_until(is_enough: Callable[[], bool], repeater: Repeater, tallies: Sequence[JobTally]) -> ExitCode:
    """Repeat the test in rounds, each as long as all earlier ones, until `is_enough`; return the last exit code."""
    count, done = min(_FIRST, repeater.options.most), 0
    while True:
        code = repeater.repeat(incomplete := [tally for tally in tallies if not tally.is_complete], count)
        before, done = done, max(tally.runs for tally in incomplete)
        count = min(done, repeater.options.most - done)
        if done == before or count <= 0 or is_enough() or all(tally.is_complete for tally in tallies):
            return code


def max_rounds(most: int) -> int:
    """The number of rounds until the most repetitions are done."""
    return 1 + max(0, math.ceil(math.log2(most / _FIRST)))


def _output_stream(options: "Options") -> TextIO:
    """The stream for a run's output, which is discarded unless the user asked for details."""
    if options.detail != "verbose":
        return io.StringIO()
    return sys.stderr if options.json else sys.stdout


def _add(tally: JobTally, tests: Sequence[Mapping[str, Any]]) -> None:
    repeated = [test for test in tests if "repetitions" in test]
    if len(repeated) > 1:
        msg = f"{len(repeated)} tests are selected: {named([test['nodeid'] for test in repeated])}."
        raise UsageError(msg, why="They may fail for different reasons.", remedy="Name one: tests/test_x.py::test_y")
    for test in repeated:
        if test.get("executed"):
            tally.nodeid = test["nodeid"]
            tally.bad += test["repetitions"]["bad"]
            tally.runs += test["repetitions"]["runs"]
    if not tally.runs:
        # The longest message is that of an error; a test that did not run has a short one.
        messages = [test["message"].splitlines()[0] for test in tests if test.get("message")]
        message = max(messages, key=len, default="no result; see the job's agent.log")
        tally.why = f"{'skipped: ' if repeated else ''}{message}"
