"""Reads and checks matrix.toml, or ``[tool.allranks]`` of pyproject.toml."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from allranks.errors import MatrixError, UsageError, did_you_mean, listed, shown
from allranks.matrix.axes import (
    AXES,
    BACKENDS,
    INIT_METHODS,
    NO_TORCH,
    SMALLEST,
    AxisValue,
    backend_problem,
    comparable,
)
from allranks.matrix.cell_images import check_images
from allranks.matrix.expand import Expansion, expand
from allranks.matrix.keys import At, keys_of, read_keys
from allranks.matrix.model import Axes, Image, Limits, Matrix, Process, Suite
from allranks.matrix.runners import check_runners, checked_runner
from allranks.matrix.suite_paths import own_folder, own_path, suite_paths
from allranks.matrix.tables import plugin_tables, read_tables
from allranks.matrix.toml_file import LARGEST_NUMBER, PYPROJECT, Table, read

FILE_NAME = "matrix.toml"

TEST_LIMIT_VARIABLE = "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"
"""The default time limit of a test in seconds; torch's own test harness uses the same variable."""


def load(start: Path) -> Expansion:
    """Read, check and expand a matrix file, or the one in a folder."""
    matrix = _matrix(read(_locate(start.absolute())))
    expansion = expand(matrix)
    check_images(matrix, expansion.cells)
    check_runners(matrix, expansion.cells)
    return expansion


def _locate(start: Path) -> Path:
    if not start.is_dir():
        if not start.is_file():
            what = f"There is no {start}."
            raise MatrixError(what, remedy=f"Pass a {FILE_NAME} or its folder; `allranks init` writes one.")
        return start
    if (found := _in_folder(start)) is not None:
        return found
    raise _no_matrix(start)


def find_matrix(folder: Path) -> Path:
    """The matrix file of a folder, or of its nearest parent that has one."""
    if (found := _nearest(folder)) is None:
        raise _no_matrix(folder, " The parent folders have none either.")
    return found


def _nearest(folder: Path) -> Path | None:
    return next(filter(None, map(_in_folder, (folder, *folder.parents))), None)


def _in_folder(folder: Path) -> Path | None:
    own, shared = folder / FILE_NAME, folder / PYPROJECT
    if own.is_dir():
        msg = f"{own} is a folder."
        raise MatrixError(msg, remedy="Rename it, then run: allranks init")
    if own.is_file():
        return own
    return shared if shared.is_file() and read(shared).values else None


def _no_matrix(folder: Path, parents: str = "") -> MatrixError:
    why = f"Looked for {folder / FILE_NAME}, and for [tool.allranks] in {folder / PYPROJECT}.{parents}"
    return MatrixError("There is no matrix file.", why=why, remedy="Create one for this repository: allranks init")


def _matrix(file: Table) -> Matrix:
    plugins = plugin_tables(file.values)
    values = read_keys(file, Matrix, plugins)
    if "images" not in values and values.get("process", Process()).python is None:
        remedy = 'Add [images.NAME] with torch = "2.13.0", or [process] with python = "python3", if it has torch.'
        file.reject("", "there is neither an image nor an interpreter", remedy)
    declared: Axes = values.pop("axes")
    axes = {axis: getattr(declared, axis) for axis in AXES}
    table = file.below("matrix")
    _check_backends(table, declared)
    images: Mapping[str, Image] = values.pop("images", {})
    suites: Mapping[str, Suite] = values.pop("suites")
    has_torch = axes["torch"] != (NO_TORCH,)
    matrix = Matrix(
        **{**values, "limits": _limits(file.below("limits"), values.get("limits", Limits()), os.environ)},
        path=file.path,
        axes=axes,
        excludes=declared.excludes,
        suites={name: _suite(file.below("suites").below(name), suite) for name, suite in suites.items()},
        tables=read_tables(file, plugins),
        line=table.line,
    )
    for name, image in images.items():
        _check_image(file.below("images").below(name), image, has_torch=has_torch)
    runners = tuple(checked_runner(file.below("runners", index), rule) for index, rule in enumerate(matrix.runners))
    warnings = _check_conditions(file, axes, (*BACKENDS, *declared.custom_backends))
    return replace(matrix, images=images, runners=runners, warnings=warnings)


def _check_backends(table: Table, axes: Axes) -> None:
    for backend in axes.backend:
        if problem := backend_problem(backend, axes.custom_backends):
            table.reject("backend", *problem)


