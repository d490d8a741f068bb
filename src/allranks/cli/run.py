"""``allranks run``: runs selected jobs, the share of a plan, or the rest of an earlier run."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.cli.command_parser import CommandParser, OptionGroup
from allranks.cli.images import PRUNE_VARIABLE, prune_after_run
from allranks.cli.options import (
    STOP,
    add_engine,
    add_gpu_mode,
    add_quiet,
    add_results,
    add_selection,
    add_tests,
    chosen_jobs,
    existing_file,
    existing_folder,
    number,
    read_request,
    remark,
    run_id,
    say,
    say_verdict,
    selected_cells,
)
from allranks.errors import ExitCode, UsageError, counted
from allranks.matrix.cell_images import image_for
from allranks.matrix.expand import Expansion
from allranks.matrix.jobs import plan
from allranks.matrix.model import Job, Matrix
from allranks.plugin_manager import add_plugin_options, run_by_plugins, section_makers
from allranks.protocol.launcher_variables import LAUNCHERS
from allranks.protocol.refusals import REFUSED
from allranks.runner.ci_service import untrusted_output
from allranks.runner.results_folder import PARTY_VARIABLE, RUN_ID_VARIABLE

if TYPE_CHECKING:
    from allranks.engines.base import Engine
    from allranks.report.judge.rules import VerdictPolicy
    from allranks.runner.machines.plan_file import OwnPart
    from allranks.runner.retry_policy import Again


Say = Callable[[str], None]

# The Docker SDK and the modules that need it are imported late: see engines/docker.py.


def add_images(group: OptionGroup) -> None:
    """Declare the option for prebuilt images."""
    meaning = "use the images that `allranks build --export DIR` wrote"
    group.add_argument("--images", type=existing_folder, metavar="DIR", help=meaning)


def taking_images(matrix: Matrix, folder: Path, names: Iterable[str], say: Say) -> Matrix:
    """Replace the images that a matrix would build by those in a folder, and load the archives among them.

    Args:
        matrix: The matrix as read from the file.
        folder: The output of ``allranks build --export``.
        names: The images that are needed; those that are not in the folder stay as they are.
        say: Prints one line.

    Raises:
        EngineError: No daemon answers to load them.
        ImageError: The folder or an image cannot be used.
    """
    from allranks.images.docker_client import connect  # noqa: PLC0415
    from allranks.images.sharing import read_images, take_images  # noqa: PLC0415

    there = read_images(folder)
    if not (wanted := [there[name] for name in dict.fromkeys(names) if name in there]):
        return matrix
    with closing(connect()) as client:
        return replace(matrix, finished=take_images(wanted, folder, client, say))


_NO_LIMIT = 1e6
"""Seconds: eleven days, longer than anyone debugs a rank, and within the range of the kernel's timers."""


def add(parser: CommandParser) -> None:
    """Declare the arguments of ``allranks run``."""
    parser.usage = "allranks run [CELL | TEST ...] [options] [-- PYTEST-ARGUMENT ...]"
    add_shared(parser, "run")
    _add_repetition(parser.add_argument_group("order and repetition"))
    _add_look(parser.add_argument_group("looking closer"))
    group = parser.add_argument_group("one of several machines")
    meaning = "plan that divides jobs among CI machines; --pack names the part of this one"
    group.add_argument("--plan-file", type=Path, metavar="FILE", help=meaning)
    group.add_argument("--pack", metavar="PACK", help="run this pack of the plan, as the CI's job matrix names it")
    parser.set_defaults(command=_run, connected=None, plugins={})


def add_shared(parser: CommandParser, command: str) -> OptionGroup:
    """Declare the arguments of every command that runs tests; return the group of where they run.

    Args:
        parser: The parser of the command.
        command: The name of the command, for plug-ins that add options to it.
    """
    parser.takes_pytest = True
    add_selection(parser)
    add_tests(parser.add_argument_group("which tests, and how (other pytest options go after --)"))
    _add_place(place := parser.add_argument_group("where to run"))
    results = parser.add_argument_group("results")
    _add_report(results)
    add_plugin_options(command, {"place": place, "results": results})
    loudness = parser.add_argument_group("output").add_mutually_exclusive_group()
    add_quiet(loudness, "print problems and the verdict alone")
    meaning = "print each job's request, and the evidence of every bad rank: traceback or stacks, and what it printed"
    loudness.add_argument("-v", "--verbose", dest="detail", action="store_const", const="verbose", help=meaning)
    return place


def _add_place(group: OptionGroup) -> None:
    add_engine(group)
    add_images(group)
    group.add_argument("--gpus", metavar="0,2-3", help="use only these GPUs, by number or id (default: all of them)")
    add_gpu_mode(group)
    meaning = "at most N jobs at a time (default: as many as there is room for)"
    group.add_argument("-j", "--jobs", type=_count, metavar="N", help=meaning)


