"""The rank outcomes, and what the text of a skip means.

The harness writes these words into events and rank XML; the report reads them back. This module is
copied into jobs with the rest of the harness, so it uses the standard library alone.
"""

from collections.abc import Collection, Iterable
from enum import StrEnum
from fnmatch import fnmatchcase


class Outcome(StrEnum):
    """What one rank of one test came to."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    ERRORED = "errored"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    ABORTED = "aborted"
    MISSING = "missing"

    @property
    def is_bad(self) -> bool:
        """Whether this outcome keeps a test from passing (a strict xpass arrives as failed)."""
        return self not in GOOD


GOOD = frozenset({Outcome.PASSED, Outcome.SKIPPED, Outcome.XFAILED, Outcome.XPASSED})


def disagree(outcomes: Collection[Outcome]) -> bool:
    """Whether the ranks of one test disagree on whether it could run, or on whether it is expected to fail."""
    skipped_and_ran = Outcome.SKIPPED in outcomes and any(outcome is not Outcome.SKIPPED for outcome in outcomes)
    return skipped_and_ran or (Outcome.XFAILED in outcomes and Outcome.PASSED in outcomes)


def may_disagree(nodeid: str, mixed_skip: Iterable[str]) -> bool:
    """Whether the ranks of a test may disagree on a skip: its node id matches one of these ``fnmatch`` patterns."""
    return any(fnmatchcase(nodeid, pattern) for pattern in mixed_skip)


class SkipKind(StrEnum):
    """Why a rank skipped.

    ``environment``: the surroundings lack something (an exit code of torch's table, sandcastle);
    ``hardware``: an environment skip for want of GPUs, an error in a cell that was given them;
    ``plain``: the author's own ``pytest.skip``.
    """

    PLAIN = "plain"
    ENVIRONMENT = "environment"
    HARDWARE = "hardware"
