"""``allranks conformance``: runs a suite against a backend, and prints the backend's capabilities."""

import argparse
import importlib.util
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from allranks.cli.init import DEFAULT_TORCH, installed_torch
from allranks.cli.parser import existing_file, option, whole
from allranks.cli.printing import say, say_verdict
from allranks.cli.run import JobOptions, run_jobs, run_options
from allranks.engines import AUTO
from allranks.engines.archive import copy_files
from allranks.engines.base import FileCopy
from allranks.errors import ExitCode, UsageError
from allranks.matrix.axes import AXES, LARGEST, backend_problem, is_version
from allranks.matrix.declaration import FILE_NAME
from allranks.matrix.expand import Expansion
from allranks.matrix.jobs import plan
from allranks.matrix.model import Cell, Image, Limits, Matrix, Process, Suite
from allranks.matrix.suite_paths import own_folder, own_names

if TYPE_CHECKING:
    from allranks.plugins.conformance.capabilities import CapabilityTable

Tables = Mapping[str, "CapabilityTable"]

_SKIPS: Final = "allranks.testing.unsupported_skips"

_GROUP_LIMIT: Final = 6
"""The process group's limit, in test limits: a test must time out first, so that the hanging rank is named."""

_LONGEST: Final = 3600
"""The most seconds of ``--time-limit``: the limit of a process group, a multiple of it, must fit into timers."""

_SETTINGS: Final = {
    "test": "--time-limit",
    "process_group": f"{_GROUP_LIMIT} times --time-limit",
    **dict.fromkeys(("job", "peer_grace"), "fixed in this command"),
}
"""Where each time limit is set, for messages."""

_SUFFIXES: Final = (".py", ".so")


def _world_sizes(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() and 0 < int(part[:6]) <= LARGEST for part in parts):
        msg = f"{text!r} is not a list of world sizes: write 2,4"
        raise argparse.ArgumentTypeError(msg)
    return tuple(dict.fromkeys(map(int, parts)))


_WHAT = "what to test"
_WHERE = "where to run"


@dataclass(frozen=True, kw_only=True)
class Options(JobOptions):
    """The options of ``allranks conformance``."""

    usage: ClassVar = "allranks conformance --backend NAME [--import MODULE] [options] [-- PYTEST-ARGUMENT ...]"

    backend: str = option("--backend NAME", _WHAT, "the backend, as init_process_group takes it", required=True)
    module: str | None = option(
        "--import MODULE",
        _WHAT,
        "import this first in each rank: a module or package in this folder, or an installed one",
    )
    world_size: tuple[int, ...] = option(
        "--world-size N,...",
        _WHAT,
        "numbers of ranks, with one run of the suite for each (default: 2,4)",
        type=_world_sizes,
        default=(2, 4),
    )
    device: str | None = option(
        "--device",
        _WHAT,
        "the device of the tensors; cuda takes a GPU for each rank (default: cpu; for nccl: cuda)",
        choices=("cpu", "cuda"),
    )
    suite: str = option("--suite", _WHAT, "the suite (default: collectives)", choices=own_names, default="collectives")
    time_limit: int = option(
        "--time-limit SECONDS",
        _WHAT,
        "seconds after which a test counts as hanging (default: 10)",
        type=whole(1, _LONGEST),
        default=10,
    )
    python: str | None = option(
        "--python PATH",
        _WHERE,
        "interpreter with torch, for the process engine (default: that of allranks, if it has torch)",
    )
    torch: str | None = option(
        "--torch VERSION", _WHERE, "torch for an image or environment (default: the installed version)"
    )
    image: str | None = option("--image NAME", _WHERE, "prebuilt image to run in")
    compare: Path | None = option(
        "--compare FILE",
        "results and output",
        "an earlier conformance.json to compare with (default: the newest of this backend in the results folder)",
        type=existing_file,
    )


def run(options: Options) -> ExitCode:
    """Run a suite against a backend, and print its table."""
    _check_names(options)
    if options.compare:
        earlier = _read(options.compare)  # so that an error appears before the run
        if not earlier.get(options.backend):
            msg = f"{options.compare} has no table of {options.backend}."
            remedy = "Name a conformance.json of this backend."
            raise UsageError(msg, why=f"Its tables: {', '.join(earlier) or 'none'}.", remedy=remedy)
    options = replace(options, pytest_args=(*options.own_pytest_args, *options.pytest_args))
    if options.engine == AUTO and (options.python or installed_torch()[0]) and not options.image:
        options = replace(options, engine="process")  # the backend was most likely built for this interpreter
    with tempfile.TemporaryDirectory(prefix="allranks-backend-") as folder:
        local = _copy_module(options.module, Path.cwd(), Path(folder)) if options.module else False
        _check_module(options, is_local=local)
        expansion = _expansion(options, (Path(folder),) if local else ())
        run_request = run_options(expansion, options)
        code = run_jobs(expansion, plan(expansion.matrix, expansion.cells), run_request)
    code = _show(run_request.results / run_request.run_id, options, code)
    say_verdict(code)
    return code


