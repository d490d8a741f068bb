"""Sections that plug-ins add to a report."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from allranks.errors import described
from allranks.protocol.xml_text import cut

if TYPE_CHECKING:
    from allranks.report.judged import CellSuite, MergedRun

_KEYS: Final = {
    *("generator", "schema", "suites", "run_id", "policy", "counts", "notes"),
    *("exit_code", "meaning", "jobs", "failures", "files"),  # of `allranks report --json`
}
_ANCHORS: Final = {
    *("top", "trouble", "failures", "matrix", "tests", "slowest", "skips", "notes", "detail", "help"),
    *("counts", "shown", "search", "list", "space", "verdicts", "selects", "chips", "sort", "clear", "index"),
}
RESERVED: Final = frozenset(_KEYS | _ANCHORS)
"""The keys of report.json and anchors of the page that the report itself uses; no section may have such a name."""

_LONGEST: Final = 300


@dataclass(frozen=True, kw_only=True)
class Section:
    """A plug-in's part of the report in all forms; it is shown unless it has a problem."""

    title: str
    headline: str  # the result in a few words, shown after the title
    object: Mapping[str, Any] = field(default_factory=dict)  # the value in report.json
    lines: tuple[str, ...] = ()  # for the terminal, below title and headline
    markdown: tuple[str, ...] = ()  # for summary.md
    html: str = ""  # for the page, escaped
    problem: str = ""  # a sentence for the report's notices if there is nothing to show
    page_only: bool = False  # True to omit it from the terminal, summary.md and report.json


class SectionMaker(ABC):
    """Observes a merge and adds a section to the report. It must not keep the tests: there can be a million."""

    name: str
    """The section's key in report.json and its anchor on the page: unique, of small letters, digits and ``_``."""

    files: Sequence[str] = ()
    """JSON files that :meth:`section` writes next to the report; a merge does not overwrite those of other programs."""

    @abstractmethod
    def __call__(self, suite: "CellSuite") -> None:
        """Read a job with its tests."""

    @abstractmethod
    def section(self, merged: "MergedRun") -> Section | None:
        """Make the section after the last job; None if this report has none."""

    def for_unfinished_run(self) -> "SectionMaker | None":
        """Return the maker for the report of an interrupted or failed run; None for no section."""
        return None


class GuardedMaker(SectionMaker):
    """Calls a maker for one merge. If the maker raises, a notice replaces its section: the report must not be lost."""

    def __init__(self, maker: SectionMaker) -> None:
        self.name, self.files = maker.name, maker.files
        self._maker = maker
        self._error: BaseException | None = None

    def __call__(self, suite: "CellSuite") -> None:
        if self._error is None:
            with self._recorded():
                self._maker(suite)

    def section(self, merged: "MergedRun") -> Section | None:
        if self._error is None:
            with self._recorded():
                section = self._maker.section(merged)
                return None if section is None else _checked(section)
        note = f"The section {self.name} is missing from this report: {cut(described(self._error), _LONGEST)}."
        return Section(title="", headline="", problem=note, page_only=True)

    def for_unfinished_run(self) -> "GuardedMaker | None":
        """Return the maker for an interrupted or failed run; if that fails, return this one, with its error."""
        with self._recorded():
            maker = self._maker.for_unfinished_run()
            if maker is None:
                return None
            guarded = GuardedMaker(maker)
            guarded.name = self.name
            return guarded
        return self

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in may raise anything
            self._error = error


def _checked(section: object) -> Section:
    """Check that a section can be written; TypeError or ValueError if not."""
    if not isinstance(section, Section):
        msg = f"it is a {type(section).__name__}, not a Section"
        raise TypeError(msg)
    section = replace(section, lines=tuple(section.lines), markdown=tuple(section.markdown))
    texts = (section.title, section.headline, section.html, section.problem, *section.lines, *section.markdown)
    if wrong := [text for text in texts if not isinstance(text, str)]:
        msg = f"one of its texts is not a string, but {wrong[0]!r}"
        raise TypeError(msg)
    json.dumps(section.object)
    "".join((section.html, *section.markdown)).encode()  # the others are made readable
    return section
