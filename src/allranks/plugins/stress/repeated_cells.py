"""Repeats one test in cells, round after round, and counts how often it failed in each."""

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
from allranks.plugins.stress.command import with_gangs, with_time
from allranks.runner.results_folder import new_run_id

if TYPE_CHECKING:
    from allranks.plugins.stress.bisect import Options

_FIRST: Final = 10
"""Repetitions of a first round; each further one has as many as all before it."""

ENOUGH: Final = 5
"""Failures after which a rate is known: more of them would save few repetitions elsewhere."""

_MANY: Final = 20
"""Failures after which more of them tell nothing: a rate is right to a third."""


@dataclass(kw_only=True)
class Counted:
    """How a test has fared in a job.

    Attributes:
        nodeid: The test's node id; empty before it has an outcome.
        why: Why it has no outcome, if it has none.
    """

    job: Job
    bad: int = 0
    runs: int = 0
    nodeid: str = ""
    why: str = ""

    @property
    def is_settled(self) -> bool:
        """True if more repetitions tell nothing."""
        return bool(self.why) or self.bad >= _MANY


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What repeats a test.

    Attributes:
        expansion: The matrix; its folder has the tests.
        options: Those of the command line.
        results: The folder of all runs.
    """

    expansion: Expansion
    options: "Options"
    results: Path

    def repeat(self, counted: Iterable[Counted], count: int, *, until_failure: bool = False) -> ExitCode:
        """Repeat the test so often in each of these jobs, and add what comes of it; return the run's exit code.

        Raises:
            RunInterrupted: The run was interrupted.
            UsageError: More than one test is selected.
        """
        by_id = {each.job.id: each for each in counted}
        options, stress = self.options, Stress(count=count, skew=self.options.skew)
        jobs = [with_gangs(each.job, options.gangs, options.engine) for each in by_id.values()]
        expansion = with_time(self.expansion, stress, jobs)
        shared = run_options(expansion, replace(options, plugins={"stress": asdict(stress)}))
        asked = replace(
            shared,
            run_id=(run := new_run_id()),
            results=self.results,
            pytest_args=("-x", *options.pytest_args) if until_failure else options.pytest_args,
            policy=replace(shared.policy, fail_fast=False),
        )
        with redirect_stdout(_printed(options)):
            code = run_jobs(expansion, jobs, asked)
        if code is ExitCode.INTERRUPTED:
            raise RunInterrupted
        report = json.loads((self.results / run / "report.json").read_text(encoding="utf-8"))
        for suite in report["suites"]:
            if each := by_id.get(f"{suite['cell']}/{suite['suite']}"):
                _add(each, suite["tests"])
        return code


def jobs_of_one_suite(expansion: Expansion, jobs: Sequence[Job]) -> list[Job]:
    """The jobs that have the test, each with all of its suite.

    Raises:
        UsageError: They are of several suites.
    """
    suites = list(dict.fromkeys(job.suite.name for job in jobs))
    if len(suites) > 1:
        msg = f"The test is in several suites: {', '.join(suites)}."
        raise UsageError(msg, why="Each runs it in its own way.", remedy=f"Name one of them: --suite {suites[0]}")
    cells = list(dict.fromkeys(job.cell for job in jobs))
    return [replace(job, shard=None) for job in plan(expansion.matrix, cells, suites) if _is_first(job)]


def repeat_until(is_enough: Callable[[], bool], trial: Trial, counted: Sequence[Counted]) -> ExitCode:
    """Repeat the test, each time as often as in all rounds before, until it is enough; the last run's exit code."""
    count, done = min(_FIRST, trial.options.most), 0
    while True:
        code = trial.repeat(open_ones := [each for each in counted if not each.is_settled], count)
        before, done = done, max(each.runs for each in open_ones)
        count = min(done, trial.options.most - done)
        if done == before or count <= 0 or is_enough() or all(each.is_settled for each in counted):
            return code


def most_rounds(most: int) -> int:
    """How many rounds there are until the most repetitions are done."""
    return 1 + max(0, math.ceil(math.log2(most / _FIRST)))


def _is_first(job: Job) -> bool:
    return job.shard is None or job.shard.number == 1


def _printed(options: "Options") -> TextIO:
    """Where a run prints: nowhere, unless more is asked for; never where programs read."""
    if options.detail != "verbose":
        return io.StringIO()
    return sys.stderr if options.json else sys.stdout


def _add(each: Counted, tests: Sequence[Mapping[str, Any]]) -> None:
    told = [test for test in tests if "repetitions" in test]
    if len(told) > 1:
        names = ", ".join(test["nodeid"] for test in told[:3])
        msg = f"{len(told)} tests are selected: {names}{' and others' if len(told) > 3 else ''}."
        raise UsageError(msg, why="Each may fail for a reason of its own.", remedy="Name one: tests/test_x.py::test_y")
    for test in told:
        if test.get("executed"):
            each.nodeid = test["nodeid"]
            each.bad, each.runs = each.bad + test["repetitions"]["bad"], each.runs + test["repetitions"]["runs"]
    if not each.runs:
        # The longest message is that of an error: a test that did not run says little.
        messages = [test["message"].splitlines()[0] for test in tests if test.get("message")]
        each.why = f"{'skipped: ' if told else ''}{max(messages, key=len, default='it has no outcome')}"
