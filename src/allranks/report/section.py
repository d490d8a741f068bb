"""Sections that plug-ins add to a report."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allranks.report.judged import CellSuite, MergedRun


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of the report in each of its forms; terminal, summary and page show it unless there is a problem."""

    name: str  # its key in report.json, and its anchor on the page; unique in a report
    title: str
    headline: str  # what it shows, in a few words beside the title
    object: Mapping[str, Any]  # the value in report.json
    lines: tuple[str, ...] = ()  # for the terminal, below title and headline
    markdown: tuple[str, ...] = ()  # for summary.md
    html: str = ""  # for the page, escaped
    problem: str = ""  # a sentence for the report's notes if there is nothing to show


class SectionMaker(ABC):
    """An observer of a merge that adds a section to the report. It may not keep the tests: there can be a million."""

    @abstractmethod
    def __call__(self, suite: "CellSuite") -> None:
        """Take a job with its tests."""

    @abstractmethod
    def section(self, merged: "MergedRun") -> Section:
        """The section, once all jobs have been taken."""
