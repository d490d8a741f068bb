"""Options of the command line that several commands have, or that belong together."""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from allranks.schedule.folder import RUN_ID_VARIABLE
from allranks.schedule.machines.wishes import MINUTES_PER_ENTRY, MOST_ENTRIES

ENGINE_VARIABLE = "ALLRANKS_ENGINE"
RESULTS_VARIABLE = "ALLRANKS_RESULTS"
GPU_MODE_VARIABLE = "ALLRANKS_GPU_MODE"

_DIGITS = 18
"""Of the largest number that is taken: nobody means more."""

_SECONDS_IN: Mapping[str, float] = {"": 0, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_BYTES_IN: Mapping[str, float] = {"": 0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}

_ENGINES = ("auto", "process", "docker")
_GPU_MODES = ("auto", "nvidia", "cdi", "rocm", "none")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Which cells and suites."""
    parser.add_argument(
        "cells", nargs="*", metavar="CELL", help="a cell's id, or dist(backend='gloo', ...); default: every cell"
    )
    parser.add_argument(
        "--where", action="append", default=[], metavar="AXIS=VALUE,...", help="cells with these values (a|b: either)"
    )
    parser.add_argument(
        "--suite",
        action="append",
        default=[],
        metavar="NAME",
        help="only this suite, or NAME@2of4: one of its shards; repeatable (default: all without `default = false`)",
    )
    parser.add_argument(
        "--matrix", type=Path, default=Path(), metavar="PATH", help="matrix.toml, or the folder that holds it"
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Where jobs run."""
    _add_choice(
        parser, "engine", ENGINE_VARIABLE, _ENGINES, "where to run: docker where a daemon answers, else process"
    )


def add_gpu_mode(parser: argparse.ArgumentParser) -> None:
    """Whose GPUs."""
    _add_choice(parser, "GPU mode", GPU_MODE_VARIABLE, _GPU_MODES, "whose GPUs, and how containers are given them")


def _add_choice(parser: argparse.ArgumentParser, what: str, variable: str, names: Sequence[str], meaning: str) -> None:
    """An option that a variable gives too; the first of the names where neither does."""

    def named(name: str) -> str:
        # argparse checks no default against `choices`, and this one comes from the environment.
        if name not in names:
            msg = f"{name!r} is no {what}: choose from {', '.join(names)}"
            raise argparse.ArgumentTypeError(msg)
        return name

    parser.add_argument(
        f"--{what.lower().replace(' ', '-')}",
        type=named,
        metavar="|".join(names),
        default=os.environ.get(variable) or names[0],
        help=f"{meaning} (default: ${variable}, or {names[0]})",
    )


def add_results(parser: argparse.ArgumentParser) -> None:
    """Where results go."""
    parser.add_argument(
        "--results",
        type=Path,
        default=os.environ.get(RESULTS_VARIABLE) or None,
        metavar="DIR",
        help=f"folder of all runs (default: ${RESULTS_VARIABLE}, or results beside the matrix file)",
    )


def add_repetition(parser: argparse.ArgumentParser) -> None:
    """What runs again, and in which order."""
    parser.add_argument("--fail-fast", action="store_true", help="end the run with the first job that is not good")
    parser.add_argument(
        "--retries",
        type=_number,
        default=0,
        metavar="N",
        help="try what failed of a job again, up to N times: a pass after that is reported as flaky",
    )
    parser.add_argument(
        "--shuffle",
        type=_number,
        metavar="SEED",
        help="draw the order of jobs and tests by this number (default: the order of the files)",
    )
    goes_on = parser.add_mutually_exclusive_group()
    goes_on.add_argument(
        "--resume",
        dest="wanted",
        action="store_const",
        const="missing",
        help=f"go on with the newest run (or ${RUN_ID_VARIABLE}): what has no result yet",
    )
    goes_on.add_argument(
        "--rerun-failed",
        dest="wanted",
        action="store_const",
        const="failed",
        help="go on with it: what failed, and what has no result yet",
    )


def add_plan_file(parser: argparse._ActionsContainer, meaning: str) -> None:
    """The plan that the machines of a CI share.

    Args:
        parser: The command's.
        meaning: What the command does with it.
    """
    parser.add_argument("--plan-file", type=Path, metavar="FILE", help=meaning)


def add_machines(parser: argparse.ArgumentParser) -> None:
    """How jobs are divided among the machines of a CI."""
    group = parser.add_argument_group("with --format github")
    add_plan_file(group, "write the plan here, for each machine's `allranks run --plan-file FILE --pack PACK`")
    group.add_argument(
        "--max-entries",
        type=_entries,
        default=MOST_ENTRIES,
        metavar="N",
        help=f"no more machines than this (default, and GitHub's limit: {MOST_ENTRIES})",
    )
    group.add_argument(
        "--minutes-per-entry",
        type=_minutes,
        default=MINUTES_PER_ENTRY,
        metavar="N",
        help=f"what a machine should have to do: fewer minutes, more machines (default: {MINUTES_PER_ENTRY})",
    )
    add_durations(group, "what tests took, for even packs (default: the file that the matrix file names)")


def add_form(parser: argparse.ArgumentParser) -> None:
    """How results are read, and the report is written."""
    parser.add_argument("--policy", choices=("skip", "pass"), help="read environment skips as skips or as passes")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="fewer executed tests than it has are an error")
    parser.add_argument("--update-baseline", type=Path, metavar="FILE", help="renew this file by what executed")
    parser.add_argument(
        "--cell-in-classname",
        dest="classname",
        action="store_const",
        const="cell",
        default="pytest",
        help="begin class names in junit.xml with cell and suite, for clients that know tests by class and name alone",
    )
    parser.add_argument(
        "--strict-xsd",
        dest="schema",
        action="store_const",
        const="narrow",
        default="wide",
        help="write junit.xml as the schemas of Jenkins and of Surefire both have it: one suite, cells in class names",
    )
    add_durations(parser, "renew this file by what tests took, for even shards (default: none)")
    parser.add_argument("--allow-nothing-ran", action="store_true", help="no executed test is no error (exit code 5)")


