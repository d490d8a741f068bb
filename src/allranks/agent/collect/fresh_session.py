"""The pytest session of a rank that is no fork: it collects the gang's files, and becomes the rank."""

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
    """Collects as the fork server has, but only the gang's files, and runs as a rank.

    Args:
        outputs: Descriptors that become its standard output and error when it has collected.
    """

    def __init__(self, rank: FreshRank, failures: Failures, outputs: Sequence[int]) -> None:
        super().__init__(rank.start.config, rank.start.folders, failures)
        self._rank = rank
        self._outputs = outputs
        self._numbers = {nodeid: number for number, nodeid in rank.request.fresh.items()}
        self._code = rank.start.folders.code
        self._wanted = {self._code / nodeid.partition("::")[0] for nodeid in self._numbers}

    def run(self) -> None:
        """Collect, and be the rank; returns only if that fails."""
        os.chdir(self._code)
        with watch_for_sandcastle_skips():
            pytest.main(self.arguments, plugins=[self])

    def _separate(self, config: pytest.Config) -> None:
        """Give this rank its own paths, and leave the cache alone, which the fork server has cleared if it was to."""
        self._paths.replace(config, process_of_rank(self._rank.request.gang, self._rank.rank))
        config.option.cacheclear = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self, early_config: pytest.Config) -> Generator[None, None, None]:
        """Keep the coverage data of other ranks, which a new session would delete."""
        early_config.known_args_namespace.cov_append = True
        self._measurement.begin(early_config)
        return (yield)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out the files of other tests."""
        return True if collection_path not in self._wanted and collection_path.is_file() else None

    def _look_at_process(self, nodeid: str, cause: str) -> None:
        """Accept any thread: this process does not fork."""

    def _keep_own_share(self, session: pytest.Session) -> None:
        """The fork server has chosen the tests."""

    def _keep_what_runs_again(self, session: pytest.Session) -> None:
        """The fork server has chosen the tests."""

    def _report_collection(self) -> None:
        """Compare the parameters with those in the fork server, which has reported its collection."""
        if other := changes(self._rank.digests, self._digests).other_values:
            self._fail(
                other[0],
                "This rank is a process of its own, and has other parameter values than the process that collected "
                f"the suite: {named(other)}. {REMEDY}",
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
        assignment = self._assignment(self._rank.request, self._rank.rank, self._rank.connection, self._rank.board)
        items = {self._numbers[item.nodeid]: item for item in session.items if item.nodeid in self._numbers}
        end_session = partial(_finish, session)
        self._be_rank(session, replace(assignment, items=items, end_session=end_session))


def _finish(session: pytest.Session, own: int) -> int:
    """Call ``pytest_sessionfinish`` of conftest files: what they have started for this process, they end.

    Returns the exit status that they have set, or left with; `own` is that of this rank.
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