def _check_names(options: Options) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", options.backend):
        msg = f"{options.backend!r} cannot be the name of a backend."
        remedy = "torch lower-cases names: write a lower-case letter, then lower-case letters, digits and '_'."
        raise UsageError(msg, remedy=remedy)
    hint = "To test your own backend, name the module that registers it: --import MODULE."
    if options.module is None and (problem := backend_problem(options.backend, (), hint)):
        what, remedy = problem
        msg = f"--backend: {what}."
        raise UsageError(msg, remedy=remedy)
    if options.module is not None and not all(part.isidentifier() for part in options.module.split(".")):
        msg = f"{options.module!r} cannot be the name of a module."
        raise UsageError(msg, remedy="Write it as in an import statement: --import package.module.")
    if options.torch is not None and not is_version(options.torch):
        msg = f"--torch: {options.torch!r} is not one exact version."
        raise UsageError(msg, remedy=f"Write it as in --torch {DEFAULT_TORCH}.")


def _copy_module(module: str, here: Path, target: Path) -> bool:
    """Copy a module or package of this folder to a separate folder, for any engine; False if it is not here.

    Raises:
        EngineError: It is a link that leads out of this folder.
    """
    name = module.partition(".")[0]
    if (here / name).is_dir() and any((here / name).glob("*.py")):
        found = [here / name]
    else:
        found = [path for path in here.glob(f"{name}.*") if path.suffix in _SUFFIXES and path.is_file()]
    for path in found:
        copy_files(FileCopy(source=path, target=Path(path.name), root=here.resolve()), target)
    return bool(found)


def _check_module(options: Options, *, is_local: bool) -> None:
    """If this interpreter runs the tests, reject a module that neither it nor this folder has."""
    if options.module is None or is_local or options.engine != "process" or options.python:
        return
    if importlib.util.find_spec(options.module.partition(".")[0]) is None:
        msg = f"There is no module {options.module}."
        why = f"It is neither in {Path.cwd()} nor installed for {sys.executable}."
        raise UsageError(msg, why=why, remedy="Go to its folder, install it, or name another interpreter: --python.")


def _expansion(options: Options, python_path: tuple[Path, ...]) -> Expansion:
    """The equivalent of a matrix file with one suite and one backend."""
    uses_gpus = (options.device or ("cuda" if options.backend == "nccl" else "cpu")) == "cuda"
    cells = tuple(
        Cell(backend=options.backend, world_size=size, gpu_count=size if uses_gpus else 0, init_method="tcp")
        for size in options.world_size
    )
    installed = installed_torch()[0]
    python = options.python or (sys.executable if installed else None)
    plugins = (_SKIPS, *([options.module] if options.module else []))
    suite = Suite(
        name=options.suite,
        paths=(Path(options.suite),),
        home=own_folder(),
        python_path=python_path,
        isolation="job",
        pytest_args=tuple(word for plugin in plugins for word in ("-p", plugin)),
    )
    packages = () if options.engine == "process" and python else ("numpy",)
    torch = None if options.image else options.torch or installed or DEFAULT_TORCH
    image = Image(name="conformance", image=options.image, torch=torch, packages=() if options.image else packages)
    seconds = float(options.time_limit)
    matrix = Matrix(
        path=Path.cwd() / FILE_NAME,
        axes={axis: tuple(dict.fromkeys(cell.axes()[axis] for cell in cells)) for axis in AXES},
        suites={suite.name: suite},
        images={image.name: image},
        limits=Limits(process_group=_GROUP_LIMIT * seconds, test=seconds, settings=_SETTINGS),
        process=Process(python=python),
    )
    return Expansion(matrix, cells)


def _show(folder: Path, options: Options, code: ExitCode) -> ExitCode:
    """Print the table of a run and its differences from an earlier one; return the final exit code."""
    from allranks.plugins.conformance.capabilities import changes, is_bad  # noqa: PLC0415 - no other command needs it
    from allranks.plugins.conformance.capability_tables import TABLE_NAME, as_text, change_lines  # noqa: PLC0415

    path = folder / TABLE_NAME
    tables = _read(path) if path.is_file() else {}
    if not tables:
        return code
    say(f"\n{as_text(tables)}\n")
    earlier = options.compare or _newest_table(options.backend, folder.parent.glob(f"*/{TABLE_NAME}"), path)
    if earlier:
        lines = change_lines(changes(_read(earlier), tables))
        say("\n".join([f"{'changes' if lines else 'no change'} since {earlier}", *(f"    {line}" for line in lines)]))
    say(f"table: {path} (and .md)")
    if code is ExitCode.TESTS_FAILED and not is_bad(tables) and not _has_other_failure(folder):
        return ExitCode.OK
    return code


def _read(path: Path) -> Tables:
    from allranks.plugins.conformance.capabilities import from_document  # noqa: PLC0415

    try:
        return from_document(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        msg = f"{path} cannot be read."
        remedy = "Name a conformance.json that this version has written."
        raise UsageError(msg, why=f"{error}.", remedy=remedy) from error


def _newest_table(backend: str, paths: Iterable[Path], current: Path) -> Path | None:
    """The newest table of a backend, except that of this run."""
    others = [path for path in paths if not path.parent.is_symlink() and path.parent.name != current.parent.name]
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True):
        with suppress(UsageError):
            if backend in _read(path):
                return path
    return None


def _has_other_failure(folder: Path) -> bool:
    """Whether something failed that no table shows: a job, or a test without tags."""
    from allranks.report.merging import JSON_NAME  # noqa: PLC0415

    report = json.loads((folder / JSON_NAME).read_text(encoding="utf-8"))
    tests = (test for suite in report["suites"] for test in suite["tests"])
    return any(test["verdict"] in {"failure", "error"} and "operation" not in test.get("tags", {}) for test in tests)
