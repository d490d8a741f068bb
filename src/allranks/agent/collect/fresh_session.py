"""The pytest session of a rank in a new process: it collects the gang's files, and becomes the rank."""

import os
import sys
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from allranks.agent.collect.fresh_rank import Failures, FreshRank
from allranks.agent.collect.pytest_options import process_of_rank
from allranks.agent.collect.pytest_session import ServerPlugin, exit_status
from allranks.agent.environment_skips import watch_for_sandcastle_skips
from allranks.protocol.outcomes import named
from allranks.protocol.parameter_values import REMEDY, changes


class FreshSession(ServerPlugin):
    """Collects only the gang's files, and then runs as a rank.

    Args:
        outputs: File descriptors that become its standard output and error after collection.
    """

    def __init__(self, rank: FreshRank, failures: Failures, outputs: Sequence[int]) -> None:
        super().__init__(rank.start.config, rank.start.folders, failures)
        self._rank = rank
        self._outputs = outputs
        self._indices = {nodeid: index for index, nodeid in rank.request.fresh.items()}
        self._code = rank.start.folders.code
        self._files = {self._code / nodeid.partition("::")[0] for nodeid in self._indices}

    def run(self) -> None:
        """Collect, and run as the rank; returns only if that fails."""
        os.chdir(self._code)
        with watch_for_sandcastle_skips():
            pytest.main(self.arguments, plugins=[self])

    def _separate_paths(self, config: pytest.Config) -> None:
        """Give this rank its own paths; the fork server has already handled ``--cache-clear``."""
        self._paths.replace(config, process_of_rank(self._rank.request.gang, self._rank.rank))
        config.option.cacheclear = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> Generator[None, None, None]:
        """Keep the other ranks' coverage data, which a new session would delete."""
        early_config.known_args_namespace.cov_append = True
        self._measurement.begin(early_config)
        return (yield)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Ignore the files of other tests."""
        return True if collection_path not in self._files and collection_path.is_file() else None

    def _check_fork_safety(self, nodeid: str, cause: str) -> None:
        """Do nothing: this process does not fork, so it may have threads."""

    def _select(self, session: pytest.Session) -> None:
        """Do nothing: the fork server has already selected the tests."""

    def _report_collection(self) -> None:
        """Compare the parameter values with the fork server's, which has already reported the collection."""
        if other := changes(self._rank.digests, self._digests).other_values:
            self._fail(
                other[0],
                "This rank runs in a new process, and its parameter values differ from those in the process that "
                f"collected the suite: {named(other)}. {REMEDY}",
            )

    def _serve(self, session: pytest.Session) -> None:
        if self._has_failed or self._uncollected:
            return
        sys.stdout.flush()
        sys.stderr.flush()
        for target, descriptor in enumerate(self._outputs, start=1):
            os.dup2(descriptor, target)
            os.close(descriptor)
        self._paths.make(session.config)
        assignment = self._assignment(self._rank.request, self._rank.rank, self._rank.connection, self._rank.call_log)
        items = {self._indices[item.nodeid]: item for item in session.items if item.nodeid in self._indices}
        end_session = partial(_finish, session)
        self._run_rank(session, replace(assignment, items=items, end_session=end_session))


def _finish(session: pytest.Session, own: int) -> int:
    """Call ``pytest_sessionfinish`` in conftest files, so that they stop what they started in this process.

    Returns the exit status that they set or exited with, by default `own`, the rank's own status.
    """
    manager = session.config.pluginmanager
    others = [plugin for plugin in manager.get_plugins() if not _is_conftest(plugin)]
    session.exitstatus = own
    try:
        manager.subset_hook_caller("pytest_sessionfinish", others)(session=session, exitstatus=own)
    except (SystemExit, pytest.exit.Exception) as left:
        return exit_status(left, own)
    return int(session.exitstatus)


def _is_conftest(plugin: object) -> bool:
    return Path(str(getattr(plugin, "__file__", ""))).name == "conftest.py"
