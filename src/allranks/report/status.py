"""What has become of a test, in one letter: on the page, and where runs are compared."""

from enum import StrEnum
from typing import Final


class Status(StrEnum):
    """A test over all its ranks and attempts; from the worst to the best."""

    FAILED = "F"
    ERROR = "E"
    FLAKY = "f"  # it went wrong in an earlier attempt, but not in the one that counts
    SKIPPED = "S"
    PASSED_SKIP = "K"  # an environment skip that the policy reads as a pass
    PASSED = "P"
    ABSENT = "-"  # the job did not have the test, or ended before it

    @property
    def word(self) -> str:
        """The status as people read it."""
        return _WORDS[self]

    def word_for(self, number: int) -> str:
        """The word after a number of tests: ``2 errors``."""
        return f"{self.word}s" if self is Status.ERROR and number != 1 else self.word

    @property
    def is_bad(self) -> bool:
        """True if this makes the run bad."""
        return self in {Status.FAILED, Status.ERROR}

    @property
    def without_policy(self) -> "Status":
        """The status however environment skips are read."""
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
