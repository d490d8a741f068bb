"""``allranks run``: runs selected jobs, a batch of a plan, or the unfinished jobs of an earlier run."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from allranks.cli.options import (
    engine_option,
    gpu_mode,
    quiet_option,
    results_option,
    run_id,
)
from allranks.cli.parser import flag, option, whole
from allranks.cli.printing import say, say_verdict, warn
from allranks.cli.selection import Selection, TestRunOptions, read_request, selected_cells, selected_jobs
from allranks.cli.variables import BATCH_VARIABLE, IMAGES_VARIABLE, PLAN_FILE_VARIABLE, PRUNE_VARIABLE, PlanVariables
from allranks.errors import ExitCode, UsageError, counted
from allranks.matrix.cell_images import image_for
from allranks.matrix.expand import Expansion
from allranks.matrix.jobs import plan
from allranks.matrix.model import Job
from allranks.plugin_manager import run_by_plugins, section_makers
from allranks.protocol.launcher_variables import LAUNCHERS
from allranks.protocol.outcomes import named
from allranks.protocol.refusals import REFUSED
from allranks.runner.ci_service import untrusted_output
from allranks.runner.results_folder import INVOCATION_VARIABLE, RUN_ID_VARIABLE

if TYPE_CHECKING:
    from allranks.engines.base import Engine
    from allranks.runner.earlier_runs import EarlierRun
    from allranks.runner.listener import Detail
    from allranks.runner.retry_policy import RerunScope
    from allranks.runner.run_jobs import RunOptions

# The Docker SDK and the modules that need it are imported late: see engines/docker.py.

_WHERE = "where to run"
_ORDER = "order and repetition"
_RESULTS = "results and output"

_NO_LIMIT = 1e6
"""Seconds: longer than anyone debugs a rank, and within the range of the kernel's timers."""


@dataclass(frozen=True, kw_only=True)
class JobOptions(TestRunOptions):
    """The options of every command that runs jobs.

    Attributes:
        plugins: The settings of plug-ins that run inside the jobs, of JSON types, by plug-in.
    """

    is_extended: ClassVar = True

    engine: str = engine_option(_WHERE)
    gpus: str | None = option("--gpus 0,2-3", _WHERE, "use only these GPUs, by number or id (default: all)")
    jobs: int | None = option(
        "-j --jobs N", _WHERE, "run at most N jobs at a time (default: as many as fit)", type=whole(1)
    )
    results: Path | None = results_option(_RESULTS)
    quiet: bool = quiet_option(_RESULTS, "print only problems and the verdict", exclusive="detail")
    verbose: bool = flag(
        "-v --verbose",
        _RESULTS,
        "print each job's request, and the traceback or stacks and the output of every failed rank",
        exclusive="detail",
    )
    seed: int | None = option(
        "--seed N", _ORDER, "the seed for all tests (default: a random one, which is recorded)", type=whole()
    )
    plugins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def detail(self) -> "Detail":
        """How much is printed."""
        return "quiet" if self.quiet else "verbose" if self.verbose else "usual"


@dataclass(frozen=True, kw_only=True)
class Options(JobOptions, Selection):
    """The options of ``allranks run``."""

    usage: ClassVar = "allranks run [CELL | TEST ...] [options] [-- PYTEST-ARGUMENT ...]"

    reruns: int = option(
        "--reruns N",
        _ORDER,
        "rerun the failed tests of a job up to N times; a later pass is reported as flaky",
        type=whole(),
        default=0,
    )
    last_failed: bool = flag(
        "--lf",
        _ORDER,
        f"resume the newest run (or ${RUN_ID_VARIABLE}): run what failed or has no result",
        exclusive="earlier",
    )
    resume: bool = flag("--resume", _ORDER, "like --lf, but run only what has no result", exclusive="earlier")
    shuffle: int | None = option(
        "--shuffle SEED",
        _ORDER,
        "shuffle jobs and tests with this seed (default: no shuffling)",
        type=whole(),
    )
    pdb_rank: int | None = option(
        "--pdb-rank N",
        "debugging",
        "start pdb in rank N of a single job, on this terminal, when it fails or calls breakpoint(); no time limits",
        type=whole(),
    )

    @property
    def is_resuming(self) -> bool:
        """Whether an earlier run is resumed."""
        return self.last_failed or self.resume


