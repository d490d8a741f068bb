"""The cells, suites and tests that a command line selects."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from allranks.cli.options import matrix_option
from allranks.cli.parser import CommandOptions, flag, option
from allranks.cli.printing import remark
from allranks.errors import UsageError, nearest
from allranks.matrix.declaration import find_matrix, load
from allranks.matrix.expand import Expansion
from allranks.matrix.jobs import chosen_suites, plan, suites_with_tests, unnamed_suites
from allranks.matrix.model import Cell, Job, Matrix
from allranks.matrix.select import select
from allranks.protocol.xml_text import for_log

STOP = ("-x",)
"""The argument that ends a job at its first bad test."""

_WHAT = "what to run"
_HOW = "which tests, and how (other pytest options go after --)"


@dataclass(frozen=True, kw_only=True)
class Selection(CommandOptions):
    """What selects cells, suites and tests."""

    cells: tuple[str, ...] = option(
        "CELL | TEST",
        _WHAT,
        "a cell's id, the beginning of some (gloo-w2), or dist(backend='gloo', ...); default: every cell; a "
        "test's file, folder or node id (tests/test_x.py::test_y, tests/test_x.py TestX.test_y) selects tests",
        nargs="*",
    )
    where: tuple[str, ...] = option(
        "--where AXIS=VALUE,...", _WHAT, "cells with these values (a|b: either)", action="append"
    )
    suite: tuple[str, ...] = option(
        "--suite NAME",
        _WHAT,
        "only this suite, or NAME@2of4: one of its shards; repeatable (default: all without `default = false`)",
        action="append",
    )
    matrix: Path | None = matrix_option(_WHAT)

    @property
    def own_pytest_args(self) -> tuple[str, ...]:
        """The arguments of pytest that need no ``--`` before them."""
        return ()


@dataclass(frozen=True, kw_only=True)
class PickedTests(CommandOptions):
    """Options of pytest that select tests."""

    takes_pytest = True

    keywords: tuple[str, ...] = option(
        "-k EXPRESSION", _HOW, "only tests whose names match, as in pytest: 'reduce and not slow'", action="append"
    )
    markers: tuple[str, ...] = option(
        "-m EXPRESSION", _HOW, "only tests whose markers match, as in pytest", action="append"
    )

    @property
    def own_pytest_args(self) -> tuple[str, ...]:
        """The arguments of pytest that need no ``--`` before them."""
        pairs = [*(("-k", each) for each in self.keywords), *(("-m", each) for each in self.markers)]
        return tuple(word for pair in pairs for word in pair)


@dataclass(frozen=True, kw_only=True)
class RunTests(PickedTests):
    """Options of pytest for tests that run."""

    shown: bool = flag("-s", _HOW, "show what ranks print, as they print it")
    stops: bool = flag("-x", _HOW, "end the run at its first bad test")

    @property
    def own_pytest_args(self) -> tuple[str, ...]:
        """The arguments of pytest that need no ``--`` before them."""
        return (*super().own_pytest_args, *(("-s",) if self.shown else ()), *(STOP if self.stops else ()))


Selecting = TypeVar("Selecting", bound=Selection)


def read_request(options: Selecting) -> tuple[Expansion, Selecting]:
    """Read the matrix, and move tests from the positional arguments of a command to those of pytest.

    Text decides what a positional argument is: a test's has a ``/``, a ``::`` or the end ``.py``. Any other that exists
    as a file or folder is a test's, too, unless it names cells. ``Class.test`` after a file is a test of it.

    Raises:
        UsageError: A test is in no suite, or tests are in suites of which none has all.
        MatrixError: There is no matrix file, or it is invalid.
    """
    expansion = load(options.matrix or find_matrix(Path.cwd()))
    for warning in expansion.matrix.warnings:
        remark(for_log(f"allranks: warning: {warning}"))
    tests, cells = _divided(expansion, options.cells)
    paths = [_from_root(text, expansion.matrix.root) for text in tests]
    if not options.suite:
        _check_suites(expansion.matrix, paths)
    pytest_args = (*options.own_pytest_args, *paths, *options.pytest_args)
    return expansion, replace(options, cells=tuple(cells), pytest_args=pytest_args)


def _divided(expansion: Expansion, texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Tests and cells; after a file, ``Class`` and ``Class.test`` are of it, as in ``python FILE Class.test``."""
    tests, cells, file = list[str](), list[str](), ""
    for text in texts:
        if file and _OF_A_FILE.fullmatch(text) and not _names_cells(expansion, text):
            if tests[-1] == file:
                tests.pop()
            tests.append(f"{file}::{text.replace('.', '::')}")
        elif _is_test(expansion, text):
            tests.append(text)
            file = text if text.endswith(".py") else ""
        else:
            cells.append(text)
    return tests, cells


