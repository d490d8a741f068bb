"""The command line: its commands, their common options, and errors as exit codes."""

import argparse
import io
import sys
import traceback
from collections.abc import Sequence

import allranks
from allranks.commands import build, host_state, images, init, merge, plan, run
from allranks.errors import AllranksError, ExitCode


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
    options = _parser().parse_args(own)
    options.pytest_args = pytest_args
    try:
        code: ExitCode = options.command(options)
    except AllranksError as error:
        _complain(error, debug=options.debug)
        code = error.exit_code
    except KeyboardInterrupt:
        print("\nallranks: interrupted", file=sys.stderr)
        code = ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last frame: a bug in allranks, reported like any other error
        _complain(_as_bug(error), debug=options.debug)
        code = ExitCode.INFRASTRUCTURE
    return int(code)


def _as_bug(error: Exception) -> AllranksError:
    return AllranksError(
        f"allranks crashed: {type(error).__name__}: {error}",
        why="This is a bug in allranks.",
        remedy="Please report it, with the output of the same command under `allranks --debug`.",
    )


def _split(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Split the arguments into those of allranks and those after ``--``, which are pytest's."""
    if "--" not in arguments:
        return arguments, ()
    place = arguments.index("--")
    return arguments[:place], tuple(arguments[place + 1 :])


def _complain(error: AllranksError, *, debug: bool) -> None:
    if debug:
        traceback.print_exc()
    print(error.told, file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="allranks", description=allranks.__doc__)
    parser.add_argument("--version", action="version", version=f"allranks {allranks.__version__}")
    parser.add_argument("--debug", action="store_true", help="also show the traceback of an error")
    commands = parser.add_subparsers(
        title="commands",
        required=True,
        metavar="init | schema | plan | run | build | merge | report | leases | images | doctor | clean",
    )
    init.add(commands.add_parser("init", help="write a matrix file, a noxfile and a first test for this repository"))
    init.add_schema(commands.add_parser("schema", help="print a JSON schema of the matrix file, for editors"))
    plan.add(commands.add_parser("plan", help="show the cells of the matrix, without running anything"))
    run.add(commands.add_parser("run", help="run suites in cells, and merge what every rank reported"))
    build.add(commands.add_parser("build", help="build the images of cells, for this machine or for others"))
    merge.add(commands.add_parser("merge", help="merge the results of one machine or of many into one report"))
    merge.add_report(commands.add_parser("report", help="rebuild the report of the newest run, and show it"))
    host_state.add_leases(
        commands.add_parser("leases", help="show which run and which job holds each GPU of this host")
    )
    images.add(commands.add_parser("images", help="show the images that runs have built, and remove old ones"))
    host_state.add_doctor(commands.add_parser("doctor", help="check whether this host can run jobs, and suggest fixes"))
    host_state.add_clean(commands.add_parser("clean", help="remove what dead runs left behind on this host"))
    return parser
