"""The command line: its commands, and errors as exit codes.

A command is a module with a frozen dataclass ``Options``, and a function ``run`` that takes one and returns the exit
code. It is imported only where it is run or asked for help.
"""

import argparse
import importlib
import io
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, TextIO

import allranks
from allranks.cli.parser import ArgumentParser, CommandLine, CommandOptions, one_of, page, see_help, told_codes
from allranks.cli.printing import say
from allranks.cli.variables import RESULTS_VARIABLE, PlanVariables
from allranks.colors import painted
from allranks.errors import MEANING, AllranksError, ExitCode, PluginError, UsageError, as_bug, did_you_mean
from allranks.plugin_manager import CAN_FAIL, JUDGES, Command, added_commands, added_options

_CORE: Final = (
    Command("init", "allranks.cli.init", CAN_FAIL, "write a matrix file and a noxfile for the tests here"),
    Command("plan", "allranks.cli.plan", CAN_FAIL, "show the cells of the matrix, without running anything"),
    Command("run", "allranks.cli.run", JUDGES, "run suites in cells, and report what every rank did"),
    Command("build", "allranks.cli.build", CAN_FAIL, "build the images of cells, for this machine or for others"),
    Command("report", "allranks.cli.report", JUDGES, "make one report of results, of one machine or of many"),
    Command("doctor", "allranks.cli.doctor", CAN_FAIL, "check whether this host can run jobs, and suggest fixes"),
    Command("clean", "allranks.cli.clean", CAN_FAIL, "remove what dead runs left on this host, or old images"),
)

_MOVED: Final = {
    "merge": "report DIR",
    "leases": "doctor --gpus",
    "images": "clean --images --dry-run",
    "schema": "init --schema",
    "completion": "--completion SHELL",
}
"""Commands that there were once, with what took their place."""

_SHELLS: Final = ("bash", "zsh")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    # Test output is printed too and may hold any character: an encoding error must not end the run.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    own, pytest_args = _split(list(sys.argv[1:] if arguments is None else arguments))
    try:
        code = _recorded(own, partial(_run, [word for word in own if word != "--debug"], pytest_args))
    except AllranksError as error:
        _complain(error, own)
        code = error.exit_code
    except KeyboardInterrupt:
        print("\nallranks: interrupted", file=sys.stderr)
        code = ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last frame: a bug in allranks, reported like any other error
        _complain(as_bug(error), own)
        code = ExitCode.INFRASTRUCTURE
    return int(code)


