"""One run, from its jobs to its report and its exit code."""

import resource
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from allranks.engines import AUTO
from allranks.engines.base import Engine
from allranks.engines.gpus import GpuMode, Inventory, chosen_inventory
from allranks.engines.registry import choose_engine, engine_class, engines_here
from allranks.errors import AllranksError, DeviceError, EngineError, ExitCode, UsageError
from allranks.interruption import interruptible
from allranks.matrix.expand import Expansion
from allranks.matrix.model import DURATIONS_FILE, Job
from allranks.ownership import own_run
from allranks.report.judge.exit_code import exit_code
from allranks.report.judged import MergedRun
from allranks.report.merging import Observer, merge
from allranks.report.section import GuardedMaker, SectionMaker
from allranks.report.summary import render_problems, render_table
from allranks.runner.attempt_runner import AttemptRunner
from allranks.runner.combined_coverage import combine
from allranks.runner.console import Console, console_for
from allranks.runner.dispatcher import Dispatcher
from allranks.runner.durations import Meter, keep_durations
from allranks.runner.earlier_runs import take_snapshot
from allranks.runner.host import choose_host, require_kernel
from allranks.runner.listener import Detail
from allranks.runner.machines.plan_file import OwnPart
from allranks.runner.results_folder import RunFolder, claim_jobs, facts_of, invocation_id, open_run
from allranks.runner.retry_policy import Again, RunPolicy
from allranks.runner.unhealthy_gpus import UNHEALTHY_REMEDY, unhealthy_gpus

ENOUGH = 65_536
"""For some ten thousand jobs at a time; far below what slows programs that iterate over all possible descriptors."""


def make_room_for_descriptors(enough: int = ENOUGH) -> None:
    """Raise this process's limit of open descriptors, and that of its children, as far as it may (setrlimit(2))."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = enough if hard == resource.RLIM_INFINITY else min(enough, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The command line's options for a run."""

    run_id: str
    results: Path
    engine: str | Engine  # the engine, or the name of the requested one, or ``auto``
    seed: int | None  # the requested seed; None for a random one
    pytest_args: tuple[str, ...]
    sections: Sequence[SectionMaker] = ()  # what plug-ins add to the report of the whole run when it has ended
    policy: RunPolicy = field(default_factory=RunPolicy)
    # The remaining parts of the jobs of a resumed run, by id; None for a new run.
    left: Mapping[str, Again] | None = None
    gpus: str | None = None  # the GPUs that jobs may use, by number or by id; None for all of the host's
    gpu_mode: GpuMode = "auto"  # whose GPUs, and how containers are given them
    # The part of a plan that this machine runs; the report of all parts annotates failures, and asks if a test ran.
    part: OwnPart | None = None
    detail: Detail = "usual"

    @property
    def of_unfinished_run(self) -> Sequence[SectionMaker]:
        """The sections of the report if the run is interrupted or fails."""
        return [maker for section in self.sections if (maker := GuardedMaker(section).for_unfinished_run())]


def run(expansion: Expansion, jobs: Sequence[Job], options: RunOptions, say: Callable[[str], None]) -> ExitCode:
    """Run jobs, or the remaining ones of a resumed run, merge the results of all, and show them."""
    make_room_for_descriptors()
    pytest_args = [(*job.suite.pytest_args, *options.pytest_args) for job in jobs]
    if options.policy.pdb:
        pytest_args = [("-s",)]  # the terminal is the debugger's
    with console_for(say, pytest_args, detail=options.detail) as console:
        return _run(expansion, jobs, options, console)


def _run(expansion: Expansion, jobs: Sequence[Job], options: RunOptions, console: Console) -> ExitCode:
    # Before there is a run: a refused request is not a failed run.
    say = console.say if options.detail != "quiet" else _say_nothing
    require_kernel()
    inventory = chosen_inventory(options.gpu_mode, options.gpus)
    _refuse_missing_gpus(inventory, options.part.gpus if options.part else 0)
    engine = options.engine
    if isinstance(engine, str) and engine != AUTO and engine_class(engine).has_queue:
        engine, _ = choose_engine(engine)
    if isinstance(engine, Engine) and engine.has_queue:
        _refuse_uneven_gpus(engine, jobs)
    else:
        _reject_unhealthy_gpus(inventory, jobs)
    if options.left is not None:
        _remove_remains()
    to_do, again = _to_do(jobs, options.left)
    with own_run(options.run_id) as owned, ExitStack() as uses, interruptible():
        resuming = options.left is not None
        claim_jobs(options.results, owned, to_do, say, invocation=invocation_id(), resuming=resuming)
        facts = facts_of(expansion)
        folder = open_run(options.results, options.run_id, jobs, facts, options.seed, options.pytest_args)
        durations = expansion.matrix.root / DURATIONS_FILE
        try:
            folder = take_snapshot(
                folder, jobs, durations, say, known=options.part.file.plan.durations if options.part else None
            )
            if options.detail == "verbose":
                say(f"run {folder.run_id} of {expansion.matrix.path}, into {folder.path}")
            host = choose_host(engine, expansion.matrix, say, inventory, uses)
            with console.watch([job.id for job in to_do]) as live:
                attempts = AttemptRunner(expansion.matrix, host, folder, live, options.pytest_args, options.policy)
                Dispatcher(attempts).run(to_do, again)
            combine(expansion.matrix, folder.path, jobs, options.pytest_args, say)
            return _conclude(folder, jobs, options, durations, console)
        except KeyboardInterrupt:
            console.say("interrupted: containers and processes of this run are gone")
            ids = {job.id for job in jobs}
            _show(folder, ids, console, options, *options.of_unfinished_run)
            return ExitCode.INTERRUPTED
        except Exception:
            # Even after an error a report has the plan and the results so far.
            with suppress(AllranksError):
                merge(folder.path, observers=options.of_unfinished_run)
            raise