def run(options: Options) -> ExitCode:
    """Run jobs here, or let a plug-in run them."""
    # On a machine of a plan, -x stops the run, but the plan has pytest's arguments.
    expansion, chosen = read_request(replace(options, stops=options.stops and not PlanVariables.read().part()))
    check_pytest_args(chosen.pytest_args)
    chosen = replace(chosen, stops=options.stops)

    def run_here(engine: "Engine | None") -> ExitCode:
        return _run_here(expansion, chosen, engine)

    results = results_of(expansion, chosen)
    code = run_by_plugins(expansion=expansion, results=results, options=chosen, run_here=run_here)
    return run_here(None) if code is None else code


def _run_here(expansion: Expansion, options: Options, engine: "Engine | None") -> ExitCode:
    if options.pdb_rank is not None:
        expansion, options = _prepare_debugging(expansion, options)
    if part := PlanVariables.read().part():
        return _run_batch(expansion, options, engine, *part)
    if options.is_resuming:
        return _resume(expansion, options, engine)
    jobs, given = selected_jobs(expansion, options), _own_run_options(expansion, options, engine)
    notes: Iterable[str] = ()
    if not (options.cells or options.suite or options.pytest_args):
        from allranks.cli.existing_tests import files_in_no_suite  # noqa: PLC0415 - no other run needs it

        notes = files_in_no_suite(expansion.matrix)
    return run_with_verdict(expansion, jobs, given, can_resume=True, notes=notes)


def run_options(expansion: Expansion, options: JobOptions, engine: "Engine | None" = None) -> "RunOptions":
    """Convert the options that :class:`JobOptions` declares."""
    # A run needs the Docker SDK; a plan does not, and a noxfile's interpreter does not have it.
    from allranks.runner.earlier_runs import verdict_policy_of  # noqa: PLC0415
    from allranks.runner.retry_policy import RunPolicy  # noqa: PLC0415
    from allranks.runner.run_jobs import RunOptions  # noqa: PLC0415

    return RunOptions(
        run_id=run_id(),
        results=results_of(expansion, options),
        engine=engine or options.engine,
        seed=options.seed,
        pytest_args=options.pytest_args,
        sections=section_makers(options, expansion.matrix),
        policy=RunPolicy(
            most=options.jobs,
            fail_fast=options.stops,
            verdict_policy=verdict_policy_of(expansion.matrix),
            plugins=options.plugins,
        ),
        gpus=options.gpus,
        gpu_mode=gpu_mode(),
        detail=options.detail,
    )


def _own_run_options(expansion: Expansion, options: Options, engine: "Engine | None") -> "RunOptions":
    """Convert all options of ``allranks run``."""
    from allranks.runner.request import Pdb  # noqa: PLC0415 - see run_options

    shared = run_options(expansion, options, engine)
    pdb = None if options.pdb_rank is None else Pdb(rank=options.pdb_rank, terminal=_terminal())
    policy = replace(shared.policy, retries=options.reruns, shuffle=options.shuffle, pdb=pdb)
    return replace(shared, policy=policy)


def results_of(expansion: Expansion, options: JobOptions) -> Path:
    """The folder of all runs."""
    return options.results or expansion.matrix.root / "results"


def check_pytest_args(pytest_args: Sequence[str]) -> None:
    """Reject options of pytest that jobs do not support."""
    for argument in pytest_args:
        if refusal := REFUSED.get(flag := argument.partition("=")[0]):
            msg = f"{flag} {refusal.why}"
            raise UsageError(msg, remedy=refusal.remedy)


def _prepare_debugging(expansion: Expansion, options: Options) -> tuple[Expansion, Options]:
    """Check that a debugger can run in one rank of one job, and disable time limits."""
    if options.engine == "docker" or options.is_resuming or PlanVariables.read().part():
        msg = "--pdb-rank works only in a new run of the process engine, whose ranks can use this terminal."
        raise UsageError(msg, remedy=f"Use --engine process without --resume or --lf, and unset {PLAN_FILE_VARIABLE}.")
    if not _terminal():
        msg = "--pdb-rank needs a terminal, but standard input or output is not one."
        raise UsageError(msg, remedy="Run it in a terminal without pipes, or attach debugpy: see docs/debuggers.md.")
    jobs = selected_jobs(expansion, options)
    if len(jobs) > 1:
        msg = f"--pdb-rank needs one job, but {len(jobs)} are selected."
        raise UsageError(msg, remedy="Name one cell and one suite: allranks run CELL --suite SUITE --pdb-rank N.")
    size = jobs[0].cell.world_size
    if options.pdb_rank is not None and options.pdb_rank >= size:
        msg = f"There is no rank {options.pdb_rank} in {jobs[0].cell.id}."
        raise UsageError(msg, remedy=f"It has {counted(size, 'rank')}, numbered from 0.")
    limits = replace(expansion.matrix.limits, process_group=_NO_LIMIT, test=_NO_LIMIT, job=_NO_LIMIT)
    without_limits = replace(expansion, matrix=replace(expansion.matrix, limits=limits))
    return without_limits, replace(options, engine="process")


