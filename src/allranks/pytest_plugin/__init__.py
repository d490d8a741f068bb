"""The pytest plugin of allranks: fixtures, markers and ``--ranks N``.

pytest always loads it if allranks is installed. Most sessions do not use it, so it imports as little as possible. In a
job, it does nothing.
"""

import importlib
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest

from allranks.protocol.launcher_variables import IN_A_JOB, variables_for

_FIXTURES = "allranks.testing.fixtures"

# Read during the import: later, pytest captures the standard streams.
_TERMINAL = os.ttyname(0) if os.isatty(0) and os.isatty(1) else ""


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Load the fixtures, unless the agent has loaded them."""
    # Not with `pytest_plugins`, which would cause a warning if a test runs pytest.
    if not pluginmanager.has_plugin(_FIXTURES):
        pluginmanager.register(importlib.import_module(_FIXTURES), _FIXTURES)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """With ``--ranks``, collect with the variables of the cell, as in the process that forks the ranks."""
    option = early_config.known_args_namespace
    if IN_A_JOB in os.environ or option.ranks is None:
        return
    if (error := _launcher_error(option.ranks)) is not None:
        raise pytest.UsageError(error)
    from allranks.engines.process import without_rank_variables  # noqa: PLC0415 - see above

    before = dict(os.environ)
    cell = {"WORLD_SIZE": str(option.ranks), "BACKEND": option.ranks_backend, "INIT_METHOD": "env"}
    early_config.add_cleanup(lambda: _set_environment(before))
    _set_environment({**without_rank_variables(before), **cell, "GROUP_RANK": "0"})


def _set_environment(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Run the tests on ranks with ``--ranks``; merge JUnit reports in a rank that another launcher has started."""
    if IN_A_JOB in os.environ:
        return
    if config.option.ranks is None:
        if getattr(config.option, "xmlpath", None):
            _share_report(config)
        return
    if (error := next(_usage_errors(config), None)) is not None:
        raise pytest.UsageError(error)
    from allranks.pytest_plugin.ranks_session import RanksSession  # noqa: PLC0415 - see above

    config.pluginmanager.register(RanksSession(config, _TERMINAL), "allranks-ranks")


def _share_report(config: pytest.Config) -> None:
    """Merge the reports of ranks that another launcher has started, if a test uses the rank's fixtures."""
    from _pytest.junitxml import xml_key  # noqa: PLC0415 - see above

    from allranks.testing.environment import LauncherError, RankEnvironment  # noqa: PLC0415

    with suppress(LauncherError):  # raised again in a test that uses the rank's fixtures
        environment, xml = RankEnvironment.read(), config.stash.get(xml_key, None)
        if xml is not None and environment.world_size > 1:
            from allranks.pytest_plugin.rank_reports import RankReports  # noqa: PLC0415

            config.pluginmanager.register(RankReports(environment, xml), "allranks-reports")


def _launcher_error(ranks: int) -> str | None:
    """Why this process cannot start ranks, if its environment is that of a rank or of a different world size."""
    from allranks.testing.environment import LauncherError, RankEnvironment  # noqa: PLC0415 - see above

    try:
        world_size = RankEnvironment.read().world_size
    except LauncherError as error:
        return str(error)
    names = variables_for(os.environ)
    if names.rank in os.environ and world_size > 1:
        return (
            f"--ranks cannot start ranks, because this process is already one of {world_size} ranks "
            f"({names.world_size}): use either --ranks or the launcher"
        )
    if world_size not in (1, ranks):
        return f"--ranks is {ranks}, but {names.world_size} is {world_size}: unset it, or use --ranks {world_size}"
    return None


def _usage_errors(config: pytest.Config) -> Iterator[str]:
    from allranks.protocol.refusals import REFUSED  # noqa: PLC0415 - see above

    yield from _wrong_values(config)
    option = config.option
    if getattr(option, "numprocesses", None) or getattr(option, "tx", None):
        yield "--ranks cannot be combined with -n of pytest-xdist: use one of them"
    rank = option.pdb_rank
    if rank is not None and not 0 <= rank < option.ranks:
        yield f"--pdb-rank {rank}: the ranks are 0 to {option.ranks - 1}"
    if rank is not None and not _TERMINAL:
        yield "--pdb-rank needs a terminal, but standard input or output is not a terminal"

    for flag, refusal in REFUSED.items():
        if getattr(option, refusal.option, False):
            instead = "Use --pdb-rank N." if refusal.option in {"usepdb", "trace"} else refusal.remedy
            yield f"{flag} {refusal.why} {instead}"


def _wrong_values(config: pytest.Config) -> Iterator[str]:
    from allranks.matrix.axes import BACKENDS, LARGEST  # noqa: PLC0415 - see above
    from allranks.matrix.toml_file import LARGEST_NUMBER  # noqa: PLC0415

    option = config.option
    if not 1 <= option.ranks <= LARGEST:
        yield f"--ranks {option.ranks}: the number of ranks must be from 1 to {LARGEST}"
    if not 0 < option.ranks_timeout <= LARGEST_NUMBER:
        yield f"--ranks-timeout {option.ranks_timeout:g}: the number of seconds must be greater than 0"
    if option.ranks_backend not in BACKENDS:
        yield from _unknown_backend(option.ranks_backend, config)


def _unknown_backend(name: str, config: pytest.Config) -> Iterator[str]:
    """The error for a backend that neither torch, nor the matrix file, nor this process defines."""
    from allranks.errors import MatrixError  # noqa: PLC0415 - see above
    from allranks.matrix.axes import backend_problem  # noqa: PLC0415
    from allranks.matrix.declaration import declared_backends  # noqa: PLC0415

    try:
        declared = declared_backends(config.rootpath)
    except MatrixError as error:
        yield f"--ranks-backend {name}: {error}"
        return
    own = "Add your own backend to matrix.custom_backends, or register it in a module that -p or conftest.py imports."
    if problem := backend_problem(name, (*declared, *_registered_backends()), own):
        what, remedy = problem
        yield f"--ranks-backend: {what}. {remedy}"


def _registered_backends() -> Iterator[str]:
    """The backends that are registered with torch in this process, for example by an installed package."""
    with suppress(ImportError, AttributeError):  # without torch.distributed, the session fails later
        distributed = importlib.import_module("torch.distributed")
        yield from (name for name in distributed.Backend.backend_list if name != distributed.Backend.UNDEFINED)
