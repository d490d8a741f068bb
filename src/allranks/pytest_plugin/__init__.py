"""What every pytest loads where allranks is installed: fixtures, markers and ``--ranks N``.

It imports as little as possible, since most sessions have nothing to do with ranks. Inside a job it does nothing.
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
    """Load the fixtures, unless the agent has done so. ``pytest_plugins`` would warn in a pytest within a pytest."""
    if not pluginmanager.has_plugin(_FIXTURES):
        pluginmanager.register(importlib.import_module(_FIXTURES), _FIXTURES)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Collect in the environment of the process that the ranks are forked from: it knows their number, and is none."""
    option = early_config.known_args_namespace
    if IN_A_JOB in os.environ or option.ranks is None:
        return
    if (why := next(_launchers(option.ranks), None)) is not None:
        raise pytest.UsageError(why)
    from allranks.engines.process import without_rank_variables  # noqa: PLC0415 - see above

    before = dict(os.environ)
    of_cell = {"WORLD_SIZE": str(option.ranks), "BACKEND": option.ranks_backend, "INIT_METHOD": "env"}
    early_config.add_cleanup(lambda: _set_environment(before))
    _set_environment({**without_rank_variables(before), **of_cell, "GROUP_RANK": "0"})


def _set_environment(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Take over the tests of the session if they are to run on several ranks, or its report if it is one of them."""
    if IN_A_JOB in os.environ:
        return
    if config.option.ranks is None:
        if getattr(config.option, "xmlpath", None):
            _share_report(config)
        return
    if (why := next(_obstacles(config), None)) is not None:
        raise pytest.UsageError(why)
    from allranks.pytest_plugin.ranks_session import RanksSession  # noqa: PLC0415 - see above

    config.pluginmanager.register(RanksSession(config, _TERMINAL), "allranks-ranks")


def _share_report(config: pytest.Config) -> None:
    """Have the ranks of another launcher report together, if a suite turns out to have rank tests."""
    from _pytest.junitxml import xml_key  # noqa: PLC0415 - see above

    from allranks.testing.environment import LauncherError, RankEnvironment  # noqa: PLC0415

    with suppress(LauncherError):  # a test that asks for its rank gets the error
        place, xml = RankEnvironment.read(), config.stash.get(xml_key, None)
        if xml is not None and place.world_size > 1:
            from allranks.pytest_plugin.rank_reports import RankReports  # noqa: PLC0415

            config.pluginmanager.register(RankReports(place, xml), "allranks-reports")


def _launchers(ranks: int) -> Iterator[str]:
    """Why this process cannot start ranks: it is one. A number of ranks alone makes it none, if it is the same."""
    from allranks.testing.environment import LauncherError, RankEnvironment  # noqa: PLC0415 - see above

    try:
        world_size = RankEnvironment.read().world_size
    except LauncherError as error:
        yield str(error)
        return
    names = variables_for(os.environ)
    if names.rank in os.environ and world_size > 1:
        yield (
            f"--ranks starts ranks, and this process is one of {world_size} ({names.world_size}): run pytest under the "
            "launcher without --ranks, or --ranks without the launcher"
        )
    elif world_size not in (1, ranks):
        yield f"--ranks is {ranks}, and {names.world_size} is {world_size}: unset it, or ask for as many ranks"


def _obstacles(config: pytest.Config) -> Iterator[str]:
    from allranks.protocol.refusals import REFUSED  # noqa: PLC0415 - see above

    yield from _wrong_values(config)
    option = config.option
    if getattr(option, "numprocesses", None) or getattr(option, "tx", None):
        yield "--ranks and -n of pytest-xdist both say which processes run a test: use one of them"
    rank = option.pdb_rank
    if rank is not None and not 0 <= rank < option.ranks:
        yield f"--pdb-rank {rank}: there are the ranks 0 to {option.ranks - 1}"
    if rank is not None and not _TERMINAL:
        yield "--pdb-rank needs a terminal, and standard input or output is not one"

    for flag, refusal in REFUSED.items():
        if getattr(option, refusal.option, False):
            instead = "Use --pdb-rank N." if refusal.option in {"usepdb", "trace"} else refusal.remedy
            yield f"{flag} {refusal.why} {instead}"


def _wrong_values(config: pytest.Config) -> Iterator[str]:
    from allranks.matrix.axes import BACKENDS, LARGEST  # noqa: PLC0415 - see above
    from allranks.matrix.toml_file import LARGEST_NUMBER  # noqa: PLC0415

    option = config.option
    if not 1 <= option.ranks <= LARGEST:
        yield f"--ranks {option.ranks}: give a number of ranks from 1 to {LARGEST}"
    if not 0 < option.ranks_timeout <= LARGEST_NUMBER:
        yield f"--ranks-timeout {option.ranks_timeout:g}: give a number of seconds above 0"
    if option.ranks_backend not in BACKENDS:
        yield from _backend_problem(option.ranks_backend, config)


def _backend_problem(name: str, config: pytest.Config) -> Iterator[str]:
    """The error for a backend that is neither one of torch nor registered by the matrix file or this session."""
    from allranks.errors import MatrixError  # noqa: PLC0415 - see above
    from allranks.matrix.axes import backend_problem  # noqa: PLC0415
    from allranks.matrix.declaration import declared_backends  # noqa: PLC0415

    try:
        declared = declared_backends(config.rootpath)
    except MatrixError as error:
        yield f"--ranks-backend {name}: {error}"
        return
    own = "Add your own backend to matrix.custom_backends, or register it in a module that -p or a conftest.py imports."
    if problem := backend_problem(name, (*declared, *_registered_backends()), own):
        what, remedy = problem
        yield f"--ranks-backend: {what}. {remedy}"


def _registered_backends() -> Iterator[str]:
    """The backends that this process has registered with torch, such as one of an installed package."""
    with suppress(ImportError, AttributeError):  # no torch, or one without torch.distributed: the session says so later
        distributed = importlib.import_module("torch.distributed")
        yield from (name for name in distributed.Backend.backend_list if name != distributed.Backend.UNDEFINED)
