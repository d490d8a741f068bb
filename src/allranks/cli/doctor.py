"""``allranks doctor``: checks whether this host can run jobs, or shows who holds its GPUs."""

import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from allranks.cli.options import (
    engine_option,
    gpu_mode,
    json_option,
    matrix_option,
    quiet_option,
    results_here,
    results_option,
)
from allranks.cli.parser import CommandOptions, flag, option
from allranks.cli.printing import iso_time, say, say_json
from allranks.cli.variables import BATCH_VARIABLE, PLAN_FILE_VARIABLE, PlanVariables
from allranks.engines import AUTO
from allranks.errors import DeviceError, ExitCode, MatrixError, UsageError, counted

if TYPE_CHECKING:
    from allranks.engines.base import Finding
    from allranks.runner.gpu_leases import Holder

_CHECKS = "what to check"
_CELLS = "to check the requirements of cells, before anything is built"
_OUTPUT = "output"


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of ``allranks doctor``."""

    usage: ClassVar = "allranks doctor [options]"

    engine: str = engine_option(_CHECKS)
    results: Path | None = results_option(_CHECKS)
    cell: tuple[str, ...] = option(
        "--cell CELL", _CELLS, "check what this cell needs of this machine; repeatable", action="append"
    )
    matrix: Path | None = matrix_option(_CELLS)
    gpus: bool = flag("--gpus", "to show GPU leases", "show which run and which job holds each GPU of this host")
    json: bool = json_option(_OUTPUT)
    quiet: bool = quiet_option(_OUTPUT, "print only problems and their number")


def run(options: Options) -> ExitCode:
    """Check this host."""
    if options.gpus:
        return _show_leases(options)
    problems = _print(_check(options), options)
    batch = PlanVariables.read().batch
    if problems and batch and options.results:  # this error becomes the result of each job of the batch
        subjects = ", ".join(dict.fromkeys(problem.subject for problem in problems))
        what = f"{socket.gethostname()} does not meet the requirements of the batch {batch}: {subjects}."
        why = " ".join(f"{problem.subject}: {problem.text}." for problem in problems)
        raise DeviceError(what, why=why, remedy=" ".join(dict.fromkeys(problem.remedy for problem in problems)))
    return ExitCode.INFRASTRUCTURE if problems else ExitCode.OK


def _check(options: Options) -> "Iterable[Finding]":
    """Check this host in general, or for the cells of the options or of a plan."""
    part, mode = PlanVariables.read().part(), gpu_mode()
    if options.cell and part:
        msg = f"--cell cannot be combined with {BATCH_VARIABLE}, which selects the cells of this machine."
        raise UsageError(msg, remedy=f"Unset {BATCH_VARIABLE} and {PLAN_FILE_VARIABLE}, or drop --cell.")
    if not options.cell and not part:
        from allranks.cli.host_checks import check_host  # noqa: PLC0415

        results, python = options.results or results_here(), _declared_python(options.matrix)
        return check_host(options.engine, mode, results, python=python)
    from allranks.cli.machine_demands import Target, check_demands  # noqa: PLC0415
    from allranks.matrix.cell_images import image_for  # noqa: PLC0415
    from allranks.matrix.declaration import find_matrix, load  # noqa: PLC0415
    from allranks.matrix.select import select  # noqa: PLC0415

    expansion = load(options.matrix or find_matrix(Path.cwd()))
    engine = options.engine
    if part:
        from allranks.runner.machines.plan_file import load_part  # noqa: PLC0415

        own = load_part(expansion, *part)
        cells = {job.cell: job.image for job in own.jobs}
        engine = own.batch.engine or "docker" if engine == AUTO else engine
    else:
        named = [cell for text in options.cell for cell in select(expansion, text)]
        cells = {cell: image_for(expansion.matrix, cell) for cell in named}
    return check_demands(cells, expansion.matrix, Target(engine=engine, mode=mode))


def _declared_python(matrix: Path | None) -> str | None:
    """The interpreter that the matrix file names, if any."""
    from allranks.engines.process_environments import declared_python  # noqa: PLC0415
    from allranks.matrix.declaration import find_matrix, load  # noqa: PLC0415

    with suppress(MatrixError):  # a run reports errors in the file
        path = matrix or find_matrix(Path.cwd())
        return declared_python(load(path).matrix.process, path if path.is_dir() else path.parent)
    return None


def _print(checks: "Iterable[Finding]", options: Options) -> "list[Finding]":
    """Print findings as they come; return the problems."""
    findings = []
    for finding in checks:
        findings.append(finding)
        if not options.json and (finding.remedy or not options.quiet):
            say(finding.line)
    problems = [finding for finding in findings if finding.remedy]
    if options.json:
        objects = [
            {"subject": finding.subject, "state": finding.text, "remedy": finding.remedy or None}
            for finding in findings
        ]
        say_json(problems=len(problems), findings=objects)
    else:
        say(counted(len(problems), "problem") if problems else "no problems found")
    return problems


def _show_leases(options: Options) -> ExitCode:
    from allranks.engines.gpus import take_inventory  # noqa: PLC0415
    from allranks.runner.gpu_leases import holders  # noqa: PLC0415

    found = holders(take_inventory().gpus)
    if options.json:
        say_json(gpus=[{"gpu": gpu, "holder": _holder(holder)} for gpu, holder in found.items()])
        return ExitCode.OK
    for gpu, holder in found.items():
        say(f"{gpu}: {_held_by(holder) if holder else 'free'}")
    if not found:
        say("this host has no GPUs that allranks can lease")
    return ExitCode.OK


def _holder(holder: "Holder | None") -> Mapping[str, object] | None:
    """The JSON object of a GPU's holder; None if the GPU is free, null fields if the holder is unknown."""
    if holder is None:
        return None
    if not holder.run_id:
        return dict.fromkeys(("run_id", "job", "pid", "since"))
    return {"run_id": holder.run_id, "job": holder.job_id, "pid": holder.pid, "since": iso_time(holder.since)}


def _held_by(holder: "Holder") -> str:
    if not holder.run_id:
        return "held by an unknown process"
    began = datetime.fromtimestamp(holder.since, UTC).isoformat(sep=" ", timespec="seconds")
    return f"held by {holder.job_id} of run {holder.run_id} (process {holder.pid}) since {began}"
