"""Options that several commands share, and the environment variables that replace some of them."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from allranks.cli.parser import flag, option
from allranks.cli.variables import ENGINE_VARIABLE, GPU_MODE_VARIABLE, RESULTS_VARIABLE
from allranks.engines import AUTO
from allranks.errors import MatrixError, UsageError, did_you_mean

if TYPE_CHECKING:
    from allranks.engines.gpus import GpuMode


def matrix_option(group: str) -> Any:  # noqa: ANN401 - see option
    """``--matrix``."""
    meaning = "matrix.toml, or its folder (default: this folder, or the nearest parent that has one)"
    return option("--matrix PATH", group, meaning, type=Path)


def engine_option(group: str) -> Any:  # noqa: ANN401
    """``--engine``."""
    meaning = f"where to run; {AUTO} uses docker if a daemon answers, else process"
    return option(
        "--engine",
        group,
        f"{meaning} (default: ${ENGINE_VARIABLE}, or {AUTO})",
        choices=_engines,
        default=AUTO,
        variable=ENGINE_VARIABLE,
    )


def _engines() -> Sequence[str]:
    from allranks.plugin_manager import added_engines  # noqa: PLC0415 - few commands need plug-ins

    return (AUTO, *added_engines())


def results_option(group: str) -> Any:  # noqa: ANN401
    """``--results``."""
    meaning = f"folder of all runs (default: ${RESULTS_VARIABLE}, or results next to the matrix file)"
    return option("--results DIR", group, meaning, type=Path, variable=RESULTS_VARIABLE)


def json_option(group: str) -> Any:  # noqa: ANN401
    """``--json``."""
    meaning = "print only one JSON object; messages go to standard error (keys: docs/command-line.md)"
    return flag("--json", group, meaning)


def quiet_option(group: str, meaning: str, **given: str) -> Any:  # noqa: ANN401
    """``--quiet``."""
    return flag("-q --quiet", group, meaning, **given)


def results_here(matrix: Path | None = None) -> Path:
    """The default folder of all runs: ``results`` next to the given or the nearest matrix file, or in this folder."""
    from allranks.matrix.declaration import find_matrix  # noqa: PLC0415 - not every command reads a matrix

    if matrix:
        return (matrix if matrix.is_dir() else matrix.parent) / "results"
    with suppress(MatrixError):
        root = find_matrix(Path.cwd()).parent
        return (Path() if root == Path.cwd() else root) / "results"
    return Path("results")


def newest_run() -> Path:
    """The folder of the newest run."""
    return Path(os.environ.get(RESULTS_VARIABLE) or results_here(), "latest")


def gpu_mode() -> "GpuMode":
    """The vendor of the GPUs, and how containers access them: from the environment, else ``auto``."""
    from allranks.engines.gpus import GpuMode  # noqa: PLC0415 - a plan needs no GPUs

    given, modes = os.environ.get(GPU_MODE_VARIABLE) or AUTO, get_args(GpuMode)
    if given not in modes:
        msg = f"{GPU_MODE_VARIABLE} is {given!r}, which is not a GPU mode."
        raise UsageError(msg, why=did_you_mean(given, modes), remedy=f"Choose from {', '.join(modes)}.")
    return cast("GpuMode", given)


def run_id() -> str:
    """The id of the run: from the environment, else a new one."""
    from allranks.runner.results_folder import RUN_ID_VARIABLE, new_run_id  # noqa: PLC0415 - few commands run anything

    run_id = os.environ.get(RUN_ID_VARIABLE) or new_run_id()
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", run_id):
        msg = f"{RUN_ID_VARIABLE} is {run_id!r}, which cannot name a folder and containers."
        remedy = "Use only letters, digits, '_', '.' and '-', with a letter or digit first, or unset it."
        raise UsageError(msg, remedy=remedy)
    return run_id
