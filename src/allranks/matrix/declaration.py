"""Reads matrix.toml, or ``[tool.allranks]`` of pyproject.toml, into a checked :class:`Matrix`."""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args

from allranks.errors import MatrixError, UsageError, did_you_mean, shown
from allranks.matrix.axes import (
    AXES,
    BACKENDS,
    LARGEST,
    NO_TORCH,
    SMALLEST,
    AxisValue,
    Known,
    Values,
    comparable,
    is_version,
    refused_backend,
    type_of_axis,
)
from allranks.matrix.cell_images import check_images, read_images
from allranks.matrix.expand import Expansion, expand
from allranks.matrix.model import (
    Cell,
    Docker,
    EnvRule,
    Include,
    Isolation,
    Limits,
    Matrix,
    Policy,
    Process,
    Rule,
    SeccompName,
    SkipPolicy,
    Suite,
)
from allranks.matrix.own_suites import own_folder, own_path
from allranks.matrix.runners import check_runners, read_runner
from allranks.matrix.suite_paths import inside, suite_paths
from allranks.matrix.tables import declared_tables, read_tables
from allranks.matrix.toml_file import LARGEST_NUMBER, PYPROJECT, Table, exists, read

FILE_NAME = "matrix.toml"

MOST_SHARDS = 1000
"""More is a typing error: such jobs would take longer to plan than to run."""

INIT_METHODS = ("env", "tcp", "file")

DEFAULTS: Mapping[str, AxisValue] = {"gpu_count": 0, "init_method": "env", "nodes": 1, "torch": NO_TORCH}

SMALLEST_MEMORY = 256
"""MiB: an agent that has imported torch needs more than this by itself."""

TEST_LIMIT_VARIABLE = "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"
"""The time limit of a test in seconds if the matrix sets none: the variable of torch's own harness."""

SET_BY_ALLRANKS = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)
"""Set for each rank by allranks; a rule that sets one of them would break every rendezvous."""

TABLES = (
    *("matrix", "suites", "images", "env", "policy", "limits", "process", "docker", "engines", "runners", "durations"),
)
"""The tables of the core; plug-ins add some."""

EXAMPLE = """\
    [matrix]
    backend = ["gloo"]
    world_size = [2]

    [suites.tests]
    path = "tests"

    [images.cpu]
    torch = "2.13.0"
"""


def load(start: Path) -> Expansion:
    """Reads, checks and expands the matrix of a repository.

    Args:
        start: The repository's folder, or the file itself.

    Raises:
        MatrixError: There is no such file, or it is invalid.
    """
    matrix = _matrix(read(_locate(start.absolute())))
    expansion = expand(matrix)
    check_images(matrix, expansion.cells)
    check_runners(matrix, expansion.cells)
    return expansion


def _locate(start: Path) -> Path:
    if not start.is_dir():
        if not start.is_file():
            raise MatrixError(
                what=f"There is no {start}.", remedy=f"Name a folder that has a {FILE_NAME}, or that file."
            )
        return start
    if (found := _in_folder(start)) is not None:
        return found
    raise _no_matrix(start)


def find_matrix(folder: Path) -> Path:
    """The matrix file of a folder, or of its nearest parent that has one.

    Raises:
        MatrixError: There is none, or a pyproject.toml on the way cannot be read.
    """
    found = next(filter(None, map(_in_folder, (folder, *folder.parents))), None)
    if found is None:
        raise _no_matrix(folder, " The parents of this folder have none either.")
    return found


def _in_folder(folder: Path) -> Path | None:
    own, shared = folder / FILE_NAME, folder / PYPROJECT
    if own.is_file():
        return own
    return shared if shared.is_file() and read(shared).values else None


def _no_matrix(folder: Path, parents: str = "") -> MatrixError:
    why = f"Looked for {folder / FILE_NAME}, and for [tool.allranks] in {folder / PYPROJECT}.{parents}"
    remedy = f"Write a {FILE_NAME}; the smallest is:\n\n{EXAMPLE}"
    return MatrixError("There is no matrix file.", why=why, remedy=remedy)


