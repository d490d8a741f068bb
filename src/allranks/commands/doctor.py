"""``allranks doctor``: what was found of this host, and whether it is a problem."""

import argparse
from pathlib import Path

from allranks.commands.options import add_engine, add_gpu_mode, add_results, say
from allranks.errors import ExitCode


def add(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``allranks doctor``."""
    add_engine(parser)
    add_gpu_mode(parser)
    add_results(parser)
    parser.set_defaults(command=_doctor)


def _doctor(options: argparse.Namespace) -> ExitCode:
    from allranks.host_checks import examine  # noqa: PLC0415 - no plan needs it

    problems = 0
    for finding in examine(options.engine, options.gpu_mode, options.results or Path("results")):
        say(finding.line)
        problems += bool(finding.remedy)
    say(f"{problems} problem(s)" if problems else "no problem was found")
    return ExitCode.INFRASTRUCTURE if problems else ExitCode.OK
