"""The command line: its commands, their common options, and errors as exit codes."""

import io
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from typing import TextIO

import allranks
from allranks.commands import build, compare, completion, history, host_state, images, init, merge, plan, run, show
from allranks.commands.command_parser import CommandParser
from allranks.commands.options import painted
from allranks.errors import AllranksError, ExitCode, UsageError, as_bug, did_you_mean
from allranks.workflow_commands import Commands, is_on_actions


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
        _refuse_unknown_command(own)
        options = _parser().parse_args(own)
        if pytest_args and not options.takes_pytest:
            msg = f"This command passes no arguments to pytest: {shlex.join(pytest_args)}."
            raise UsageError(msg, remedy="Drop -- and everything after it.")  # noqa: TRY301
        options.pytest_args = pytest_args
        code: ExitCode = options.command(options)
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


def _complain(error: AllranksError, arguments: Sequence[str]) -> None:
    if not is_on_actions():
        _print(error, arguments, sys.stderr)
        return
    from allranks.commands.refusal_notice import publish  # noqa: PLC0415 - needed on GitHub alone

    # What these print, and their commands, are on standard output: between two streams the order is lost.
    names = [argument for argument in arguments if not argument.startswith("-")]
    is_shown = names[:1] in (["run"], ["build"], ["merge"], ["report"]) and "--json" not in arguments
    stream = sys.stdout if is_shown else sys.stderr
    commands = Commands(partial(print, file=stream, flush=True))
    commands.give(publish(error, "".join(names[:1]), os.environ))
    _print(error, arguments, stream)
    commands.switch_on()


def _print(error: AllranksError, arguments: Sequence[str], stream: TextIO) -> None:
    if "--debug" in arguments:
        traceback.print_exc(file=stream)
    head, colon, rest = error.told.partition("error:")
    print(painted(f"{head}{colon}", "red", stream) + rest, file=stream)


_CAN_FAIL = frozenset({ExitCode.OK, ExitCode.USAGE, ExitCode.INFRASTRUCTURE, ExitCode.INTERRUPTED})
_JUDGES = frozenset(ExitCode)

_COMMANDS = (
    ("init", init.add, _CAN_FAIL, "write a matrix file, a noxfile and a first test for this repository"),
    ("schema", init.add_schema, _CAN_FAIL, "print a JSON schema of the matrix file, for editors"),
    ("plan", plan.add, _CAN_FAIL, "show the cells of the matrix, without running anything"),
    ("run", run.add, _JUDGES, "run suites in cells, and merge what every rank reported"),
    ("build", build.add, _CAN_FAIL, "build the images of cells, for this machine or for others"),
    ("merge", merge.add, _JUDGES, "merge the results of one machine or of many into one report"),
    ("report", merge.add_report, _JUDGES, "rebuild the report of the newest run, and show it"),
    ("show", show.add, _CAN_FAIL, "show the tests of a JUnit report, of allranks or of another writer"),
    ("history", history.add, _CAN_FAIL, "show what became of a test over runs and cells"),
    ("compare", compare.add, _CAN_FAIL, "show what differs between two runs, torch versions or cells"),
    ("leases", host_state.add_leases, _CAN_FAIL, "show which run and which job holds each GPU of this host"),
    ("images", images.add, _CAN_FAIL, "show the images that runs have built, and remove old ones"),
    ("doctor", host_state.add_doctor, _CAN_FAIL, "check whether this host can run jobs, and suggest fixes"),
    ("completion", completion.add, _CAN_FAIL, "print a script with which a shell completes command lines"),
    ("clean", host_state.add_clean, _CAN_FAIL, "remove what dead runs left behind on this host"),
)
"""The commands: name, the function that declares the arguments, exit codes, and what it does."""


def _parser() -> CommandParser:
    usage = "allranks COMMAND [options]; allranks COMMAND --help"
    parser = CommandParser(
        prog="allranks", usage=usage, description=(allranks.__doc__ or "").partition("\n")[0], codes=_JUDGES
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", prog="allranks")
    for name, declare, codes, meaning in _COMMANDS:
        command = commands.add_parser(name, codes=codes, help=meaning, description=f"{name}: {meaning}.")
        declare(command)
        command.add_general()
        command.set_defaults(takes_pytest=command.takes_pytest, root=parser)
    parser.add_general(top=True)
    return parser


def _refuse_unknown_command(arguments: list[str]) -> None:
    names = [name for name, *_ in _COMMANDS]
    given = next((word for word in arguments if not word.startswith("-")), None)
    if given is not None and given not in names:
        remedy = "usage: allranks COMMAND [options]. `allranks --help` lists the commands."
        msg = f"There is no command {given!r}."
        raise UsageError(msg, why=did_you_mean(given, names), remedy=remedy)