def _matrix(file: Table) -> Matrix:
    tables = read_tables(file, TABLES)
    file.needs("matrix", "[matrix]")
    table = file.table("matrix")
    table.only(*AXES, "custom_backends", "exclude", "include")
    custom = _custom_backends(table)
    axes = {axis: _axis(table, axis, custom) for axis in AXES}
    includes = tuple(_include(entry, custom, has_torch="torch" in table) for entry in table.tables("include"))
    known = Known(_values(axes, (include.cell for include in includes)), _names(custom))
    return Matrix(
        path=file.path,
        axes=axes,
        excludes=tuple(_exclude(entry, known) for entry in table.tables("exclude")),
        includes=includes,
        suites=_suites(file, known),
        images=read_images(file, known),
        env=tuple(_env(entry, known) for entry in file.tables("env")),
        policy=_policy(file.table("policy")),
        limits=_limits(file.table("limits"), os.environ),
        process=_process(file.table("process")),
        docker=_docker(file.table("docker")),
        engines=_engines(file.table("engines")),
        runners=tuple(read_runner(entry, known) for entry in file.tables("runners")),
        durations=_durations(file.table("durations")),
        tables=tables,
        line=table.line,
        warnings=tuple(file.warnings),
    )


def _engines(table: Table) -> dict[str, Mapping[str, object]]:
    """The tables of engines from other packages, which may be installed only on other machines."""
    for name in table.values:
        if name in {"docker", "process", *declared_tables()}:
            raise table.error(name=name, what="this engine is allranks' own", remedy=f"Write [{name}].")
    return {name: table.table(name).values for name in table.values}


