"""The parser of a command: exit codes in its help, and suggestions for misspelt options and values."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NoReturn

import allranks
from allranks.errors import MEANING, ExitCode, UsageError, nearest

OptionGroup = argparse._ActionsContainer  # noqa: SLF001 - what a parser and its groups have in common has no other name
"""Where options are declared: a parser, or one of its groups."""

_HELP_WIDTH: Final = 32
"""Columns before the texts of a help page: most options with their values."""


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are exceptions with a remedy, and that takes positional arguments in any place.

    Args:
        codes: The exit codes of the command, for its help.
    """

    def __init__(self, *, codes: Iterable[ExitCode] = (), **given: Any) -> None:  # noqa: ANN401
        # Without abbreviations: `--pdb`, which is pytest's, would be our `--pdb-rank`.
        super().__init__(
            add_help=False, allow_abbrev=False, formatter_class=_formatter, epilog=_told(sorted(codes)), **given
        )
        self.takes_pytest = False  # whether the command has arguments for pytest, after ``--``

    def add_general(self, *, top: bool = False) -> None:
        """Declare the options of every command; the last group of its help."""
        group = self.add_argument_group("general")
        group.add_argument("-h", "--help", action="help", help="show this help, and exit")
        # A default of a command would undo what stands before its name.
        default = False if top else argparse.SUPPRESS
        meaning = "also show the traceback of an error"
        if top:
            version = f"allranks {allranks.__version__}"
            group.add_argument("-V", "--version", action="version", version=version, help="show the version, and exit")
        group.add_argument("--debug", action="store_true", default=default, help=meaning)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # noqa: ANN401
        """Parse, and give what argparse leaves over to ``cells``: it takes positional arguments from one place only.

        Raises:
            UsageError: An argument is not known.
        """
        found, rest = super().parse_known_args(args, namespace)
        options = [word for word in rest if word.startswith("-")]
        if options or (rest and not hasattr(found, "cells")):
            raise self._unknown((options or rest)[0])
        if rest:
            found.cells = [*found.cells, *rest]
        return found, []

    def error(self, message: str) -> NoReturn:
        """Raise argparse's own message about a wrong argument.

        Raises:
            UsageError: Always.
        """
        text = message.removeprefix("argument ")
        what = f"{text[0].upper()}{text[1:]}."
        raise UsageError(what, remedy=self._see_help)

    def _unknown(self, word: str) -> UsageError:
        if not word.startswith("-"):
            return UsageError(f"{self.prog} takes no argument {word!r}.", remedy=self._see_help)
        flag = word.partition("=")[0]
        options = [each for each in self._option_string_actions if each.startswith("--")]
        begins = [each for each in options if flag.startswith("--") and each.startswith(flag)]
        close = begins[0] if begins else nearest(flag, options, cutoff=0.75)
        hints = [f"Did you mean {close}?"] if close else []
        if self.prog == "allranks":
            hints.append(f"Options of a command go after its name: allranks run {word}")
        if self.takes_pytest:
            hints.append(f"Options of pytest go after --: {self.prog} -- {word}")
        return UsageError(f"{self.prog} has no option {flag}.", why=" ".join(hints), remedy=self._see_help)

    @property
    def _see_help(self) -> str:
        return f"{self.format_usage().strip()}\n{self.prog} --help has all of it."


def one_of(names: Sequence[str]) -> Callable[[str], str]:
    """The type of an option with few values: an error suggests the nearest one."""

    def checked(text: str) -> str:
        if text not in names:
            raise not_among(names, text, "value")
        return text

    return checked


def not_among(names: Sequence[str], text: str, what: str) -> argparse.ArgumentTypeError:
    """The error of a value that is none of a few names."""
    close = nearest(text, names)
    hint = f" (did you mean {close}?)" if close else ""
    return argparse.ArgumentTypeError(f"{text!r} is no {what}: choose from {', '.join(names)}{hint}")


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=_HELP_WIDTH)


def _told(codes: Sequence[ExitCode]) -> str | None:
    """The exit codes for the end of a help page; 0 has a meaning of its own where nothing is judged."""
    judges = ExitCode.TESTS_FAILED in codes
    rows = [f"  {code:<5d} {MEANING[code] if code or judges else 'done, and there is no problem'}" for code in codes]
    return "\n".join(["exit codes:", *rows]) if rows else None
