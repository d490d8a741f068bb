"""Which of the forms of JUnit XML the merged report has."""

from dataclasses import dataclass
from typing import Final, Literal

Schema = Literal["wide", "narrow"]
"""``wide``: ``testsuites`` with a suite for each job, and properties everywhere. ``narrow``: one ``testsuite``, of
nothing but what the schemas of Jenkins' xUnit plug-in and of Maven's Surefire both know."""

ClassNames = Literal["pytest", "cell"]
"""``pytest``: the class name of a testcase is the one that pytest gives. ``cell``: cell and suite stand before it, for
clients that know a test by class name and name alone and would take its results in two cells for two attempts."""

FILE_LIMIT: Final = 30_000_000
"""Bytes that no file of the report reaches: GitLab refuses JUnit files of more than 30 MB."""


@dataclass(frozen=True, kw_only=True)
class JUnitForm:
    """The form of the merged report.

    Attributes:
        classname: The narrow schema has one suite for all jobs, and its class names always say the cell.
        file_limit: Bytes below which each file stays, unless a single testcase is as large.
    """

    schema: Schema = "wide"
    classname: ClassNames = "pytest"
    file_limit: int = FILE_LIMIT

    @property
    def says_cell(self) -> bool:
        """Whether cell and suite stand before class names."""
        return self.classname == "cell" or self.schema == "narrow"
