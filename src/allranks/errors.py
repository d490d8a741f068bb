"""One class per way to fail, each with its exit code and its remedy.

Every error says three things: what happened, why, and what to do next. The command line prints
those three sentences and nothing else; ``--debug`` adds the traceback.
"""

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What ``allranks run`` returns. The order of precedence is in :data:`PRECEDENCE`."""

    OK = 0
    TESTS_FAILED = 1
    USAGE = 2
    UNACCOUNTED = 3
    INFRASTRUCTURE = 4
    NOTHING_RAN = 5
    INTERRUPTED = 130


PRECEDENCE = (
    ExitCode.INTERRUPTED,
    ExitCode.USAGE,
    ExitCode.INFRASTRUCTURE,
    ExitCode.UNACCOUNTED,
    ExitCode.TESTS_FAILED,
    ExitCode.NOTHING_RAN,
    ExitCode.OK,
)
"""The exit codes from the one that always wins to the one that never does."""


def strongest(codes: set[ExitCode]) -> ExitCode:
    """The exit code that stands for several; :attr:`ExitCode.OK` for none."""
    return next((code for code in PRECEDENCE if code in codes), ExitCode.OK)


class AllranksError(Exception):
    """A failure that the user can act on.

    Args:
        what: One sentence: what happened.
        why: One sentence: the cause, as far as it is known.
        remedy: One sentence: what to do next.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.INFRASTRUCTURE

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        self.what = what
        self.why = why
        self.remedy = remedy
        super().__init__(self.text)

    @property
    def text(self) -> str:
        """The sentences, one a line."""
        return "\n".join(line for line in (self.what, self.why, self.remedy) if line)

    @property
    def told(self) -> str:
        """The sentences as a person sees them on standard error."""
        first, *rest = self.text.splitlines()
        return "\n".join([f"allranks: error: {first}", *(f"  {line}" for line in rest)])


class UsageError(AllranksError):
    """The command line asks for something that does not exist."""

    exit_code = ExitCode.USAGE


class MatrixError(AllranksError):
    """matrix.toml (or ``[tool.allranks]``) cannot be used as it is."""

    exit_code = ExitCode.USAGE


class EngineError(AllranksError):
    """The engine could not run a job: no daemon, a refused container, a lost connection."""


class DeviceError(AllranksError):
    """GPUs cannot be asked for, or one of them is sick."""


class ImageError(AllranksError):
    """A cell's image could not be made or found."""


class SourceChangedError(ImageError):
    """The user's project changed while something was made of it, which is of neither source."""


class EnvironmentBuildError(AllranksError):
    """A Python environment for the run could not be made."""


class ResultsError(AllranksError):
    """The results folder cannot be written, or what is in it cannot be read."""
