"""The command line: ``allranks plan | run | build | merge | report | leases | images | doctor | clean``."""

import argparse
import errno
import io
import json
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import allranks
from allranks.commands.build import add_build, add_images, build, taking_images
from allranks.commands.options import (
    RESULTS_VARIABLE,
    add_durations,
    add_engine,
    add_form,
    add_gpu_mode,
    add_machines,
    add_plan_file,
    add_pruning,
    add_repetition,
    add_results,
    add_selection,
    count,
)
from allranks.errors import AllranksError, ExitCode, UsageError
from allranks.matrix.declaration import load
from allranks.matrix.expand import Expansion, expand
from allranks.matrix.model import Cell, Job, Matrix
from allranks.matrix.plan import chosen_suites, plan, suites_holding, unnamed_suites
from allranks.matrix.render import render_explanation, render_json, render_table
from allranks.matrix.select import select, select_where
from allranks.schedule.folder import RUN_ID_VARIABLE, new_run_id

_NOBODY_READS = (errno.EPIPE, errno.EIO)

if TYPE_CHECKING:
    from allranks.report.baseline import Baseline
    from allranks.report.verdict import Setting
    from allranks.schedule.again import Again
    from allranks.schedule.leases import Holder
    from allranks.schedule.machines.planning import OwnPart

_FORMATS = "json is for programs, github the job matrix of a workflow"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Without the program's name; None for this process's own.

    Returns:
        An exit code of the design.
    """
    # What tests say is printed too, and may be anything: it must not end the run.
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
    except Exception as error:  # noqa: BLE001 - the last frame: a bug of ours, told like everything else
        _complain(_as_bug(error), debug=options.debug)
        code = ExitCode.INFRASTRUCTURE
    return int(code)


def _as_bug(error: Exception) -> AllranksError:
    return AllranksError(
        f"allranks broke down: {type(error).__name__}: {error}",
        why="This is a bug of allranks.",
        remedy="Please report it, with what the same command prints after `allranks --debug`.",
    )


def _split(arguments: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """What is ours, and what follows ``--`` and is pytest's."""
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
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error too")
    commands = parser.add_subparsers(
        title="commands",
        required=True,
        metavar="plan | run | build | merge | report | leases | images | doctor | clean",
    )
    _add_plan(commands.add_parser("plan", help="show the cells of the matrix, without running anything"))
    _add_run(commands.add_parser("run", help="run suites in cells, and merge what every rank reported"))
    _add_build(commands.add_parser("build", help="build the images of cells, for this machine or for others"))
    _add_merge(commands.add_parser("merge", help="make one report of results, from this machine or from many"))
    _add_report(commands.add_parser("report", help="make the report of the newest run again, and show it"))
    leases = commands.add_parser("leases", help="show which run and which job holds each GPU of this host")
    leases.set_defaults(command=_leases)
    _add_images(commands.add_parser("images", help="show the images that runs have built, and remove old ones"))
    _add_doctor(commands.add_parser("doctor", help="see whether this host can run jobs, and what is to be done"))
    _add_clean(commands.add_parser("clean", help="remove what dead runs left behind on this host"))
    return parser


