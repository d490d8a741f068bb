"""Sections that plug-ins add to a report."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from allranks.report.judged import CellSuite, MergedRun


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

    name: ClassVar[str]
    """The section's key in report.json, and its anchor on the page: unique, of small letters, digits and ``_``."""

    files: ClassVar[Sequence[str]] = ()
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