def _terminal() -> str:
    """The path of the terminal of standard input and output; empty if either is not a terminal."""
    with suppress(OSError, AttributeError):  # the terminal has no device node, or a stream is closed (None)
        return os.ttyname(sys.stdin.fileno()) if sys.stdin.isatty() and sys.stdout.isatty() else ""
    return ""


def _run_batch(
    expansion: Expansion, options: Options, engine: "Engine | None", plan_file: Path, batch: str
) -> ExitCode:
    """Run the jobs that a plan assigns to this machine, as the plan specifies."""
    from allranks.runner.machines.plan_file import load_part  # noqa: PLC0415 - no other run needs it

    if options.cells or options.where or options.suite or options.is_resuming:
        msg = "A batch always runs as planned: options cannot select some of its jobs, or resume it."
        remedy = f"Drop cells, --where, --suite, --resume and --lf, or unset {PLAN_FILE_VARIABLE} and {BATCH_VARIABLE}."
        raise UsageError(msg, remedy=remedy)
    own = load_part(expansion, plan_file, batch)
    own.check_request(os.environ.get(RUN_ID_VARIABLE), options.pytest_args)
    given = _own_run_options(expansion, options, engine)
    # On a machine of a plan, a daemon that does not answer is an error, not a reason to run without containers.
    planned = replace(
        given,
        run_id=own.file.manifest.run_id,
        engine=own.batch.engine or "docker" if given.engine == "auto" else given.engine,
        seed=own.file.manifest.seed if options.seed is None else options.seed,
        pytest_args=own.file.pytest_args,
        part=own,
        policy=replace(given.policy, seconds=own.batch.limit),
    )
    return run_with_verdict(expansion, own.jobs, planned)


def _resume(expansion: Expansion, options: Options, engine: "Engine | None") -> ExitCode:
    """Resume an earlier run in its folder, with its pytest arguments."""
    from allranks.runner.earlier_runs import earlier_run, wider_run  # noqa: PLC0415 - see run_options

    results, is_newest = results_of(expansion, options), RUN_ID_VARIABLE not in os.environ
    earlier = earlier_run(results, None if is_newest else run_id())
    wider = wider_run(results, earlier) if is_newest else None
    if not (options.cells or options.where or options.suite):
        earlier.check_complete(plan(expansion.matrix, expansion.cells, earlier.suites))
    cells, suites = selected_cells(expansion, options), options.suite or earlier.suites
    jobs = earlier.planned(plan(expansion.matrix, cells, suites))
    if not jobs:
        msg = f"The run {earlier.run_id} planned none of these cells and suites."
        raise UsageError(msg, remedy="Drop them to resume all jobs of the run.")
    scope: RerunScope = "failed" if options.last_failed else "missing"
    remaining = earlier.remaining(jobs, scope)
    say(f"resuming run {earlier.run_id}: {counted(len(remaining), 'unfinished job')} out of {len(jobs)}")
    given = _own_run_options(expansion, options, engine)
    resumed = replace(
        given,
        run_id=earlier.run_id,
        pytest_args=earlier.arguments_of(jobs, options.pytest_args),
        policy=replace(given.policy, verdict_policy=earlier.policy),
        remaining=remaining,
    )
    notes = _left_in(wider, expansion, scope) if wider else ()
    return run_with_verdict(expansion, jobs, resumed, can_resume=True, notes=notes)


def _left_in(wider: "EarlierRun", expansion: Expansion, scope: "RerunScope") -> Iterator[str]:
    """A note on an earlier run of all tests, which may have failures that the resumed run does not know."""
    jobs = wider.planned(plan(expansion.matrix, expansion.cells, wider.suites))
    if left := wider.remaining(jobs, scope):
        yield (
            f"The resumed run selected only some tests. The run {wider.run_id} before it has failed or missing tests "
            f"in {named(list(left))}."
        )
        yield f"To resume that one: {RUN_ID_VARIABLE}={wider.run_id} allranks run --lf"