def _refuse_missing_gpus(inventory: Inventory, planned: int) -> None:
    """Refuse a machine without its planned GPUs: jobs would skip all their tests, which run on no other machine."""
    there = len(inventory.gpus)
    if there < planned:
        what = f"The plan has a job with {planned} GPUs for this machine, but allranks finds {there}."
        why = "All of its tests would be skipped unnoticed."
        remedy = "See `allranks doctor` on this machine, or correct gpus of its [[runners]] in the matrix file."
        raise DeviceError(what, why=why, remedy=remedy)


def _reject_unhealthy_gpus(inventory: Inventory, jobs: Iterable[Job]) -> None:
    """Refuse a host with a GPU that is known to be unhealthy: whichever job it fails, the machine is at fault."""
    if not any(job.cell.gpu_count for job in jobs):
        return
    if unhealthy := unhealthy_gpus(inventory):
        names = [f"{inventory.name_of(gpu)} is unhealthy: {why}" for gpu, why in unhealthy.items()]
        msg = f"This machine ({socket.gethostname()}) takes no jobs with GPUs: {'; '.join(names)}."
        raise DeviceError(msg, remedy=UNHEALTHY_REMEDY)


def _refuse_uneven_gpus(engine: Engine, jobs: Iterable[Job]) -> None:
    """Refuse jobs whose nodes would need different numbers of GPUs, on an engine that asks a cluster for its nodes."""
    for job in jobs:
        gpus, nodes = job.cell.gpu_count, job.cell.nodes
        if gpus % nodes:
            what = f"{job.cell.id} has {gpus} GPUs on {nodes} nodes, and {engine.name} gives each node as many."
            remedy = f'Exclude it in the matrix file: when = "gpu_count == {gpus} and nodes == {nodes}".'
            raise UsageError(what, remedy=remedy)


def _remove_remains() -> None:
    """Clean up what a killed process left of the resumed run, before we own that run and it counts as alive.

    Jobs that outlive their orchestrator are adopted instead.
    """
    for engine in engines_here(with_queues=False):
        with closing(engine), suppress(EngineError):  # the run may need another engine
            engine.clean_up()


def _to_do(jobs: Sequence[Job], left: Mapping[str, Again] | None) -> tuple[Sequence[Job], Mapping[str, Again]]:
    if left is None:
        return jobs, {}
    return [job for job in jobs if job.id in left], left


def _conclude(
    folder: RunFolder, jobs: Sequence[Job], options: RunOptions, durations: Path, console: Console
) -> ExitCode:
    """The exit code of these jobs alone: other sessions that share the run report theirs, in any order."""
    ids = {job.id for job in jobs}
    meter = Meter(lambda facts: facts.id in ids and (facts.share is not None or durations.exists()))
    own = _show(folder, ids, console, options, meter.add, *options.sections)
    keep_durations(durations, meter.durations, console.say if options.detail != "quiet" else _say_nothing)
    return exit_code(own, nothing_ran_allowed=options.part is not None)


def _say_nothing(_line: str) -> None:
    """Take a line of progress in a quiet run."""


def _show(
    folder: RunFolder, job_ids: AbstractSet[str], console: Console, options: RunOptions, *observers: Observer
) -> MergedRun:
    """Merge the run, and show what these jobs came to."""
    own = merge(folder.path, observers=observers).only(job_ids)
    if shown := render_problems(own) if options.detail == "quiet" else f"\n{render_table(own)}":
        console.say(f"{shown}\n")
        report = _lasting(folder.path)
        console.say("report: " + "\n        ".join(str(_from_here(report / file.name)) for file in own.junit_files))
        console.say(f"page: {_from_here(report / own.page.name)}")
    if options.part is None:
        console.annotate(own)
    return own


def _lasting(folder: Path) -> Path:
    """The run's folder as ``results/latest``, unless a later run has taken that name."""
    latest = folder.parent / "latest"
    return latest if latest.resolve() == folder.resolve() else folder


def _from_here(path: Path) -> Path:
    """The path as a person in the current folder would type it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
