"""Options of pytest and its plugins as several ranks take them, and the cache of a job.

A job starts with the cache that the last job of the same cell and suite left, in its results folder, and leaves its own
there. Ranks never write it: each has only its own outcomes. The fork server writes it once, from the outcomes of all
ranks. It does so through pytest's own cache plugins, because their files differ from version to version.

Paths that pytest clears or writes to: each process of a job gets its own, below or beside the path that was given.

``--basetemp DIR`` becomes ``DIR/CELL/SUITE/gang-1/rank-0``, ``--log-file run.log`` becomes
``run.ranks/CELL/SUITE/gang-1/rank-0.log``, and so does ``--debug``. The process that collects has ``agent`` in place of
the gang and the rank. As pytest clears DIR when it starts, a job clears its own part of it.

Plugins that repeat a test do so in lockstep on all ranks: rerunfailures, Hypothesis.

pytest-rerunfailures would rerun a test only on the rank where it failed, while its peers wait. So allranks reads the
number of reruns from it, and then unregisters it.

Hypothesis settings would break lockstep, too. The database replays earlier failures of one rank. Shrinking and
explaining rerun a failed test on the rank where it failed, while its peers wait in a collective. A deadline, and the
health check for slow data, fail the one slow rank.
"""

import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from allranks.agent.program import ItemOptions
from allranks.agent.rank.marker_options import MarkerError
from allranks.protocol.config import PYTEST_CACHE, AgentConfig
from allranks.protocol.outcomes import MESSAGE_LIMIT, shorten
from allranks.protocol.refusals import REFUSED

if TYPE_CHECKING:
    from hypothesis import settings as Settings  # noqa: N812 - it is a class


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

    An outcome is true if the test was bad on any rank, or the ranks disagreed.
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
    As in pytest, what the suite's paths have in common counts.
    """
    suite = code / os.path.commonpath(paths)
    folders = [suite, *suite.parents] if suite.is_dir() else [*suite.parents]
    between = [folder for folder in folders if folder != code and folder.is_relative_to(code)]
    files = (folder / name for folder in between for name in _FILES)
    found = next((file for file in files if file.is_file()), None)
    return ("-c", str(found)) if found else ()


def check_pytest_args(config: pytest.Config) -> None:
    """Refuse unsupported options."""
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
    """Refuse ``--stepwise`` in a job of a split suite: it stores one position, and each job would have its own."""
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
    """Disable reports that pytest would write about the agent's session, which runs no tests; one notice for each."""
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


AGENT: Final = Path("agent")
"""The process that collects."""

_NAMES: Final = ("basetemp", "log_file", "debug")


def process_of_rank(gang: int, rank: int) -> Path:
    """The place of a rank among the processes of its job."""
    return Path(f"gang-{gang}", f"rank-{rank}")


@dataclass
class ProcessPaths:
    """The paths of one job's processes."""

    config: AgentConfig
    _roots: dict[str, Path] = field(default_factory=dict, init=False)  # the job's folder for each option
    _suffixes: dict[str, str] = field(default_factory=dict, init=False)

    def replace(self, config: pytest.Config, process: Path) -> None:
        """Replace what was given by the paths of this process; :data:`AGENT` also clears what an earlier job left."""
        of_node = [f"node-{self.config.node}"] if self.config.nodes > 1 else []
        job = Path(self.config.cell, self.config.suite, *of_node)
        for name in _NAMES:
            given = _given(config, name)
            if given is None:
                continue
            self._roots[name] = (given if name == "basetemp" else given.with_name(f"{given.stem}.ranks")) / job
            self._suffixes[name] = "" if name == "basetemp" else given.suffix
            if process == AGENT:
                shutil.rmtree(self._roots[name], ignore_errors=True)
            setattr(config.option, name, str(self._path(name, process)))

    def take(self, config: pytest.Config, process: Path) -> None:
        """Take the paths of a rank, in a fork of the process that had collected with its own."""
        paths = {name: self._path(name, process) for name in self._roots}
        for name, path in paths.items():
            setattr(config.option, name, str(path))
        factory: Any = getattr(config, "_tmp_path_factory", None)  # not public; None with -p no:tmpdir
        if "basetemp" in paths and factory is not None:
            factory._given_basetemp, factory._basetemp = paths["basetemp"], None  # noqa: SLF001 - not public
        self.make(config)
        logging = config.pluginmanager.get_plugin("logging-plugin")
        if "log_file" in paths and logging is not None:
            logging.set_log_path(str(paths["log_file"]))
        if "debug" in paths:
            config.trace.root.setwriter(paths["debug"].open("w", buffering=1, encoding="utf-8").write)

    def make(self, config: pytest.Config) -> None:
        """Make this process's folder of temporary files: each process that a test forks would clear it otherwise."""
        factory: Any = getattr(config, "_tmp_path_factory", None)
        if "basetemp" in self._roots and factory is not None:
            with suppress(OSError):  # a test that asks for the folder gets the error
                factory.getbasetemp()

    def _path(self, name: str, process: Path) -> Path:
        """The path of a process; its folder is made, because pytest does not make that of each option."""
        path = self._roots[name] / process
        with suppress(OSError):  # pytest explains it
            path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(f"{path.name}{self._suffixes[name]}")


