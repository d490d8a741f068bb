"""One exception class for each kind of failure, with its exit code.

Every error has three parts: what happened, why, and what to do. The command line prints only these; ``--debug`` adds
the traceback.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import IntEnum
from typing import ClassVar

from allranks.protocol.xml_text import clipped, for_terminal, printable


class ExitCode(IntEnum):
    """The exit codes of all commands; see :data:`MEANING` and :data:`PRECEDENCE`."""

    OK = 0
    TESTS_FAILED = 1
    USAGE = 2
    UNACCOUNTED = 3
    INFRASTRUCTURE = 4
    NOTHING_RAN = 5
    INTERRUPTED = 130


MEANING: Mapping[ExitCode, str] = {
    ExitCode.OK: "no test failed",
    ExitCode.TESTS_FAILED: "tests failed",
    ExitCode.USAGE: "the request or the matrix file is wrong",
    ExitCode.UNACCOUNTED: "a result is missing or cannot be trusted",
    ExitCode.INFRASTRUCTURE: "the infrastructure failed",
    ExitCode.NOTHING_RAN: "no test ran: all were skipped, or none was selected",
    ExitCode.INTERRUPTED: "interrupted",
}
"""The meaning of each exit code, which a run prints at its end."""

PRECEDENCE = (
    ExitCode.INTERRUPTED,
    ExitCode.USAGE,
    ExitCode.INFRASTRUCTURE,
    ExitCode.UNACCOUNTED,
    ExitCode.TESTS_FAILED,
    ExitCode.NOTHING_RAN,
    ExitCode.OK,
)
"""The exit codes, the highest precedence first."""


def strongest(codes: set[ExitCode]) -> ExitCode:
    """The exit code with the highest precedence; :attr:`ExitCode.OK` for no codes."""
    return next((code for code in PRECEDENCE if code in codes), ExitCode.OK)


class AllranksError(Exception):
    """An error with a remedy for the user.

    Args:
        what: What happened, as a sentence.
        why: The cause, if it is known, as a sentence.
        remedy: What to do, as a sentence.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.INFRASTRUCTURE

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        self.what = what
        self.why = why
        self.remedy = remedy
        super().__init__(self.text)

    @property
    def text(self) -> str:
        """The parts, one per line."""
        return "\n".join(line for line in (self.what, self.why, self.remedy) if line)

    @property
    def terminal_text(self) -> str:
        """The parts as printed on standard error."""
        first, *rest = self.text.splitlines()
        return for_terminal("\n".join([f"allranks: error: {first}", *(f"  {line}" for line in rest)]))


def as_error(error: Exception) -> AllranksError:
    """Convert an unexpected exception: an error of the operating system, or else a bug."""
    if isinstance(error, OSError) and error.strerror:
        path = clipped(printable(str(error.filename)), 200) if error.filename else ""
        return AllranksError(
            f"{path} cannot be used." if path else "The operating system reports an error.",
            why=f"{error.strerror}.",
            remedy="Check paths, permissions and free disk space. `allranks --debug` shows where this happened.",
        )
    return AllranksError(
        f"allranks crashed: {type(error).__name__}: {error}",
        why="This is a bug in allranks.",
        remedy="Please report it, with the output of the same command with `allranks --debug`.",
    )


def described(error: BaseException) -> str:
    """The type of an exception and the first line of its message."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


class UsageError(AllranksError):
    """The command line is invalid, or selects something that does not exist."""

    exit_code = ExitCode.USAGE


class MatrixError(AllranksError):
    """matrix.toml (or ``[tool.allranks]``) is invalid."""

    exit_code = ExitCode.USAGE


class EngineError(AllranksError):
    """The engine could not run a job: no daemon, a rejected container, a lost connection."""


class EngineAbsentError(EngineError):
    """This host does not have the engine."""


class EngineDeniedError(EngineError):
    """This user may not use the engine; ``auto`` then does not choose another one."""


class PluginError(AllranksError):
    """A plug-in cannot be used."""


class DeviceError(AllranksError):
    """GPUs cannot be queried, or one of them is faulty."""


class ImageError(AllranksError):
    """A cell's image could not be built or found."""


class SourceChangedError(ImageError):
    """The user's project changed during a build."""


class EnvironmentBuildError(AllranksError):
    """A Python environment for the run could not be created."""


class ResultsError(AllranksError):
    """The results folder cannot be written, or its content cannot be read."""


LONGEST_SHOWN = 60
"""The maximum length of a value in a message."""


def shown(value: object) -> str:
    """Format a value for a message, in TOML's syntax, and shortened."""
    if isinstance(value, int) and value.bit_length() > 192:  # Python does not convert huge numbers to decimal digits
        return "a number of more than 57 digits"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


def listed(values: Iterable[object]) -> str:
    """Format values for a message, separated by commas; only the first twelve are included."""
    texts = [shown(value) for value in values]
    rest = f" and {len(texts) - 12} more" if len(texts) > 12 else ""
    return ", ".join(texts[:12]) + rest


def counted(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word most similar to `word`, regardless of case; None if the similarity is below `cutoff`.

    The cutoff is a number from 0 to 1; see :func:`difflib.get_close_matches`.
    """
    by_lower_case = {name.lower(): name for name in known}
    close = get_close_matches(word[:LONGEST_SHOWN].lower(), by_lower_case, n=1, cutoff=cutoff)
    return by_lower_case[close[0]] if close else None


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """A sentence that suggests the most similar known value, or lists them if none is similar."""
    values = list(known)
    if not values:
        return "There is none."
    close = nearest(word, [value for value in values if isinstance(value, str)]) if isinstance(word, str) else None
    return f"Did you mean {close!r}?" if close else f"Known: {listed(values)}."
