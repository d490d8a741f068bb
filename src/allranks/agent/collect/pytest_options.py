"""Options of pytest and its plugins as several ranks take them, and the cache of a job.

A job starts with the cache that the last job of the same cell and suite left, in its results folder, and leaves its own
there. Ranks never write it: each has only its own outcomes. The fork server writes it once, from the outcomes of all
ranks. It does so through pytest's own cache plugins, because their files differ from version to version.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from allranks.agent.collect.lockstep import refused_reruns
from allranks.protocol.config import PYTEST_CACHE
from allranks.protocol.outcomes import MESSAGE_LIMIT, shorten
from allranks.protocol.refusals import REFUSED

_SWITCHED_OFF = ("no:cacheprovider", "-pno:cacheprovider")
_READERS = ("lfplugin", "stepwiseplugin")


def cache_arguments(results: Path, arguments: Sequence[str]) -> tuple[str, ...]:
    """Arguments that set pytest's cache folder; none if `arguments` disable the cache, and with it the option."""
    if any(argument in _SWITCHED_OFF for argument in arguments):
        return ()
    return ("-o", f"cache_dir={results / PYTEST_CACHE}")


def stop_at_first_failure(config: pytest.Config) -> None:
    """Make ``--stepwise`` stop the job as ``-x`` does: pytest's own stop needs the process that runs the tests."""
    if config.pluginmanager.has_plugin("stepwiseplugin") and not config.option.maxfail:
        config.option.maxfail = 2 if config.getoption("stepwise_skip", False) else 1


def note_outcomes(config: pytest.Config, items: Iterable[pytest.Item], outcomes: Mapping[str, bool]) -> None:
    """Report the tests' outcomes to pytest's cache plugins, which save them when the session finishes.

    Args:
        config: pytest's configuration in the fork server.
        items: The collected tests.
        outcomes: For the node id of each test that ran, whether it was bad on any rank, or the ranks disagreed.
    """
    readers = [config.pluginmanager.get_plugin(name) for name in _READERS]
    for item in items:
        if item.nodeid not in outcomes:
            continue
        outcome = "failed" if outcomes[item.nodeid] else "passed"
        # A single report, as pytest would create it for the worst rank.
        report = pytest.TestReport(item.nodeid, item.location, {}, outcome, None, "call")  # type: ignore[arg-type]
        for reader in filter(None, readers):
            reader.pytest_runtest_logreport(report)


_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")


def suite_configuration(code: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """Arguments that name the suite's own configuration file, if it has one.

    pytest searches upwards from the paths it gets. Here it gets none, so it would only find a file in the code's root.

    Args:
        code: The root folder.
        paths: The suite's paths, relative to the root; as in pytest, what they have in common counts.
    """
    suite = code / os.path.commonpath(paths)
    folders = [suite, *suite.parents] if suite.is_dir() else [*suite.parents]
    between = [folder for folder in folders if folder != code and folder.is_relative_to(code)]
    files = (folder / name for folder in between for name in _FILES)
    found = next((file for file in files if file.is_file()), None)
    return ("-c", str(found)) if found else ()


def refuse_options(config: pytest.Config) -> None:
    """Refuse unsupported options.

    Raises:
        pytest.UsageError: Names the option, the reason, and the remedy.
    """
    reason = next(chain(_refusals(config.option), refused_reruns(config)), None)
    if reason is not None:
        raise pytest.UsageError(reason)


def _refusals(option: Any) -> Iterator[str]:  # noqa: ANN401 - argparse's namespace, to which every plugin adds
    for flag, refusal in REFUSED.items():
        if getattr(option, refusal.option, False):
            yield f"{flag} {refusal.why} {refusal.remedy}"
    if getattr(option, "numprocesses", None) or getattr(option, "tx", None) or getattr(option, "looponfail", False):
        yield (
            "pytest-xdist cannot be used: the ranks of a cell are the processes that run its tests. "
            "Take -n, --tx or -f away, or add `-n 0` where pytest's configuration file has one."
        )


REFUSED_BY_PYTEST = (
    "They come from the command line, pytest_args of the suite, or addopts in pytest's configuration file."
)

_FAULT_OF_THE_SUITE = "ImportError while loading conftest"
_OF_THE_PARSER = "pytest.main(): error: "


def refusal_in(output: str) -> str:
    """The reason that pytest gives for a usage error, from its output; empty if a conftest file is at fault.

    pytest returns one exit code for both: wrong arguments, and a conftest file that cannot be imported.
    """
    lines = output.splitlines()
    if _FAULT_OF_THE_SUITE in output or not any(line.startswith("ERROR: ") for line in lines):
        return ""
    last = max(place for place, line in enumerate(lines) if line.startswith("ERROR: "))
    parsed = (line.removeprefix(_OF_THE_PARSER) for line in lines[last:] if line.startswith(_OF_THE_PARSER))
    reason = next(parsed, lines[last].removeprefix("ERROR: "))
    return shorten(f"pytest refuses its arguments: {reason.strip()}", MESSAGE_LIMIT)


def refuse_stepwise_of_a_share(config: pytest.Config) -> None:
    """Refuse ``--stepwise`` in a job of a split suite: it stores one position, and each job would have its own.

    Raises:
        pytest.UsageError: Names the reason and the remedy.
    """
    if getattr(config.option, "stepwise", False):
        msg = (
            "--stepwise cannot be used in a suite that is split into shards: each would stop at a place of its own, "
            "and what comes before the last of them would never be run again. Take `-x`, and then `--lf`."
        )
        raise pytest.UsageError(msg)


def share_seed(config: pytest.Config, seed: int) -> None:
    """Pass the run's seed to pytest-randomly if the user set none: each node would draw its own."""
    if getattr(config.option, "randomly_seed", None) == "default":
        config.option.randomly_seed = seed


def take_over_reports(config: pytest.Config) -> list[str]:
    """Disable reports that pytest would write about the agent's session, which runs no tests.

    Returns:
        One sentence per report, for the journal.
    """
    return [_take_over(config.option, *each) for each in _asked_for(config.option, _REPORTS)]


_REPORTS = (
    ("xmlpath", "--junitxml", "the run writes junit.xml, and each rank's results are in rank-N.xml"),
    ("pastebin", "--pastebin", "no test runs in the process that would send it"),
    ("report_log", "--report-log", "no test runs in the process that would write it"),
    ("htmlpath", "--html", "the run writes report.html"),
)


def _asked_for(option: Any, reports: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:  # noqa: ANN401 - see above
    return [report for report in reports if getattr(option, report[0], None)]


def _take_over(option: Any, name: str, flag: str, why: str) -> str:  # noqa: ANN401 - see above
    setattr(option, name, None)
    return f"{flag} was ignored: {why}"
