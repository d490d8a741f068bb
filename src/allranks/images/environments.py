"""Virtual environments with a given content, which are created on first use and shared by all runs of a user.

This module needs only the standard library, since the nox sessions use it before anything is installed.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from allranks.errors import EnvironmentBuildError
from allranks.images.child_process import child, lines_of, succeeds
from allranks.images.host_pip import run_to_end
from allranks.images.pip_settings import pip_settings, python_that_builds, without_logins
from allranks.user_cache import cache_folder, cache_limit, free_space, hold, mark_used

_COMPLETE = ".complete"

_REMEDY = "Check the package names and versions in the matrix file, and pip's configuration (pip config list)."

_PROBE = """
import importlib.metadata, json, os, sys
folders = [os.path.abspath(path) for path in sys.path if path and os.path.isdir(path)]
versions = {}
for found in importlib.metadata.distributions():
    versions.setdefault((found.name or "").lower().replace("_", "-").replace(".", "-"), found.version)
content = [sys.version, os.path.realpath(sys.executable), *folders]
print(json.dumps({"folders": folders, "content": content, "versions": versions}))
"""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """An interpreter of the user, with its packages."""

    python: str  # its path, or a command on the PATH
    folders: tuple[str, ...]  # the folders that it imports from
    content: tuple[str, ...]  # its version and its paths
    versions: Mapping[str, str]  # the versions of its packages, by name in lower case with hyphens

    @property
    def key(self) -> tuple[str, ...]:
        """All properties that the packages of an environment on top of it depend on."""
        return (*self.content, *(f"{name}=={version}" for name, version in sorted(self.versions.items())))


def probe(python: str) -> Interpreter:
    """Query an interpreter for its packages, in 0.1 s."""
    try:
        output = subprocess.run([python, "-c", _PROBE], capture_output=True, check=True, text=True).stdout
        found = json.loads(output.splitlines()[-1])
    except (OSError, subprocess.CalledProcessError, ValueError, IndexError) as error:
        msg = f"The interpreter {python} does not report its packages."
        why = (getattr(error, "stderr", "") or str(error)).strip()
        raise EnvironmentBuildError(msg, why=why, remedy="Check process.python in the matrix file.") from error
    folders, content = tuple(found["folders"]), tuple(found["content"])
    return Interpreter(python=python, folders=folders, content=content, versions=found["versions"])


@dataclass(frozen=True, kw_only=True)
class EnvironmentRecipe:
    """The content of an environment."""

    name: str  # its purpose; part of its folder's name
    arguments: tuple[str, ...] = ()  # arguments of ``pip install``
    file: str = ""  # the text of a requirements file; it is not part of the key, so `content` must represent it
    content: tuple[str, ...] = ()  # further parts of the key
    folder: Path = field(default_factory=Path.cwd)  # pip's working folder, for relative paths
    below: Interpreter | None = None  # an interpreter whose packages it can import, too
    remedy: str = _REMEDY  # what to do if pip fails

    @property
    def key(self) -> str:
        """A hash of the content, the interpreter and pip's configuration."""
        interpreter = self.below.key if self.below else (sys.version, os.path.realpath(sys.executable))
        parts = (*interpreter, *self.arguments, "", *self.content, "", *pip_settings(self.folder))
        return hashlib.sha256("\0".join(map(without_logins, parts)).encode()).hexdigest()[:12]

    @property
    def description(self) -> str:
        """The packages to install, for messages."""
        return without_logins(" ".join((*self.arguments, *self.file.splitlines())))


def ensure_environment(recipe: EnvironmentRecipe, progress: Callable[[str], None]) -> Path:
    """Return the interpreter of an environment; create the environment if it does not exist."""
    folder = cache_folder() / "environments" / f"{recipe.name}-{recipe.key}"
    python = folder / "bin" / "python"
    limit = cache_limit()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        mark_used(folder)
        if (folder / _COMPLETE).exists():
            return python
        with locked(folder):
            if not (folder / _COMPLETE).exists():
                _create(folder, recipe, progress)
                mark_used(folder)
                free_space(folder.parent, limit, progress)
    except OSError as error:
        msg = f"The environment {folder} cannot be created."
        remedy = "Free some space, or set XDG_CACHE_HOME to a writable folder."
        raise EnvironmentBuildError(msg, why=str(error), remedy=remedy) from error
    return python


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a cache folder, so that two runs never build the same thing twice."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold(folder.with_name(f"{folder.name}.lock")):
        yield


