"""What commands share: options, their variables, the selection of jobs, and printing."""

import argparse
import errno
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TextIO

from allranks.cli.command_parser import CommandParser, OptionGroup, not_among
from allranks.engines import AUTO
from allranks.errors import MEANING, ExitCode, MatrixError, UsageError, nearest
from allranks.matrix.declaration import find_matrix, load
from allranks.matrix.expand import Expansion
from allranks.matrix.jobs import chosen_suites, plan, suites_holding, unnamed_suites
from allranks.matrix.model import Cell, Job, Matrix
from allranks.matrix.select import select, select_where
from allranks.plugin_manager import added_engines
from allranks.protocol.xml_text import for_log
from allranks.runner.results_folder import RUN_ID_VARIABLE, new_run_id

ENGINE_VARIABLE = "ALLRANKS_ENGINE"
RESULTS_VARIABLE = "ALLRANKS_RESULTS"
GPU_MODE_VARIABLE = "ALLRANKS_GPU_MODE"

STOP = ("-x",)
"""The argument that ends a job at its first bad test."""

_OWN = "own_pytest_args"
"""Where options and their values are kept that pytest is given."""

_DIGITS = 18
"""Digits of the largest number accepted: more is a mistake."""

_GPU_MODES = ("auto", "nvidia", "cdi", "rocm", "none")


def add_selection(parser: CommandParser) -> None:
    """Declare what selects cells, suites and tests."""
    group = parser.add_argument_group("what to run")
    meaning = "a cell's id, the beginning of some (gloo-w2), or dist(backend='gloo', ...); default: every cell"
    if parser.takes_pytest:
        meaning += (
            "; a test's file, folder or node id (tests/test_x.py::test_y, tests/test_x.py TestX.test_y) selects tests"
        )
    group.add_argument("cells", nargs="*", metavar="CELL | TEST" if parser.takes_pytest else "CELL", help=meaning)
    group.add_argument(
        "--where", action="append", default=[], metavar="AXIS=VALUE,...", help="cells with these values (a|b: either)"
    )
    group.add_argument(
        "--suite",
        action="append",
        default=[],
        metavar="NAME",
        help="only this suite, or NAME@2of4: one of its shards; repeatable (default: all without `default = false`)",
    )
    add_matrix(group)
    parser.set_defaults(own_pytest_args=[])


def add_matrix(group: OptionGroup) -> None:
    """Declare where the matrix file is."""
    meaning = "matrix.toml, or its folder (default: of this folder, or of the nearest parent that has one)"
    group.add_argument("--matrix", type=Path, metavar="PATH", help=meaning)


def add_tests(group: OptionGroup) -> None:
    """Declare the options of pytest that need no dashes before them."""
    meaning = "only tests whose names match, as in pytest: 'reduce and not slow'"
    group.add_argument("-k", type=_argument_of("-k"), action="append", dest=_OWN, metavar="EXPRESSION", help=meaning)
    meaning = "only tests whose markers match, as in pytest"
    group.add_argument("-m", type=_argument_of("-m"), action="append", dest=_OWN, metavar="EXPRESSION", help=meaning)
    meaning = "show what ranks print, as they print it"
    group.add_argument("-s", action="append_const", const=("-s",), dest=_OWN, help=meaning)
    meaning = "end each job at its first bad test, and the run at its first bad job"
    group.add_argument("-x", action="append_const", const=STOP, dest=_OWN, help=meaning)


def add_engine(group: OptionGroup) -> None:
    """Declare the option for where jobs run."""
    meaning = "where to run: docker where a daemon answers, else process; slurm, or an engine of a package, by name"
    _add_choice(group, "engine", ENGINE_VARIABLE, (AUTO, *added_engines()), meaning)


def add_gpu_mode(group: OptionGroup) -> None:
    """Declare the option for the vendor and mode of GPUs."""
    _add_choice(group, "GPU mode", GPU_MODE_VARIABLE, _GPU_MODES, "whose GPUs, and how containers are given them")


