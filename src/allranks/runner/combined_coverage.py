"""Coverage of a run: combines its jobs' data into one ``.coverage``, and writes reports.

Coverage.py does it: that of allranks' own environment or, where that has none, of ``process.python``.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from allranks.matrix.model import Job, Matrix
from allranks.protocol.config import COVERAGE
from allranks.report.untrusted import listing
from allranks.runner.retry_policy import newest_attempt

DATA: Final = ".coverage"

_IN_CONTAINERS: Final = "/job/code"
"""Where the code of the matrix file's folder is in a container."""

_REPORTS: Final = {"xml": "coverage.xml", "json": "coverage.json", "lcov": "coverage.lcov", "html": "htmlcov"}
_PATIENCE: Final = 300.0
_FIND: Final = "import importlib.util, sys; sys.exit(importlib.util.find_spec('coverage') is None)"


@dataclass(frozen=True, kw_only=True)
class CoverageOptions:
    """The reports that the arguments for pytest-cov request."""

    config: str = ""  # coverage's configuration file; empty for the one that it finds
    # The kinds of reports, each with the path that the user names; an empty path for none.
    reports: tuple[tuple[str, str], ...] = ()
    show_missing: bool = False  # the table has the lines that did not run
    skip_covered: bool = False  # the table omits files that ran completely


def wishes_of(arguments: Iterable[str]) -> CoverageOptions:
    """The options on the command line and in the matrix file; pytest's ``addopts`` are unknown here."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--cov-config", nargs="?", default="")
    parser.add_argument("--cov-report", nargs="?", action="append", default=[], const="")
    said, _ = parser.parse_known_args(list(arguments))
    wanted = [report.partition(":")[::2] for report in said.cov_report]
    modifiers = {word for kind, more in wanted if kind not in _REPORTS for word in (kind, more)}
    return CoverageOptions(
        config=said.cov_config or "",
        reports=tuple({kind: more for kind, more in wanted if kind in _REPORTS}.items()),
        show_missing="term-missing" in modifiers,
        skip_covered="skip-covered" in modifiers,
    )


def data_of(run: Path, jobs: Iterable[Job]) -> list[Path]:
    """The data files of the newest attempts at these jobs."""
    found: list[Path] = []
    for job in jobs:
        attempt = newest_attempt(run, job)
        folder = run.resolve() / attempt.folder / COVERAGE if attempt else None
        if folder is not None and folder.is_dir() and not folder.is_symlink():
            files = (path for path in listing(folder) if path.name.startswith("data"))
            found += (path for path in files if path.is_file() and not path.is_symlink())
    return found


def combine(
    matrix: Matrix, run: Path, jobs: Sequence[Job], arguments: Sequence[str], say: Callable[[str], None]
) -> None:
    """Combine the coverage data of a run's jobs; do nothing if there is none.

    ``.coverage`` goes beside the matrix file, as do reports whose path the user names.
    """
    files = data_of(run, jobs)
    if not files:
        return
    interpreter = next((each for each in (sys.executable, matrix.process.python) if each and _has_coverage(each)), None)
    if interpreter is None:
        say(f"coverage: each job's data is in its folder {COVERAGE!r}. To combine it: pip install coverage")
        return
    wishes = wishes_of([*(argument for job in jobs for argument in job.suite.pytest_args), *arguments])
    try:
        (run / COVERAGE).mkdir(exist_ok=True)
        done = _run(interpreter, matrix.root, _request(run / COVERAGE, matrix.root, files, wishes))
        if done.returncode == 0:
            shutil.copyfile(run / COVERAGE / DATA, matrix.root / DATA)
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"coverage: the data of the jobs could not be combined: {error}")
        return
    if done.returncode == 0:
        say(f"coverage over all jobs and ranks, in {DATA}:\n{done.stdout.rstrip()}\n")
    else:
        why = (done.stderr.strip().splitlines() or ["it gives no reason"])[-1]
        say(f"coverage: the data of the jobs could not be combined: {why}")


def _request(folder: Path, root: Path, files: Sequence[Path], wishes: CoverageOptions) -> dict[str, Any]:
    named = [(kind, str(root / place) if place else str(folder / _REPORTS[kind])) for kind, place in wishes.reports]
    return {
        "data": str((folder / DATA).resolve()),
        "config": wishes.config or True,
        "paths": {"allranks": [str(root.resolve()), _IN_CONTAINERS]},
        "files": [str(file) for file in files],
        "reports": named,
        "show_missing": wishes.show_missing or None,
        "skip_covered": wishes.skip_covered or None,
    }


def _run(interpreter: str, root: Path, request: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [interpreter, str(Path(__file__).with_name("coverage_script.py"))],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        cwd=root,
        timeout=_PATIENCE,
        check=False,
    )


def _has_coverage(interpreter: str) -> bool:
    try:
        return subprocess.run([interpreter, "-c", _FIND], check=False, timeout=_PATIENCE).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
