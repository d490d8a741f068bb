"""Adapts options of pytest and its plugins to several ranks.

**Cache.** A job starts with the cache from the results folder of the last job of the same cell and suite, and leaves a
new one in its own. Ranks never write to it, because each has only its own outcomes. The fork server writes it once,
from the outcomes of all ranks, through pytest's own cache plugins: their file formats differ between versions.

**Paths that pytest clears or writes to.** Each process of a job gets its own. ``--basetemp DIR`` becomes
``DIR/CELL/SUITE/gang-1/rank-0``, and ``--log-file run.log`` becomes ``run.ranks/CELL/SUITE/gang-1/rank-0.log``;
``--debug`` works the same way. The process that collects uses ``agent`` instead of the gang and the rank. pytest clears
DIR when it starts, so a job clears its own part of it.

**Reruns.** pytest-rerunfailures would rerun a test only on the rank where it failed, while its peers wait. Therefore,
allranks reads the number of reruns from the plugin, unregisters it, and reruns the test on all ranks together.

**Hypothesis.** Some of its settings would also make one rank run alone. The database replays earlier failures of one
rank. Shrinking and explaining rerun a test only on the rank where it failed. A deadline, and the health check for slow
data, fail only the slow rank.
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


_DISABLED_CACHE = ("no:cacheprovider", "-pno:cacheprovider")
_CACHE_PLUGINS = ("lfplugin", "stepwiseplugin")


def cache_arguments(results: Path, arguments: Sequence[str]) -> tuple[str, ...]:
    """Arguments that set pytest's cache folder; none if `arguments` disable the plugin to which the option belongs."""
    if any(argument in _DISABLED_CACHE for argument in arguments):
        return ()
    return ("-o", f"cache_dir={results / PYTEST_CACHE}")


def stop_at_first_failure(config: pytest.Config) -> None:
    """Make ``--stepwise`` stop the job like ``-x``: pytest's own works only in the process that runs tests."""
    if config.pluginmanager.has_plugin("stepwiseplugin") and not config.option.maxfail:
        config.option.maxfail = 2 if config.getoption("stepwise_skip", False) else 1


def save_outcomes(config: pytest.Config, items: Iterable[pytest.Item], failed: Mapping[str, bool]) -> None:
    """Report the tests' outcomes to pytest's cache plugins, which save them when the session finishes.

    `failed` says for each node id whether the test failed on any rank, or the ranks disagreed.
    """
    plugins = [config.pluginmanager.get_plugin(name) for name in _CACHE_PLUGINS]
    for item in items:
        if item.nodeid not in failed:
            continue
        outcome = "failed" if failed[item.nodeid] else "passed"
        # One report, as pytest would create it for the rank with the worst outcome.
        report = pytest.TestReport(item.nodeid, item.location, {}, outcome, None, "call")  # type: ignore[arg-type]
        for plugin in filter(None, plugins):
            plugin.pytest_runtest_logreport(report)


_CONFIGURATION_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")