def _add_choice(group: OptionGroup, what: str, variable: str, names: Sequence[str], meaning: str) -> None:
    """An option that a variable can set too; the default is the first of the names."""

    def named(name: str) -> str:
        # argparse does not check defaults against `choices`, and this one comes from the environment.
        if name not in names:
            raise not_among(names, name, what)
        return name

    group.add_argument(
        f"--{what.lower().replace(' ', '-')}",
        type=named,
        metavar="|".join(names),
        default=os.environ.get(variable) or names[0],
        help=f"{meaning} (default: ${variable}, or {names[0]})",
    )


def add_results(group: OptionGroup) -> None:
    """Declare the option for the results folder."""
    group.add_argument(
        "--results",
        type=Path,
        default=os.environ.get(RESULTS_VARIABLE) or None,
        metavar="DIR",
        help=f"folder of all runs (default: ${RESULTS_VARIABLE}, or results beside the matrix file)",
    )


def results_here(matrix: Path | None = None) -> Path:
    """The folder of all runs beside this matrix file, or that of this folder; without one, in this folder."""
    if matrix:
        return (matrix if matrix.is_dir() else matrix.parent) / "results"
    with suppress(MatrixError):
        root = find_matrix(Path.cwd()).parent
        return (Path() if root == Path.cwd() else root) / "results"
    return Path("results")


def add_json(group: OptionGroup) -> None:
    """Declare the option for output that programs read."""
    meaning = "print one JSON object and nothing else; messages go to standard error (keys: docs/command-line.md)"
    group.add_argument("--json", action="store_true", help=meaning)


def add_quiet(group: OptionGroup, meaning: str) -> None:
    """Declare ``-q``."""
    group.add_argument(
        "-q", "--quiet", dest="detail", action="store_const", const="quiet", default="usual", help=meaning
    )


_COLOURS: Mapping[str, str] = {"red": "\x1b[1;31m", "green": "\x1b[1;32m"}


def painted(text: str, colour: Literal["red", "green"], stream: TextIO) -> str:
    """The text in a colour where the stream shows colours: NO_COLOR forbids them, FORCE_COLOR demands them."""
    is_terminal = stream.isatty() and os.environ.get("TERM", "") not in {"", "dumb", "unknown"}
    if os.environ.get("NO_COLOR") or not (os.environ.get("FORCE_COLOR") or is_terminal):
        return text
    return f"{_COLOURS[colour]}{text}\x1b[0m"


def say_verdict(code: ExitCode) -> None:
    """Print the exit code and its meaning, the last line of a run or a merge."""
    say(painted(f"exit code {code:d}: {MEANING[code]}", "red" if code else "green", sys.stdout))


def say_json(**document: object) -> None:
    """Print an object for programs; a change that breaks its readers raises ``schema``."""
    say(json.dumps({"schema": 1, **document}, indent=2))