def _add_plan(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.add_argument("--explain", action="store_true", help="also show each dropped cell and the rule that did it")
    parser.add_argument("--format", choices=("table", "json", "github"), default="table", help=_FORMATS)
    add_machines(parser)
    parser.usage = "allranks plan [CELL ...] [options] [-- PYTEST-ARGUMENT ...]"
    parser.set_defaults(command=_plan)


def _add_run(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    parser.usage = "allranks run [CELL ...] [options] [-- PYTEST-ARGUMENT ...]"
    add_engine(parser)
    add_images(parser)
    add_results(parser)
    parser.add_argument("--seed", type=int, help="seed of every rank of every test (default: a random one, recorded)")
    add_durations(parser, "file of what tests took, for even shards (default: the one that the matrix file names)")
    parser.add_argument(
        "--jobs", type=count, metavar="N", help="at most N jobs at a time (default: as many as there is room for)"
    )
    parser.add_argument("--gpus", metavar="0,2-3", help="only these GPUs, by number or id (default: all of the host's)")
    add_gpu_mode(parser)
    add_repetition(parser)
    add_plan_file(parser, "the plan of a CI's machines, of which --pack names this one's part")
    parser.add_argument("--pack", metavar="PACK", help="run this part of the plan, as its entry of the job matrix says")
    parser.add_argument("--dry-run", action="store_true", help="print the requests to the engine and stop")
    parser.add_argument("--allow-nothing-ran", action="store_true", help="no executed test is no error (exit code 5)")
    parser.set_defaults(command=_run)


def _add_build(parser: argparse.ArgumentParser) -> None:
    add_selection(parser)
    add_plan_file(parser, "the images of all jobs of this plan, in the place of those of the selected cells")
    add_engine(parser)
    add_build(parser)
    parser.set_defaults(command=_build, pytest_args=())


def _add_merge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        help="a run's folder, one with parts of a run from several machines, or any with ranks' JUnit XML",
    )
    add_form(parser)
    parser.set_defaults(command=_merge)


def _add_report(parser: argparse.ArgumentParser) -> None:
    newest = Path(os.environ.get(RESULTS_VARIABLE) or "results", "latest")
    parser.add_argument(
        "folder", nargs="?", type=Path, metavar="DIR", default=newest, help=f"as of merge (default: {newest})"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    add_form(parser)
    parser.set_defaults(command=_report)


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    add_engine(parser)
    add_gpu_mode(parser)
    add_results(parser)
    parser.set_defaults(command=_doctor)


def _add_images(parser: argparse.ArgumentParser) -> None:
    add_pruning(parser)
    parser.set_defaults(command=_images)


def _add_clean(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(command=_clean)


def _say(line: str) -> None:
    try:
        # In one piece: jobs that run side by side have a thread each.
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _NOBODY_READS:
            raise
        # `allranks run | head`, or a closed terminal, must not end the run: what is printed is lost, the report is not.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plan(options: argparse.Namespace) -> ExitCode:
    expansion = expand(load(options.matrix))
    if options.format == "github":
        return _plan_machines(expansion, options)
    cells, suites = _selected(expansion, options), options.suite or None
    if options.format == "json":
        _say(render_json(expansion, cells, suites))
        return ExitCode.OK
    _say(render_table(expansion.matrix, cells, suites))
    if options.explain:
        _say("\n" + render_explanation(expansion))
    return ExitCode.OK


def _plan_machines(expansion: Expansion, options: argparse.Namespace) -> ExitCode:
    from allranks.report.durations_file import read_durations  # noqa: PLC0415 - no other plan needs them
    from allranks.schedule.machines.planning import PlanOptions, plan_machines  # noqa: PLC0415
    from allranks.schedule.machines.wishes import Wishes  # noqa: PLC0415

    durations = options.durations or expansion.matrix.root / expansion.matrix.durations
    plan_options = PlanOptions(
        run_id=_run_id(),
        pytest_args=options.pytest_args,
        durations=read_durations(durations, _remark),
        wishes=Wishes(most=options.max_entries, minutes=options.minutes_per_entry),
        plan_file=options.plan_file,
    )
    entries, notes = plan_machines(expansion, _chosen_jobs(expansion, options), plan_options)
    for note in notes:
        _remark(note)
    _say(entries)
    return ExitCode.OK


def _remark(line: str) -> None:
    """Say something beside what is printed for a program."""
    print(line, file=sys.stderr)


def _selected(expansion: Expansion, options: argparse.Namespace) -> Sequence[Cell]:
    """The cells that the command line names: those under ``--where``, and those given by name."""
    if not options.cells and not options.where:
        return expansion.cells
    named = [cell for text in options.cells for cell in select(expansion, text)]
    found = select_where(expansion, *options.where) if options.where else ()
    return tuple(dict.fromkeys((*named, *found)))


def _run(options: argparse.Namespace) -> ExitCode:
    expansion = expand(load(options.matrix))
    if options.plan_file or options.pack:
        return _run_pack(expansion, options)
    if options.wanted:
        return _go_on(expansion, options)
    jobs = _chosen_jobs(expansion, options)
    if options.dry_run:
        return _show_requests(expansion, jobs, options)
    return _run_jobs(expansion, jobs, options, _PartOf(run_id=_run_id()))


def _chosen_jobs(expansion: Expansion, options: argparse.Namespace) -> Sequence[Job]:
    """What the command line selects; all that runs by default where it selects nothing.

    Raises:
        UsageError: That is nothing at all.
    """
    cells, suites = _selected(expansion, options), _suites(expansion.matrix, options)
    jobs = plan(expansion.matrix, cells, suites)
    if not jobs:
        raise _nothing_to_run(expansion.matrix, cells, suites)
    return jobs


def _run_pack(expansion: Expansion, options: argparse.Namespace) -> ExitCode:
    """Run what a plan has for this machine, as the plan has it."""
    from allranks.schedule.machines.planning import own_part  # noqa: PLC0415 - no other run needs it

    _refuse_beside_a_pack(options)
    own = own_part(expansion, options.plan_file, options.pack)
    own.refuse_others(os.environ.get(RUN_ID_VARIABLE), options.pytest_args)
    options.pytest_args = own.plan.pytest_args
    if options.seed is None:
        options.seed = own.plan.seed
    if options.engine == "auto":
        # On a machine of a plan, a daemon that does not answer is trouble, and no reason to run outside of containers.
        options.engine = own.pack.engine or "docker"
    if options.dry_run:
        return _show_requests(expansion, own.jobs, options)
    return _run_jobs(expansion, own.jobs, options, _PartOf(run_id=own.plan.run_id, own=own))


def _refuse_beside_a_pack(options: argparse.Namespace) -> None:
    if not (options.plan_file and options.pack):
        given, absent = ("--plan-file", "--pack") if options.plan_file else ("--pack", "--plan-file")
        msg = f"{given} is there without {absent}."
        raise UsageError(msg, remedy="Write --plan-file plan.json --pack PACK, with a pack of that plan.")
    if options.cells or options.where or options.suite or options.wanted:
        msg = "A pack of a plan is run as it is: it cannot be selected from, nor gone on with."
        raise UsageError(msg, remedy="Leave away cells, --where, --suite, --resume and --rerun-failed, or --pack.")


def _go_on(expansion: Expansion, options: argparse.Namespace) -> ExitCode:
    """Go on with an earlier run: in its folder, and with its arguments where there are no others."""
    from allranks.schedule.earlier import earlier_run  # noqa: PLC0415 - see _run_jobs

    earlier = earlier_run(_results(expansion, options), _run_id() if RUN_ID_VARIABLE in os.environ else None)
    everything = plan(expansion.matrix, expansion.cells, earlier.suites)
    if not (options.cells or options.where or options.suite):
        earlier.refuse_lost(everything)
    cells, suites = _selected(expansion, options), options.suite or earlier.suites
    jobs = earlier.own(plan(expansion.matrix, cells, suites))
    if not jobs:
        msg = f"The run {earlier.run_id} had planned none of these cells and suites."
        raise UsageError(msg, remedy="Leave them away, to go on with all that it had planned.")
    options.pytest_args = earlier.arguments_of(jobs, options.pytest_args)
    left = earlier.left(jobs, options.wanted)
    _say(f"going on with the run {earlier.run_id}: {len(left)} of its {len(jobs)} jobs have something left to do")
    if options.dry_run:
        return _show_requests(expansion, [job for job in jobs if job.id in left], options)
    return _run_jobs(expansion, jobs, options, _PartOf(run_id=earlier.run_id, going_on=(earlier.setting, left)))


@dataclass(frozen=True, kw_only=True)
class _PartOf:
    """The run that some jobs are a part of, and what it has settled for them.

    Attributes:
        going_on: How results are judged, and what is left of the jobs, where the run is gone on with.
        own: What a plan of several machines has for this one.
    """

    run_id: str
    going_on: "tuple[Setting, Mapping[str, Again]] | None" = None
    own: "OwnPart | None" = None


def _run_jobs(expansion: Expansion, jobs: Sequence[Job], options: argparse.Namespace, of: _PartOf) -> ExitCode:
    # A run needs the SDK; a plan does not, and a noxfile's interpreter has none.
    from allranks.schedule.console import annotate_all, leave_to_the_merge  # noqa: PLC0415
    from allranks.schedule.earlier import setting_of  # noqa: PLC0415
    from allranks.schedule.run import MEANING, RunOptions, run  # noqa: PLC0415
    from allranks.schedule.runner import Rules  # noqa: PLC0415

    if options.images and options.engine != "process":
        matrix = taking_images(expansion.matrix, options.images, [job.image.name for job in jobs], _say)
        expansion = replace(expansion, matrix=matrix)
        jobs = [replace(job, image=matrix.images[job.image.name]) for job in jobs]
    setting, left = of.going_on or (setting_of(expansion.matrix), None)
    rules = Rules(
        most=options.jobs,
        retries=options.retries,
        fail_fast=options.fail_fast,
        shuffle=options.shuffle,
        judges=setting,
        seconds=of.own.pack.limit if of.own else None,
    )
    run_options = RunOptions(
        run_id=of.run_id,
        results=_results(expansion, options),
        engine=options.engine,
        seed=options.seed,
        pytest_args=options.pytest_args,
        nothing_ran_allowed=options.allow_nothing_ran,
        durations=options.durations,
        known=of.own.plan.durations if of.own else None,
        rules=rules,
        left=left,
        gpus=options.gpus,
        gpu_mode=options.gpu_mode,
        planned_gpus=max(job.cell.gpu_count for job in jobs) if of.own else 0,
        annotate=leave_to_the_merge if of.own else annotate_all,
    )
    code = run(expansion, jobs, run_options, _say)
    _say(f"exit code {code:d}: {MEANING[code]}")
    return code


def _results(expansion: Expansion, options: argparse.Namespace) -> Path:
    results: Path = options.results or expansion.matrix.root / "results"
    return results


def _suites(matrix: Matrix, options: argparse.Namespace) -> Sequence[str] | None:
    """The suites that the command line names, with ``--suite`` or by the path of one of their tests; None without."""
    return options.suite or suites_holding(matrix, options.pytest_args) or None


def _nothing_to_run(matrix: Matrix, cells: Sequence[Cell], suites: Sequence[str] | None) -> UsageError:
    unnamed = [suite.name for suite in unnamed_suites(matrix, cells)] if suites is None else []
    if unnamed:
        msg = "There is nothing to run: the suites of the selected cells run only when they are named."
        return UsageError(msg, remedy=f"Name some: --suite {' --suite '.join(unnamed)}")
    msg = "There is nothing to run: no suite runs in the selected cells."
    conditions = [(suite.name, suite.when.source) for suite in chosen_suites(matrix, suites) if suite.when]
    why = "; ".join(f"{name} runs where {condition}" for name, condition in conditions)
    return UsageError(msg, why=why, remedy="Select other cells: `allranks plan` lists them.")


def _run_id() -> str:
    run_id = os.environ.get(RUN_ID_VARIABLE) or new_run_id()
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", run_id):
        msg = f"{RUN_ID_VARIABLE} is {run_id!r}, and names a folder and containers."
        raise UsageError(msg, remedy="Use letters, digits, '_', '.' and '-', or leave it unset.")
    return run_id


def _show_requests(expansion: Expansion, jobs: Sequence[Job], options: argparse.Namespace) -> ExitCode:
    from allranks.schedule.request import Attempt, Surroundings, job_spec  # noqa: PLC0415

    attempt = Attempt(run_id="dry-run", number=1, seed=options.seed or 0, pytest_args=options.pytest_args)
    requests = [job_spec(expansion.matrix, job, Surroundings(image=job.image.name), attempt).to_json() for job in jobs]
    _say(json.dumps(requests, indent=1))
    return ExitCode.OK


def _build(options: argparse.Namespace) -> ExitCode:
    expansion = expand(load(options.matrix))
    build(expansion.matrix, _jobs_to_build_for(expansion, options), options, _say)
    return ExitCode.OK


def _jobs_to_build_for(expansion: Expansion, options: argparse.Namespace) -> Sequence[Job]:
    from allranks.schedule.machines.planning import planned_jobs  # noqa: PLC0415 - no other build needs it

    if options.plan_file is None:
        return _chosen_jobs(expansion, options)
    if options.cells or options.where or options.suite:
        msg = "A plan file says already which cells and suites are meant."
        raise UsageError(msg, remedy="Leave away cells, --where and --suite, or --plan-file.")
    return planned_jobs(expansion, options.plan_file)


def _merge(options: argparse.Namespace) -> ExitCode:
    return _merged(options)[1]


def _report(options: argparse.Namespace) -> ExitCode:
    import webbrowser  # noqa: PLC0415 - it takes as long as a small plan

    page, code = _merged(options)
    if options.open and not webbrowser.open(page.as_uri()):
        _say(f"no browser could be started: open {page}")
    return code


def _merged(options: argparse.Namespace) -> tuple[Path, ExitCode]:
    """The page and the exit code of what has been merged, reported and shown."""
    from allranks.report.baseline import update_baseline  # noqa: PLC0415 - no plan needs it
    from allranks.report.durations import Meter  # noqa: PLC0415
    from allranks.report.durations_file import keep_durations  # noqa: PLC0415
    from allranks.report.exit_code import exit_code  # noqa: PLC0415
    from allranks.report.junit_form import JUnitForm  # noqa: PLC0415
    from allranks.report.merge import merge  # noqa: PLC0415
    from allranks.report.table import render_table as render_results  # noqa: PLC0415
    from allranks.schedule.console import console_for  # noqa: PLC0415
    from allranks.schedule.heard import complete_dead_runs  # noqa: PLC0415
    from allranks.schedule.run import MEANING  # noqa: PLC0415

    complete_dead_runs(options.folder)
    meter = Meter()
    merged = merge(
        options.folder,
        policy=options.policy,
        observers=[meter.add] if options.durations else [],
        baseline=_baseline(options),
        junit_form=JUnitForm(schema=options.schema, classname=options.classname),
    )
    if options.durations:
        keep_durations(options.durations, meter.durations, _say)
    if options.update_baseline:
        update_baseline(options.update_baseline, merged.suites)
    code = exit_code(merged, nothing_ran_allowed=options.allow_nothing_ran)
    report = "\n        ".join(map(str, merged.junit_files))
    with console_for(_say) as console:
        console.say(f"{render_results(merged)}\n\nreport: {report}\npage: {merged.page}")
        console.annotate(merged)
    _say(f"exit code {code:d}: {MEANING[code]}")
    return merged.page, code


def _baseline(options: argparse.Namespace) -> "Baseline | None":
    """What the merge goes by: nothing where the baseline is to be made anew, None for what the run's manifest says."""
    from allranks.report.baseline import read_baseline  # noqa: PLC0415 - no plan needs it

    if options.update_baseline:
        return {}
    return read_baseline(options.baseline) if options.baseline else None


def _leases(_options: argparse.Namespace) -> ExitCode:
    from allranks.schedule.inventory import take_inventory  # noqa: PLC0415
    from allranks.schedule.leases import holders  # noqa: PLC0415

    found = holders(take_inventory().gpus)
    for gpu, holder in found.items():
        _say(f"{gpu}: {_held_by(holder) if holder else 'free'}")
    if not found:
        _say("this host has no GPUs that allranks could lease")
    return ExitCode.OK


def _images(options: argparse.Namespace) -> ExitCode:
    from allranks.commands import stored_images  # noqa: PLC0415 - a plan needs no SDK
    from allranks.image.pruning import Limits  # noqa: PLC0415

    limits = Limits(unused=options.older_than, size=options.keep_size)
    if options.prune:
        act = stored_images.preview if options.dry_run else stored_images.prune
        act(limits, _say)
    elif options.dry_run or limits != Limits():
        msg = "--older-than, --keep-size and --dry-run are about what --prune removes."
        raise UsageError(msg, remedy="Add --prune, or leave them away to see all images.")
    else:
        stored_images.show(_say)
    return ExitCode.OK


def _doctor(options: argparse.Namespace) -> ExitCode:
    from allranks.doctor import examine  # noqa: PLC0415 - no plan needs it

    problems = 0
    for finding in examine(options.engine, options.gpu_mode, options.results or Path("results")):
        _say(finding.line)
        problems += bool(finding.remedy)
    _say(f"{problems} problem(s)" if problems else "no problem was found")
    return ExitCode.INFRASTRUCTURE if problems else ExitCode.OK


def _held_by(holder: "Holder") -> str:
    if not holder.run_id:
        return "held, and nobody knows by whom"
    began = datetime.fromtimestamp(holder.since, UTC).isoformat(sep=" ", timespec="seconds")
    return f"held by {holder.job_id} of run {holder.run_id} (process {holder.pid}) since {began}"


def _clean(_options: argparse.Namespace) -> ExitCode:
    from allranks.schedule.host import engines  # noqa: PLC0415

    removed = [name for engine in engines() for name in engine.reap()]
    for name in removed:
        _say(f"removed {name}")
    if not removed:
        _say("nothing to remove: every run on this host has an owner, or left nothing behind")
    return ExitCode.OK
