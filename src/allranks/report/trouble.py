"""Testcases that stand for no test: what went wrong with a job, a rank or a file."""

from typing import Final

from allranks.errors import ExitCode
from allranks.report.model import Rule, TestVerdict, Verdict, VerdictKind
from allranks.report.xml_text import first_line

CLASSNAME: Final = "allranks"
"""Class name of these testcases."""


def trouble(name: str, text: str, code: ExitCode = ExitCode.TESTS_FAILED) -> TestVerdict:
    """An error testcase.

    Args:
        name: What went wrong, in a word: ``job``, ``collection``, ``rank 3``.
        text: Sentences, one a line; the first is the message.
        code: What it makes of the run's exit code.
    """
    judged = Verdict(
        kind=VerdictKind.ERROR,
        rule=Rule.JOB,
        reason=name,
        exit_code=code,
        message=first_line(text),
        text=text,
        executed=False,
    )
    return TestVerdict(nodeid=f"{CLASSNAME}::{name}", classname=CLASSNAME, name=name, verdict=judged)
