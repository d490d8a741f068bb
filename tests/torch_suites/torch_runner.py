"""Runs tests of suites/torch under torch's own runner: unittest, and ranks that torch spawns.

    python tests/torch_suites/torch_runner.py suites/torch/rpc/test_rpc.py[:SUITE.py ...] OUT.jsonl [NAME ...]

Each test's outcome is appended to OUT.jsonl as it is known: ``{"test", "outcome", "reason", "seconds", "module"}``.
Tests that are there already are not run again, so that a run that was broken off goes on where it was. Without names
all tests are run.
"""

import importlib
import json
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from types import ModuleType, TracebackType

Error = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]
"""An exception in hand, as unittest passes it."""
CELL = {"BACKEND": "gloo", "WORLD_SIZE": "2", "INIT_METHOD": "file", "CUDA_VISIBLE_DEVICES": ""}


class Recorder(unittest.TextTestResult):
    """Writes down what each test comes to."""

    out: Path

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        super().startTest(test)
        self._began = time.monotonic()

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        super().addSuccess(test)
        self._note(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802 - unittest's name
        super().addSkip(test, reason)
        self._note(test, "skipped", reason)

    def addExpectedFailure(self, test: unittest.TestCase, err: Error) -> None:  # noqa: N802 - unittest's name
        super().addExpectedFailure(test, err)
        self._note(test, "xfailed")

    def addFailure(self, test: unittest.TestCase, err: Error) -> None:  # noqa: N802 - unittest's name
        super().addFailure(test, err)
        self._note(test, "failed", str(err[1])[-2000:])

    def addError(self, test: unittest.TestCase, err: Error) -> None:  # noqa: N802 - unittest's name
        super().addError(test, err)
        self._note(test, "failed", str(err[1])[-2000:])

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        super().addUnexpectedSuccess(test)
        self._note(test, "failed", "Unexpected success")

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Error | None) -> None:  # noqa: N802 - unittest's name
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._note(test, "failed", str(err[1])[-2000:])

    def _note(self, test: unittest.TestCase, outcome: str, reason: str = "") -> None:
        line = {
            "test": name_of(test),
            "outcome": outcome,
            "reason": reason,
            "seconds": round(time.monotonic() - self._began, 3),
            "module": type(test).__module__,
        }
        with self.out.open("a") as file:
            file.write(json.dumps(line) + "\n")


def name_of(test: unittest.TestCase) -> str:
    return f"{type(test).__name__}::{test._testMethodName}"


def load(path: Path) -> ModuleType:
    """Import a suite's file as pytest does, and as a rank that torch spawns will."""
    for name, value in CELL.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())
    folder, name = path.parent.resolve(), path.stem
    if (folder / "__init__.py").exists():
        folder, name = folder.parent, f"{folder.name}.{name}"
    sys.path.insert(0, str(folder))
    return importlib.import_module(name)


def tests_of(module: ModuleType) -> list[unittest.TestCase]:
    names = unittest.TestLoader().getTestCaseNames
    classes = [
        var
        for var in vars(module).values()
        if isinstance(var, type) and issubclass(var, unittest.TestCase) and var.__module__ == module.__name__
    ]
    return [item(name) for item in classes for name in names(item)]


def known(out: Path) -> set[str]:
    return {json.loads(line)["test"] for line in out.read_text().splitlines()} if out.exists() else set()


def main(paths: str, out: str, *names: str) -> int:
    Recorder.out = Path(out)
    done = known(Recorder.out)
    tests = [
        test
        for path in paths.split(os.pathsep)
        for test in tests_of(load(Path(path)))
        if name_of(test) not in done and (not names or name_of(test) in names)
    ]
    runner = unittest.TextTestRunner(resultclass=Recorder, verbosity=0)  # type: ignore[arg-type] # generic for mypy alone
    return 0 if runner.run(unittest.TestSuite(tests)).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
