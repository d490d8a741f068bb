"""Runs that would begin are made up."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

TEST = "suite/test_tiny.py::test_y"


@dataclass
class FakeRuns:
    """A run that repeats a test, without one: what each job comes to is made up, and reported as by a real run.

    Attributes:
        rate_of: Gives a matrix and a job a rate of failure; a text is the reason why the test has no outcome there.
        names: Node ids of the selected tests.
        asked: The jobs and options of each run.
    """

    rate_of: Any = lambda _matrix, _job: 0.0
    names: tuple[str, ...] = (TEST,)
    code: int = 1
    asked: list[tuple[list[str], Any]] = field(default_factory=list)
    seen: float = 0.0

    def __call__(self, expansion, jobs, options, say):
        say("a line of the run")
        self.asked.append(([job.id for job in jobs], options))
        folder = options.results / options.run_id
        folder.mkdir(parents=True)
        suites = [self._suite(expansion.matrix, job, options) for job in jobs]
        (folder / "report.json").write_text(json.dumps({"suites": suites}))
        return self.code

    def _fails(self, rate):
        """As often as the rate says, at regular intervals."""
        self.seen += rate
        is_due = self.seen >= 1
        self.seen -= is_due
        return is_due

    def _suite(self, matrix, job, options):
        rate = self.rate_of(matrix, job)
        return {
            "cell": job.cell.id,
            "suite": job.name,
            "tests": [self._test(rate, name, options) for name in self.names],
        }

    def _test(self, rate, name, options):
        if rate == "skipped":
            return {"nodeid": name, "verdict": "skipped", "message": "no GPU", "repetitions": {"bad": 0, "runs": 1}}
        if isinstance(rate, str):
            return {"nodeid": "(job)", "verdict": "error", "executed": True, "message": f"{rate}\nmore"}
        bad = runs = 0
        while runs < options.policy.plugins["stress"]["count"] and not (bad and "-x" in options.pytest_args):
            runs, bad = runs + 1, bad + self._fails(rate)
        report = {"bad": bad, "runs": runs}
        return {"nodeid": name, "verdict": "failure" if bad else "passed", "executed": True, "repetitions": report}

    @property
    def counts(self):
        """How often each run was to repeat the test."""
        return [options.policy.plugins["stress"]["count"] for _, options in self.asked]


@pytest.fixture
def fake_runs():
    """The class of runs that are made up."""
    return FakeRuns
