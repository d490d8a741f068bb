"""``allranks completion``: a script with which a shell completes the command line, made by shtab."""

import argparse
from collections.abc import Iterator, Mapping
from typing import Any, Final

from allranks.cli.command_parser import CommandParser, one_of
from allranks.cli.options import say
from allranks.errors import ExitCode, UsageError

_SHELLS: Final = ("bash", "zsh")

_CELLS: Final = "allranks plan 2>/dev/null | sed -n '2,/^$/s/ .*//p'"
"""The first column of the plan's table."""

_PREAMBLE: Final[Mapping[str, str]] = {
    "bash": f'_allranks_cells() {{ compgen -W "$({_CELLS})" -- "$1"; compgen -f -- "$1"; }}',
    "zsh": f"_allranks_cells() {{ compadd -- $({_CELLS}); _files }}",
}
_CELLS_OR_FILES: Final[Mapping[str, str]] = dict.fromkeys(_SHELLS, "_allranks_cells")


def add(parser: CommandParser) -> None:
    """Declare the arguments of ``allranks completion``."""
    parser.usage = "allranks completion bash|zsh"
    group = parser.add_argument_group("whose")
    meaning = 'for bash, add to ~/.bashrc: eval "$(allranks completion bash)"'
    group.add_argument("shell", type=one_of(_SHELLS), choices=_SHELLS, help=meaning)
    parser.set_defaults(command=_complete)


def _complete(options: argparse.Namespace) -> ExitCode:
    try:
        import shtab  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - an extra
    except ImportError:
        msg = "Completion needs the package shtab, which is not installed."
        raise UsageError(msg, remedy="Install it beside allranks: pip install shtab.") from None
    for action in _actions(options.root):
        _describe(action, files=shtab.FILE, folders=shtab.DIRECTORY)
    say(shtab.complete(options.root, options.shell, preamble=_PREAMBLE[options.shell]))
    return ExitCode.OK


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every argument of a parser and of its commands."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other list of them
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                yield from _actions(command)


def _describe(action: Any, *, files: object, folders: object) -> None:  # noqa: ANN401 - shtab adds an attribute to it
    """Tell shtab what an argument's values are, as far as its metavar says so."""
    metavar = action.metavar if isinstance(action.metavar, str) else ""
    if action.dest == "cells":
        action.complete = _CELLS_OR_FILES
    elif metavar in {"DIR", "FILE", "PATH"}:
        action.complete = folders if metavar == "DIR" else files
    elif "|" in metavar:
        action.choices = metavar.split("|")
