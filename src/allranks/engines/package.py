"""The files of allranks that agents need, and their bytecode.

Without bytecode, each job would compile 70 modules in 0.3 s of CPU time; a short job takes 2.5 s.
"""

import hashlib
import importlib.util
import os
import py_compile
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import allranks
from allranks.engines.base import FileCopy
from allranks.errors import EnvironmentBuildError
from allranks.user_cache import WRITABLE, remove_unused

_NEEDED = ("__init__.py", "protocol", "agent", "testing", "pytest_plugin/__init__.py")


def package_folder() -> Path:
    """The folder of the running package ``allranks``."""
    return Path(allranks.__file__).resolve().parent


def package_files() -> tuple[FileCopy, ...]:
    """The files that ``python -m allranks.agent`` needs, with targets relative to a folder on Python's path.

    Of each plug-in, only the part that runs in jobs is included.
    """
    folder = package_folder()
    names = [*_NEEDED]
    for part in sorted(folder.glob("plugins/*/agent/__init__.py")):
        plugin = part.parents[1].relative_to(folder)
        names += [str(plugin / "__init__.py"), str(plugin / "agent")]
    if len(names) > len(_NEEDED):
        names.append("plugins/__init__.py")
    return tuple(FileCopy(source=folder / name, target=Path("allranks") / name) for name in names)


def package_path(cache: Path) -> Path:
    """A folder for another Python's path that contains ``allranks``, and nothing that would shadow other modules.

    Args:
        cache: The folder for a link to the package, which is needed if the package is in site-packages.
    """
    folder = package_folder()
    if [entry.name for entry in folder.parent.iterdir() if not entry.name.startswith(".")] == [folder.name]:
        return folder.parent
    alone = cache / hashlib.sha256(str(folder).encode()).hexdigest()[:12]
    try:
        _link(folder, alone)
    except OSError as error:
        msg = f"The cache folder {alone} cannot be created."
        raise EnvironmentBuildError(msg, why=f"{error.strerror or error}.", remedy=WRITABLE) from error
    return alone


def copied_package(cache: Path) -> Path:
    """A folder with a copy of the package, and nothing else, for machines that cannot access the running package."""
    copies = package_files()
    folder = cache / _key({target: source for copy in copies for source, target in _modules(copy)})
    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(dir=folder.parent))
            for copy in copies:
                target = draft / copy.target
                target.parent.mkdir(parents=True, exist_ok=True)
                if copy.source.is_dir():
                    shutil.copytree(copy.source, target, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    shutil.copyfile(copy.source, target)
            with suppress(OSError):  # another run was faster
                draft.rename(folder)
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        msg = f"The folder {folder} cannot be created."
        raise EnvironmentBuildError(msg, why=f"{error.strerror or error}.", remedy="Free some space there.") from error
    return folder


def _link(folder: Path, alone: Path) -> None:
    alone.mkdir(parents=True, exist_ok=True)
    link = alone / folder.name
    if not link.exists():
        draft = alone / f".{folder.name}-{os.getpid()}"
        draft.symlink_to(folder, target_is_directory=True)
        draft.rename(link)


def bytecode_of(copies: Iterable[FileCopy], cache: Path) -> tuple[FileCopy, ...]:
    """Bytecode to copy next to modules, for the Python version that runs allranks; other versions ignore it.

    Each file contains a hash of its source, so that Python can check that they match.

    Args:
        copies: The modules, and folders of modules.
        cache: The folder for compiled modules. If it cannot be written, the result is empty.
    """
    modules = {target: source for copy in copies for source, target in _modules(copy)}
    compiled = cache / _key(modules)
    try:
        if not compiled.is_dir():
            _compile(compiled, modules)
        os.utime(compiled)
    except OSError:
        return ()
    folders = sorted({target.parent for target in modules})
    return tuple(FileCopy(source=compiled / _name(folder), target=folder / "__pycache__") for folder in folders)


def _modules(copy: FileCopy) -> Iterable[tuple[Path, Path]]:
    if copy.source.is_file():
        return [(copy.source, copy.target)]
    return [(path, copy.target / path.relative_to(copy.source)) for path in copy.source.rglob("*.py")]


def _key(modules: Mapping[Path, Path]) -> str:
    digest = hashlib.sha256(importlib.util.MAGIC_NUMBER)
    for target, source in sorted(modules.items()):
        state = source.stat()
        digest.update(f"{source}:{target}:{state.st_mtime_ns}:{state.st_size}\n".encode())
    return digest.hexdigest()[:16]


def _compile(folder: Path, modules: Mapping[Path, Path]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_unused(folder.parent)
    draft = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        for target, source in modules.items():
            compiled = draft / _name(target.parent) / Path(importlib.util.cache_from_source(target.name)).name
            mode = py_compile.PycInvalidationMode.CHECKED_HASH
            py_compile.compile(str(source), str(compiled), doraise=True, invalidation_mode=mode)
        with suppress(OSError):  # another run was faster
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _name(folder: Path) -> str:
    """The name of the cached folder with the bytecode of one folder, without its subfolders."""
    return ".".join(folder.parts)
