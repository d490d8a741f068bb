"""The command line: its commands, their common options, and errors as exit codes."""

import argparse
import io
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TextIO

from allranks.cli import build, completion, host_state, images, init, merge, plan, run
from allranks.cli.command_parser import CommandParser
from allranks.cli.options import RESULTS_VARIABLE, painted, results_here
from allranks.errors import AllranksError, ExitCode, PluginError, UsageError, as_bug, did_you_mean
from allranks.plugin_manager import CAN_FAIL, JUDGES, Command, added_commands
from allranks.runner.ci_service import service_for_errors


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: The arguments without the program's name; None for those of this process.

    Returns:
        One of :class:`~allranks.errors.ExitCode`.
    """
    # Test output is printed too and may hold any character: an encoding error must not end the run.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    own, pytest_args = _split(list(sys.argv[1:] if arguments is None else arguments))
    try:
        code = _recorded(own, partial(_run, own, pytest_args))
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


def _run(own: list[str], pytest_args: tuple[str, ...]) -> ExitCode:
    _refuse_unknown_command(own)
    options = _parser().parse_args(own)
    if pytest_args and not options.takes_pytest:
        msg = f"This command passes no arguments to pytest: {shlex.join(pytest_args)}."
        raise UsageError(msg, remedy="Drop -- and everything after it.")
    options.pytest_args = pytest_args
    code: ExitCode = options.command(options)
    return code


def _recorded(own: Sequence[str], command: Callable[[], ExitCode]) -> ExitCode:
    """Run a command; what it refuses of a plan for several machines, such as a misspelt option, is recorded."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--matrix", "--plan-file", "--results"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--pack")
    try:
        given, rest = parser.parse_known_args(own)
    except argparse.ArgumentError:  # one has no value
        return command()
    name = _name_in(rest)
    is_run = name == "run" and given.pack and not {"--dry-run", "--inside"}.intersection(rest)
    is_examined = name == "doctor" and given.pack and given.results
    is_build = name == "build" and given.results
    if not (given.plan_file and (is_run or is_examined or is_build)):
        return command()
    from allranks.runner.machines.refused_pack import recording_refusal  # noqa: PLC0415 - no other command needs it

    results = given.results or Path(os.environ.get(RESULTS_VARIABLE) or results_here(given.matrix))
    return recording_refusal(command, results, given.plan_file, None if is_build else given.pack)


def _split(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Split the arguments into those of allranks and those after ``--``, which are pytest's."""
    if "--" not in arguments:
        return arguments, ()
    place = arguments.index("--")
    return arguments[:place], tuple(arguments[place + 1 :])


def _complain(error: AllranksError, arguments: Sequence[str]) -> None:
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
        traceback.print_exc(file=stream)
    head, colon, rest = error.told.partition("error:")
    print(painted(f"{head}{colon}", "red", stream) + rest, file=stream)


_DESCRIPTION = "allranks: distributed PyTorch test suites over a matrix, every rank accounted for."

_CORE = (
    Command("init", init.add, CAN_FAIL, "write a matrix file, a noxfile and a first test for this repository"),
    Command("schema", init.add_schema, CAN_FAIL, "print a JSON schema of the matrix file, for editors"),
    Command("plan", plan.add, CAN_FAIL, "show the cells of the matrix, without running anything"),
    Command("run", run.add, JUDGES, "run suites in cells, and merge what every rank reported"),
    Command("build", build.add, CAN_FAIL, "build the images of cells, for this machine or for others"),
    Command("merge", merge.add, JUDGES, "merge the results of one machine or of many into one report"),
    Command("report", merge.add_report, JUDGES, "rebuild the report of the newest run, and show it"),
    Command("leases", host_state.add_leases, CAN_FAIL, "show which run and which job holds each GPU of this host"),
    Command("images", images.add, CAN_FAIL, "show the images that runs have built, and remove old ones"),
    Command("doctor", host_state.add_doctor, CAN_FAIL, "check whether this host can run jobs, and suggest fixes"),
    Command("completion", completion.add, CAN_FAIL, "print a script with which a shell completes command lines"),
    Command("clean", host_state.add_clean, CAN_FAIL, "remove what dead runs left behind on this host"),
)


@cache
def commands() -> tuple[Command, ...]:
    """All commands: those of the core, then those of plug-ins.

    Raises:
        PluginError: A plug-in cannot be loaded.
    """
    return (*_CORE, *added_commands(_CORE))


def _parser() -> CommandParser:
    usage = "allranks COMMAND [options]; allranks COMMAND --help"
    parser = CommandParser(prog="allranks", usage=usage, description=_DESCRIPTION, codes=JUDGES)
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", prog="allranks")
    for name, declare, codes, meaning in commands():
        command = subparsers.add_parser(name, codes=codes, help=meaning, description=f"{name}: {meaning}.")
        try:
            declare(command)
            command.add_general()
        except argparse.ArgumentError as error:
            msg = f"A plug-in adds an option to `allranks {name}` that is already there."
            raise PluginError(msg, why=f"{error}.", remedy="Remove the package that adds it.") from error
        command.set_defaults(takes_pytest=command.takes_pytest, root=parser)
    parser.add_general(top=True)
    return parser


def _name_in(arguments: Sequence[str]) -> str:
    """The command's name, which need not exist; empty if none is given."""
    return next((word for word in arguments if not word.startswith("-")), "")


def _refuse_unknown_command(arguments: list[str]) -> None:
    names, given = [command.name for command in commands()], _name_in(arguments)
    if given and given not in names:
        remedy = "usage: allranks COMMAND [options]. `allranks --help` lists the commands."
        msg = f"There is no command {given!r}."
        raise UsageError(msg, why=did_you_mean(given, names), remedy=remedy)