def _create(folder: Path, recipe: EnvironmentRecipe, progress: Callable[[str], None]) -> None:
    progress(f"creating the {recipe.name} environment ({recipe.description}), once")
    shutil.rmtree(folder, ignore_errors=True)
    _create_empty(folder, recipe.below)
    _install(folder, recipe, progress)
    (folder / _COMPLETE).touch()


def _create_empty(folder: Path, below: Interpreter | None) -> None:
    """Create an environment without packages, which can import those of the interpreter `below`, if any.

    With such an interpreter, it gets no pip and no setuptools, which would hide the interpreter's versions.
    """
    python, options = (below.python, ["--without-pip"]) if below else (sys.executable, [])
    with child([python, "-m", "venv", *options, str(folder)]) as process:
        output = "\n".join(lines_of(process))
    if process.returncode:
        msg = f"{python} cannot create a virtual environment."
        raise EnvironmentBuildError(msg, why=output, remedy="On Debian: apt-get install python3-venv.")
    if below:
        lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in below.folders)
        (packages_of(folder / "bin" / "python") / "below.pth").write_text(lines, encoding="utf-8")


def packages_of(python: Path) -> Path:
    """The site-packages folder of an environment, from its interpreter."""
    return next(python.parents[1].glob("lib/python*/site-packages"))


def _install(folder: Path, recipe: EnvironmentRecipe, progress: Callable[[str], None]) -> None:
    python = folder / "bin" / "python"
    # Only this user can read the file, since its addresses may have passwords.
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        file = Path(scratch, "requirements.txt")
        file.write_text(recipe.file, encoding="utf-8")
        arguments = (*recipe.arguments, *(("--requirement", str(file)) if recipe.file else ()))
        what = f"The {recipe.name} environment"
        # `pip wheel` ignores the packages of an interpreter below, and [install] of pip.conf.
        if recipe.below or any(text.startswith("install.") for text in pip_settings(recipe.folder)):
            _check(run_to_end((*_pip_of(python), *arguments), progress, folder=recipe.folder), what, recipe.remedy)
            return
        wheels = Path(scratch, "wheels")
        fetch = (str(python), *("-m", "pip", "wheel", "--no-input", "--wheel-dir", str(wheels)), *arguments)
        _check(run_to_end(fetch, progress, folder=recipe.folder), what, recipe.remedy)
        progress("Installing collected packages")
        _unpack(python, wheels, what)


def _unpack(python: Path, wheels: Path, what: str) -> None:
    """Install the wheels that pip downloaded or built, if possible with uv, which is faster.

    uv gets no index and no configuration, so that it installs the same files as pip.
    """
    chosen = ["==".join(wheel.name.split("-")[:2]) for wheel in sorted(wheels.glob("*.whl"))]
    where = ["--no-index", "--no-deps", "--find-links", str(wheels), *chosen]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    environ["PIP_CONFIG_FILE"] = os.devnull
    if uv := shutil.which("uv"):
        cache = ["--cache-dir", str(wheels.parent / "uv")]
        by_uv = [uv, "pip", "install", "--no-config", "--offline", *cache, "--python", str(python), *where]
        if succeeds(by_uv, environ=environ):
            return
    # If uv was interrupted, packages may have no list of their files, so pip could not remove them.
    by_pip = (*_pip_of(python), "--ignore-installed", *where) if uv else (*_pip_of(python), *where)
    _check(run_to_end(by_pip, lambda _: None, environ=environ), what)


def _pip_of(python: Path) -> list[str]:
    own = next(python.parents[1].glob("lib/python*/site-packages"), None)
    lacks_pip = own is not None and not (own / "pip").exists()
    pip = [python_that_builds() or sys.executable, "-m", "pip", "--python"] if lacks_pip else []
    return [*pip, str(python), *(() if lacks_pip else ("-m", "pip")), "install", "--no-input"]


def run_pip_of(python: Path, arguments: Sequence[str], what: str, progress: Callable[[str], None]) -> None:
    """Run ``pip install`` in an environment."""
    _check(run_to_end((*_pip_of(python), *arguments), progress), what)


def _check(why: str, what: str, remedy: str = _REMEDY) -> None:
    if why:
        msg = f"{what} cannot be created: pip failed."
        raise EnvironmentBuildError(msg, why=why, remedy=remedy)
