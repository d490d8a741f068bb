"""One run, from its jobs to its report and its exit code."""

import resource
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from allranks.colors import painted
from allranks.engines import AUTO
from allranks.engines.base import Engine
from allranks.engines.gpus import GpuMode, Inventory, chosen_inventory
from allranks.engines.registry import choose_engine, engine_class, engines_here
from allranks.errors import AllranksError, DeviceError, EngineError, ExitCode, UsageError, counted
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
from allranks.runner.earlier_runs import with_durations
from allranks.runner.host import choose_host, require_kernel
from allranks.runner.listener import Detail
from allranks.runner.machines.plan_file import PlanPart
from allranks.runner.results_folder import RunFolder, claim_jobs, facts_of, invocation_id, open_run
from allranks.runner.retry_policy import JobSelection, RunPolicy
from allranks.runner.unhealthy_gpus import UNHEALTHY_REMEDY, unhealthy_gpus

DESCRIPTORS = 65_536
"""Enough for ten thousand concurrent jobs, and few enough for programs that iterate over all possible descriptors."""


def raise_descriptor_limit(descriptors: int = DESCRIPTORS) -> None:
    """Raise this process's limit of open descriptors, which its children inherit, as far as the hard limit permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = descriptors if hard == resource.RLIM_INFINITY else min(descriptors, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The command line's options for a run."""

    run_id: str
    results: Path
    engine: str | Engine  # the engine, its name, or ``auto``
    seed: int | None  # None for a random one
    pytest_args: tuple[str, ...]
    sections: Sequence[SectionMaker] = ()  # sections that plug-ins add to the report
    policy: RunPolicy = field(default_factory=RunPolicy)
    remaining: Mapping[str, JobSelection] | None = None  # the unfinished jobs of a resumed run, by id
    gpus: str | None = None  # the GPUs that jobs may use, by number or id; None for all of the host's
    gpu_mode: GpuMode = "auto"
    # The part of a plan that this machine runs; None without a plan. A part prints no annotations, and need not run any
    # test: both are decided when the results of all parts are merged.
    part: PlanPart | None = None
    detail: Detail = "usual"

    @property
    def sections_of_unfinished_run(self) -> Sequence[SectionMaker]:
        """The sections of the report if the run is interrupted or fails."""
        return [maker for section in self.sections if (maker := GuardedMaker(section).for_unfinished_run())]


def run(expansion: Expansion, jobs: Sequence[Job], options: RunOptions, say: Callable[[str], None]) -> ExitCode:
    """Run the jobs, or the unfinished ones of a resumed run; then merge the results, and show those of all jobs."""
    raise_descriptor_limit()
    pytest_args = [(*job.suite.pytest_args, *options.pytest_args) for job in jobs]
    if options.policy.pdb:
        pytest_args = [("-s",)]  # the debugger uses the terminal
    with console_for(say, pytest_args, detail=options.detail) as console:
        return _run(expansion, jobs, options, console)


def _run(expansion: Expansion, jobs: Sequence[Job], options: RunOptions, console: Console) -> ExitCode:
    # All checks come before the run is created: a rejected request is not a failed run.
    say = console.say if options.detail != "quiet" else _say_nothing
    require_kernel()
    inventory = chosen_inventory(options.gpu_mode, options.gpus)
    _reject_missing_gpus(inventory, options.part.gpus if options.part else 0)
    engine = options.engine
    if isinstance(engine, str) and engine != AUTO and engine_class(engine).has_queue:
        engine, _ = choose_engine(engine)
    if isinstance(engine, Engine) and engine.has_queue:
        _reject_uneven_gpus(engine, jobs)
    else:
        _reject_unhealthy_gpus(inventory, jobs)
    resuming = options.remaining is not None
    if resuming:
        _clean_up_killed_run()
    selections = options.remaining or {}
    to_run = [job for job in jobs if job.id in selections] if resuming else jobs
    with own_run(options.run_id) as owned, ExitStack() as uses, interruptible():
        claim_jobs(options.results, owned, to_run, say, invocation=invocation_id(), resuming=resuming)
        facts = facts_of(expansion)
        folder = open_run(options.results, options.run_id, jobs, facts, options.seed, options.pytest_args)
        durations = expansion.matrix.root / DURATIONS_FILE
        try:
            folder = with_durations(
                folder, jobs, durations, say, known=options.part.file.plan.durations if options.part else None
            )
            if options.detail == "verbose":
                say(f"run {folder.run_id} of {expansion.matrix.path}, into {folder.path}")
            host = choose_host(engine, expansion.matrix, say, inventory, uses)
            with console.watch([job.id for job in to_run]) as live:
                attempts = AttemptRunner(expansion.matrix, host, folder, live, options.pytest_args, options.policy)
                Dispatcher(attempts).run(to_run, selections)
            combine(expansion.matrix, folder.path, jobs, options.pytest_args, say)
            return _conclude(folder, jobs, options, durations, console)
        except KeyboardInterrupt:
            console.say("interrupted: this run's processes were stopped, and its containers removed")
            ids = {job.id for job in jobs}
            _show(folder, ids, console, options, *options.sections_of_unfinished_run)
            return ExitCode.INTERRUPTED
        except Exception:
            # Even after an error, the report has the plan and the results so far.
            with suppress(AllranksError):
                merge(folder.path, observers=options.sections_of_unfinished_run)
            raise


