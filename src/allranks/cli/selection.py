"""Selects cells, suites and tests by the command line."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from allranks.cli.options import matrix_option
from allranks.cli.parser import CommandOptions, flag, option
from allranks.cli.printing import warn
from allranks.errors import UsageError, nearest
from allranks.matrix.declaration import find_matrix, load
from allranks.matrix.expand import Expansion
from allranks.matrix.jobs import chosen_suites, optional_suites, plan, suites_with_tests
from allranks.matrix.model import Cell, Job, Matrix
from allranks.matrix.select import select
from allranks.protocol.xml_text import for_log

_WHAT = "what to run"
_HOW = "which tests, and how (write other pytest options after --)"


@dataclass(frozen=True, kw_only=True)
class Selection(CommandOptions):
    """Options that select cells, suites and tests."""

    cells: tuple[str, ...] = option(
        "CELL | TEST",
        _WHAT,
        "cells: an id, a prefix of ids (gloo-w2), or dist(backend='gloo', ...) (default: all cells); tests: a "
        "file, folder or node id (tests/test_x.py::test_y, tests/test_x.py TestX.test_y)",
        nargs="*",
    )
    where: tuple[str, ...] = option(
        "--where AXIS=VALUE,...", _WHAT, "cells with these values (a|b: either)", action="append"
    )
    suite: tuple[str, ...] = option(
        "--suite NAME",
        _WHAT,
        "only this suite, or one of its shards (NAME@2of4); repeatable (default: all without `default = false`)",
        action="append",
    )
    matrix: Path | None = matrix_option(_WHAT)

    @property
    def own_pytest_args(self) -> tuple[str, ...]:
        """The pytest arguments that allranks accepts without ``--``."""
        return ()


@dataclass(frozen=True, kw_only=True)
class TestSelectionOptions(CommandOptions):
    """Options of pytest that select tests."""

    __test__ = False  # not a test class, despite its name

    takes_pytest = True

    keywords: tuple[str, ...] = option(
        "-k EXPRESSION", _HOW, "only tests whose names match, as in pytest: 'reduce and not slow'", action="append"
    )
    markers: tuple[str, ...] = option(
        "-m EXPRESSION", _HOW, "only tests whose markers match, as in pytest", action="append"
    )

    @property
    def own_pytest_args(self) -> tuple[str, ...]:
        """``-k`` and ``-m``."""
        pairs = [*(("-k", text) for text in self.keywords), *(("-m", text) for text in self.markers)]
        return tuple(word for pair in pairs for word in pair)


@dataclass(frozen=True, kw_only=True)
class TestRunOptions(TestSelectionOptions):
    """Options of pytest for commands that run tests."""

    shown: bool = flag("-s", _HOW, "print the output of ranks immediately")
    stops: bool = flag("-x", _HOW, "stop the run at the first failed test")

    @property
    def own_pytest_args(self) -> tuple[str, ...]:
        """``-k``, ``-m``, ``-s`` and ``-x``."""
        return (*super().own_pytest_args, *(("-s",) if self.shown else ()), *(("-x",) if self.stops else ()))


S = TypeVar("S", bound=Selection)


def read_request(options: S) -> tuple[Expansion, S]:
    """Read the matrix, and move tests from the positional arguments of a command to those of pytest.

    A positional argument is a test if it contains ``/`` or ``::`` or ends with ``.py``, or if it is an existing file or
    folder and does not name cells. ``Class.test`` after a file is a test of that file.

    Raises:
        UsageError: A test is in no suite, or two tests are in different suites.
        MatrixError: There is no matrix file, or it is invalid.
    """
    expansion = load(options.matrix or find_matrix(Path.cwd()))
    for warning in expansion.matrix.warnings:
        warn(for_log(f"allranks: warning: {warning}"))
    tests, cells = _split_tests_and_cells(expansion, options.cells)
    paths = [_relative_to_root(text, expansion.matrix.root) for text in tests]
    if not options.suite:
        _check_suites(expansion.matrix, paths)
    pytest_args = (*options.own_pytest_args, *paths, *options.pytest_args)
    return expansion, replace(options, cells=tuple(cells), pytest_args=pytest_args)


def _split_tests_and_cells(expansion: Expansion, texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split positional arguments; after a file, ``Class`` and ``Class.test`` belong to it, as for unittest."""
    tests, cells, file = list[str](), list[str](), ""
    for text in texts:
        is_in_file = file and _UNITTEST_NAME.fullmatch(text) and not text.endswith(".py")
        if is_in_file and not _names_cells(expansion, text):
            if tests[-1] == file:
                tests.pop()
            tests.append(f"{file}::{text.replace('.', '::')}")
        elif _is_test(expansion, text):
            tests.append(text)
            file = text if text.endswith(".py") else ""
        else:
            cells.append(text)
    return tests, cells


