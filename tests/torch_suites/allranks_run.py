"""Runs torch's own suites by ``allranks run``, and reads what every rank's results add up to."""

import json
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from outcomes import Outcome, of_verdict
from suite_files import CELL, ROOT, SUITES, Selection, node_ids, suite_of
from torch_record import installed_torch

import allranks
from allranks.errors import AllranksError
from allranks.protocol.records import JOURNAL, Finished, Went, decode
from allranks.report.judged import CellSuite
from allranks.report.merging import merge
from allranks.report.results import VerdictRule

MATRIX: Final = """\
[matrix]
backend = ["gloo"]
world_size = [2]
init_method = ["file"]

[images.cpu]
torch = {torch}
packages = ["numpy", "expecttest"]

[process]
python = {python}

[limits]
process_group = 60
test = 300              # torch's own
job = 7200
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A suite of a matrix file that runs torch's tests.

    Attributes:
        settings: The keys of its table.
    """

    name: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What a run came to.

    Attributes:
        suites: Outcomes by suite and test, ``Class::test``.
        troubles: What the report says besides: sentences about jobs, not about tests.
        wall: Seconds of the whole command.
        tests: Seconds from an agent's turn to its last event, of all jobs together.
        output: What the command printed.
    """

    suites: Mapping[str, Mapping[str, Outcome]]
    troubles: tuple[str, ...]
    wall: float
    tests: float
    output: str


def jobs_of_suites(selection: Selection) -> list[Job]:
    """A job for each suite, as the matrix file of this repository has it."""
    return [_job_of_suite(suite, tests, _declared(suite)) for suite, tests in selection.items()]


def _declared(suite: str) -> Mapping[str, Any]:
    declared: Mapping[str, Any] = tomllib.loads((ROOT / "matrix.toml").read_text(encoding="utf-8"))["suites"][suite]
    return declared


def _job_of_suite(suite: str, tests: tuple[str, ...], declared: Mapping[str, Any]) -> Job:
    settings = {key: declared[key] for key in _TAKEN_OVER if key in declared}
    if tests:
        settings["pytest_args"] = [*settings.get("pytest_args", ()), *node_ids(suite, tests)]
    return Job(name=suite, settings=settings)


_TAKEN_OVER: Final = ("path", "isolation", "overlap", "files", "pytest_args")


def one_job(name: str, selection: Selection) -> Job:
    """One job for several suites: one agent, which imports torch once."""
    tests = [nodeid for suite, names in selection.items() for nodeid in node_ids(suite, names)]
    folder = os.path.commonpath([Path(SUITES[suite].file).parent for suite in selection])
    overlap = min(_declared(suite)["overlap"] for suite in selection)
    return Job(name=name, settings={"path": folder, "overlap": overlap, "pytest_args": tests})


def run(jobs: Iterable[Job], folder: Path, *options: str) -> Ran:
    """Run jobs by the command line, on the process engine unless an option says otherwise.

    Args:
        jobs: What to run.
        folder: Where the matrix file and the results go; it is not removed.
        options: More for ``allranks run``.
    """
    _write_repository(folder, jobs)
    results = folder / "results"
    given = ["--engine", "process", "--results", str(results), *options]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "allranks", "run", CELL, *given],
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    wall = time.monotonic() - began
    return _read(results / "latest", wall, done.stdout)


def _write_repository(folder: Path, jobs: Iterable[Job]) -> None:
    """A repository with the suites of this one, and a matrix file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "suites").symlink_to(ROOT / "suites", target_is_directory=True)
    head = MATRIX.format(torch=json.dumps(installed_torch()), python=json.dumps(sys.executable))
    (folder / "matrix.toml").write_text(head + "".join(_table(job) for job in jobs), encoding="utf-8")


def _table(job: Job) -> str:
    # What JSON writes of texts and of lists of texts, TOML reads.
    settings = "".join(f"{key} = {json.dumps(value)}\n" for key, value in job.settings.items())
    return f"\n[suites.{job.name}]\n{settings}"


def _environment() -> dict[str, str]:
    """This process's, without what nox or a caller has said about another run."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ALLRANKS_RUN", "PYTEST"))}
    path = [str(Path(allranks.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def _read(folder: Path, wall: float, output: str) -> Ran:
    judged: list[CellSuite] = []
    try:
        merge(folder, policy="skip", observers=[judged.append])
    except AllranksError as error:
        return Ran(suites={}, troubles=(error.text, output), wall=wall, tests=0.0, output=output)
    suites: dict[str, dict[str, Outcome]] = {}
    for suite, test, outcome in (test for row in judged for test in _tests(row)):
        suites.setdefault(suite, {})[test] = outcome
    return Ran(
        suites=suites,
        troubles=tuple(trouble for row in judged for trouble in _troubles(row)),
        wall=wall,
        tests=sum(map(_seconds, folder.glob(f"cells/*/*/attempt-1/{JOURNAL}"))),
        output=output,
    )


def _tests(row: CellSuite) -> Iterator[tuple[str, str, Outcome]]:
    for test in row.tests:
        suite = suite_of(test.nodeid)
        if suite is not None:
            yield suite, test.nodeid.partition("::")[2], of_verdict(test)


def _troubles(row: CellSuite) -> Iterator[str]:
    for test in row.tests:
        if suite_of(test.nodeid) is None:
            yield f"{row.name}: {test.nodeid}: {test.verdict.message or test.verdict.kind}"
        elif test.verdict.rule is VerdictRule.JOB:
            yield f"{row.name}: {test.name}: {test.verdict.message}"


def _seconds(journal: Path) -> float:
    records = (decode(line) for line in journal.read_bytes().splitlines())
    at = {type(record): record.at for record in records}
    return at[Finished] - at[Went] if at.keys() >= {Finished, Went} else 0.0