def _reject_missing_gpus(inventory: Inventory, planned: int) -> None:
    """Reject a machine that lacks planned GPUs: jobs would skip all their tests, and no other machine runs these."""
    found = len(inventory.gpus)
    if found < planned:
        what = f"The plan has a job with {counted(planned, 'GPU')} for this machine, but allranks finds {found}."
        why = "All of its tests would be skipped unnoticed."
        remedy = "Run `allranks doctor` on this machine, or correct `gpus` in its [[runners]] entry of the matrix file."
        raise DeviceError(what, why=why, remedy=remedy)


def _reject_unhealthy_gpus(inventory: Inventory, jobs: Iterable[Job]) -> None:
    """Reject a host with a GPU that is known to be unhealthy: its failures would be blamed on the tests."""
    if not any(job.cell.gpu_count for job in jobs):
        return
    if unhealthy := unhealthy_gpus(inventory):
        names = [f"{inventory.name_of(gpu)} is unhealthy: {why}" for gpu, why in unhealthy.items()]
        msg = f"This machine ({socket.gethostname()}) cannot run jobs with GPUs: {'; '.join(names)}."
        raise DeviceError(msg, remedy=UNHEALTHY_REMEDY)


def _reject_uneven_gpus(engine: Engine, jobs: Iterable[Job]) -> None:
    """Reject jobs whose nodes need different numbers of GPUs: a cluster gives all nodes of a job the same number."""
    for job in jobs:
        gpus, nodes = job.cell.gpu_count, job.cell.nodes
        if gpus % nodes:
            what = f"{job.cell.id} needs {counted(gpus, 'GPU')} on {nodes} nodes."
            why = f"The engine {engine.name} gives each node the same number."
            remedy = f'Exclude it in the matrix file: when = "gpu_count == {gpus} and nodes == {nodes}".'
            raise UsageError(what, why=why, remedy=remedy)


def _clean_up_killed_run() -> None:
    """Remove what a killed run left behind. Once this process owns the run, engines would treat it as alive.

    Engines with a queue are left out: their jobs outlive the orchestrator, and are adopted.
    """
    for engine in engines_here(with_queues=False):
        with closing(engine), suppress(EngineError):  # the run may need another engine
            engine.clean_up()


def _conclude(
    folder: RunFolder, jobs: Sequence[Job], options: RunOptions, durations: Path, console: Console
) -> ExitCode:
    """Report these jobs, and return their exit code: other sessions that share the run report their own jobs."""
    ids = {job.id for job in jobs}
    # Without shards, durations are kept only if the file exists: they only affect the order of jobs.
    meter = Meter(lambda job: job.id in ids and (job.share is not None or durations.exists()))
    own = _show(folder, ids, console, options, meter.add, *options.sections)
    keep_durations(durations, meter.durations, console.say if options.detail != "quiet" else _say_nothing)
    return exit_code(own, nothing_ran_allowed=options.part is not None)


def _say_nothing(_message: str) -> None:
    """Print nothing: the run is quiet."""


def _show(
    folder: RunFolder, job_ids: AbstractSet[str], console: Console, options: RunOptions, *observers: Observer
) -> MergedRun:
    """Merge the run, and show the results of these jobs."""
    own = merge(folder.path, observers=observers).only(job_ids)
    paint = partial(painted, stream=sys.stdout)
    if text := render_problems(own, paint) if options.detail == "quiet" else f"\n{render_table(own, paint)}":
        console.say(f"{text}\n")
        report = _latest_path(folder.path)
        console.say("report: " + "\n        ".join(str(_relative(report / file.name)) for file in own.junit_files))
        console.say(f"page: {_relative(report / own.page.name)}")
    if options.part is None:
        console.annotate(own)
    return own


def _latest_path(folder: Path) -> Path:
    """The run's folder as ``results/latest``, unless that points to a later run."""
    latest = folder.parent / "latest"
    return latest if latest.resolve() == folder.resolve() else folder


def _relative(path: Path) -> Path:
    """The path relative to the current folder, if it is below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