def suite_configuration(code: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """Arguments that select the suite's own configuration file, if it has one.

    pytest searches upwards from the common ancestor of its paths. Here its command line has no paths, so it would only
    find a file in the root of the code.
    """
    suite = code / os.path.commonpath(paths)
    folders = [suite, *suite.parents] if suite.is_dir() else [*suite.parents]
    below_code = [folder for folder in folders if folder != code and folder.is_relative_to(code)]
    files = (folder / name for folder in below_code for name in _CONFIGURATION_FILES)
    found = next((file for file in files if file.is_file()), None)
    return ("-c", str(found)) if found else ()


def check_pytest_args(config: pytest.Config) -> None:
    """Reject unsupported options.

    Raises:
        pytest.UsageError: An unsupported option is set; the message explains the first one.
    """
    reason = next(chain(_rejected_options(config.option), _rejected_reruns(config)), None)
    if reason is not None:
        raise pytest.UsageError(reason)


def _rejected_options(option: Any) -> Iterator[str]:  # noqa: ANN401 - argparse's namespace, to which every plugin adds
    for flag, refusal in REFUSED.items():
        if getattr(option, refusal.option, False):
            yield f"{flag} {refusal.why} {refusal.remedy}"
    if getattr(option, "numprocesses", None) or getattr(option, "tx", None) or getattr(option, "looponfail", False):
        yield (
            "pytest-xdist cannot be used, because the ranks of a cell already run its tests in parallel processes. "
            "Remove -n, --tx or -f. If pytest's configuration file sets -n, add `-n 0` to the command line."
        )


USAGE_ERROR_SOURCES = (
    "The arguments come from the command line, pytest_args of the suite, or addopts in pytest's configuration file."
)

_CONFTEST_ERROR = "ImportError while loading conftest"
_PARSER_PREFIX = "pytest.main(): error: "


def usage_error_in(output: str) -> str:
    """The usage error in pytest's output; empty if a conftest file is the cause.

    pytest exits with the same code for wrong arguments and for a conftest file that cannot be imported.
    """
    lines = output.splitlines()
    if _CONFTEST_ERROR in output or not any(line.startswith("ERROR: ") for line in lines):
        return ""
    last = max(index for index, line in enumerate(lines) if line.startswith("ERROR: "))
    parsed = (line.removeprefix(_PARSER_PREFIX) for line in lines[last:] if line.startswith(_PARSER_PREFIX))
    reason = next(parsed, lines[last].removeprefix("ERROR: "))
    return shorten(f"pytest rejected its arguments: {reason.strip()}", MESSAGE_LIMIT)


def reject_stepwise_with_shards(config: pytest.Config) -> None:
    """Reject ``--stepwise`` in a suite that is split into shards: the cache stores only one position."""
    if getattr(config.option, "stepwise", False):
        msg = (
            "--stepwise cannot be used in a suite that is split into shards: each shard would stop at a different "
            "test, and only the last of these positions would be saved. Use `-x`, and then `--lf`."
        )
        raise pytest.UsageError(msg)


def pass_seed_to_randomly(config: pytest.Config, seed: int) -> None:
    """Unless the user set a seed, pass the run's to pytest-randomly: else each node would choose its own."""
    if getattr(config.option, "randomly_seed", None) == "default":
        config.option.randomly_seed = seed


def disable_reports(config: pytest.Config) -> list[str]:
    """Disable reports about this process's session, which runs no tests; returns a notice for each."""
    notices = []
    for name, flag, reason in _REPORTS:
        if getattr(config.option, name, None):
            setattr(config.option, name, None)
            notices.append(f"{flag} was ignored: {reason}")
    return notices


_REPORTS = (
    ("xmlpath", "--junitxml", "the run writes junit.xml, and each rank's results are in rank-N.xml"),
    ("pastebin", "--pastebin", "tests do not run in the process that would send the report"),
    ("report_log", "--report-log", "tests do not run in the process that would write the report"),
    ("htmlpath", "--html", "the run writes report.html"),
)
"""Each report's name in ``config.option``, its flag, and why it is disabled."""


AGENT: Final = Path("agent")
"""The relative path of the collecting process's files."""

_PATH_OPTIONS: Final = ("basetemp", "log_file", "debug")


def process_of_rank(gang: int, rank: int) -> Path:
    """The relative path of a rank's files."""
    return Path(f"gang-{gang}", f"rank-{rank}")


@dataclass
class ProcessPaths:
    """The values of pytest's path options for each process of a job."""

    config: AgentConfig
    _roots: dict[str, Path] = field(default_factory=dict, init=False)  # the job's folder for each option
    _suffixes: dict[str, str] = field(default_factory=dict, init=False)

    def replace(self, config: pytest.Config, process: Path) -> None:
        """Replace the user's paths by those of this process; for :data:`AGENT`, also delete an earlier job's files."""
        of_node = [f"node-{self.config.node}"] if self.config.nodes > 1 else []
        job = Path(self.config.cell, self.config.suite, *of_node)
        for name in _PATH_OPTIONS:
            path = _user_path(config, name)
            if path is None:
                continue
            self._roots[name] = (path if name == "basetemp" else path.with_name(f"{path.stem}.ranks")) / job
            self._suffixes[name] = "" if name == "basetemp" else path.suffix
            if process == AGENT:
                shutil.rmtree(self._roots[name], ignore_errors=True)
            setattr(config.option, name, str(self._prepared_path(name, process)))

    def switch_to(self, config: pytest.Config, process: Path) -> None:
        """Switch to the paths of a rank, in a fork of the process that collected."""
        paths = {name: self._prepared_path(name, process) for name in self._roots}
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
        """Create this process's folder of temporary files; otherwise each process that a test forks would clear it."""
        factory: Any = getattr(config, "_tmp_path_factory", None)
        if "basetemp" in self._roots and factory is not None:
            with suppress(OSError):  # raised again in a test that uses the folder
                factory.getbasetemp()

    def _prepared_path(self, name: str, process: Path) -> Path:
        """The path for a process, after creating its folder, which pytest does not do for every option."""
        path = self._roots[name] / process
        with suppress(OSError):  # pytest reports it
            path.parent.mkdir(parents=True, exist_ok=True)
        return path.with_name(f"{path.name}{self._suffixes[name]}")


def _user_path(config: pytest.Config, name: str) -> Path | None:
    """The path that the user set; None if there is none, or if it is a device such as ``/dev/null``."""
    value = getattr(config.option, name, None)
    if not value and name == "log_file":
        with suppress(ValueError, KeyError):  # with -p no:logging, there is no such key
            value = config.getini(name)
    if not value:
        return None
    path = Path(value).absolute()
    return path if path.is_file() or path.is_dir() or not path.exists() else None


_RERUNFAILURES: Final = "pytest_rerunfailures"
_UNSUPPORTED_RERUN_OPTIONS: Final = {
    "only_rerun": "--only-rerun",
    "rerun_except": "--rerun-except",
    "rerun_exclude_path": "--rerun-exclude-path",
    "reruns_delay_backoff_factor": "--reruns-delay-backoff-factor",
    "max_suite_reruns": "--max-suite-reruns",
    "fail_on_flaky": "--fail-on-flaky",
}
"""Unsupported options, by their names in ``config.option`` and in pytest's configuration file."""

_FLAKY_ARGUMENTS: Final = frozenset({"reruns", "reruns_delay", "condition"})


def _rejected_reruns(config: pytest.Config) -> Iterator[str]:
    """Explain which options of pytest-rerunfailures are unsupported, one message for each."""
    if _RERUNFAILURES not in sys.modules:
        return
    for option, flag in _UNSUPPORTED_RERUN_OPTIONS.items():
        if getattr(config.option, option, None) or _is_configured(config, option):
            yield (
                f"{flag} cannot be used: after a failure of any rank, all ranks rerun the test together. Use --reruns "
                "without it, @pytest.mark.flaky(reruns=2) on some tests, or `allranks run --reruns`."
            )


def _is_configured(config: pytest.Config, name: str) -> bool:
    try:
        return bool(config.getini(name))
    except (KeyError, ValueError):  # there is no such key
        return False


def with_reruns(item: pytest.Item, options: ItemOptions) -> ItemOptions:
    """The options of a test with its number of reruns, as pytest-rerunfailures reads it.

    Raises:
        MarkerError: The marker ``flaky`` has arguments that cannot be used with several ranks, or wrong values.
    """
    plugin: Any = sys.modules.get(_RERUNFAILURES)
    if plugin is None or not item.config.pluginmanager.is_registered(plugin):
        return options
    marker = item.get_closest_marker("flaky")
    condition = marker.kwargs.get("condition", True) if marker else True
    if marker and (marker.kwargs.keys() - _FLAKY_ARGUMENTS or len(marker.args) > 2 or not isinstance(condition, bool)):
        msg = (
            "@pytest.mark.flaky takes reruns, reruns_delay, and a condition that is True or False, because all ranks "
            "rerun the test together, whatever each of them raised"
        )
        raise MarkerError(item.nodeid, msg)
    try:
        count, delay = plugin.get_reruns_count(item) or 0, plugin.get_reruns_delay(item)
    except TypeError:  # the plugin does not check the types of the marker's arguments
        count = delay = None
    if not isinstance(count, int) or not isinstance(delay, int | float) or not math.isfinite(delay):
        msg = "--reruns and --reruns-delay take numbers"
        if marker:
            given = f"{marker.args} {marker.kwargs}"
            msg = f"@pytest.mark.flaky takes a number of reruns and a number of seconds between them, not {given}"
        raise MarkerError(item.nodeid, msg)
    return replace(options, reruns=count if condition else 0, delay=float(delay))


def unregister_rerunfailures(config: pytest.Config) -> None:
    """Unregister pytest-rerunfailures, so that no rank reruns a test alone."""
    plugin = sys.modules.get(_RERUNFAILURES)
    if plugin is not None and config.pluginmanager.is_registered(plugin):
        config.pluginmanager.unregister(plugin)


_SINGLE_RANK_PHASES = frozenset({"reuse", "shrink", "explain"})


def configure_hypothesis(items: Iterable[pytest.Item], seed: Callable[[str], int]) -> None:
    """Make Hypothesis run the same examples on all ranks: adapt the settings, and set a seed for each function."""
    if "hypothesis" not in sys.modules:
        return
    for item in items:
        test = getattr(item, "obj", None)
        function = getattr(test, "__func__", test)
        if getattr(function, "is_hypothesis_test", False):
            _configure(item, function, seed(item.nodeid.partition("[")[0]))


def _configure(item: pytest.Item, function: Any, seed: int) -> None:  # noqa: ANN401 - Hypothesis adds attributes
    machine = getattr(function, "_hypothesis_state_machine_class", None)
    seeded: Any
    if machine is None:
        seeded = function
        function._hypothesis_internal_use_settings = _in_lockstep(function._hypothesis_internal_use_settings)  # noqa: SLF001 - as `settings` does
    else:
        seeded = machine
        case: Any = getattr(item, "cls", None)
        case.settings = _in_lockstep(case.settings)
    if (
        getattr(seeded, "_hypothesis_internal_use_seed", None) is None
        and item.config.getoption("--hypothesis-seed", None) is None
    ):
        seeded._hypothesis_internal_use_seed = seed  # noqa: SLF001 - as `hypothesis.seed` does


def _in_lockstep(settings: "Settings") -> "Settings":
    """Copy settings, without anything that a single rank would do alone."""
    from hypothesis import HealthCheck  # noqa: PLC0415 - already loaded by suites that use it

    return type(settings)(
        settings,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[phase for phase in settings.phases if phase.name not in _SINGLE_RANK_PHASES],
        suppress_health_check=[*settings.suppress_health_check, HealthCheck.too_slow],
    )
