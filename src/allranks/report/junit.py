"""Writes the merged JUnit report, job by job, in files that stay below GitLab's limit.

If the report does not fit into ``junit.xml``, it continues in ``junit-2.xml`` and so on. Each file is a complete
document with its own counts, and a suite may continue in the next file under the same name.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final, Self

from allranks.errors import ResultsError
from allranks.protocol.xml_text import attribute
from allranks.report.folder import is_merged_report
from allranks.report.judged import CellSuite, JobSummary
from allranks.report.junit_case import Fact, JUnitForm, render_case, shown, unique_names
from allranks.report.junit_document import CONTINUED, JUnitDocument, SuiteHead, part_path
from allranks.report.results import TestVerdict

_DEFAULT: Final = JUnitForm()


class JUnitWriter:
    """Writes the report of a run; a context manager, which replaces an earlier report if no error occurs."""

    def __init__(self, path: Path, form: JUnitForm = _DEFAULT) -> None:
        self._path = path
        self._form = form
        self._parts: list[JUnitDocument] = []
        self._names: Counter[str] = Counter()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the report, in order."""
        return tuple(part_path(self._path, number) for number in range(1, len(self._parts) + 1))

    def __enter__(self) -> Self:
        self._next_part()
        return self

    def add(self, suite: CellSuite) -> None:
        """Write a suite with its tests."""
        head = SuiteHead(name=self._unique(suite.name), started=suite.started, facts=(*_facts(suite), *_totals(suite)))
        cases = self._cases(suite)
        first = next(cases, None)
        if not self._fits(head.size + (len(first[0]) if first else 0)):
            self._next_part()
        self._open.begin(head)
        for xml, test in chain((first,) if first else (), cases):
            if not self._fits(len(xml)):
                self._open.end()
                self._next_part()
                self._open.begin(replace(head, facts=(*_facts(suite), ("part", len(self._parts)))))
            self._open.add(xml, test.verdict.kind, test.time)
        self._open.end()

    def _unique(self, name: str) -> str:
        """A unique name for a suite, even if the cells and suites of two jobs form the same name."""
        name = shown(name)
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name} #{self._names[name]}"

    def _cases(self, suite: CellSuite) -> Iterator[tuple[bytes, TestVerdict]]:
        for test, name in zip(suite.tests, unique_names(suite, suite.tests, self._form), strict=True):
            yield render_case(test, name).encode(), test

    @property
    def _open(self) -> JUnitDocument:
        return self._parts[-1]

    def _fits(self, size: int) -> bool:
        return not self._open.has_cases or self._open.size + size + len(CONTINUED) < self._form.file_limit

    def _next_part(self) -> None:
        if self._parts:
            self._open.finish()
            with _unfinished(self.files[-1]).open("ab") as file:
                file.write(CONTINUED)
        path = _unfinished(part_path(self._path, len(self._parts) + 1))
        self._parts.append(JUnitDocument(path))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Finish the report; on an error, the previous report stays."""
        try:
            if kind is None:
                self._open.finish()
                self._replace_files()
        finally:
            for path in self.files:
                _unfinished(path).unlink(missing_ok=True)
            for part in self._parts:
                part.close()  # last, because it fails if the disk is full

    def _replace_files(self) -> None:
        """Replace the files, the first one last, so that a reader who finds it also finds its continuations."""
        for path in self.files:
            reject_foreign(path, is_merged_report)
        for path in reversed(self.files):
            _unfinished(path).replace(path)
        for path in _later_parts(self._path):
            if path not in self.files and is_merged_report(path):
                path.unlink()


def reject_foreign(path: Path, is_ours: Callable[[Path], bool]) -> None:
    """Raise a ResultsError if writing to a path would overwrite a file of another program.

    A FIFO, a socket or a device has no content to lose, so the report replaces it.
    """
    if (path.is_file() or path.is_dir()) and not is_ours(path):
        msg = f"{path} was not written by allranks."
        raise ResultsError(
            msg,
            why="The report would overwrite it.",
            remedy="Move it out of the folder, or rename it and, if it is XML, add --ignore NAME.",
        )


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")


def _later_parts(first: Path) -> list[Path]:
    """The existing files that have the name of a part after the first."""
    name = re.compile(rf"{re.escape(first.stem)}-\d+{re.escape(first.suffix)}")
    return sorted(path for path in first.parent.iterdir() if name.fullmatch(path.name))


def _facts(suite: JobSummary) -> Iterator[Fact]:
    yield "cell", suite.cell
    yield "suite", suite.suite
    for axis, value in suite.axes.items():
        yield f"axis.{attribute(axis)[1:-1]}", value
    yield "engine", suite.engine
    yield "image", suite.image
    yield "attempt", suite.attempt
    yield "elapsed", None if suite.elapsed is None else f"{suite.elapsed:.3f}"
    yield "gpus", " ".join(suite.gpus)


def _totals(suite: CellSuite) -> Iterator[Fact]:
    """The facts that are written once for a suite, even if it spans several files."""
    yield "deselected", suite.deselected or None
    yield "skip_but_pass", suite.counts.skip_but_pass or None
    yield "flaky", suite.counts.flaky or None