def moment(seconds: float) -> str:
    """A time as programs and people read it: ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def existing_file(text: str) -> Path:
    """Parse the path of a file that a command reads.

    Raises:
        argparse.ArgumentTypeError: There is none.
    """
    return _checked(text, Path.is_file, "there is no file {}")


def existing_folder(text: str) -> Path:
    """Parse the path of a folder that a command reads.

    Raises:
        argparse.ArgumentTypeError: There is none.
    """
    return _checked(text, Path.is_dir, "there is no folder {}")


def writable_file(text: str) -> Path:
    """Parse the path of a file that a command writes, and perhaps creates.

    Raises:
        argparse.ArgumentTypeError: It is a folder, or its folder does not exist.
    """
    return _checked(text, lambda path: path.parent.is_dir() and not path.is_dir(), "{} cannot be a file")


def _checked(text: str, is_right: Callable[[Path], bool], otherwise: str) -> Path:
    try:
        if text and is_right(Path(text)):
            return Path(text)
    except (OSError, ValueError) as error:
        msg = f"{text!r} cannot be used: {error}"
        raise argparse.ArgumentTypeError(msg) from error
    raise argparse.ArgumentTypeError(otherwise.format(repr(text)))


def number(text: str) -> int:
    """Parse a number that is not negative.

    Raises:
        argparse.ArgumentTypeError: The text is not such a number.
    """
    if not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS:
        msg = f"{text!r} is no number: take 0 or more"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def run_id() -> str:
    """The name of the run: from the environment, else a new one.

    Raises:
        UsageError: The name in the environment cannot name a folder and containers.
    """
    run_id = os.environ.get(RUN_ID_VARIABLE) or new_run_id()
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", run_id):
        msg = f"{RUN_ID_VARIABLE} is {run_id!r}, and names a folder and containers."
        raise UsageError(msg, remedy="Use letters, digits, '_', '.' and '-', or leave it unset.")
    return run_id


def _argument_of(flag: str) -> Callable[[str], tuple[str, str]]:
    return lambda value: (flag, value)


def read_request(options: argparse.Namespace) -> Expansion:
    """Read the matrix, and move tests from the positional arguments to those of pytest.

    Text decides what a positional argument is: a test's has a ``/``, a ``::`` or the end ``.py``. Any other that exists
    as a file or folder is a test's, too, unless it names cells. ``Class.test`` after a file is a test of it.

    Raises:
        UsageError: A test is in no suite, or tests are in suites of which none has all.
        MatrixError: There is no matrix file, or it is invalid.
    """
    expansion = load(options.matrix or find_matrix(Path.cwd()))
    for warning in expansion.matrix.warnings:
        remark(for_log(f"allranks: warning: {warning}"))
    tests, options.cells = _divided(expansion, options.cells)
    paths = [_from_root(text, expansion.matrix.root) for text in tests]
    if not options.suite:
        _check_suites(expansion.matrix, paths)
    own = [argument for arguments in options.own_pytest_args for argument in arguments]
    options.pytest_args = (*own, *paths, *options.pytest_args)
    return expansion


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
    """A test's node id as pytest takes it in a job: relative to the matrix file's folder.

    Raises:
        UsageError: There is no such file.
    """
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
    holding = [set(suites_holding(matrix, [test])) for test in tests]
    for test, suites in zip(tests, holding, strict=True):
        if not suites:
            why = f"The suites are {', '.join(matrix.suites)}: see their `path` in {matrix.path.name}."
            raise UsageError(what=f"{test} is in no suite.", why=why, remedy="Name a test of one, or a suite: --suite.")
    if any(suites != holding[0] for suites in holding):
        named = "; ".join(f"{test} in {', '.join(sorted(suites))}" for test, suites in zip(tests, holding, strict=True))
        msg = "These tests are in different suites, and each job runs one suite."
        raise UsageError(msg, why=f"{named}.", remedy="Run them one after the other, or name their suites (--suite).")


def chosen_jobs(expansion: Expansion, options: argparse.Namespace) -> Sequence[Job]:
    """The jobs that the command line selects; all default jobs if it selects none.

    Raises:
        UsageError: The selection is empty.
    """
    cells = selected_cells(expansion, options)
    suites = chosen_names(expansion, options)
    jobs = plan(expansion.matrix, cells, suites)
    if not jobs:
        raise _nothing_to_run(expansion.matrix, cells, suites)
    return jobs


def chosen_names(expansion: Expansion, options: argparse.Namespace) -> Sequence[str] | None:
    """The suites that are named with --suite, or by the path of one of their tests; None for those that run anyway."""
    return options.suite or suites_holding(expansion.matrix, options.pytest_args) or None


def selected_cells(expansion: Expansion, options: argparse.Namespace) -> Sequence[Cell]:
    """The cells that the command line names: those under ``--where``, and those given by name."""
    if not options.cells and not options.where:
        return expansion.cells
    named = [cell for text in options.cells for cell in select(expansion, text)]
    found = select_where(expansion, *options.where) if options.where else ()
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


_NOBODY_READS = (errno.EPIPE, errno.EIO)


def say(line: str) -> None:
    """Print one line; a closed pipe or terminal is not an error."""
    try:
        # One write: each of the jobs that run side by side has a thread.
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _NOBODY_READS:
            raise
        # `allranks run | head`, or a closed terminal, must not end the run: only output is lost, not the report.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def remark(line: str) -> None:
    """Print a line to standard error, apart from the output meant for programs."""
    print(line, file=sys.stderr)