def _add_look(group: OptionGroup) -> None:
    group.add_argument(
        "--pdb-rank",
        type=number,
        metavar="N",
        help="stop rank N of one job in pdb, on this terminal, where it fails or calls breakpoint(); without limits",
    )
    group.add_argument("--dry-run", action="store_true", help="print the engine requests and stop")


def _add_report(group: OptionGroup) -> None:
    add_results(group)
    meaning = "file of test durations, for even shards (default: the one that the matrix file names)"
    group.add_argument("--durations", type=existing_file, metavar="FILE", help=meaning)
    group.add_argument(
        "--allow-nothing-ran", action="store_true", help="accept that every test was skipped or deselected"
    )


def _add_repetition(group: OptionGroup) -> None:
    group.add_argument("--fail-fast", action="store_true", help="end the run at the first job that is not good")
    group.add_argument(
        "--retries",
        type=number,
        default=0,
        metavar="N",
        help="retry what failed of a job, up to N times; a later pass is reported as flaky",
    )
    add_seed(group)
    meaning = "shuffle jobs and tests with this seed (default: the order of the files)"
    group.add_argument("--shuffle", type=number, metavar="SEED", help=meaning)
    goes_on = group.add_mutually_exclusive_group()
    meaning = f"resume the newest run (or ${RUN_ID_VARIABLE}): run what has no result yet"
    goes_on.add_argument("--resume", dest="wanted", action="store_const", const="missing", help=meaning)
    meaning = "resume it: run what failed and what has no result yet"
    goes_on.add_argument("--rerun-failed", dest="wanted", action="store_const", const="failed", help=meaning)


def add_seed(group: OptionGroup) -> None:
    """Declare the option for the run's seed."""
    meaning = "seed of every rank of every test (default: a random one, recorded)"
    group.add_argument("--seed", type=number, metavar="N", help=meaning)


def refuse_options(pytest_args: Sequence[str]) -> None:
    """Refuse options of pytest that no job can have."""
    for argument in pytest_args:
        if refusal := REFUSED.get(flag := argument.partition("=")[0]):
            msg = f"{flag} {refusal.why}"
            raise UsageError(msg, remedy=refusal.remedy)


def _run(options: argparse.Namespace) -> ExitCode:
    expansion = read_request(options)
    refuse_options(options.pytest_args)
    run_here = partial(_run_here, expansion)
    results = _results(expansion, options)
    code = run_by_plugins(expansion=expansion, results=results, options=options, run_here=run_here)
    return run_here(options) if code is None else code


def _run_here(expansion: Expansion, options: argparse.Namespace) -> ExitCode:
    if options.pdb_rank is not None:
        expansion = _prepare_debugging(expansion, options)
    if options.plan_file or options.pack:
        return _run_pack(expansion, options)
    if options.wanted:
        return _go_on(expansion, options)
    jobs = chosen_jobs(expansion, options)
    if options.dry_run:
        return _show_requests(expansion, jobs, options)
    return run_chosen(expansion, jobs, options)


def run_chosen(expansion: Expansion, jobs: Sequence[Job], options: argparse.Namespace) -> ExitCode:
    """Run these jobs, in a run of their own or in the one that the environment names."""
    return _run_jobs(expansion, jobs, options, PartOf(run_id=run_id()))


def _prepare_debugging(expansion: Expansion, options: argparse.Namespace) -> Expansion:
    """Check that a debugger can attach to its rank, of one job, and lift the limits that would end the session.

    Raises:
        UsageError: It cannot attach.
    """
    rank: int = options.pdb_rank
    if options.engine == "docker" or options.plan_file or options.pack or options.wanted:
        msg = "--pdb-rank cannot be used here: only a process of this host can open this terminal."
        raise UsageError(msg, remedy="Use --engine process, and no --plan-file, --pack, --resume or --rerun-failed.")
    if not _terminal():
        msg = "--pdb-rank needs a terminal, and standard input or output is not one."
        raise UsageError(msg, remedy="Run it by hand, without pipes; or attach debugpy: see docs/pytest.md.")
    jobs = chosen_jobs(expansion, options)
    if len(jobs) > 1:
        msg = f"--pdb-rank needs one job, and {len(jobs)} are selected."
        raise UsageError(msg, remedy="Name one cell and one suite: allranks run CELL --suite SUITE --pdb-rank N.")
    if rank >= (size := jobs[0].cell.world_size):
        msg = f"There is no rank {rank} in {jobs[0].cell.id}."
        raise UsageError(msg, remedy=f"Its ranks are 0 to {size - 1}.")
    options.engine = "process"
    limits = replace(expansion.matrix.limits, process_group=_NO_LIMIT, test=_NO_LIMIT, job=_NO_LIMIT)
    return replace(expansion, matrix=replace(expansion.matrix, limits=limits))


