"""Command lines as frozen dataclasses: each field made by :func:`option` is an option or an argument.

They are parsed by argparse, not by cyclopts or Typer: ``scripts/gpu-acceptance`` runs allranks where only torch, pytest
and numpy are installed, and importing either library would use most of the 0.25 s of CPU time that ``allranks --help``
may take.
"""

import argparse
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, NoReturn, TypeVar

from allranks.errors import ExitCode, PluginError, UsageError, nearest
from allranks.matrix.axes import AXES

_HELP_WIDTH: Final = 32
"""The column where the texts of a help page start: most options and their values fit before it."""

_QUANTITY: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)

_DIGITS: Final = 18
"""The maximum number of digits of a number."""


def option(names: str, group: str, meaning: str, **given: Any) -> Any:  # noqa: ANN401 - a field of any type
    """A field of a dataclass of options.

    Args:
        names: The names of the option and of its value, as in the help: ``-j --jobs N``; for an argument, its name.
        group: The title of its section in the help.
        meaning: Its help text.
        given: Arguments of :meth:`argparse.ArgumentParser.add_argument`; ``choices`` may also be a function, which is
            called when the command is used. Also ``exclusive``, the name of a group of mutually exclusive options, and
            ``variable``, an environment variable with the default.
    """
    default = given.pop("default", () if given.get("action") == "append" or given.get("nargs") == "*" else None)
    return field(default=default, metadata={"names": names, "group": group, "help": meaning, **given})


def flag(names: str, group: str, meaning: str, **given: Any) -> Any:  # noqa: ANN401
    """A field for an option without a value; see :func:`option`."""
    return option(names, group, meaning, action="store_true", default=False, **given)


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """The parsed options of a command.

    Attributes:
        usage: The first line of the help, after ``usage:``.
        is_extended: Whether plug-ins may add options.
        takes_pytest: Whether the command takes arguments for pytest after ``--``.
        added: The options of plug-ins, by their dataclasses.
        pytest_args: The arguments after ``--``.
    """

    usage: ClassVar[str]
    is_extended: ClassVar[bool] = False
    takes_pytest: ClassVar[bool] = False

    added: Mapping[type, Any] = field(default_factory=dict)
    pytest_args: tuple[str, ...] = ()


Options = TypeVar("Options", bound=CommandOptions)


class ArgumentParser(argparse.ArgumentParser):
    """A parser whose errors are exceptions with a remedy."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print."""
        text = message.removeprefix("argument ")
        what = f"{text[0].upper()}{text[1:]}."
        raise UsageError(what, remedy=see_help(self))


def see_help(parser: argparse.ArgumentParser) -> str:
    """The remedy for an error in a command line."""
    return f"{parser.format_usage().strip()}\n{parser.prog} --help shows all options."


def format_exit_codes(codes: Mapping[ExitCode, str]) -> str:
    """The exit codes, for the end of a help page."""
    return "\n".join(["exit codes:", *(f"  {code:<5d} {codes[code]}" for code in sorted(codes))])


def page(usage: str, description: str, epilog: str) -> dict[str, Any]:
    """The arguments of a parser with this help page."""
    return {
        "usage": usage,
        "description": description,
        "epilog": epilog,
        "add_help": False,
        "allow_abbrev": False,  # or pytest's --pdb would be short for --pdb-rank
        "formatter_class": partial(argparse.RawDescriptionHelpFormatter, max_help_position=_HELP_WIDTH),
    }


