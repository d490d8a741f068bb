"""The state of this host: ``allranks doctor``, ``allranks leases`` and ``allranks clean``."""

import argparse
import socket
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.cli.command_parser import CommandParser
from allranks.cli.options import (
    add_engine,
    add_gpu_mode,
    add_json,
    add_matrix,
    add_quiet,
    add_results,
    moment,
    results_here,
    say,
    say_json,
)
from allranks.engines import AUTO
from allranks.errors import DeviceError, EngineError, ExitCode, UsageError
from allranks.matrix.cell_images import image_for
from allranks.matrix.declaration import find_matrix, load
from allranks.matrix.select import select

if TYPE_CHECKING:
    from allranks.engines.base import Finding
    from allranks.runner.gpu_leases import Holder


def add_doctor(parser: CommandParser) -> None:
    """Declare the arguments of ``allranks doctor``."""
    parser.usage = "allranks doctor [options]"
    group = parser.add_argument_group("what to check")
    add_engine(group)
    add_gpu_mode(group)
    add_results(group)
    group = parser.add_argument_group("instead: what cells need of this machine, before anything is built")
    group.add_argument("--cell", action="append", metavar="CELL", help="what this cell needs; repeatable")
    meaning = "what a pack of this plan needs, with --pack; with --results, problems are the results of its jobs"
    group.add_argument("--plan-file", type=Path, metavar="FILE", help=meaning)
    group.add_argument("--pack", metavar="PACK", help="the pack, as for `allranks run`")
    add_matrix(group)
    group = parser.add_argument_group("output")
    add_json(group)
    add_quiet(group, "print problems and their number alone")
    parser.set_defaults(command=_doctor)


def _examined(options: argparse.Namespace) -> "Iterable[Finding]":
    """The findings that the options ask for.

    Raises:
        UsageError: They ask for what does not exist.
    """
    from allranks.cli.host_checks import examine  # noqa: PLC0415 - no plan needs it
    from allranks.cli.machine_demands import Where, examine_demands  # noqa: PLC0415

    if (options.plan_file is None) != (options.pack is None) or (options.cell and options.pack):
        msg = "--plan-file and --pack belong together, and --cell stands alone."
        raise UsageError(msg, remedy="Write --plan-file plan.json --pack PACK, or --cell CELL.")
    if not options.cell and not options.pack:
        return examine(options.engine, options.gpu_mode, options.results or results_here())
    expansion = load(options.matrix or find_matrix(Path.cwd()))
    engine = options.engine
    if options.pack:
        from allranks.runner.machines.plan_file import own_part  # noqa: PLC0415

        own = own_part(expansion, options.plan_file, options.pack)
        cells = {job.cell: job.image for job in own.jobs}
        engine = own.pack.engine or "docker" if engine == AUTO else engine
    else:
        named = [cell for text in options.cell for cell in select(expansion, text)]
        cells = {cell: image_for(expansion.matrix, cell) for cell in named}
    return examine_demands(cells, expansion.matrix, Where(engine=engine, mode=options.gpu_mode))


def _doctor(options: argparse.Namespace) -> ExitCode:
    problems = _tell(_examined(options), options)
    if problems and options.pack and options.results:  # as a run of the pack ends, for its jobs' results
        lacks = ", ".join(dict.fromkeys(each.subject for each in problems))  # the gate shows this sentence alone
        what = f"{socket.gethostname()} lacks what the pack {options.pack} needs: {lacks}."
        why = " ".join(f"{each.subject}: {each.text}." for each in problems)
        raise DeviceError(what, why=why, remedy=" ".join(dict.fromkeys(each.remedy for each in problems)))
    return ExitCode.INFRASTRUCTURE if problems else ExitCode.OK


def _tell(examined: "Iterable[Finding]", options: argparse.Namespace) -> "list[Finding]":
    """Print findings as they come; return those that are problems."""
    findings = []
    for finding in examined:
        findings.append(finding)
        if not options.json and (finding.remedy or options.detail != "quiet"):
            say(finding.line)
    problems = [each for each in findings if each.remedy]
    if options.json:
        told = [{"subject": each.subject, "state": each.text, "remedy": each.remedy or None} for each in findings]
        say_json(problems=len(problems), findings=told)
    else:
        say(f"{len(problems)} problem(s)" if problems else "no problem was found")
    return problems


def add_leases(parser: CommandParser) -> None:
    """Declare ``allranks leases``, which selects nothing."""
    parser.usage = "allranks leases [options]"
    add_json(parser.add_argument_group("output"))
    parser.set_defaults(command=_leases)


def _leases(options: argparse.Namespace) -> ExitCode:
    from allranks.engines.gpus import take_inventory  # noqa: PLC0415
    from allranks.runner.gpu_leases import holders  # noqa: PLC0415

    found = holders(take_inventory().gpus)
    if options.json:
        say_json(gpus=[{"gpu": gpu, "holder": _holder(holder)} for gpu, holder in found.items()])
        return ExitCode.OK
    for gpu, holder in found.items():
        say(f"{gpu}: {_held_by(holder) if holder else 'free'}")
    if not found:
        say("this host has no GPUs that allranks could lease")
    return ExitCode.OK


def _holder(holder: "Holder | None") -> Mapping[str, object] | None:
    """The holder of a GPU for programs; None if it is free, nulls if its process is unknown."""
    if holder is None:
        return None
    if not holder.run_id:
        return dict.fromkeys(("run_id", "job", "pid", "since"))
    return {"run_id": holder.run_id, "job": holder.job_id, "pid": holder.pid, "since": moment(holder.since)}


def _held_by(holder: "Holder") -> str:
    if not holder.run_id:
        return "held by an unknown process"
    began = datetime.fromtimestamp(holder.since, UTC).isoformat(sep=" ", timespec="seconds")
    return f"held by {holder.job_id} of run {holder.run_id} (process {holder.pid}) since {began}"


def add_clean(parser: CommandParser) -> None:
    """Declare ``allranks clean``, which has no arguments."""
    parser.usage = "allranks clean [options]"
    parser.set_defaults(command=_clean)


def _clean(_options: argparse.Namespace) -> ExitCode:
    from allranks.engines.registry import engines_here  # noqa: PLC0415

    found, problems = [], []
    for engine in engines_here():
        try:
            with closing(engine):
                found.append(engine.clean_up())
        except EngineError as error:  # the others have their own
            problems.append(error)
    removed = [name for each in found for name in each.dead]
    for name in removed:
        say(f"removed {name}")
    if not (removed or problems):
        say("nothing to remove: every run on this host is alive or left nothing behind")
    if unknown := [name for each in found for name in each.unknown]:
        say(
            f"not removed: {', '.join(unknown)}. Their runs belong to another host or to another namespace of this "
            "one, and may be alive. Run `allranks clean` there, or remove these by hand if their runs have ended."
        )
    if problems:
        raise problems[0]
    return ExitCode.OK