def _names(custom: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    return {"backend": (*BACKENDS, *custom), "init_method": INIT_METHODS}


def _values(axes: Mapping[str, tuple[AxisValue, ...]], included: Iterable[Cell]) -> Values:
    known = {axis: dict.fromkeys(values) for axis, values in axes.items()}
    for cell in included:
        for axis, value in cell.axes().items():
            known[axis][value] = None
    return known


def declared_backends(folder: Path) -> tuple[str, ...]:
    """The custom backends in the matrix file of a folder, or of its nearest parent that has one; none without a file.

    Raises:
        MatrixError: They cannot be read.
    """
    found = next(filter(None, map(_in_folder, (folder, *folder.parents))), None)
    return _custom_backends(read(found).table("matrix")) if found else ()


def _custom_backends(table: Table) -> tuple[str, ...]:
    names = table.texts("custom_backends")
    for name in names:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", name):
            remedy = "torch lower-cases backend names: write a small letter, then small letters, digits and '_'."
            raise table.error(
                name="custom_backends", what=f"{shown(name)} cannot be the name of a backend", remedy=remedy
            )
    return names


def _axis(table: Table, axis: str, custom: tuple[str, ...]) -> tuple[AxisValue, ...]:
    if axis not in DEFAULTS:
        table.needs(axis, 'backend = ["gloo"]' if axis == "backend" else f"{axis} = [2]")
    if axis not in table:
        return (DEFAULTS[axis],)
    given = table.values[axis]
    values = given if isinstance(given, list) else [given]
    if not values:
        raise table.error(axis, "the list is empty", f"Give {axis} at least one value, or leave the key out.")
    checked = tuple(_axis_value(table, axis, value, custom) for value in values)
    _refuse_twice(table, axis, checked)
    return checked


def _axis_value(table: Table, axis: str, value: object, custom: tuple[str, ...]) -> AxisValue:
    if type_of_axis[axis] is int:
        return table.checked_whole(axis, value, SMALLEST[axis], LARGEST)
    if axis == "torch":
        return _torch_version(table, value)
    if not isinstance(value, str):
        example = (BACKENDS if axis == "backend" else INIT_METHODS)[0]
        raise table.error(axis, f"{shown(value)} is not a name", f'Write {axis} = ["{example}"].')
    if axis == "backend":
        if refused := refused_backend(value, custom):
            raise table.error(axis, *refused)
    elif value not in INIT_METHODS:
        raise table.error(axis, f"{shown(value)} is not a supported init method", did_you_mean(value, INIT_METHODS))
    return value


def _torch_version(table: Table, value: object) -> str:
    if not isinstance(value, str) or not is_version(value):
        what = f"{shown(value)} is not one exact version in quotes"
        raise table.error(name="torch", what=what, remedy='Write torch = ["2.13.0", "2.14.1"].')
    return value


def _refuse_twice(table: Table, axis: str, values: tuple[AxisValue, ...]) -> None:
    seen: set[object] = set()
    for value in values:
        if (key := comparable(axis, value)) in seen:
            raise table.error(axis, f"{shown(value)} is there twice", "Write each value once.")
        seen.add(key)


def _include(table: Table, custom: tuple[str, ...], *, has_torch: bool) -> Include:
    table.only(*(axis for axis in AXES if axis != "torch" or has_torch), "reason")
    if has_torch:
        table.needs("torch", 'torch = "2.14.1"')
    table.needs("backend", 'backend = "gloo"')
    table.needs("world_size", "world_size = 2")
    given = [_axis_value(table, axis, table.values[axis], custom) if axis in table else DEFAULTS[axis] for axis in AXES]
    return Include(cell=Cell.at(given), reason=table.text("reason", ""), line=table.line)


def _exclude(table: Table, known: Known) -> Rule:
    table.only("when", "reason")
    table.needs("when", "when = \"backend == 'gloo' and gpu_count > 0\"")
    table.needs("reason", 'reason = "gloo is tested on CPU tensors"')
    return Rule(when=table.condition(known), reason=table.text("reason", ""), line=table.line)


def _suites(file: Table, known: Known) -> dict[str, Suite]:
    suites = {name: _suite(name, table, known) for name, table in file.named_tables("suites").items()}
    if not suites:
        raise file.error(name="suites", what="there is no suite", remedy='Add:  [suites.tests]  path = "tests"')
    return suites


def _suite(name: str, table: Table, known: Known) -> Suite:
    names = ("path", "exclude", "isolation", "overlap", "test_groups", "process_group", "launches_ranks", "when")
    table.only(*names, "files", "pytest_args", "shards", "default")
    table.needs("path", f'path = "tests/{name}"')
    if table.flag("launches_ranks", default=False) and table.flag("process_group", default=False):
        what = "a test that launches ranks itself runs in one process, which is no rank and has no process group"
        raise table.error(name="process_group", what=what, remedy="Remove it, or launches_ranks.")
    own = own_path(table)
    paths, ignored = suite_paths(table) if own is None else ((own,), ())
    return Suite(
        name=name,
        paths=paths,
        home=None if own is None else own_folder(),
        ignored=ignored,
        isolation=table.choice("isolation", get_args(Isolation), Suite.isolation),
        overlap=table.whole("overlap", Suite.overlap, 1),
        test_groups=table.lists("test_groups"),
        process_group=table.flag("process_group", default=True) if "process_group" in table else None,
        launches_ranks=table.flag("launches_ranks", Suite.launches_ranks),
        # A suite that runs nowhere because of a typing error would be missed by nobody.
        when=table.strict_condition(known),
        files=tuple(inside(table, "files", text) for text in table.texts("files")),
        pytest_args=table.texts("pytest_args"),
        shards=_shards(table),
        default=table.flag("default", Suite.default),
    )


def _shards(table: Table) -> int:
    shards = table.whole("shards", Suite.shards, at_least=1)
    if shards > MOST_SHARDS:
        what = f"{shards} shards are {shards} jobs in every cell"
        raise table.error(name="shards", what=what, remedy=f"Write a whole number from 1 to {MOST_SHARDS}.")
    return shards


def _env(table: Table, known: Known) -> EnvRule:
    table.only("when", "set")
    table.needs("set", 'set = { NCCL_DEBUG = "WARN" }')
    variables = table.strings("set")
    for name in variables:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise table.error(
                name="set", what=f"{shown(name)} cannot be a variable", remedy="Use letters, digits and '_'."
            )
        if name in SET_BY_ALLRANKS:
            raise table.error(name="set", what=f"{name} is set by allranks for each rank", remedy="Remove it.")
    return EnvRule(set=variables, when=table.optional_condition(known))


def _policy(table: Table) -> Policy:
    table.only("skip", "mixed_skip", "baseline")
    skip = table.choice("skip", get_args(SkipPolicy), Policy.skip)
    return Policy(skip=skip, mixed_skip=table.texts("mixed_skip"), baseline=_baseline(table))


def _baseline(table: Table) -> Path | None:
    """The baseline, which must exist: a requested check whose file is absent would never fail."""
    text = table.text("baseline", None, ".allranks-baseline.json")
    if text is None:
        return None
    path = table.relative_path("baseline", text)
    if not exists(table.path.parent / path):
        remedy = f"Create it from a good run: allranks report results/latest --update-baseline {text}"
        raise table.error(name="baseline", what=f"there is no file {shown(text)}", remedy=remedy)
    return path


def _limits(table: Table, environ: Mapping[str, str]) -> Limits:
    table.only("process_group", "test", "job", "peer_grace", "assembly", "silence", "memory_mib", "disk_mib")
    default = Limits() if "test" in table else _default_limits(environ.get(TEST_LIMIT_VARIABLE, ""))
    limits = Limits(
        process_group=table.seconds("process_group", default.process_group),
        test=table.seconds("test", default.test),
        job=table.seconds("job", default.job),
        peer_grace=table.seconds("peer_grace", default.peer_grace),
        assembly=table.seconds("assembly", default.assembly),
        silence=table.seconds("silence", default.silence),
        memory_mib=table.whole("memory_mib", default.memory_mib, at_least=SMALLEST_MEMORY),
        disk_mib=table.whole("disk_mib", default.disk_mib, at_least=1),
        settings={name: setting for name, setting in default.settings.items() if name not in table},
    )
    _check_nesting(table, limits)
    return limits


def _default_limits(test: str) -> Limits:
    """The default limits; if the environment sets the test limit, those around it are adjusted to fit."""
    if not test:
        return Limits()
    try:
        seconds = float(test)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= LARGEST_NUMBER:
        msg = f"The environment variable {TEST_LIMIT_VARIABLE} is {test!r}, which is not a valid time."
        raise UsageError(msg, remedy="Set it to a number of seconds above 0, or unset it.")
    process_group, job = min(Limits.process_group, seconds / 2), max(Limits.job, seconds * 2)
    settings = {"test": TEST_LIMIT_VARIABLE}
    if process_group != Limits.process_group:
        settings["process_group"] = f"half of {TEST_LIMIT_VARIABLE}"
    if job != Limits.job:
        settings["job"] = f"twice {TEST_LIMIT_VARIABLE}"
    return Limits(process_group=process_group, test=seconds, job=job, settings=settings)


def _check_nesting(table: Table, limits: Limits) -> None:
    """Refuses a limit that could never be reached because an outer one ends first."""
    for inner, outer in (("process_group", "test"), ("test", "job")):
        inside, around = getattr(limits, inner), getattr(limits, outer)
        if inside >= around:
            what = f"{inner} ({inside:g} s) is not below {outer} ({around:g} s)"
            remedy = f"The limits nest, process_group < test < job: set {inner} below {outer}, or raise {outer}."
            raise table.error(outer if outer in table else inner, what, remedy)


def _process(table: Table) -> Process:
    table.only("python")
    return Process(python=table.text("python", None, "python3"))


def _durations(table: Table) -> Path:
    table.only("file")
    return table.new_file("file", str(Matrix.durations))


def _docker(table: Table) -> Docker:
    table.only("seccomp")
    return Docker(seccomp=table.choice("seccomp", get_args(SeccompName), Docker.seccomp))
