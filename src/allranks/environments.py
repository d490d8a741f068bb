"""Python environments, made on first use, one for each content, shared by all runs of a user.

It needs only the standard library: the nox sessions use it before anything is installed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from allranks.errors import EnvironmentBuildError
from allranks.user_cache import cache_folder, hold

_COMPLETE = ".complete"

_UNUSED = 14 * 24 * 3600.0
"""Seconds that an unused entry stays in the cache."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentRecipe:
    """The content of an environment.

    Attributes:
        name: Its purpose; part of its folder's name.
        arguments: The arguments of ``pip install``.
        content: Everything else that decides whether an existing environment can be reused.
    """

    name: str
    arguments: tuple[str, ...]
    content: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A hash of the content and of the interpreter."""
        parts = (sys.version, os.path.realpath(sys.executable), *self.arguments, "", *self.content)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def ensure_environment(recipe: EnvironmentRecipe, progress: Callable[[str], None]) -> Path:
    """Return the interpreter of an environment, which is created if it does not exist yet.

    Args:
        recipe: The content of the environment.
        progress: Receives lines while the environment is created.

    Raises:
        EnvironmentBuildError: The environment cannot be created.
    """
    folder = cache_folder() / "environments" / f"{recipe.name}-{recipe.key}"
    python = folder / "bin" / "python"
    if (folder / _COMPLETE).exists():
        return python
    try:
        with locked(folder):
            if not (folder / _COMPLETE).exists():
                _make(folder, recipe, progress)
    except OSError as error:
        msg = f"The environment {folder} cannot be made."
        remedy = "Free some space, or set XDG_CACHE_HOME to a folder that can be written."
        raise EnvironmentBuildError(msg, why=str(error), remedy=remedy) from error
    return python


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a cache folder, so that two runs never build the same thing twice."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold(folder.with_name(f"{folder.name}.lock")):
        yield


def forget_unused(cache: Path) -> None:
    """Remove the subfolders of a cache folder that no run has used lately: each use updates a folder's mtime."""
    for folder in cache.iterdir():
        if folder.is_dir() and _is_unused(folder):
            with locked(folder):
                if _is_unused(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _is_unused(folder: Path) -> bool:
    with suppress(FileNotFoundError):
        return time.time() - folder.stat().st_mtime > _UNUSED
    return False


def _make(folder: Path, recipe: EnvironmentRecipe, progress: Callable[[str], None]) -> None:
    progress(f"making the {recipe.name} environment ({' '.join(recipe.arguments)}), once")
    shutil.rmtree(folder, ignore_errors=True)
    _create(folder)
    _install(folder, recipe, progress)
    (folder / _COMPLETE).touch()


def _create(folder: Path) -> None:
    try:
        venv.EnvBuilder(with_pip=True, symlinks=True).create(folder)
    except subprocess.CalledProcessError as error:
        msg = f"{sys.executable} cannot make a virtual environment."
        why = "Its venv module lacks ensurepip."
        raise EnvironmentBuildError(msg, why=why, remedy="On Debian: apt-get install python3-venv.") from error


def _install(folder: Path, recipe: EnvironmentRecipe, progress: Callable[[str], None]) -> None:
    run_pip_of(folder / "bin" / "python", recipe.arguments, f"The {recipe.name} environment", progress)


def run_pip_of(python: Path, arguments: Sequence[str], what: str, progress: Callable[[str], None]) -> None:
    """Run ``pip install`` of an environment.

    Args:
        python: The environment's interpreter.
        arguments: The arguments of ``pip install``.
        what: The thing being built, as the start of the error message.
        progress: Receives a line for each file that pip fetches.

    Raises:
        EnvironmentBuildError: pip failed.
    """
    command = [str(python), *("-m", "pip", "install", "--no-input"), *arguments]
    last: deque[str] = deque(maxlen=15)
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
        _killed_on_error(process),
    ):
        for line in process.stdout or ():
            last.append(line.rstrip())
            if line.startswith(("Downloading ", "Processing ", "Installing collected ")):
                progress(_shortened(line.strip()))
    if process.returncode != 0:
        errors = [line for line in last if line.startswith("ERROR")] or list(last)
        msg = f"{what} cannot be made: pip failed."
        remedy = "Check the package names and versions in the matrix file, and pip's configuration (pip config list)."
        raise EnvironmentBuildError(msg, why="\n".join(errors), remedy=remedy)


@contextmanager
def _killed_on_error(process: subprocess.Popen[str]) -> Iterator[None]:
    """Kill pip on any error: it would go on writing into a folder that the next run recreates."""
    try:
        yield
    except BaseException:
        process.kill()
        process.wait()
        raise


def _shortened(line: str) -> str:
    return line if len(line) <= 100 else f"{line[:99]}…"
