"""``allranks stress``: repeats tests until a count, a time or a failure, and reports rates."""

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, replace

from allranks.cli.command_parser import CommandParser, OptionGroup, one_of
from allranks.cli.options import STOP, chosen_jobs, number, read_request
from allranks.cli.run import add_seed, add_shared, refuse_options, run_chosen
from allranks.errors import ExitCode, UsageError
from allranks.matrix.expand import Expansion
from allranks.matrix.model import Job
from allranks.plugins.stress.agent.settings import Stress
from allranks.plugins.stress.agent.skew import LEVELS, MOST_BUSY, delays_of, skew_of, stretch
from allranks.protocol.repetitions import OFF

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(?P<value>\d{1,9}(\.\d{1,6})?)(?P<unit>[smh]?)", re.ASCII)

_DAY = 86_400.0
"""Seconds that a job may take whose repetitions have a count and no time: each of them has a limit of its own."""

_REPLAYS = 10
"""Repetitions of a replay that has no other end."""

_MOST_GANGS = 32
"""One process supervises all gangs of a job."""

OF_RUN = {
    **dict.fromkeys(("fail_fast", "dry_run"), False),
    **dict.fromkeys(("connected", "shuffle", "wanted", "pdb_rank", "plan_file", "pack")),
    "retries": 0,
}
"""The options of a run that make no sense for repetitions, at what they are without them."""


def add(parser: CommandParser) -> None:
    """Declare the arguments of ``allranks stress``."""
    parser.usage = (
        "allranks stress [CELL | TEST ...] (--count N | --duration 10m | --until-failure | --replay SEED) ..."
    )
    _add_end(parser.add_argument_group("how often"))
    add_shared(parser, "stress")
    parser.set_defaults(command=_stress, **OF_RUN)


def _add_end(group: OptionGroup) -> None:
    group.add_argument("--count", type=_positive, metavar="N", help="repeat each test N times")
    meaning = "begin repetitions for so long, from the first of each job on: 90, 90s, 10m, 2h"
    group.add_argument("--duration", type=_duration, metavar="TIME", help=meaning)
    group.add_argument("--until-failure", action="store_true", help="stop at the first repetition that goes wrong")
    add_gangs(group)
    add_skew(group)
    add_seed(group)
    meaning = "also repeat tests that start their ranks with torch's own runner, and compare the rates"
    group.add_argument("--beside", type=one_of(["torch"]), metavar="torch", help=meaning)
    meaning = f"draw from this seed of a repetition each time, {_REPLAYS} times without --count"
    group.add_argument("--replay", type=_seed, metavar="SEED", help=meaning)


def add_gangs(group: OptionGroup) -> None:
    """Declare the option for gangs that run side by side."""
    meaning = "gangs of a job that run at a time (default: as many as this host has cores for)"
    group.add_argument("--gangs", type=_positive, metavar="N", help=meaning)


def add_skew(group: OptionGroup) -> None:
    """Declare the option for delays of ranks."""
    meaning = "delay calls of ranks: light (up to 20 ms) or heavy (0.5 s), as drawn; or RANK:before:CALL:40ms,..."
    group.add_argument("--skew", type=_skew, default=OFF, metavar="HOW", help=meaning)


