"""Phases of a test on one rank, as ranks report them, and the one that decides. The standard library is enough."""

from collections.abc import Sequence
from dataclasses import dataclass

from allranks.harness.outcome import Outcome, SkipKind

TEXT_LIMIT = 64 * 1024
"""Characters of a traceback or of one captured stream that go into an event; the rest is not kept."""

MESSAGE_LIMIT = 1000
"""Characters of a message."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase of one test on one rank.

    Attributes:
        when: ``setup``, ``call`` or ``teardown``.
        duration: Seconds.
        message: One line; empty for a phase that passed.
        text: The traceback or the reason.
        skip_code: torch's exit code, for a skip that has one.
    """

    when: str
    outcome: Outcome
    duration: float
    message: str = ""
    text: str = ""
    stdout: str = ""
    stderr: str = ""
    skip_kind: SkipKind | None = None
    skip_code: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it passed, and there is nothing more to say."""
        return self.outcome is Outcome.PASSED and not (self.message or self.text or self.stdout or self.stderr)


def shorten(text: str, limit: int = TEXT_LIMIT) -> str:
    """`text` with its middle cut out where it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters cut …\n{text[-half:]}"


def following(phase: Phase) -> str:
    """What a test does after a phase, in words; empty for its end."""
    if phase.when == "teardown":
        return ""
    return "tear-down" if phase.when == "call" or phase.outcome is not Outcome.PASSED else "call"


def overall(phases: Sequence[Phase]) -> Phase:
    """The phase that decides a test: the first bad one, else the one that was not a plain pass, else the call."""
    bad = next((phase for phase in phases if phase.outcome.is_bad), None)
    if bad is not None:
        return bad
    notable = next((phase for phase in phases if phase.outcome is not Outcome.PASSED), None)
    return notable or next((phase for phase in phases if phase.when == "call"), phases[-1])
