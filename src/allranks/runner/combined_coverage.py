"""Combines the coverage data of a run's jobs into one ``.coverage``, and writes reports.

It uses coverage.py from allranks' own environment, or else from ``process.python``.
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
"""The path of the matrix file's folder in a container."""

_REPORTS: Final = {"xml": "coverage.xml", "json": "coverage.json", "lcov": "coverage.lcov", "html": "htmlcov"}
_TIMEOUT: Final = 300.0
_FIND: Final = "import importlib.util, sys; sys.exit(importlib.util.find_spec('coverage') is None)"


@dataclass(frozen=True, kw_only=True)
class CoverageOptions:
    """The reports that pytest-cov's options request."""

    config: str = ""  # coverage.py's configuration file; empty for its default
    reports: tuple[tuple[str, str], ...] = ()  # kinds of reports and their paths; an empty path for the default
    show_missing: bool = False  # the table has the lines that did not run
    skip_covered: bool = False  # the table omits files that ran completely


def parse_options(arguments: Iterable[str]) -> CoverageOptions:
    """Parse pytest-cov's options, except for those in pytest's ``addopts``, which are unknown here."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--cov-config", nargs="?", default="")
    parser.add_argument("--cov-report", nargs="?", action="append", default=[], const="")
    parsed, _ = parser.parse_known_args(list(arguments))
    reports = [report.partition(":")[::2] for report in parsed.cov_report]
    modifiers = {word for report in reports if report[0] not in _REPORTS for word in report}
    return CoverageOptions(
        config=parsed.cov_config or "",
        reports=tuple({kind: path for kind, path in reports if kind in _REPORTS}.items()),
        show_missing="term-missing" in modifiers,
        skip_covered="skip-covered" in modifiers,
    )


def data_files(run: Path, jobs: Iterable[Job]) -> list[Path]:
    """The coverage data of the newest attempts at these jobs."""
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
    """Combine the coverage data of a run's jobs, if any.

    ``.coverage`` is written next to the matrix file; the paths of reports are relative to its folder.
    """
    files = data_files(run, jobs)
    if not files:
        return
    interpreter = next((path for path in (sys.executable, matrix.process.python) if path and _has_coverage(path)), None)
    if interpreter is None:
        say(f"coverage: each job's data is in its folder {COVERAGE!r}. To combine it: pip install coverage")
        return
    options = parse_options([*(argument for job in jobs for argument in job.suite.pytest_args), *arguments])
    try:
        (run / COVERAGE).mkdir(exist_ok=True)
        done = _run(interpreter, matrix.root, _request(run / COVERAGE, matrix.root, files, options))
        if done.returncode == 0:
            shutil.copyfile(run / COVERAGE / DATA, matrix.root / DATA)
    except (OSError, subprocess.TimeoutExpired) as error:
        say(f"coverage: the data of the jobs could not be combined: {error}")
        return
    if done.returncode == 0:
        say(f"coverage of all jobs and ranks, in {DATA}:\n{done.stdout.rstrip()}\n")
    else:
        why = (done.stderr.strip().splitlines() or ["unknown error"])[-1]
        say(f"coverage: the data of the jobs could not be combined: {why}")


def _request(folder: Path, root: Path, files: Sequence[Path], options: CoverageOptions) -> dict[str, Any]:
    return {
        "data": str((folder / DATA).resolve()),
        "config": options.config or True,
        "paths": {"allranks": [str(root.resolve()), _IN_CONTAINERS]},
        "files": [str(file) for file in files],
        "reports": [(kind, str(root / path if path else folder / _REPORTS[kind])) for kind, path in options.reports],
        "show_missing": options.show_missing or None,
        "skip_covered": options.skip_covered or None,
    }


def _run(interpreter: str, root: Path, request: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [interpreter, str(Path(__file__).with_name("coverage_script.py"))],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        cwd=root,
        timeout=_TIMEOUT,
        check=False,
    )


def _has_coverage(interpreter: str) -> bool:
    try:
        return subprocess.run([interpreter, "-c", _FIND], check=False, timeout=_TIMEOUT).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