class CommandLine(Generic[Options]):
    """The command line of one command."""

    def __init__(self, parser: argparse.ArgumentParser, kind: type[Options], added: Sequence[type] = ()) -> None:
        self._parser, self.kind, self._added = parser, kind, added
        self._groups: dict[str, Any] = {}
        # Every command has --help, so only `allranks --help` lists it.
        parser.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)
        self.actions = [action for options in (kind, *added) for action in self._declare(options)]

    def _declare(self, kind: type) -> list[argparse.Action]:
        try:
            return [self._add(kind, field) for field in _options_of(kind)]
        except argparse.ArgumentError as error:
            msg = f"A plug-in adds an option to `{self._parser.prog}` that already exists."
            raise PluginError(msg, why=f"{error}.", remedy="Remove the package that adds it.") from error

    def _add(self, kind: type, field: Field[Any]) -> argparse.Action:
        given = dict(field.metadata)
        names, group = given.pop("names"), given.pop("group")
        exclusive, variable = given.pop("exclusive", ""), given.pop("variable", "")
        if group not in self._groups:
            self._groups[group] = self._parser.add_argument_group(group)
        if exclusive and exclusive not in self._groups:
            self._groups[exclusive] = self._groups[group].add_mutually_exclusive_group()
        flags = [word for word in names.split() if word.startswith("-")]
        if metavar := names[len(" ".join(flags)) :].strip():
            given["metavar"] = metavar
        if "choices" in given:
            choices = given["choices"]
            given["choices"] = known = tuple(choices() if callable(choices) else choices)
            given |= {"type": partial(one_of, known, field.name), "metavar": "|".join(known)}
        if variable:
            given["default"] = os.environ.get(variable) or None
        if flags:
            given["dest"] = _dest(kind, field)
        parser = self._groups[exclusive or group]
        action: argparse.Action = parser.add_argument(*(flags or [_dest(kind, field)]), **given)
        return action

    def parse(self, arguments: Sequence[str], pytest_args: tuple[str, ...]) -> Options:
        """Parse a command line."""
        found, rest = self._parser.parse_known_intermixed_args(arguments)
        if rest:
            raise self._unknown(next((word for word in rest if word.startswith("-")), rest[0]))
        added = {kind: kind(**_given(kind, found)) for kind in self._added}
        return self.kind(**_given(self.kind, found), added=added, pytest_args=pytest_args)

    def _unknown(self, word: str) -> UsageError:
        prog, remedy = self._parser.prog, see_help(self._parser)
        if not word.startswith("-"):
            return UsageError(f"{prog} takes no argument {word!r}.", remedy=remedy)
        flag = word.partition("=")[0]
        options = [text for action in self.actions for text in action.option_strings if text.startswith("--")]
        if "--where" in options and (axis := nearest(flag.strip("-").replace("-", "_"), AXES, cutoff=0.8)):
            return UsageError(f"{prog} has no option {flag}.", why=f"Did you mean --where {axis}=VALUE?", remedy=remedy)
        if "--jobs" in options and flag.startswith("-n"):
            why = "Did you mean -j N, the number of jobs to run at once?"
            return UsageError(f"{prog} has no option {flag}.", why=why, remedy=remedy)
        longer = [name for name in options if flag.startswith("--") and name.startswith(flag)]
        close = longer[0] if longer else nearest(flag, options, cutoff=0.75)
        hints = [f"Did you mean {close}?"] if close else []
        if self.kind.takes_pytest:
            hints.append(f"If it is an option of pytest, write it after --: {prog} -- {word}")
        return UsageError(f"{prog} has no option {flag}.", why=" ".join(hints), remedy=remedy)


def _options_of(kind: type) -> list[Field[Any]]:
    return [field for field in fields(kind) if "names" in field.metadata]


def _dest(kind: type, field: Field[Any]) -> str:
    """The name of the value in the namespace; two dataclasses may have fields of the same name."""
    return f"{kind.__module__}.{kind.__qualname__}.{field.name}"


def _given(kind: type, found: argparse.Namespace) -> dict[str, Any]:
    """The values of a dataclass that were given by the command line or a variable."""
    values = {field.name: getattr(found, _dest(kind, field)) for field in _options_of(kind)}
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return {name: value for name, value in frozen.items() if value is not None}


def one_of(names: Sequence[str], what: str, text: str) -> str:
    """Parse one of several names; `what` is the noun for error messages."""
    if text in names:
        return text
    close = nearest(text, names)
    hint = f" (did you mean {close}?)" if close else ""
    msg = f"{text!r} is not {'an' if what[0] in 'aeiou' else 'a'} {what}: choose from {', '.join(names)}{hint}"
    raise argparse.ArgumentTypeError(msg)


def whole(minimum: int = 0, maximum: int | None = None) -> Callable[[str], int]:
    """The type of an option whose value is a whole number."""

    def number(text: str) -> int:
        if text.isascii() and text.isdecimal() and len(text) <= _DIGITS:
            found = int(text)
            if minimum <= found and (maximum is None or found <= maximum):
                return found
        bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        msg = f"{text!r} is not a whole number {bounds}"
        raise argparse.ArgumentTypeError(msg)

    return number


def quantity(units: Mapping[str, float], example: str) -> Callable[[str], float]:
    """The type of an option whose value is a number with a unit, given the factor of each unit."""

    def parse(text: str) -> float:
        found = _QUANTITY.fullmatch(text.strip())
        if found and (unit := found[2].lower()) in units:
            return float(found[1]) * units[unit]
        msg = f"{text!r} is invalid: write {example}"
        raise argparse.ArgumentTypeError(msg)

    return parse


def existing_file(text: str) -> Path:
    """Parse the path of a file that a command reads."""
    return _checked(text, Path.is_file, "there is no file {}")


def writable_file(text: str) -> Path:
    """Parse the path of a file that a command writes or creates."""
    message = "cannot write {}: its folder does not exist, or it is a folder"
    return _checked(text, lambda path: path.parent.is_dir() and not path.is_dir(), message)


def _checked(text: str, is_valid: Callable[[Path], bool], message: str) -> Path:
    try:
        if text and is_valid(Path(text)):
            return Path(text)
    except (OSError, ValueError) as error:
        msg = f"{text!r} cannot be used: {error}"
        raise argparse.ArgumentTypeError(msg) from error
    raise argparse.ArgumentTypeError(message.format(repr(text)))