_OF_A_FILE = re.compile(r"[A-Z]\w*|[^\W\d]\w*\.[^\W\d]\w*")


def _names_cells(expansion: Expansion, text: str) -> bool:
    try:
        return bool(select(expansion, text))
    except UsageError:
        return False


def _is_test(expansion: Expansion, text: str) -> bool:
    if "::" in text or "/" in text or text.endswith(".py"):
        return True
    try:
        select(expansion, text)
    except UsageError:
        if text in expansion.matrix.suites and not Path(text).exists():
            msg = f"There is no cell {text!r}, but a suite of that name."
            raise UsageError(msg, remedy=f"Write --suite {text}.") from None
        return Path(text).exists() or (expansion.matrix.root / text).exists()
    return False


def _from_root(test: str, root: Path) -> str:
    """A test's node id as pytest takes it in a job: relative to the matrix file's folder."""
    file, colons, name = test.partition("::")
    here = Path(os.path.abspath(file))  # noqa: PTH100 - without following links, and without `..`
    if here.exists() and here.is_relative_to(root):
        return f"{here.relative_to(root)}{colons}{name}"
    if (root / file).exists():
        return test
    there = [each.name for each in (root / file).parent.glob("*")]
    close = nearest(Path(file).name, there)
    remedy = f"Did you mean {Path(file).with_name(close)}?" if close else "Write a path relative to this folder."
    where = f"{Path.cwd()}, and in {root}" if Path.cwd() != root else str(root)
    raise UsageError(what=f"There is no test file {file}.", why=f"Looked in {where}.", remedy=remedy)


def _check_suites(matrix: Matrix, tests: Sequence[str]) -> None:
    holding = [set(suites_with_tests(matrix, [test])) for test in tests]
    for test, suites in zip(tests, holding, strict=True):
        if not suites:
            why = f"The suites are {', '.join(matrix.suites)}: see their `path` in {matrix.path.name}."
            raise UsageError(what=f"{test} is in no suite.", why=why, remedy="Name a test of one, or a suite: --suite.")
    if any(suites != holding[0] for suites in holding):
        named = "; ".join(f"{test} in {', '.join(sorted(suites))}" for test, suites in zip(tests, holding, strict=True))
        msg = "These tests are in different suites, and each job runs one suite."
        raise UsageError(msg, why=f"{named}.", remedy="Run them one after the other, or name their suites (--suite).")


def chosen_jobs(expansion: Expansion, options: Selection) -> Sequence[Job]:
    """The jobs that the command line selects; all default jobs if it selects none."""
    cells = selected_cells(expansion, options)
    suites = chosen_names(expansion, options)
    jobs = plan(expansion.matrix, cells, suites)
    if not jobs:
        raise _nothing_to_run(expansion.matrix, cells, suites)
    return jobs


def chosen_names(expansion: Expansion, options: Selection) -> Sequence[str] | None:
    """The suites that are named with --suite, or by the path of one of their tests; None for those that run anyway."""
    return options.suite or suites_with_tests(expansion.matrix, options.pytest_args) or None


def selected_cells(expansion: Expansion, options: Selection) -> Sequence[Cell]:
    """The cells that the command line names: those under ``--where``, and those given by name."""
    if not options.cells and not options.where:
        return expansion.cells
    named = [cell for text in options.cells for cell in select(expansion, text)]
    found = select(expansion, *options.where) if options.where else ()
    return tuple(dict.fromkeys((*named, *found)))


def _nothing_to_run(matrix: Matrix, cells: Sequence[Cell], suites: Sequence[str] | None) -> UsageError:
    unnamed = [suite.name for suite in unnamed_suites(matrix, cells)] if suites is None else []
    if unnamed:
        msg = "There is nothing to run: the suites of the selected cells run only when they are named."
        return UsageError(msg, remedy=f"Name some: --suite {' --suite '.join(unnamed)}")
    msg = "There is nothing to run: no suite runs in the selected cells."
    conditions = [(suite.name, suite.when.source) for suite in chosen_suites(matrix, suites) if suite.when]
    why = "; ".join(f"{name} runs where {condition}" for name, condition in conditions)
    return UsageError(msg, why=why, remedy="Select other cells: `allranks plan` lists them.")
