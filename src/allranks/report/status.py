"""The status of a test in one letter, for the page and for comparisons of runs."""

from enum import StrEnum
from typing import Final


class Status(StrEnum):
    """The status of a test over all ranks and attempts, from the worst to the best."""

    FAILED = "F"
    ERROR = "E"
    FLAKY = "f"  # it failed in an earlier attempt, but not in the one that counts
    SKIPPED = "S"
    PASSED_SKIP = "K"  # an environment skip that counts as a pass by the policy
    PASSED = "P"
    ABSENT = "-"  # the job did not have the test, or ended before the test started

    @property
    def word(self) -> str:
        return _WORDS[self]

    def word_for(self, number: int) -> str:
        """The word after a number of tests: ``2 errors``."""
        return f"{self.word}s" if self is Status.ERROR and number != 1 else self.word

    @property
    def is_bad(self) -> bool:
        """True if the run fails because of it."""
        return self in {Status.FAILED, Status.ERROR}

    @property
    def without_policy(self) -> "Status":
        """The status regardless of the policy for environment skips."""
        return Status.SKIPPED if self is Status.PASSED_SKIP else self


_WORDS: Final = {
    Status.FAILED: "failed",
    Status.ERROR: "error",
    Status.FLAKY: "flaky",
    Status.SKIPPED: "skipped",
    Status.PASSED_SKIP: "skipped, counts as passed",
    Status.PASSED: "passed",
    Status.ABSENT: "no outcome",
}
