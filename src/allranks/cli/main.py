"""The command line: it runs commands, and turns errors into exit codes.

A command is a module with a frozen dataclass ``Options``, and a function ``run`` that takes one and returns the exit
code. It is imported only when it runs or shows its help.
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
from allranks.cli.parser import ArgumentParser, CommandLine, CommandOptions, format_exit_codes, one_of, page, see_help
from allranks.cli.printing import say
from allranks.cli.variables import RESULTS_VARIABLE, PlanVariables
from allranks.colors import painted
from allranks.errors import MEANING, AllranksError, ExitCode, PluginError, UsageError, as_error, did_you_mean
from allranks.plugin_manager import CAN_FAIL, JUDGES, Command, added_commands, added_options

_CORE: Final = (
    Command("init", "allranks.cli.init", CAN_FAIL, "write a matrix file and a noxfile for the tests here"),
    Command("plan", "allranks.cli.plan", CAN_FAIL, "show the cells of the matrix, without running anything"),
    Command("run", "allranks.cli.run", JUDGES, "run suites in cells, and report what every rank did"),
    Command("build", "allranks.cli.build", CAN_FAIL, "build the images of cells, for this machine or for others"),
    Command("report", "allranks.cli.report", JUDGES, "merge results, from one machine or many, into one report"),
    Command("doctor", "allranks.cli.doctor", CAN_FAIL, "check whether this host can run jobs, and suggest fixes"),
    Command("clean", "allranks.cli.clean", CAN_FAIL, "remove old cache entries and leftovers of dead runs, or images"),
)

_SHELLS: Final = ("bash", "zsh")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command."""
    # Test output may contain any character, and an encoding error must not end the run.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    own, pytest_args = _split(list(sys.argv[1:] if arguments is None else arguments))
    try:
        code = _recording_rejection(own, partial(_run, [word for word in own if word != "--debug"], pytest_args))
    except AllranksError as error:
        _report_error(error, own)
        code = error.exit_code
    except KeyboardInterrupt:
        print("\nallranks: interrupted", file=sys.stderr)
        code = ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last frame: a bug in allranks, reported like any other error
        _report_error(as_error(error), own)
        code = ExitCode.INFRASTRUCTURE
    return int(code)


