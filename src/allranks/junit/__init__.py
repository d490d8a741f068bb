"""Reads JUnit reports of allranks and other writers as junitparser's suites and testcases, with cells and ranks.

This is the only package that needs junitparser, and no other package imports it.
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
