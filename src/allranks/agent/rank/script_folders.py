"""Folders of test files, as scripts have them: on ``sys.path``, and each with modules of its own.

pytest puts the folder of a test file on ``sys.path`` unless the file is in a package, and refuses a second file of one
name. A tree of scripts that run one by one needs neither rule: each script finds the modules beside it, and no other
script is there.
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
    """Makes the modules of one test file at a time those that its own folder has."""

    def __init__(self) -> None:
        # By a name and the folder that is on sys.path for it: the modules of that name, and those below it.
        self._modules: dict[str, dict[Path, dict[str, ModuleType]]] = {}
        self._known: set[str] = set()
        self._folders: set[Path] = set()
        self._contested: set[Path] = set()
        self._entered: Path | None = None

    def enter(self, file: Path) -> None:
        """Make importable what the script finds: modules of its own folder, and no other script's in their place."""
        own = _folders(file)
        self._entered = file
        for name, places in self._modules.items():
            self._switch(name, places, own)
        place, root = (str(folder) for folder in own)
        if root in sys.path:
            sys.path.remove(root)
            sys.path.insert(0, root)
        if place == root:
            return
        rest = [each for each in sys.path if each != place]
        # Before the folders of other scripts, and else after all that others rely on.
        index = next((index for index, each in enumerate(rest) if Path(each) in self._folders), len(rest))
        sys.path[:] = [*rest[:index], place, *rest[index:]]

    def note(self, file: Path) -> None:
        """Note the modules that the import of a test file has brought, and let those of others be found again."""
        own = _folders(file)
        self._folders.update(own)
        for full in [name for name in sys.modules if name not in self._known]:
            self._known.add(full)
            name = full.partition(".")[0]
            folder = _folder_of(sys.modules.get(name))
            if folder in self._folders and name != "conftest":  # pytest itself keeps those apart
                self._modules.setdefault(name, {}).setdefault(folder, {})[full] = sys.modules[full]
        # Each class names its module, and whoever looks that up expects one.
        for places in self._modules.values():
            for modules in places.values():
                for full, module in modules.items():
                    sys.modules.setdefault(full, module)

    def settle(self) -> None:
        """Find the folders that have a module of one name with another: their tests need to enter them."""
        holders: dict[str, set[Path]] = {}
        for folder in self._folders:
            for name in _names(folder):
                holders.setdefault(name, set()).add(folder)
        self._contested = {folder for folders in holders.values() if len(folders) > 1 for folder in folders}

    def is_contested(self, file: Path) -> bool:
        """Whether an import by a test of this file, or by its processes, may find another script's module."""
        has_left = self._entered is None or file.parent != self._entered.parent
        return has_left and any(folder in self._contested for folder in _folders(file))

    def _switch(self, name: str, places: dict[Path, dict[str, ModuleType]], own: tuple[Path, ...]) -> None:
        wanted = next((folder for folder in own if _has(folder, name)), None)
        present = _folder_of(sys.modules.get(name))
        if wanted is None or present == wanted or (present is not None and present not in places):
            return
        for full in [each for each in sys.modules if each.partition(".")[0] == name]:
            module = sys.modules.pop(full)
            self._known.discard(full)
            if present is not None:
                places[present][full] = module
        sys.modules.update(places.get(wanted, {}))


@functools.cache
def has_main(file: Path) -> bool:
    """Whether a test file can be run by ``python FILE``."""
    try:
        return _MAIN.search(file.read_bytes()) is not None
    except OSError:
        return False


_MAIN = re.compile(rb"^if __name__ == ['\"]__main__['\"]", re.MULTILINE)


def _folders(file: Path) -> tuple[Path, ...]:
    """The folders that ``sys.path`` has for a test file: its own, and that of its outermost package."""
    root = file.parent
    while (root / _INIT).is_file():
        root = root.parent
    return (file.parent, root)


def _names(folder: Path) -> Iterator[str]:
    """The modules and packages that a folder has, but for those of pytest and of the folder itself."""
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
"""Where the configuration of pytest keeps the folders of a suite."""


def exit_report(collector: pytest.Collector, exit_: SystemExit) -> pytest.CollectReport:
    """The report on what exits while it is collected; the tests of a script that leaves with status 0 are skipped."""
    code = "" if exit_.code is None else saferepr(exit_.code)
    frames = [frame for frame, _ in traceback.walk_tb(exit_.__traceback__)]
    imported = next((frame for frame in frames if _is_import_of(collector.path, frame)), None)
    if imported is None:
        place = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}"
        return _failed(collector, f"{place} calls sys.exit({code}) while the tests are collected")
    text = f"importing it calls sys.exit({code})"
    if test := _test_in(imported.f_globals):
        why = f"after {test}: do so above all tests, or where __name__ is '__main__'"
        return _failed(collector, f"{text} {why}")
    if is_success(exit_.code):
        return pytest.CollectReport(collector.nodeid, "skipped", (str(collector.path), 0, f"Skipped: {text}"), [])
    return _failed(collector, f"{text}, which makes its tests unknown")


def _is_import_of(file: Path, frame: FrameType) -> bool:
    """Whether a frame is the import of a file, and not of its package, of a conftest file, or a function."""
    return frame.f_code.co_name == "<module>" and frame.f_globals.get("__file__") == str(file)


def _test_in(names: Mapping[str, object]) -> str:
    """A test that a module has defined; empty for none, as where it found out that it cannot run here."""
    own = [each for each in names.values() if isinstance(each, type | FunctionType)]
    tests = (each.__name__ for each in own if each.__module__ == names["__name__"] and _is_test(each))
    return next(tests, "")


def _is_test(named: type | FunctionType) -> bool:
    is_case = isinstance(named, type) and issubclass(named, unittest.TestCase)
    return is_case or named.__name__.lower().startswith("test")


def _failed(collector: pytest.Collector, text: str) -> pytest.CollectReport:
    return pytest.CollectReport(collector.nodeid, "failed", text, [])