def _split(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Split the arguments into those of allranks and those after ``--``, which are pytest's."""
    if "--" not in arguments:
        return arguments, ()
    place = arguments.index("--")
    return arguments[:place], tuple(arguments[place + 1 :])


@cache
def commands() -> tuple[Command, ...]:
    """All commands: those of the core, then those of plug-ins."""
    return (*_CORE, *added_commands(_CORE))


def _command_line(command: Command, make: Callable[..., Any] = ArgumentParser) -> CommandLine[CommandOptions]:
    """The command line of a command, whose module is imported; `make` makes its parser."""
    kind: type[CommandOptions] = importlib.import_module(command.module).Options
    added = added_options(command.name) if kind.is_extended else ()
    texts = page(kind.usage, f"{command.name}: {command.meaning}.", told_codes(command.codes))
    return CommandLine(make(prog=f"allranks {command.name}", **texts), kind, added)


def _run(own: list[str], pytest_args: tuple[str, ...]) -> ExitCode:
    place = next((place for place, word in enumerate(own) if not word.startswith("-")), len(own))
    top = _top_parser()
    given, rest = top.parse_known_args(own[: place + 1])  # and one word more: --completion has a value
    before = [word for word in rest if word.startswith("-")]
    if given.help:
        top.epilog = _overview()
        top.print_help()
    elif given.version:
        say(f"allranks {allranks.__version__}")
    elif given.completion:
        from allranks.cli.completion import script  # noqa: PLC0415

        say(script(given.completion, _top_parser(), commands(), _command_line))
    elif rest == before:
        raise UsageError(
            f"allranks has no option {rest[0]}." if rest else "A command is required.", remedy=see_help(top)
        )
    else:
        return _run_command(_named(own[place], before, top), own[place + 1 :], pytest_args)
    return ExitCode.OK


def _top_parser() -> argparse.ArgumentParser:
    """The parser of what stands before the name of a command."""
    usage = "allranks COMMAND [options]; allranks COMMAND --help"
    about = "allranks: distributed PyTorch test suites over a matrix, every rank accounted for."
    parser = ArgumentParser(prog="allranks", **page(usage, about, ""))
    group = parser.add_argument_group("general")
    group.add_argument("-h", "--help", action="store_true", help="show this help, or that of a command, and exit")
    group.add_argument("-V", "--version", action="store_true", help="show the version, and exit")
    group.add_argument("--debug", action="store_true", help="of any command: also show the traceback of an error")
    meaning = "print a script with which a shell completes command lines, and exit"
    shell = partial(one_of, _SHELLS, "shell")
    group.add_argument("--completion", type=shell, choices=_SHELLS, metavar="|".join(_SHELLS), help=meaning)
    return parser


def _overview() -> str:
    """The commands and the exit codes, for the end of the help page."""
    width = max(len(command.name) for command in commands())

    def rows(some: Sequence[Command]) -> list[str]:
        return [f"  {command.name:<{width}}  {command.meaning}" for command in some]

    added = rows(commands()[len(_CORE) :])
    more = ["", "commands of plug-ins:", *added] if added else []
    return "\n".join(["commands:", *rows(_CORE), *more, "", told_codes(MEANING)])


def _named(name: str, before: Sequence[str], top: argparse.ArgumentParser) -> Command:
    """The command of a name; those of plug-ins are looked for only if it is not of the core."""
    known = _CORE if name in {command.name for command in _CORE} else commands()
    found = next((command for command in known if command.name == name), None)
    if found is None:
        msg = f"There is no command {name!r}."
        now = f"It is now `allranks {_MOVED[name]}`." if name in _MOVED else ""
        remedy = "usage: allranks COMMAND [options]. `allranks --help` lists the commands."
        raise UsageError(msg, why=now or did_you_mean(name, [command.name for command in known]), remedy=remedy)
    if before:
        why = f"Options of a command go after its name: allranks {name} {before[0]}"
        msg = f"allranks has no option {before[0]}."
        raise UsageError(msg, why=why, remedy=see_help(top))
    return found


def _run_command(command: Command, arguments: Sequence[str], pytest_args: tuple[str, ...]) -> ExitCode:
    line = _command_line(command)
    if pytest_args and not line.kind.takes_pytest:
        msg = f"This command passes no arguments to pytest: {shlex.join(pytest_args)}."
        raise UsageError(msg, remedy="Drop -- and everything after it.")
    options = line.parse(arguments, pytest_args)
    run: Callable[[CommandOptions], ExitCode] = importlib.import_module(command.module).run
    return run(options)


def _recorded(own: Sequence[str], command: Callable[[], ExitCode]) -> ExitCode:
    """Run a command; what it refuses of a plan for several machines, such as a misspelt option, is recorded."""
    planned = PlanVariables.read()
    if planned.file is None:
        return command()
    # Not the parser of the command: it may refuse this command line.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in ("--matrix", "--results"):
        parser.add_argument(option, type=Path)
    try:
        given, rest = parser.parse_known_args(own)
    except argparse.ArgumentError:  # one has no value
        return command()
    name = _name_in(rest)
    is_run = name == "run" and planned.pack and "--inside" not in rest
    is_examined = name == "doctor" and planned.pack and given.results
    is_build = name == "build" and given.results
    if not (is_run or is_examined or is_build):
        return command()
    from allranks.cli.options import results_here  # noqa: PLC0415
    from allranks.runner.machines.refused_pack import recording_refusal  # noqa: PLC0415 - no other command needs it

    results = given.results or Path(os.environ.get(RESULTS_VARIABLE) or results_here(given.matrix))
    return recording_refusal(command, results, planned.file, None if is_build else planned.pack)


def _complain(error: AllranksError, arguments: Sequence[str]) -> None:
    from allranks.runner.ci_service import service_for_errors  # noqa: PLC0415 - only for errors

    service = service_for_errors()
    if service is None:
        _print(error, arguments, sys.stderr)
        return
    # What these print, and what a service obeys, are on standard output: between two streams the order is lost.
    name = _name_in(arguments)
    known = _CORE if isinstance(error, PluginError) else commands()
    shown = {"build", *(command.name for command in known if command.codes == JUDGES)}
    is_shown = name in shown and "--json" not in arguments
    stream = sys.stdout if is_shown else sys.stderr
    with service.show_error(error, name, stream):
        _print(error, arguments, stream)


def _print(error: AllranksError, arguments: Sequence[str], stream: TextIO) -> None:
    if "--debug" in arguments:
        import traceback  # noqa: PLC0415 - its import takes as long as a small command

        traceback.print_exc(file=stream)
    head, colon, rest = error.terminal_text.partition("error:")
    print(painted(f"{head}{colon}", "red", stream) + rest, file=stream)


def _name_in(arguments: Sequence[str]) -> str:
    """The command's name, which need not exist; empty if none is given."""
    return next((word for word in arguments if not word.startswith("-")), "")
