"""Reads JUnit reports: junitparser's suites and testcases, with allranks' cells and ranks.

Reports of other writers are read, too. This is the only package that needs junitparser, and no other one imports it.
"""

from allranks.junit.report_reader import load, problem, stream
from allranks.junit.reported import (
    DownloadedReport,
    ReportedAttempt,
    ReportedCase,
    ReportedRank,
    ReportedSuite,
)

__all__ = [
    "DownloadedReport",
    "ReportedAttempt",
    "ReportedCase",
    "ReportedRank",
    "ReportedSuite",
    "load",
    "problem",
    "stream",
]
