"""``allranks --completion``: a script with which a shell completes command lines, made by shtab."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from allranks.cli.parser import CommandLine
from allranks.errors import UsageError
from allranks.plugin_manager import Command

_CELLS: Final = "allranks plan 2>/dev/null | sed -n '2,/^$/s/ .*//p'"
"""The first column of the plan's table."""

_PREAMBLE: Final[Mapping[str, str]] = {
    "bash": f'_allranks_cells() {{ compgen -W "$({_CELLS})" -- "$1"; compgen -f -- "$1"; }}',
    "zsh": f"_allranks_cells() {{ compadd -- $({_CELLS}); _files }}",
}
_CELLS_OR_FILES: Final[Mapping[str, str]] = dict.fromkeys(_PREAMBLE, "_allranks_cells")


def script(
    shell: str, parser: argparse.ArgumentParser, commands: Sequence[Command], line: Callable[..., CommandLine[Any]]
) -> str:
    """The script of a shell."""
    try:
        import shtab  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - an extra
    except ImportError:
        msg = "Completion needs the package shtab, which is not installed."
        raise UsageError(msg, remedy="Install it beside allranks: pip install shtab.") from None
    subparsers = parser.add_subparsers()
    for command in commands:
        for action in line(command, partial(subparsers.add_parser, command.name, help=command.meaning)).actions:
            _describe(action, files=shtab.FILE, folders=shtab.DIRECTORY)
    found: str = shtab.complete(parser, shell, preamble=_PREAMBLE[shell])
    return found


def _describe(action: Any, *, files: object, folders: object) -> None:  # noqa: ANN401 - shtab adds an attribute to it
    """Tell shtab what an argument's values are, as far as its metavar says so."""
    if action.metavar == "CELL | TEST":
        action.complete = _CELLS_OR_FILES
    elif action.metavar in {"DIR", "FILE", "PATH"}:
        action.complete = folders if action.metavar == "DIR" else files
