"""One class per way to fail, each with its exit code and its remedy.

Every error has three sentences: what happened, why, and what to do next. The command line prints
these and nothing else; ``--debug`` adds the traceback.
"""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import IntEnum
from typing import ClassVar

from allranks.protocol.xml_text import for_terminal


class ExitCode(IntEnum):
    """The exit codes of all commands: :data:`MEANING` has their meaning, :data:`PRECEDENCE` orders them."""

    OK = 0
    TESTS_FAILED = 1
    USAGE = 2
    UNACCOUNTED = 3
    INFRASTRUCTURE = 4
    NOTHING_RAN = 5
    INTERRUPTED = 130


MEANING: Mapping[ExitCode, str] = {
    ExitCode.OK: "all verdicts are good",
    ExitCode.TESTS_FAILED: "tests failed",
    ExitCode.USAGE: "the request or the matrix file is wrong",
    ExitCode.UNACCOUNTED: "a cell or rank is unaccounted for",
    ExitCode.INFRASTRUCTURE: "the infrastructure failed",
    ExitCode.NOTHING_RAN: "nothing ran: no test executed",
    ExitCode.INTERRUPTED: "interrupted",
}
"""The exit codes in words, as a run prints them at its end."""

PRECEDENCE = (
    ExitCode.INTERRUPTED,
    ExitCode.USAGE,
    ExitCode.INFRASTRUCTURE,
    ExitCode.UNACCOUNTED,
    ExitCode.TESTS_FAILED,
    ExitCode.NOTHING_RAN,
    ExitCode.OK,
)
"""The exit codes, highest precedence first."""


def strongest(codes: set[ExitCode]) -> ExitCode:
    """The exit code of highest precedence among these; :attr:`ExitCode.OK` if there are none."""
    return next((code for code in PRECEDENCE if code in codes), ExitCode.OK)


class AllranksError(Exception):
    """A failure that the user can act on.

    Args:
        what: What happened, in one sentence.
        why: The cause, as far as it is known, in one sentence.
        remedy: What to do next, in one sentence.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.INFRASTRUCTURE

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        self.what = what
        self.why = why
        self.remedy = remedy
        super().__init__(self.text)

    @property
    def text(self) -> str:
        """The sentences, one per line."""
        return "\n".join(line for line in (self.what, self.why, self.remedy) if line)

    @property
    def told(self) -> str:
        """The sentences as they are printed on standard error."""
        first, *rest = self.text.splitlines()
        return for_terminal("\n".join([f"allranks: error: {first}", *(f"  {line}" for line in rest)]))


def as_bug(error: Exception) -> AllranksError:
    """An exception that nothing expects, as an error like any other."""
    return AllranksError(
        f"allranks crashed: {type(error).__name__}: {error}",
        why="This is a bug in allranks.",
        remedy="Please report it, with the output of the same command under `allranks --debug`.",
    )


def described(error: BaseException) -> str:
    """The type of an exception and the first line of its text, for a sentence."""
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


class UsageError(AllranksError):
    """The command line asks for something that does not exist."""

    exit_code = ExitCode.USAGE


class MatrixError(AllranksError):
    """matrix.toml (or ``[tool.allranks]``) cannot be used as it is."""

    exit_code = ExitCode.USAGE


class EngineError(AllranksError):
    """The engine could not run a job: no daemon, a refused container, a lost connection."""


class EngineAbsentError(EngineError):
    """This host does not have the engine."""


class EngineDeniedError(EngineError):
    """The engine is there, and this user may not use it: ``auto`` then takes no other one."""


class PluginError(AllranksError):
    """A plug-in cannot be used."""


class DeviceError(AllranksError):
    """GPUs cannot be queried, or one of them is faulty."""


class ImageError(AllranksError):
    """A cell's image could not be built or found."""


class SourceChangedError(ImageError):
    """The user's project changed during a build, so the result matches neither version of its source."""


class EnvironmentBuildError(AllranksError):
    """A Python environment for the run could not be created."""


class ResultsError(AllranksError):
    """The results folder cannot be written, or its content cannot be read."""


LONGEST_SHOWN = 60
"""Characters of a value that a message quotes; more would bury the sentence."""


def shown(value: object) -> str:
    """A value as a message quotes it: written as in the file, and never long."""
    if isinstance(value, int) and value.bit_length() > 192:  # Python refuses to write a huge number in decimal digits
        return "a number of more than 57 digits"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


def listed(values: Iterable[object]) -> str:
    """Values separated by commas, cut after the first twelve."""
    texts = [shown(value) for value in values]
    rest = f" and {len(texts) - 12} more" if len(texts) > 12 else ""
    return ", ".join(texts[:12]) + rest


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word closest to ``word``, regardless of case; None if none is close.

    The two must be as alike as ``cutoff``, from 0 to 1 (see :func:`difflib.get_close_matches`).
    """
    by_lower_case = {name.lower(): name for name in known}
    close = get_close_matches(word[:LONGEST_SHOWN].lower(), by_lower_case, n=1, cutoff=cutoff)
    return by_lower_case[close[0]] if close else None


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """One sentence that suggests the closest known value, or lists all of them if none is close."""
    values = list(known)
    if not values:
        return "There is none."
    close = nearest(word, [value for value in values if isinstance(value, str)]) if isinstance(word, str) else None
    return f"Did you mean {close!r}?" if close else f"Known: {listed(values)}."
