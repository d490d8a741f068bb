"""``allranks stress``: repeats tests up to a count, a time or a failure, and reports failure rates."""

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
from allranks.plugins.stress.agent.skew import LEVELS, MOST_BUSY, format_delays, max_delay, parse_delays
from allranks.protocol.repetitions import OFF

_time = quantity({"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}, "a time such as 90, 90s, 10m or 2h")

_LAST_SEED = (1 << 32) - 1
"""Random number generators take 32-bit seeds."""

_DAY = 86_400.0
"""Seconds for a job without --duration: each repetition has its own time limit."""

_REPLAYS = 10
"""Repetitions of a replay without --count, --duration or --until-failure."""

_MOST_GANGS = 32
"""The most gangs of a job by default, because one process supervises all of them."""

_ENDS = "how often"


def _skew(text: str) -> str:
    try:
        return text if text in LEVELS else format_delays(parse_delays(text))
    except ValueError as error:
        msg = f"{error}; or off, light or heavy"
        raise argparse.ArgumentTypeError(msg) from error


def _duration(text: str) -> float:
    if seconds := _time(text):
        return seconds
    msg = f"{text!r} is not a duration: write 90, 90s, 10m or 2h"
    raise argparse.ArgumentTypeError(msg)


@dataclass(frozen=True, kw_only=True)
class RepeatOptions(JobOptions, Selection):
    """The options of both commands that repeat tests."""

    gangs: int | None = option(
        "--gangs N",
        _ENDS,
        "how many copies of a test run at once per job (default: as many as this host has cores for)",
        type=whole(1),
    )
    skew: str = option(
        "--skew HOW",
        _ENDS,
        "delay random calls: light (up to 20 ms) or heavy (up to 0.5 s); or a list, such as 1:before:2:40ms",
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
        "start repetitions for this long, counted from the first of each job: 90, 90s, 10m, 2h",
        type=_duration,
    )
    until_failure: bool = flag("--until-failure", _ENDS, "stop at the first repetition that fails")
    beside: str | None = option(
        "--beside",
        _ENDS,
        "also repeat multi-process tests under torch's own runner, and compare failure rates",
        choices=("torch",),
    )
    replay: int | None = option(
        "--replay SEED",
        _ENDS,
        f"give each repetition this seed ({_REPLAYS} times without --count)",
        type=whole(0, _LAST_SEED),
    )


def run(options: Options) -> ExitCode:
    """Repeat tests."""
    count = options.count
    if count is None and options.duration is None and not options.until_failure:
        if options.replay is None:
            msg = "Repetitions need a limit: --count, --duration or --until-failure is missing."
            raise UsageError(msg, remedy="allranks stress TEST --count 1000")
        count = _REPLAYS
    expansion, options = read_request(replace(options, stops=options.stops or options.until_failure))
    check_pytest_args(options.pytest_args)
    if options.beside and (options.skew != OFF or options.replay is not None):
        msg = "--beside torch cannot be combined with --skew or --replay, which torch's runner does not have."
        raise UsageError(msg, remedy="Drop either --beside or the other option.")
    stress = Stress(
        count=count,
        seconds=options.duration,
        replay=options.replay,
        skew=options.skew,
        baseline=bool(options.beside),
    )
    # The reference, torch's runner, runs one gang at a time.
    gangs = options.gangs or (1 if options.beside else None)
    jobs = [with_gangs(job, gangs, options.engine) for job in selected_jobs(expansion, options)]
    _reject_unused_delays(options.skew, max(job.cell.world_size for job in jobs))
    expansion = with_time_limits(expansion, stress, jobs)
    options = replace(options, plugins={"stress": asdict(stress)})
    return run_with_verdict(expansion, jobs, run_options(expansion, options))


def _reject_unused_delays(skew: str, ranks: int) -> None:
    """Reject delays of ranks that do not exist: a run without these would be mistaken for one that passed with them."""
    for delay in () if skew in LEVELS else parse_delays(skew):
        most, what = (MOST_BUSY, "number of processes") if delay.kind == "busy" else (ranks - 1, "rank")
        if delay.rank > most:
            msg = f"--skew {delay}: {most} is the highest {what} here."
            raise UsageError(msg, remedy="Use a lower number, or drop this delay.")


def with_time_limits(expansion: Expansion, stress: Stress, jobs: Sequence[Job]) -> Expansion:
    """The same matrix with time limits that allow for the repetitions and delays."""
    limits = expansion.matrix.limits
    job = max(limits.job, _DAY) if stress.seconds is None else limits.job + stress.seconds * (1 + stress.baseline)
    more = max_delay(stress.skew, max(job.cell.world_size for job in jobs))
    group = limits.process_group + more
    settings = {**limits.settings, "job": "limits.job and --duration"}
    if more:
        settings["process_group"] = "limits.process_group and the delays"
    limits = replace(limits, job=job, process_group=group, settings=settings)
    return replace(expansion, matrix=replace(expansion.matrix, limits=limits))


def with_gangs(job: Job, gangs: int | None, engine: str) -> Job:
    """The same job with several gangs at a time; by default one on GPUs and on engines that use other hosts."""
    cores = len(os.sched_getaffinity(0)) if engine in {"auto", "process", "docker"} else 1
    fitting = 1 if job.cell.gpu_count else max(1, min(_MOST_GANGS, cores // job.cell.world_size))
    return replace(job, suite=replace(job.suite, overlap=gangs or fitting))
