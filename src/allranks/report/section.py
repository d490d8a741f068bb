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
"""Keys of report.json and anchors of the page that are the report's own: no section can have them as its name."""

_LONGEST: Final = 300


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the report in each of its forms; terminal, summary and page show it unless there is a problem."""

    title: str
    headline: str  # what it shows, in a few words beside the title
    object: Mapping[str, Any] = field(default_factory=dict)  # the value in report.json
    lines: tuple[str, ...] = ()  # for the terminal, below title and headline
    markdown: tuple[str, ...] = ()  # for summary.md
    html: str = ""  # for the page, escaped
    problem: str = ""  # a sentence for the report's notes if there is nothing to show
    page_only: bool = False  # True to leave it out of terminal, summary.md and report.json


class SectionMaker(ABC):
    """An observer of a merge that adds a section to the report. It may not keep the tests: there can be a million."""

    name: str
    """The section's key in report.json, and its anchor on the page: unique, of small letters, digits and ``_``."""

    files: Sequence[str] = ()
    """JSON files that :meth:`section` writes beside the report; those of other programs are refused before."""

    @abstractmethod
    def __call__(self, suite: "CellSuite") -> None:
        """Take a job with its tests."""

    @abstractmethod
    def section(self, merged: "MergedRun") -> Section | None:
        """The section, once all jobs have been taken; None if there is none in this report."""

    def for_unfinished_run(self) -> "SectionMaker | None":
        """Make the maker of the section for a run that was interrupted or failed; None for no section there."""
        return None


class GuardedMaker(SectionMaker):
    """Calls a maker for one merge. If it raises, a note takes the place of its section: the report must not be lost."""

    def __init__(self, maker: SectionMaker) -> None:
        self.name, self.files = maker.name, maker.files
        self._maker = maker
        self._error: BaseException | None = None

    def __call__(self, suite: "CellSuite") -> None:
        """Take a job with its tests."""
        if self._error is None:
            with self._noted():
                self._maker(suite)

    def section(self, merged: "MergedRun") -> Section | None:
        """The section, or a note; None if there is no section in this report."""
        if self._error is None:
            with self._noted():
                section = self._maker.section(merged)
                return None if section is None else _checked(section)
        note = f"The section {self.name} is missing from this report: {cut(described(self._error), _LONGEST)}."
        return Section(title="", headline="", problem=note, page_only=True)

    def for_unfinished_run(self) -> "GuardedMaker | None":
        """Make the maker for a run that was interrupted or failed, under the same name; this one if that fails."""
        with self._noted():
            maker = self._maker.for_unfinished_run()
            if maker is None:
                return None
            guarded = GuardedMaker(maker)
            guarded.name = self.name
            return guarded
        return self

    @contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in may raise anything
            self._error = error


def _checked(section: object) -> Section:
    """The section, if all of it can be written.

    Raises:
        TypeError: It is no section, or has a value of a wrong type.
        ValueError: A text cannot be encoded.
    """
    if not isinstance(section, Section):
        msg = f"it is a {type(section).__name__}, not a Section"
        raise TypeError(msg)
    section = replace(section, lines=tuple(section.lines), markdown=tuple(section.markdown))
    texts = (section.title, section.headline, section.html, section.problem, *section.lines, *section.markdown)
    if wrong := [text for text in texts if not isinstance(text, str)]:
        msg = f"one of its texts is of type {type(wrong[0]).__name__}"
        raise TypeError(msg)
    json.dumps(section.object)
    "".join((section.html, *section.markdown)).encode()  # the others are made readable
    return section
