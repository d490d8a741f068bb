"""pytest-cov in a job: the data of all ranks is combined, and its files are in the results folder.

pytest-cov itself measures, combines and reports. This module only sets its paths, because the code may be read-only,
and concurrent jobs would overwrite each other's files.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from allranks.protocol.config import COVERAGE, EARLIER_COVERAGE, AgentConfig, Folders

DATA: Final = "data"
"""The file in the coverage folder with the data of the whole job; its name is the prefix of each process's file."""

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
"""The default file or folder of each report."""


class Measurement:
    """Sets the paths of pytest-cov in a job, if the user requested a measurement."""

    def __init__(self, config: AgentConfig, folders: Folders) -> None:
        self._config = config
        self._folder = folders.results / COVERAGE
        self._earlier = folders.results / EARLIER_COVERAGE
        self.is_requested = False

    def begin(self, early_config: pytest.Config) -> None:
        """Set the path of the data file before the measurement starts."""
        options = early_config.known_args_namespace
        if not getattr(options, "cov_source", None) or getattr(options, "no_cov", False):
            return
        self.is_requested = True
        self._folder.mkdir(exist_ok=True)
        # In coverage.py the environment takes precedence. Absolute: a process in another folder must use the same file.
        os.environ["COVERAGE_FILE"] = str(self._folder / DATA)

    def redirect(self, config: pytest.Config) -> None:
        """Redirect reports to the results folder, and add the data of an earlier attempt."""
        if (plugin := _plugin(config)) is None:
            return
        if plugin.options.cov_fail_under and (why := self._why_partial()):
            msg = (
                f"--cov-fail-under (or fail_under) does not work with {why}. Remove it, or run `coverage combine` and "
                "`coverage report --fail-under` on the files in the `coverage` folders of all jobs."
            )
            raise pytest.UsageError(msg)
        for number, path in enumerate(sorted(self._earlier.glob(f"{DATA}*"))):
            path.rename(self._folder / f"{DATA}.earlier-{number}")
        shutil.rmtree(self._earlier, ignore_errors=True)
        reports = plugin.options.cov_report
        if isinstance(reports, dict):
            for kind in reports.keys() & _DEFAULTS.keys():
                reports[kind] = str(self._folder / Path(reports[kind] or _DEFAULTS[kind]).name)

    def _why_partial(self) -> str:
        if self._config.share is not None:
            return "a suite that is split into shards, each of which measures only its own tests"
        if self._config.nodes > 1:
            return "a job on several nodes, each of which measures only its own ranks"
        return ""

    def finish(self, session: pytest.Session, bad_tests: int) -> str:
        """Save the terminal report; return a message if coverage is too low, else an empty string.

        If coverage is too low, pytest-cov adds one failure to those of the tests.
        """
        plugin = _plugin(session.config)
        if plugin is None or plugin.cov_total is None:
            return ""
        if report := plugin.cov_report.getvalue():
            (self._folder / _TERMINAL).write_text(report, encoding="utf-8", errors="backslashreplace")
        limit = plugin.options.cov_fail_under
        if not limit or session.testsfailed <= bad_tests:
            return ""
        return f"Coverage over all ranks of this job is {plugin.cov_total:.2f}%, less than --cov-fail-under={limit:g}."


def _plugin(config: pytest.Config) -> Any:  # noqa: ANN401 - pytest-cov's, which has no types
    """The plugin that pytest-cov registers when it measures; None if it does not."""
    plugin = config.pluginmanager.get_plugin("_cov")
    return plugin if getattr(plugin, "cov_controller", None) is not None else None
