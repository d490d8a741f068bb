"""``allranks stress``: repeats tests until a count, a time or a failure, and reports rates."""

import argparse
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from allranks.cli.parser import flag, option, quantity, whole
from allranks.cli.run import JobOptions, check_pytest_args, run_options, run_with_verdict
from allranks.cli.selection import Selection, read_request, selected_jobs
from allranks.errors import ExitCode, UsageError
from allranks.matrix.expand import Expansion
from allranks.matrix.model import Job
from allranks.plugins.stress.agent.settings import Stress
from allranks.plugins.stress.agent.skew import LEVELS, MOST_BUSY, delays_of, skew_of, stretch
from allranks.protocol.repetitions import OFF

_time = quantity({"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}, "a time such as 90, 90s, 10m or 2h")

_LAST_SEED = (1 << 32) - 1
"""Generators take 32 bits."""

_DAY = 86_400.0
"""Seconds that a job may take whose repetitions have a count and no time: each of them has a limit of its own."""

_REPLAYS = 10
"""Repetitions of a replay that has no other end."""

_MOST_GANGS = 32
"""One process supervises all gangs of a job."""

_ENDS = "how often"


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
    if seconds := _time(text):
        return seconds
    msg = f"{text!r} is no time"
    raise argparse.ArgumentTypeError(msg)


@dataclass(frozen=True, kw_only=True)
class RepeatOptions(JobOptions, Selection):
    """The options of both commands that repeat tests."""

    gangs: int | None = option(
        "--gangs N",
        _ENDS,
        "gangs of a job that run at a time (default: as many as this host has cores for)",
        type=whole(1),
    )
    skew: str = option(
        "--skew HOW",
        _ENDS,
        "delay calls of ranks: light (up to 20 ms) or heavy (0.5 s), as drawn; or RANK:before:CALL:40ms,...",
        type=_skew,
        default=OFF,
    )


@dataclass(frozen=True, kw_only=True)
class Options(RepeatOptions):
    """The options of ``allranks stress``."""

    usage: ClassVar = (
        "allranks stress [CELL | TEST ...] (--count N | --duration 10m | --until-failure | --replay SEED) ..."
    )

    count: int | None = option("--count N", _ENDS, "repeat each test N times", type=whole(1))
    duration: float | None = option(
        "--duration TIME",
        _ENDS,
        "begin repetitions for so long, from the first of each job on: 90, 90s, 10m, 2h",
        type=_duration,
    )
    until_failure: bool = flag("--until-failure", _ENDS, "stop at the first repetition that goes wrong")
    beside: str | None = option(
        "--beside",
        _ENDS,
        "also repeat tests that start their ranks with torch's own runner, and compare the rates",
        choices=("torch",),
    )
    replay: int | None = option(
        "--replay SEED",
        _ENDS,
        f"draw from this seed of a repetition each time, {_REPLAYS} times without --count",
        type=whole(0, _LAST_SEED),
    )


def run(options: Options) -> ExitCode:
    """Repeat tests."""
    count = options.count
    if count is None and options.duration is None and not options.until_failure:
        if options.replay is None:
            msg = "Repetitions need an end: --count, --duration or --until-failure is missing."
            raise UsageError(msg, remedy="allranks stress TEST --count 1000")
        count = _REPLAYS
    expansion, options = read_request(replace(options, stops=options.stops or options.until_failure))
    check_pytest_args(options.pytest_args)
    if options.beside and (options.skew != OFF or options.replay is not None):
        msg = "--beside torch compares plain repetitions: torch's runner has no --skew and no --replay."
        raise UsageError(msg, remedy="Leave these out, or leave --beside out.")
    stress = Stress(
        count=count,
        seconds=options.duration,
        replay=options.replay,
        skew=options.skew,
        beside=bool(options.beside),
    )
    # As torch's runner has them: one at a time.
    gangs = options.gangs or (1 if options.beside else None)
    jobs = [with_gangs(job, gangs, options.engine) for job in selected_jobs(expansion, options)]
    _refuse_what_is_in_no_cell(options.skew, max(job.cell.world_size for job in jobs))
    expansion = with_time(expansion, stress, jobs)
    options = replace(options, plugins={"stress": asdict(stress)})
    return run_with_verdict(expansion, jobs, run_options(expansion, options))


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
