"""Registers the nox sessions of a repository with a matrix file.

::

    from allranks.nox import register

    register()

nox finds a session by its exact name or signature. There is a parametrized session ``dist`` for every cell, and a plain
session for every prefix of the axes: ``dist(backend='nccl', world_size=4)`` runs its cells in one run with one report.
This module only needs the standard library, nox and packaging.
"""

import importlib.metadata
import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import nox

from allranks.errors import AllranksError, counted
from allranks.images.environments import EnvironmentRecipe, ensure_environment
from allranks.matrix.declaration import load
from allranks.matrix.model import Cell
from allranks.matrix.select import Prefix, prefixes, signature_axes
from allranks.runner.results_folder import INVOCATION_VARIABLE, RUN_ID_VARIABLE, new_invocation_id, new_run_id
from allranks.user_cache import cache_folder

MOST_CELLS = 5000
"""The limit for one session per cell: nox takes a millisecond for each session, even if it does not run it."""

_NOUNS = {"world_size": "rank", "gpu_count": "GPU", "nodes": "node"}
"""What the values of numeric axes count."""


def register(folder: str | os.PathLike[str] = ".") -> None:
    """Register the sessions of a matrix file with nox.

    Args:
        folder: The folder with ``matrix.toml``, or with a ``pyproject.toml`` that has ``[tool.allranks]``.
    """
    # All sessions of this nox process, including those of `nox -j`, are one run.
    os.environ.setdefault(RUN_ID_VARIABLE, new_run_id())
    os.environ.setdefault(INVOCATION_VARIABLE, new_invocation_id())
    try:
        expansion = load(Path(folder))
    except AllranksError as error:
        _exit(error)
    cells = expansion.cells
    matrix_option = f"--matrix={expansion.matrix.path}"
    listed: set[tuple[Cell, ...]] = set()
    if len(cells) <= MOST_CELLS:
        _register_cells(cells, matrix_option)
        listed = {(cell,) for cell in cells}
    else:
        _register_plain("dist", f"the whole matrix: {counted(len(cells), 'cell')}", matrix_option)
    for prefix in prefixes(cells):
        # Every signature can be run, but `nox --list` does not list a second one for the same cells.
        if not (_is_list() and prefix.cells in listed):
            _register_plain(prefix.signature, _described(prefix), _where(prefix.values), matrix_option)
        listed.add(prefix.cells)
    if (Path(__file__).parent / "plugins" / "stress" / "hooks.py").is_file():
        _register_stress(matrix_option)


def _exit(error: AllranksError) -> NoReturn:
    """Exit nox with the message of an error instead of a traceback of the noxfile."""
    print(error.terminal_text, file=sys.stderr)
    raise SystemExit(int(error.exit_code)) from None


def _register_cells(cells: Sequence[Cell], matrix_option: str) -> None:
    axes = signature_axes(cells)
    points = [nox.param(*(getattr(cell, axis) for axis in axes), tags=_tags(cell)) for cell in cells]

    # `nox --list --json` only lists default sessions.
    @nox.session(name="dist", default=_is_list("--json"), venv_backend="none")
    @nox.parametrize(list(axes), points)
    def dist(session: nox.Session, **values: Any) -> None:  # noqa: ANN401 - nox passes each axis by name
        """Run one cell; arguments after -- are for pytest."""
        _run(session, _where(values), matrix_option)


def _is_list(*others: str) -> bool:
    """Whether the command line of nox lists sessions and has all of these other options."""
    own = sys.argv[: sys.argv.index("--")] if "--" in sys.argv else sys.argv
    return not {"--list", "-l", "--list-sessions"}.isdisjoint(own) and {*others}.issubset(own)


def _tags(cell: Cell) -> list[str]:
    tags = ["cell", cell.backend, f"world{cell.world_size}", f"gpu{cell.gpu_count}", cell.init_method]
    return [*tags, f"torch{cell.torch}"] if cell.torch else tags


def _register_plain(name: str, description: str, *selection: str) -> None:
    def some_cells(session: nox.Session) -> None:
        _run(session, *selection)

    some_cells.__doc__ = description
    nox.session(name=name, default=False, venv_backend="none")(some_cells)


def _described(prefix: Prefix) -> str:
    """The description of a session: ``gloo, 2 ranks: 3 cells``."""
    words = (
        counted(value, _NOUNS[axis]) if isinstance(value, int) else f"{'torch ' if axis == 'torch' else ''}{value}"
        for axis, value in prefix.values.items()
    )
    return f"{', '.join(words)}: {counted(len(prefix.cells), 'cell')}"


def _register_stress(matrix_option: str) -> None:
    @nox.session(name="stress", default=False, venv_backend="none")
    def stress(session: nox.Session) -> None:
        """Repeat tests; arguments after -- are for `allranks stress`."""
        _call(session, "stress", matrix_option, *session.posargs)


def _where(values: Any) -> str:  # noqa: ANN401 - a mapping of axes
    return "--where=" + ",".join(f"{axis}={value}" for axis, value in values.items())


def _run(session: nox.Session, *selection: str) -> None:
    suites, pytest_args = split_suites(session.posargs)
    _call(session, "run", *selection, *suites, "--", *pytest_args)


def _call(session: nox.Session, *arguments: str) -> None:
    """Run a command of allranks, in an interpreter with its dependencies."""
    try:
        python, environment = orchestrator()
    except AllranksError as error:
        session.error(error.text.rstrip("."))  # nox adds a period
    # Without timeouts, since allranks needs a few seconds to remove its containers and processes.
    session.run(
        python,
        *("-m", "allranks", *arguments),
        env=environment,
        external=True,
        interrupt_timeout=None,
        terminate_timeout=None,
    )


def split_suites(posargs: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments after ``--`` into the options ``--suite NAME`` of the run, and the arguments of pytest."""
    suites: list[str] = []
    rest: list[str] = []
    arguments = iter(posargs)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name == "--suite":
            suites.append(f"--suite={value if equals else next(arguments, '')}")
        else:
            rest.append(argument)
    return suites, rest


def orchestrator() -> tuple[str, dict[str, str]]:
    """Return an interpreter with the dependencies of a run, and the environment variables to import this allranks.

    If allranks is installed, that is the running interpreter; otherwise, an environment is created on first use.
    """
    if _is_installed():
        return sys.executable, {}
    from allranks.engines.package import package_path  # noqa: PLC0415 - not needed to list sessions

    recipe = EnvironmentRecipe(name="orchestrator", arguments=_dependencies())
    python = ensure_environment(recipe, lambda line: print(f"allranks: {line}", flush=True))
    return str(python), {"PYTHONPATH": str(package_path(cache_folder() / "package"))}


def _is_installed() -> bool:
    return next(iter(importlib.metadata.distributions(name="allranks")), None) is not None


def _dependencies() -> tuple[str, ...]:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    return tuple(project["project"]["dependencies"])
