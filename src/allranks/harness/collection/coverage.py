"""pytest-cov in a job: all ranks' data makes one figure, and lies among the results.

pytest-cov itself measures, combines, reports and decides. Here it is told where: the code may be read-only, and jobs
side by side would overwrite each other's files.
"""

import os
import shutil
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from allranks.harness.config import COVERAGE, EARLIER_COVERAGE, AgentConfig, Folders


def save_coverage() -> None:
    """Write down what coverage.py has measured in this process so far, if it measures at all.

    A fork of a process that measures does so, too. Its data has a file of its own, named after the process, beside
    that of the fork server, which combines them.
    """
    module = sys.modules.get("coverage")
    with suppress(Exception), warnings.catch_warnings():
        measuring = module.Coverage.current() if module is not None else None
        if measuring is not None:
            # What a rank has not run is no news: its peers may have.
            warnings.simplefilter("ignore")
            measuring.stop()
            measuring.save()
            measuring.start()


DATA: Final = "data"
"""The file in the folder of coverage that has the data of the whole job; those of processes begin with its name."""

_TERMINAL: Final = "report.txt"
_DEFAULTS: Final[Mapping[str, str]] = {
    "xml": "coverage.xml",
    "json": "coverage.json",
    "lcov": "coverage.lcov",
    "html": "htmlcov",
    "annotate": "annotated",
    "markdown": "coverage.md",
    "markdown-append": "coverage.md",
}
"""The file or folder of each report where the user names none."""


class Measurement:
    """What pytest-cov does in a job; nothing where it is not asked to.

    Args:
        config: The job.
        folders: Its folders.

    Attributes:
        is_asked_for: Whether it is to measure.
    """

    def __init__(self, config: AgentConfig, folders: Folders) -> None:
        self._config = config
        self._folder = folders.results / COVERAGE
        self._earlier = folders.results / EARLIER_COVERAGE
        self.is_asked_for = False

    def begin(self, early_config: pytest.Config) -> None:
        """Say where data goes, before anything is measured."""
        options = early_config.known_args_namespace
        if not getattr(options, "cov_source", None) or getattr(options, "no_cov", False):
            return
        self.is_asked_for = True
        self._folder.mkdir(exist_ok=True)
        # The environment has the last word in coverage.py; of a relative path, what works elsewhere would make another.
        os.environ["COVERAGE_FILE"] = str(self._folder / DATA)

    def redirect(self, config: pytest.Config) -> None:
        """Have reports written into the results.

        Raises:
            pytest.UsageError: No figure of this job could decide.
        """
        if (plugin := _plugin(config)) is None:
            return
        if plugin.options.cov_fail_under and (why := self._why_undecided()):
            msg = (
                f"--cov-fail-under (or fail_under) cannot decide in {why}. Take it away, or run `coverage combine` and "
                "`coverage report --fail-under` on what all jobs have left in their folders `coverage`."
            )
            raise pytest.UsageError(msg)
        for number, path in enumerate(sorted(self._earlier.glob(f"{DATA}*"))):
            path.rename(self._folder / f"{DATA}.earlier-{number}")
        shutil.rmtree(self._earlier, ignore_errors=True)
        wanted = plugin.options.cov_report
        if isinstance(wanted, dict):
            for kind in wanted.keys() & _DEFAULTS.keys():
                wanted[kind] = str(self._folder / Path(wanted[kind] or _DEFAULTS[kind]).name)

    def _why_undecided(self) -> str:
        if self._config.share is not None:
            return "a suite that is split into shards, each of which runs a part"
        if self._config.nodes > 1:
            return "a job on several nodes, each of which measures its own ranks"
        return ""

    def verdict(self, session: pytest.Session, bad_tests: int) -> str:
        """Keep the report that is for the terminal; what is to be said of a figure that is too low, else nothing.

        Args:
            session: It has one failure more than bad tests where pytest-cov has found the figure too low.
            bad_tests: How many there are.
        """
        plugin = _plugin(session.config)
        if plugin is None or plugin.cov_total is None:
            return ""
        if report := plugin.cov_report.getvalue():
            (self._folder / _TERMINAL).write_text(report, encoding="utf-8", errors="backslashreplace")
        wanted = plugin.options.cov_fail_under
        if not wanted or session.testsfailed <= bad_tests:
            return ""
        return (
            f"Coverage over all ranks of this job is {plugin.cov_total:.2f} %, and --cov-fail-under wants {wanted:g}."
        )


def _plugin(config: pytest.Config) -> Any:  # noqa: ANN401 - pytest-cov's, which has no types
    """What pytest-cov has registered where it is to measure; None where it is not."""
    plugin = config.pluginmanager.get_plugin("_cov")
    return plugin if getattr(plugin, "cov_controller", None) is not None else None
