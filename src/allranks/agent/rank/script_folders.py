"""Gives each test file the import path that it has as a script: its own folder, with the modules in it.

pytest adds the folder of a test file to ``sys.path`` unless the file is in a package, and rejects a second file with
the same name. Files that are written as scripts expect to find the modules in their own folder, and two folders may
have different modules with the same name.
"""

import functools
import re
import sys
import traceback
import unittest
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, FunctionType, ModuleType

import pytest
from _pytest._io.saferepr import saferepr

from allranks.protocol.skip_codes import is_success

_INIT = "__init__.py"


class ScriptFolders:
    """Switches between modules of the same name in the folders of test files."""

    def __init__(self) -> None:
        # By the name of a top-level module and its folder on sys.path: the module and its submodules.
        self._modules: dict[str, dict[Path, dict[str, ModuleType]]] = {}
        self._known: set[str] = set()
        self._folders: set[Path] = set()
        self._conflicting: set[Path] = set()
        self._entered: Path | None = None

    def enter(self, file: Path) -> None:
        """Make the modules in the file's own folder importable, instead of those of other test files."""
        own = _folders(file)
        self._entered = file
        for name, modules in self._modules.items():
            self._switch(name, modules, own)
        parent, root = (str(folder) for folder in own)
        if root in sys.path:
            sys.path.remove(root)
            sys.path.insert(0, root)
        if parent == root:
            return
        rest = [entry for entry in sys.path if entry != parent]
        # Before the folders of other test files, but after all other entries.
        index = next((index for index, entry in enumerate(rest) if Path(entry) in self._folders), len(rest))
        sys.path[:] = [*rest[:index], parent, *rest[index:]]

    def note(self, file: Path) -> None:
        """Store the modules that the import of a test file has loaded, and restore missing modules of other files."""
        own = _folders(file)
        self._folders.update(own)
        for full in [name for name in sys.modules if name not in self._known]:
            self._known.add(full)
            name = full.partition(".")[0]
            folder = _folder_of(sys.modules.get(name))
            if folder in self._folders and name != "conftest":  # pytest itself distinguishes conftest files
                self._modules.setdefault(name, {}).setdefault(folder, {})[full] = sys.modules[full]
        # Code such as pickle looks up the module of a class in sys.modules.
        for by_folder in self._modules.values():
            for modules in by_folder.values():
                for full, module in modules.items():
                    sys.modules.setdefault(full, module)

    def find_conflicts(self) -> None:
        """Find the folders with a module that has the same name as one in another folder, for :meth:`has_conflict`."""
        holders: dict[str, set[Path]] = {}
        for folder in self._folders:
            for name in _names(folder):
                holders.setdefault(name, set()).add(folder)
        self._conflicting = {folder for folders in holders.values() if len(folders) > 1 for folder in folders}

    def has_conflict(self, file: Path) -> bool:
        """Whether an import by a test of this file, or by its processes, may find the module of another folder."""
        has_left = self._entered is None or file.parent != self._entered.parent
        return has_left and any(folder in self._conflicting for folder in _folders(file))

    def _switch(self, name: str, by_folder: dict[Path, dict[str, ModuleType]], own: tuple[Path, ...]) -> None:
        requested = next((folder for folder in own if _has(folder, name)), None)
        present = _folder_of(sys.modules.get(name))
        if requested is None or present == requested or (present is not None and present not in by_folder):
            return
        for full in [loaded for loaded in sys.modules if loaded.partition(".")[0] == name]:
            module = sys.modules.pop(full)
            self._known.discard(full)
            if present is not None:
                by_folder[present][full] = module
        sys.modules.update(by_folder.get(requested, {}))


@functools.cache
def has_main(file: Path) -> bool:
    """Whether ``python FILE`` runs the tests of a file."""
    try:
        return _MAIN.search(file.read_bytes()) is not None
    except OSError:
        return False


_MAIN = re.compile(rb"^if __name__ == ['\"]__main__['\"]", re.MULTILINE)


def _folders(file: Path) -> tuple[Path, ...]:
    """The folders that a test file needs on ``sys.path``: its own, and the one that contains its outermost package."""
    root = file.parent
    while (root / _INIT).is_file():
        root = root.parent
    return (file.parent, root)


def _names(folder: Path) -> Iterator[str]:
    """The modules and packages in a folder, except for conftest files."""
    for path in folder.iterdir():
        if path.suffix == ".py" and path.name not in (_INIT, "conftest.py"):
            yield path.stem
        elif (path / _INIT).is_file():
            yield path.name


def _has(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name / _INIT).is_file()


def _folder_of(module: ModuleType | None) -> Path | None:
    """The folder in which an import of a module finds it."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return None
    path = Path(file)
    return path.parent.parent if path.name == _INIT else path.parent


FOLDERS = pytest.StashKey[ScriptFolders]()
"""The key for the :class:`ScriptFolders` of a process in the stash of pytest's configuration."""


def exit_report(collector: pytest.Collector, exit_: SystemExit) -> pytest.CollectReport:
    """The report of a file whose collection exits; it is skipped if its import exits with status 0 before any test."""
    code = "" if exit_.code is None else saferepr(exit_.code)
    frames = [frame for frame, _ in traceback.walk_tb(exit_.__traceback__)]
    imported = next((frame for frame in frames if _is_import_of(collector.path, frame)), None)
    if imported is None:
        where = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}"
        return _failed(collector, f"{where} calls sys.exit({code}) while the tests are collected")
    text = f"importing it calls sys.exit({code})"
    if test := _test_in(imported.f_globals):
        remedy = "exit above all tests, or only if __name__ is '__main__'"
        return _failed(collector, f"{text} after the definition of {test}: {remedy}")
    if is_success(exit_.code):
        return pytest.CollectReport(collector.nodeid, "skipped", (str(collector.path), 0, f"Skipped: {text}"), [])
    return _failed(collector, f"{text}, so its tests are unknown")


def _is_import_of(file: Path, frame: FrameType) -> bool:
    """Whether a frame is the import of this file itself."""
    return frame.f_code.co_name == "<module>" and frame.f_globals.get("__file__") == str(file)


def _test_in(names: Mapping[str, object]) -> str:
    """The name of a test in the namespace of a module; empty for none."""
    own = [value for value in names.values() if isinstance(value, type | FunctionType)]
    tests = (value.__name__ for value in own if value.__module__ == names["__name__"] and _is_test(value))
    return next(tests, "")


def _is_test(value: type | FunctionType) -> bool:
    is_case = isinstance(value, type) and issubclass(value, unittest.TestCase)
    return is_case or value.__name__.lower().startswith("test")


def _failed(collector: pytest.Collector, text: str) -> pytest.CollectReport:
    return pytest.CollectReport(collector.nodeid, "failed", text, [])