def add_pruning(parser: argparse.ArgumentParser) -> None:
    """What goes, and what may stay."""
    parser.add_argument(
        "--prune",
        action="store_true",
        help="remove images that no container, run or build needs, the least recently used first",
    )
    parser.add_argument(
        "--older-than",
        type=_age,
        metavar="AGE",
        help="those that nobody has used for so long: 14d, 12h (default of --prune without --keep-size: 14d)",
    )
    parser.add_argument(
        "--keep-size", type=_size, metavar="SIZE", help="as many as it takes for the rest to fit into SIZE: 40GB, 0"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would go, and remove nothing")


def add_durations(parser: argparse._ActionsContainer, meaning: str) -> None:
    """The file of durations.

    Args:
        parser: The command's.
        meaning: What the command does with it.
    """
    parser.add_argument("--durations", type=Path, metavar="FILE", help=meaning)


def count(text: str) -> int:
    """A number of jobs.

    Raises:
        argparse.ArgumentTypeError: It is none.
    """
    if not text.isdecimal() or int(text) < 1:
        msg = f"{text!r} is no number of jobs: take 1 or more"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _age(text: str) -> float:
    """Seconds."""
    return _measured(text, _SECONDS_IN, "age", "14d, 12h or 30m")


def _size(text: str) -> int:
    """Bytes, as Docker counts them."""
    return int(_measured(text, _BYTES_IN, "size", "40GB, 500MB or 0"))


def _measured(text: str, units: Mapping[str, float], what: str, example: str) -> float:
    """A number with one of the units; zero alone needs none."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]*)", text.strip(), re.ASCII | re.IGNORECASE)
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None or (not match[2] and float(match[1])):
        msg = f"{text!r} is no {what}: take {example}"
        raise argparse.ArgumentTypeError(msg)
    return float(match[1]) * factor


def _entries(text: str) -> int:
    entries = _number(text)
    if not 1 <= entries <= MOST_ENTRIES:
        msg = f"{text!r} entries: GitHub takes from 1 to {MOST_ENTRIES} in a job matrix"
        raise argparse.ArgumentTypeError(msg)
    return entries


def _minutes(text: str) -> int:
    minutes = _number(text)
    if minutes < 1:
        msg = f"{text!r} is no time: take 1 minute or more"
        raise argparse.ArgumentTypeError(msg)
    return minutes


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS:
        msg = f"{text!r} is no number: take 0 or more"
        raise argparse.ArgumentTypeError(msg)
    return int(text)