def declared_backends(folder: Path) -> tuple[str, ...]:
    """The custom backends of the matrix file in a folder or its nearest parent; none without such a file."""
    found, key = _nearest(folder), keys_of(Axes)["custom_backends"]
    if found is None or key.name not in (table := read(found).below("matrix")).values:
        return ()
    names: tuple[str, ...] = key.kind.read(At(table, key), table.values[key.name])
    return names


def _check_conditions(
    file: Table, axes: Mapping[str, tuple[AxisValue, ...]], backends: tuple[str, ...]
) -> tuple[str, ...]:
    """Reject conditions with impossible values, and return warnings for possible values that are not on their axes.

    Rules thus stay valid when values are removed from an axis. In the condition of a suite, each value must be on its
    axis, because nobody would notice a suite that runs nowhere due to a typo.
    """
    names = {"backend": backends, "init_method": INIT_METHODS}
    warnings = []
    for table, condition in file.conditions:
        if "torch" in condition.names and axes["torch"] == (NO_TORCH,):
            remedy = 'Add torch = ["2.13.0", "2.14.1"] to [matrix].'
            table.reject("when", "the condition uses torch, which is not an axis of this matrix", remedy)
        for axis, literal in condition.literals:
            if comparable(axis, literal) in {comparable(axis, value) for value in axes[axis]}:
                continue
            what = f"the condition has {shown(literal)}, which is not on the axis {axis} ({listed(axes[axis])})"
            possible = literal >= SMALLEST[axis] if isinstance(literal, int) else literal in names.get(axis, (literal,))
            if table.key[0] == "suites" or not possible:
                table.reject("when", what, did_you_mean(literal, axes[axis]))
            warnings.append(f"{table.location('when')}: {what}")
    return tuple(warnings)


def _suite(table: Table, suite: Suite) -> Suite:
    if suite.launches_ranks and suite.process_group:
        what = "tests that launch ranks themselves run in a process without a process group"
        table.reject("process_group", what, "Remove it, or remove launches_ranks.")
    own = own_path(table, suite)
    if own is not None:
        return replace(suite, paths=(own,), home=own_folder())
    paths, ignored = suite_paths(table, suite)
    return replace(suite, paths=paths, ignored=ignored)


def _check_image(table: Table, image: Image, *, has_torch: bool) -> None:
    others = [name for name in table.values if name not in ("when", "image")]
    if image.image is not None and others:
        remedy = f"Remove image to build one, or remove {listed(others)}."
        table.reject(others[0], "a prebuilt image is used as it is, and nothing can be added to it", remedy)
    if not has_torch and not {"image", "torch"} & table.values.keys():
        remedy = 'Add torch = "2.13.0", or image = "name@sha256:…" for a prebuilt image.'
        table.reject("", "the torch version of the image is unknown", remedy)
    if "mode" in table.values and image.project is None:
        remedy = 'Set project to the folder of your project (project = "."), or remove mode.'
        table.reject("mode", "mode applies to a project, and there is none", remedy)
    for text in image.packages:
        if "/" in text or text.startswith(("-", ".")):
            continue  # an address, a path or an option, which pip accepts, too
        try:
            Requirement(text)
        except InvalidRequirement as error:
            what = f"{shown(text)} is not a requirement ({str(error).partition(chr(10))[0]})"
            table.reject("packages", what, 'An example is packages = ["numpy>=2", "expecttest"].')


def _limits(table: Table, given: Limits, environ: Mapping[str, str]) -> Limits:
    default = Limits() if "test" in table.values else _default_limits(environ.get(TEST_LIMIT_VARIABLE, ""))
    settings = {name: setting for name, setting in default.settings.items() if name not in table.values}
    limits = replace(default, settings=settings, **{name: getattr(given, name) for name in table.values})
    # Otherwise, the inner limit could never be reached.
    for inner, outer in (("process_group", "test"), ("test", "job")):
        inner_seconds, outer_seconds = getattr(limits, inner), getattr(limits, outer)
        if inner_seconds >= outer_seconds:
            what = f"{inner} ({inner_seconds:g} s) is not below {outer} ({outer_seconds:g} s)"
            remedy = f"process_group < test < job must hold: set {inner} below {outer}, or raise {outer}."
            table.reject(outer if outer in table.values else inner, what, remedy)
    return limits


def _default_limits(test: str) -> Limits:
    """The default limits; if the environment sets the test limit, the others are adjusted to it."""
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