def _split(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Split the arguments into those of allranks, and those of pytest after ``--``."""
    if "--" not in arguments:
        return arguments, ()
    index = arguments.index("--")
    return arguments[:index], tuple(arguments[index + 1 :])


@cache
def commands() -> tuple[Command, ...]:
    """The commands of the core, then those of plug-ins."""
    return (*_CORE, *added_commands(_CORE))


def command_line(command: Command, make: Callable[..., Any] = ArgumentParser) -> CommandLine[CommandOptions]:
    """Import a command's module and build its command line; `make` creates the parser."""
    kind: type[CommandOptions] = importlib.import_module(command.module).Options
    added = added_options(command.name) if kind.is_extended else ()
    texts = page(kind.usage, f"{command.name}: {command.meaning}.", format_exit_codes(command.codes))
    return CommandLine(make(prog=f"allranks {command.name}", **texts), kind, added)


def _run(own: list[str], pytest_args: tuple[str, ...]) -> ExitCode:
    index = next((index for index, word in enumerate(own) if not word.startswith("-")), len(own))
    top = _top_parser()
    given, rest = top.parse_known_args(own[: index + 1])  # including the first word: it may be --completion's value
    before = [word for word in rest if word.startswith("-")]
    if given.help:
        top.epilog = _overview()
        top.print_help()
    elif given.version:
        say(f"allranks {allranks.__version__}")
    elif given.completion:
        from allranks.cli.completion import script  # noqa: PLC0415

        say(script(given.completion, _top_parser(), commands(), command_line))
    elif rest == before:
        raise UsageError(
            f"allranks has no option {rest[0]}." if rest else "A command is required.", remedy=see_help(top)
        )
    else:
        return _run_command(_find_command(own[index], before, top), own[index + 1 :], pytest_args)
    return ExitCode.OK


def _top_parser() -> argparse.ArgumentParser:
    """The parser of the options before the name of a command."""
    usage = "allranks COMMAND [options]; allranks COMMAND --help"
    about = "allranks: distributed PyTorch test suites over a matrix, every rank accounted for."
    parser = ArgumentParser(prog="allranks", **page(usage, about, ""))
    group = parser.add_argument_group("general")
    group.add_argument("-h", "--help", action="store_true", help="show this help, or that of a command, and exit")
    group.add_argument("-V", "--version", action="store_true", help="show the version, and exit")
    group.add_argument("--debug", action="store_true", help="for any command: also show the traceback of an error")
    meaning = "print a completion script for this shell, and exit"
    shell = partial(one_of, _SHELLS, "shell")
    group.add_argument("--completion", type=shell, choices=_SHELLS, metavar="|".join(_SHELLS), help=meaning)
    return parser


def _overview() -> str:
    """The commands and the exit codes, for the end of the help page."""
    width = max(len(command.name) for command in commands())

    def rows(listed: Sequence[Command]) -> list[str]:
        return [f"  {command.name:<{width}}  {command.meaning}" for command in listed]

    added = rows(commands()[len(_CORE) :])
    more = ["", "commands of plug-ins:", *added] if added else []
    return "\n".join(["commands:", *rows(_CORE), *more, "", format_exit_codes(MEANING)])


def _find_command(name: str, before: Sequence[str], top: argparse.ArgumentParser) -> Command:
    """The command with this name; plug-ins are loaded only if it is not in the core."""
    known = _CORE if name in {command.name for command in _CORE} else commands()
    found = next((command for command in known if command.name == name), None)
    if found is None:
        msg = f"There is no command {name!r}."
        remedy = "usage: allranks COMMAND [options]. `allranks --help` lists the commands."
        raise UsageError(msg, why=did_you_mean(name, [command.name for command in known]), remedy=remedy)
    if before:
        why = f"Write the options of a command after its name: allranks {name} {before[0]}"
        msg = f"allranks has no option {before[0]}."
        raise UsageError(msg, why=why, remedy=see_help(top))
    return found


def _run_command(command: Command, arguments: Sequence[str], pytest_args: tuple[str, ...]) -> ExitCode:
    line = command_line(command)
    if pytest_args and not line.kind.takes_pytest:
        msg = f"This command takes no pytest arguments, but these were given: {shlex.join(pytest_args)}."
        raise UsageError(msg, remedy="Drop -- and everything after it.")
    options = line.parse(arguments, pytest_args)
    run: Callable[[CommandOptions], ExitCode] = importlib.import_module(command.module).run
    return run(options)


def _recording_rejection(own: Sequence[str], command: Callable[[], ExitCode]) -> ExitCode:
    """Run a command; on a machine of a plan, record any error, such as a misspelled option, as the jobs' result."""
    planned = PlanVariables.read()
    if planned.file is None:
        return command()
    # Not the command's own parser, which may reject this command line.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in ("--matrix", "--results"):
        parser.add_argument(option, type=Path)
    try:
        given, rest = parser.parse_known_args(own)
    except argparse.ArgumentError:  # an option lacks its value
        return command()
    name = _command_name(rest)
    is_run = name == "run" and planned.batch and "--inside" not in rest
    is_check = name == "doctor" and planned.batch and given.results
    is_build = name == "build" and given.results
    if not (is_run or is_check or is_build):
        return command()
    from allranks.cli.options import results_here  # noqa: PLC0415
    from allranks.runner.machines.rejected_batch import recording_rejection  # noqa: PLC0415 - no other command needs it

    results = given.results or Path(os.environ.get(RESULTS_VARIABLE) or results_here(given.matrix))
    return recording_rejection(command, results, planned.file, None if is_build else planned.batch)


def _report_error(error: AllranksError, arguments: Sequence[str]) -> None:
    from allranks.runner.ci_service import service_for_errors  # noqa: PLC0415 - only for errors

    service = service_for_errors()
    if service is None:
        _print(error, arguments, sys.stderr)
        return
    # The CI service reads its own commands from standard output. If an allranks command prints there, too, its error
    # must follow in the same stream, or the order would be lost.
    name = _command_name(arguments)
    known = _CORE if isinstance(error, PluginError) else commands()
    on_stdout = {"build", *(command.name for command in known if command.codes == JUDGES)}
    stream = sys.stdout if name in on_stdout and "--json" not in arguments else sys.stderr
    with service.show_error(error, name, stream):
        _print(error, arguments, stream)


def _print(error: AllranksError, arguments: Sequence[str], stream: TextIO) -> None:
    if "--debug" in arguments:
        import traceback  # noqa: PLC0415 - a slow import

        traceback.print_exc(file=stream)
    head, colon, rest = error.terminal_text.partition("error:")
    print(painted(f"{head}{colon}", "red", stream) + rest, file=stream)


def _command_name(arguments: Sequence[str]) -> str:
    """The command's name, which may not exist; empty if none is given."""
    return next((word for word in arguments if not word.startswith("-")), "")