def _terminal() -> str:
    """The path of the terminal that this process is on; empty for none."""
    with suppress(OSError, AttributeError):  # the terminal has no device node here, or the stream is closed (None)
        return os.ttyname(sys.stdin.fileno()) if sys.stdin.isatty() and sys.stdout.isatty() else ""
    return ""


def _run_pack(expansion: Expansion, options: argparse.Namespace) -> ExitCode:
    """Run the jobs that a plan assigns to this machine, as the plan specifies."""
    from allranks.runner.machines.plan_file import own_part  # noqa: PLC0415 - no other run needs it

    _refuse_beside_a_pack(options)
    own = own_part(expansion, options.plan_file, options.pack)
    own.refuse_others(os.environ.get(RUN_ID_VARIABLE), options.pytest_args)
    options.pytest_args = own.file.pytest_args
    if options.seed is None:
        options.seed = own.file.manifest.seed
    if options.engine == "auto":
        # On a machine of a plan, a daemon that does not answer is an error, not a reason to run without containers.
        options.engine = own.pack.engine or "docker"
    if options.dry_run:
        return _show_requests(expansion, own.jobs, options)
    return _run_jobs(expansion, own.jobs, options, PartOf(run_id=own.file.manifest.run_id, own=own))


def _refuse_beside_a_pack(options: argparse.Namespace) -> None:
    if not (options.plan_file and options.pack):
        given, absent = ("--plan-file", "--pack") if options.plan_file else ("--pack", "--plan-file")
        msg = f"{given} needs {absent}."
        raise UsageError(msg, remedy="Write --plan-file plan.json --pack PACK, with a pack of that plan.")
    if options.cells or options.where or options.suite or options.wanted:
        msg = "A pack of a plan runs as planned: it can be neither narrowed nor resumed."
        raise UsageError(msg, remedy="Drop cells, --where, --suite, --resume and --rerun-failed, or drop --pack.")


def _go_on(expansion: Expansion, options: argparse.Namespace) -> ExitCode:
    """Resume an earlier run in its folder, with its arguments unless others are given."""
    from allranks.runner.earlier_runs import earlier_run  # noqa: PLC0415 - see _run_jobs

    earlier = earlier_run(_results(expansion, options), run_id() if RUN_ID_VARIABLE in os.environ else None)
    everything = plan(expansion.matrix, expansion.cells, earlier.suites)
    if not (options.cells or options.where or options.suite):
        earlier.refuse_lost(everything)
    cells, suites = selected_cells(expansion, options), options.suite or earlier.suites
    jobs = earlier.own(plan(expansion.matrix, cells, suites))
    if not jobs:
        msg = f"The run {earlier.run_id} planned none of these cells and suites."
        raise UsageError(msg, remedy="Drop them to resume everything that it planned.")
    options.pytest_args = earlier.arguments_of(jobs, options.pytest_args)
    left = earlier.left(jobs, options.wanted)
    say(f"resuming run {earlier.run_id}: {len(left)} of its {len(jobs)} jobs are unfinished")
    if options.dry_run:
        return _show_requests(expansion, [job for job in jobs if job.id in left], options)
    return _run_jobs(expansion, jobs, options, PartOf(run_id=earlier.run_id, going_on=(earlier.setting, left)))


@dataclass(frozen=True, kw_only=True)
class PartOf:
    """The run that some jobs belong to, and what it has already decided for them."""

    run_id: str
    # For a resumed run, the policy that judges results, and the rest of each job.
    going_on: "tuple[VerdictPolicy, Mapping[str, Again]] | None" = None
    own: "OwnPart | None" = None  # the part of this machine in a plan for several


def _run_jobs(expansion: Expansion, jobs: Sequence[Job], options: argparse.Namespace, of: PartOf) -> ExitCode:
    code = run_jobs(expansion, jobs, options, of)
    say_verdict(code)
    return code