def _stress(options: argparse.Namespace) -> ExitCode:
    has_end = options.count is not None or options.duration is not None or options.until_failure
    if options.replay is not None and not has_end:
        options.count = _REPLAYS
    elif not has_end:
        msg = "Repetitions need an end: --count, --duration or --until-failure is missing."
        raise UsageError(msg, remedy="allranks stress TEST --count 1000")
    expansion = read_request(options)
    refuse_options(options.pytest_args)
    if options.until_failure:
        options.pytest_args, options.own_pytest_args = (*STOP, *options.pytest_args), [*options.own_pytest_args, *STOP]
        options.fail_fast = True
    if options.beside and (options.skew != OFF or options.replay is not None):
        msg = "--beside torch compares plain repetitions: torch's runner has no --skew and no --replay."
        raise UsageError(msg, remedy="Leave these out, or leave --beside out.")
    stress = Stress(
        count=options.count,
        seconds=options.duration,
        replay=options.replay,
        skew=options.skew,
        beside=bool(options.beside),
    )
    options.plugins = {"stress": asdict(stress)}
    # As torch's runner has them: one at a time.
    options.gangs = options.gangs or (1 if options.beside else None)
    jobs = [with_gangs(job, options.gangs, options.engine) for job in chosen_jobs(expansion, options)]
    _refuse_what_is_in_no_cell(options.skew, max(job.cell.world_size for job in jobs))
    return run_chosen(with_time(expansion, stress, jobs), jobs, options)


def _refuse_what_is_in_no_cell(skew: str, ranks: int) -> None:
    """Refuse delays that would not happen: a run without them would be taken for one that stood them."""
    for delay in () if skew in LEVELS else delays_of(skew):
        most, what = (MOST_BUSY, "processes") if delay.place == "busy" else (ranks - 1, "rank")
        if delay.rank > most:
            msg = f"--skew {delay}: {most} is the highest number of {what} here."
            raise UsageError(msg, remedy="Name what the selected cells have, or leave it out.")


def with_time(expansion: Expansion, stress: Stress, jobs: Sequence[Job]) -> Expansion:
    """The same matrix, with time enough for each job."""
    limits = expansion.matrix.limits
    job = max(limits.job, _DAY) if stress.seconds is None else limits.job + stress.seconds * (1 + stress.beside)
    more = stretch(stress.skew, max(job.cell.world_size for job in jobs))
    group = limits.process_group + more
    settings = {**limits.settings, "job": "limits.job and --duration"}
    if more:
        settings["process_group"] = "limits.process_group and the delays"
    limits = replace(limits, job=job, process_group=group, settings=settings)
    return replace(expansion, matrix=replace(expansion.matrix, limits=limits))


def with_gangs(job: Job, gangs: int | None, engine: str) -> Job:
    """The same job, for several gangs at a time: one for GPUs, on several nodes, and on an engine with other hosts."""
    cores = len(os.sched_getaffinity(0)) if engine in {"auto", "process", "docker"} else 1
    fitting = 1 if job.cell.gpu_count else max(1, min(_MOST_GANGS, cores // job.cell.world_size))
    return replace(job, suite=replace(job.suite, overlap=gangs or fitting))


def _positive(text: str) -> int:
    """Parse a number from 1.

    Raises:
        argparse.ArgumentTypeError: The text is not such a number.
    """
    if not (found := number(text)):
        msg = "0 is none: take 1 or more"
        raise argparse.ArgumentTypeError(msg)
    return found


def _seed(text: str) -> int:
    """Parse the seed of a repetition.

    Raises:
        argparse.ArgumentTypeError: The text is none: generators take 32 bits.
    """
    if (found := number(text)) >= 1 << 32:
        msg = f"{text} is no seed of a repetition: the report has it"
        raise argparse.ArgumentTypeError(msg)
    return found


def _skew(text: str) -> str:
    """Parse a level, or delays that are named one by one.

    Raises:
        argparse.ArgumentTypeError: The text is neither.
    """
    try:
        return text if text in LEVELS else skew_of(delays_of(text))
    except ValueError as error:
        msg = f"{error}; or off, light or heavy"
        raise argparse.ArgumentTypeError(msg) from error


def _duration(text: str) -> float:
    """Parse a time, in seconds unless it has a unit.

    Raises:
        argparse.ArgumentTypeError: The text is none.
    """
    found = _DURATION.fullmatch(text)
    seconds = float(found["value"]) * _UNITS[found["unit"]] if found else 0.0
    if not seconds:
        msg = f"{text!r} is no time: write 90, 90s, 10m or 2h"
        raise argparse.ArgumentTypeError(msg)
    return seconds