_UNITTEST_NAME = re.compile(r"[A-Z]\w*|[^\W\d]\w*\.[^\W\d]\w*")


def _names_cells(expansion: Expansion, text: str) -> bool:
    try:
        return bool(select(expansion, text))
    except UsageError:
        return False


def _is_test(expansion: Expansion, text: str) -> bool:
    if "::" in text or "/" in text or text.endswith(".py"):
        return True
    if _names_cells(expansion, text):
        return False
    if text in expansion.matrix.suites and not Path(text).exists():
        msg = f"There is no cell {text!r}, but a suite of that name."
        raise UsageError(msg, remedy=f"Write --suite {text}.")
    return Path(text).exists() or (expansion.matrix.root / text).exists()


def _relative_to_root(test: str, root: Path) -> str:
    """A test's node id relative to the matrix file's folder, as pytest needs it in a job."""
    file, colons, name = test.partition("::")
    here = Path(os.path.abspath(file))  # noqa: PTH100 - without following links, and without `..`
    if here.exists() and here.is_relative_to(root):
        return f"{here.relative_to(root)}{colons}{name}"
    if (root / file).exists():
        return test
    siblings = [path.name for path in (root / file).parent.glob("*")]
    close = nearest(Path(file).name, siblings)
    remedy = f"Did you mean {Path(file).with_name(close)}?" if close else "Write a path relative to this folder."
    where = f"{Path.cwd()}, and in {root}" if Path.cwd() != root else str(root)
    raise UsageError(what=f"There is no test file {file}.", why=f"Looked in {where}.", remedy=remedy)


def _check_suites(matrix: Matrix, tests: Sequence[str]) -> None:
    suites_by_test = {test: set(suites_with_tests(matrix, [test])) for test in tests}
    for test, suites in suites_by_test.items():
        if not suites:
            why = f"The suites are {', '.join(matrix.suites)}: see their `path` in {matrix.path.name}."
            remedy = "Pass a test that is in a suite, or select a suite: --suite NAME."
            raise UsageError(what=f"{test} is in no suite.", why=why, remedy=remedy)
    if len(set(map(frozenset, suites_by_test.values()))) > 1:
        why = "; ".join(f"{test} in {', '.join(sorted(suites))}" for test, suites in suites_by_test.items())
        msg = "These tests are in different suites, and each job runs one suite."
        raise UsageError(msg, why=f"{why}.", remedy="Run them separately, or name their suites (--suite).")


def selected_jobs(expansion: Expansion, options: Selection) -> Sequence[Job]:
    """The jobs that the command line selects; all default jobs if it selects none."""
    cells = selected_cells(expansion, options)
    suites = selected_suites(expansion, options)
    jobs = plan(expansion.matrix, cells, suites)
    if not jobs:
        raise _nothing_to_run(expansion.matrix, cells, suites)
    return jobs


def selected_suites(expansion: Expansion, options: Selection) -> Sequence[str] | None:
    """The suites that are selected with ``--suite``, or by the path of a test; None for the default suites."""
    return options.suite or suites_with_tests(expansion.matrix, options.pytest_args) or None


def selected_cells(expansion: Expansion, options: Selection) -> Sequence[Cell]:
    """The cells that are selected by name or with ``--where``; all cells by default."""
    if not options.cells and not options.where:
        return expansion.cells
    named = [cell for text in options.cells for cell in select(expansion, text)]
    found = select(expansion, *options.where) if options.where else ()
    return tuple(dict.fromkeys((*named, *found)))


def _nothing_to_run(matrix: Matrix, cells: Sequence[Cell], suites: Sequence[str] | None) -> UsageError:
    optional = [suite.name for suite in optional_suites(matrix, cells)] if suites is None else []
    if optional:
        msg = "There is nothing to run: the suites of the selected cells do not run by default."
        return UsageError(msg, remedy=f"Name them: --suite {' --suite '.join(optional)}")
    msg = "There is nothing to run: no suite runs in the selected cells."
    conditions = [(suite.name, suite.when.source) for suite in chosen_suites(matrix, suites) if suite.when]
    why = "; ".join(f"{name} runs in cells with {condition}" for name, condition in conditions)
    return UsageError(msg, why=why, remedy="Select other cells: `allranks plan` lists them.")