def run_jobs(expansion: Expansion, jobs: Sequence[Job], options: argparse.Namespace, of: PartOf) -> ExitCode:
    """Run jobs under the options of the command line, and show their results; the verdict is left to the caller."""
    # A run needs the SDK; a plan does not, and a noxfile's interpreter does not have it.
    from allranks.runner.console import annotate_all, leave_to_the_merge  # noqa: PLC0415
    from allranks.runner.earlier_runs import setting_of  # noqa: PLC0415
    from allranks.runner.request import Pdb  # noqa: PLC0415
    from allranks.runner.retry_policy import RunPolicy  # noqa: PLC0415
    from allranks.runner.run_jobs import RunOptions, run  # noqa: PLC0415

    # Each process of a launcher may run its own pack of a plan, or other jobs of a run that all of them share by name.
    is_part = of.own is not None or (RUN_ID_VARIABLE in os.environ and PARTY_VARIABLE not in os.environ)
    if options.connected is not None:
        _refuse_too_wide(jobs, options.connected)
    elif not is_part:
        _refuse_launched(os.environ)
    if options.images and options.engine != "process":
        with untrusted_output(say):
            matrix = taking_images(expansion.matrix, options.images, [job.image.name for job in jobs], say)
        expansion = replace(expansion, matrix=matrix)
        jobs = [replace(job, image=image_for(matrix, job.cell)) for job in jobs]
    setting, left = of.going_on or (setting_of(expansion.matrix), None)
    policy = RunPolicy(
        most=options.jobs,
        retries=options.retries,
        fail_fast=options.fail_fast or STOP in options.own_pytest_args,
        shuffle=options.shuffle,
        judges=setting,
        seconds=of.own.pack.limit if of.own else None,
        pdb=None if options.pdb_rank is None else Pdb(rank=options.pdb_rank, terminal=_terminal()),
        plugins=options.plugins,
    )
    matrix = expansion.matrix
    run_options = RunOptions(
        run_id=of.run_id,
        results=_results(expansion, options),
        engine=options.connected or options.engine,
        seed=options.seed,
        pytest_args=options.pytest_args,
        nothing_ran_allowed=options.allow_nothing_ran,
        durations=options.durations,
        sections=section_makers(options, matrix),
        known=of.own.file.plan.durations if of.own else None,
        policy=policy,
        left=left,
        gpus=options.gpus,
        gpu_mode=options.gpu_mode,
        planned_gpus=max(job.cell.gpu_count for job in jobs) if of.own else 0,
        detail=options.detail,
        annotate=leave_to_the_merge if of.own else annotate_all,
    )
    code = run(expansion, jobs, run_options, say)
    if (age := os.environ.get(PRUNE_VARIABLE)) and options.engine != "process":
        prune_after_run(age, remark)
    return code


def _refuse_too_wide(jobs: Sequence[Job], engine: "Engine") -> None:
    """Refuse jobs on more nodes than an engine has; on a single one all nodes are agents there.

    Raises:
        UsageError: There are such jobs.
    """
    most = max((job.cell.nodes for job in jobs), default=1)
    if 1 < engine.nodes < most:
        cells = sorted({job.cell.id for job in jobs if job.cell.nodes > engine.nodes})
        what = f"{counted(len(cells), 'cell')} need more nodes than the {engine.nodes} that there are: {cells[0]}."
        remedy = f"Start it on {most} nodes, or run others: --where nodes={engine.nodes}."
        raise UsageError(what, why=f"The largest needs {most}.", remedy=remedy)


def _refuse_launched(environ: Mapping[str, str]) -> None:
    """Refuse to be one of several processes of a launcher: each would run everything, in one results folder.

    Raises:
        UsageError: The environment is that of a launcher's process.
    """
    found = [
        (each.launcher, variable)
        for each in LAUNCHERS
        for variable, least in ((each.world_size, 2), (each.rank, 1))
        if (value := environ.get(variable, "")).isdecimal() and int(value) >= least
    ]
    if found:
        launcher = found[0][0]
        said = ", ".join(f"{variable}={environ[variable]}" for _, variable in found)
        unset = " ".join(f"-u {variable}" for _, variable in found)
        msg = f"This is one of several processes that {launcher} or the like has started ({said})."
        why = "allranks starts the ranks itself; here each process would run everything, into one results folder."
        remedy = f"Start allranks once, without {launcher}. Or make them all one run: allranks run --inside …"
        remedy += f" If this one is alone after all: env {unset} allranks run …"
        raise UsageError(msg, why=why, remedy=remedy)


def _results(expansion: Expansion, options: argparse.Namespace) -> Path:
    results: Path = options.results or expansion.matrix.root / "results"
    return results


def _show_requests(expansion: Expansion, jobs: Sequence[Job], options: argparse.Namespace) -> ExitCode:
    from allranks.engines.base import JobEnvironment  # noqa: PLC0415
    from allranks.runner.request import AttemptOptions, job_spec  # noqa: PLC0415

    attempt = AttemptOptions(run_id="dry-run", number=1, seed=options.seed or 0, pytest_args=options.pytest_args)
    requests = [
        job_spec(expansion.matrix, job, JobEnvironment(image=job.image.name), attempt).to_json() for job in jobs
    ]
    say(json.dumps(requests, indent=1))
    return ExitCode.OK


def _count(text: str) -> int:
    """Parse a number of jobs.

    Raises:
        argparse.ArgumentTypeError: The text is not a number from 1.
    """
    if not text.isdecimal() or int(text) < 1:
        msg = f"{text!r} is not a number of jobs: give 1 or more"
        raise argparse.ArgumentTypeError(msg)
    return int(text)