def run_with_verdict(
    expansion: Expansion,
    jobs: Sequence[Job],
    options: "RunOptions",
    *,
    can_resume: bool = False,
    notes: Iterable[str] = (),
) -> ExitCode:
    """Run jobs, and print notes, how to resume an interrupted run if that is possible, and the verdict."""
    code = run_jobs(expansion, jobs, options)
    for note in notes:
        say(note)
    if can_resume and code is ExitCode.INTERRUPTED:
        say("To run the remaining tests: allranks run --resume")
    say_verdict(code)
    return code


def run_jobs(expansion: Expansion, jobs: Sequence[Job], options: "RunOptions") -> ExitCode:
    """Run jobs, and show their results, but not the verdict."""
    from allranks.runner import run_jobs as runner  # noqa: PLC0415 - see run_options

    if not isinstance(options.engine, str):
        _reject_too_many_nodes(jobs, options.engine)
    elif options.part is None and (RUN_ID_VARIABLE not in os.environ or INVOCATION_VARIABLE in os.environ):
        # With a batch or a shared run id, each process of a launcher may run different jobs.
        _reject_launcher(os.environ)
    if images := os.environ.get(IMAGES_VARIABLE):
        expansion = _with_images(expansion, Path(images), jobs, options.engine)
        jobs = [replace(job, image=image_for(expansion.matrix, job.cell)) for job in jobs]
    code = runner.run(expansion, jobs, options, say)
    if (age := os.environ.get(PRUNE_VARIABLE)) and options.engine != "process":
        from allranks.cli.clean import prune_after_run  # noqa: PLC0415

        prune_after_run(age, warn)
    return code


def _with_images(expansion: Expansion, folder: Path, jobs: Iterable[Job], engine: object) -> Expansion:
    """Use the images in a folder of ``allranks build --export``, except with the process engine; load archives."""
    if not folder.is_dir():
        msg = f"{IMAGES_VARIABLE} is {str(folder)!r}, but there is no such folder."
        raise UsageError(msg, remedy="Create it with `allranks build --export DIR`, or unset the variable.")
    if engine == "process":
        return expansion
    from allranks.images.docker_client import connect  # noqa: PLC0415
    from allranks.images.sharing import read_images, take_images  # noqa: PLC0415

    exported, names = read_images(folder), dict.fromkeys(job.image.name for job in jobs)
    if not (images := [exported[name] for name in names if name in exported]):
        return expansion
    with untrusted_output(say), closing(connect()) as client:
        references = take_images(images, folder, client, say)
    return replace(expansion, matrix=replace(expansion.matrix, image_references=references))


def _reject_too_many_nodes(jobs: Sequence[Job], engine: "Engine") -> None:
    """Reject jobs that need more nodes than an engine has. On a single node, the agents of all nodes run there."""
    most = max((job.cell.nodes for job in jobs), default=1)
    if 1 < engine.nodes < most:
        cells = sorted({job.cell.id for job in jobs if job.cell.nodes > engine.nodes})
        what = f"The {engine.nodes} available nodes are too few for {counted(len(cells), 'cell')}, such as {cells[0]}."
        remedy = f"Start allranks on {most} nodes, or run other cells: --where nodes={engine.nodes}."
        raise UsageError(what, why=f"The largest needs {most} nodes.", remedy=remedy)


def _reject_launcher(environ: Mapping[str, str]) -> None:
    """Reject a start by a launcher: each of its processes would run all jobs, in the same results folder."""
    found = [
        (variables.launcher, name)
        for variables in LAUNCHERS
        for name, least in ((variables.world_size, 2), (variables.rank, 1))
        if (value := environ.get(name, "")).isdecimal() and int(value) >= least
    ]
    if found:
        launcher = found[0][0]
        values = ", ".join(f"{name}={environ[name]}" for _, name in found)
        unset = " ".join(f"-u {name}" for _, name in found)
        msg = f"This is one of several processes started by {launcher} or a similar launcher ({values})."
        why = "allranks starts the ranks itself; here, each process would run all jobs, into one results folder."
        remedy = f"Start allranks once, without {launcher}. To make all processes one run: allranks run --inside …"
        remedy += f" If this is the only process: env {unset} allranks run …"
        raise UsageError(msg, why=why, remedy=remedy)