def _given(config: pytest.Config, name: str) -> Path | None:
    """The path that the user has given; None for none, and for a device such as ``/dev/null``."""
    given = getattr(config.option, name, None)
    if not given and name == "log_file":
        with suppress(ValueError, KeyError):  # there is no such key with -p no:logging
            given = config.getini(name)
    if not given:
        return None
    path = Path(given).absolute()
    return path if path.is_file() or path.is_dir() or not path.exists() else None


_MODULE: Final = "pytest_rerunfailures"
_ALONE_OPTIONS: Final = {
    "only_rerun": "--only-rerun",
    "rerun_except": "--rerun-except",
    "rerun_exclude_path": "--rerun-exclude-path",
    "reruns_delay_backoff_factor": "--reruns-delay-backoff-factor",
    "max_suite_reruns": "--max-suite-reruns",
    "fail_on_flaky": "--fail-on-flaky",
}
"""Unsupported options, by their names in ``config.option`` and in pytest's configuration file."""

_OF_MARKER: Final = frozenset({"reruns", "reruns_delay", "condition"})


def refused_reruns(config: pytest.Config) -> Iterator[str]:
    """Explain which options of the plugin are unsupported, one sentence for each."""
    for option, flag in _ALONE_OPTIONS.items():
        if _MODULE in sys.modules and (getattr(config.option, option, None) or _in_file(config, option)):
            yield (
                f"{flag} cannot be used: all ranks run a test again together, whatever each of them raised. "
                "Take --reruns alone, @pytest.mark.flaky(reruns=2) for some tests, or `allranks run --reruns`."
            )


def _in_file(config: pytest.Config, name: str) -> bool:
    try:
        return bool(config.getini(name))
    except (KeyError, ValueError):  # the configuration file has no such option
        return False


def with_reruns(item: pytest.Item, terms: ItemOptions) -> ItemOptions:
    """The options of a test, with the number of its reruns added."""
    plugin: Any = sys.modules.get(_MODULE)
    if plugin is None or not item.config.pluginmanager.is_registered(plugin):
        return terms
    marker = item.get_closest_marker("flaky")
    condition = marker.kwargs.get("condition", True) if marker else True
    if marker and (marker.kwargs.keys() - _OF_MARKER or len(marker.args) > 2 or not isinstance(condition, bool)):
        msg = (
            "@pytest.mark.flaky takes reruns, reruns_delay, and a condition that is True or False: all ranks run the "
            "test again together, whatever each of them raised"
        )
        raise MarkerError(item.nodeid, msg)
    try:
        count, delay = plugin.get_reruns_count(item) or 0, plugin.get_reruns_delay(item)
    except TypeError:  # the plugin calculates with the marker's arguments unchecked
        count = delay = None
    if not isinstance(count, int) or not isinstance(delay, int | float) or not math.isfinite(delay):
        source = f"{marker.args} {marker.kwargs}" if marker else "the options"
        msg = f"@pytest.mark.flaky: reruns and seconds between them make no sense: {source}"
        raise MarkerError(item.nodeid, msg)
    return replace(terms, reruns=count if condition else 0, delay=float(delay))


def forget_plugin(config: pytest.Config) -> None:
    """Unregister the plugin, so that no rank reruns a test alone."""
    plugin = sys.modules.get(_MODULE)
    if plugin is not None and config.pluginmanager.is_registered(plugin):
        config.pluginmanager.unregister(plugin)


_ALONE_PHASES = frozenset({"reuse", "shrink", "explain"})


def settle_hypothesis(items: Iterable[pytest.Item], seed: Callable[[str], int]) -> None:
    """Give each Hypothesis test lockstep settings and the seed of its node id without parameters, for later forks."""
    if "hypothesis" not in sys.modules:
        return
    for item in items:
        test = getattr(item, "obj", None)
        function = getattr(test, "__func__", test)
        if getattr(function, "is_hypothesis_test", False):
            _settle(item, function, seed(item.nodeid.partition("[")[0]))


def _settle(item: pytest.Item, function: Any, seed: int) -> None:  # noqa: ANN401 - Hypothesis adds what is read here
    machine = getattr(function, "_hypothesis_state_machine_class", None)
    if machine is None:
        function._hypothesis_internal_use_settings = in_lockstep(function._hypothesis_internal_use_settings)  # noqa: SLF001 - as `settings` does
    else:
        case: Any = getattr(item, "cls", None)
        case.settings = in_lockstep(case.settings)
    seeded = function if machine is None else machine
    if (
        getattr(seeded, "_hypothesis_internal_use_seed", None) is None
        and item.config.getoption("--hypothesis-seed", None) is None
    ):
        seeded._hypothesis_internal_use_seed = seed  # noqa: SLF001 - as `hypothesis.seed` does


def in_lockstep(settings: "Settings") -> "Settings":
    """Copy settings, without anything that one rank would do alone."""
    from hypothesis import HealthCheck  # noqa: PLC0415 - loaded already, if the suite uses it

    return type(settings)(
        settings,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[phase for phase in settings.phases if phase.name not in _ALONE_PHASES],
        suppress_health_check=[*settings.suppress_health_check, HealthCheck.too_slow],
    )
