"""``allranks doctor``: whether this host can run jobs, what cells need of it, and who holds its GPUs."""

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
from allranks.cli.printing import moment, say, say_json
from allranks.cli.variables import PACK_VARIABLE, PlanVariables
from allranks.engines import AUTO
from allranks.errors import DeviceError, ExitCode, MatrixError, UsageError

if TYPE_CHECKING:
    from allranks.engines.base import Finding
    from allranks.runner.gpu_leases import Holder

_CHECKS = "what to check"
_CELLS = "instead: what cells need of this machine, before anything is built"
_OUTPUT = "output"


@dataclass(frozen=True, kw_only=True)
class Options(CommandOptions):
    """The options of ``allranks doctor``."""

    usage: ClassVar = "allranks doctor [options]"

    engine: str = engine_option(_CHECKS)
    results: Path | None = results_option(_CHECKS)
    cell: tuple[str, ...] = option("--cell CELL", _CELLS, "what this cell needs; repeatable", action="append")
    matrix: Path | None = matrix_option(_CELLS)
    gpus: bool = flag(
        "--gpus", "instead: the leases of GPUs", "show which run and which job holds each GPU of this host"
    )
    json: bool = json_option(_OUTPUT)
    quiet: bool = quiet_option(_OUTPUT, "print problems and their number alone")


def run(options: Options) -> ExitCode:
    """Check this host."""
    if options.gpus:
        return _show_leases(options)
    problems = _tell(_examined(options), options)
    pack = PlanVariables.read().pack
    if problems and pack and options.results:  # as a run of the pack ends, for its jobs' results
        lacks = ", ".join(dict.fromkeys(each.subject for each in problems))  # the gate shows this sentence alone
        what = f"{socket.gethostname()} lacks what the pack {pack} needs: {lacks}."
        why = " ".join(f"{each.subject}: {each.text}." for each in problems)
        raise DeviceError(what, why=why, remedy=" ".join(dict.fromkeys(each.remedy for each in problems)))
    return ExitCode.INFRASTRUCTURE if problems else ExitCode.OK


def _examined(options: Options) -> "Iterable[Finding]":
    """The findings that the options, or the variables of a machine of a plan, ask for."""
    part, mode = PlanVariables.read().part(), gpu_mode()
    if options.cell and part:
        msg = f"--cell stands alone, and {PACK_VARIABLE} names the cells of this machine."
        raise UsageError(msg, remedy="Unset the variables of the plan, or drop --cell.")
    if not options.cell and not part:
        from allranks.cli.host_checks import examine  # noqa: PLC0415

        return examine(options.engine, mode, options.results or results_here(), python=_declared_python(options.matrix))
    from allranks.cli.machine_demands import Where, examine_demands  # noqa: PLC0415
    from allranks.matrix.cell_images import image_for  # noqa: PLC0415
    from allranks.matrix.declaration import find_matrix, load  # noqa: PLC0415
    from allranks.matrix.select import select  # noqa: PLC0415

    expansion = load(options.matrix or find_matrix(Path.cwd()))
    engine = options.engine
    if part:
        from allranks.runner.machines.plan_file import own_part  # noqa: PLC0415

        own = own_part(expansion, *part)
        cells = {job.cell: job.image for job in own.jobs}
        engine = own.pack.engine or "docker" if engine == AUTO else engine
    else:
        named = [cell for text in options.cell for cell in select(expansion, text)]
        cells = {cell: image_for(expansion.matrix, cell) for cell in named}
    return examine_demands(cells, expansion.matrix, Where(engine=engine, mode=mode))


def _declared_python(matrix: Path | None) -> str | None:
    """The interpreter that the matrix file names; None where no file names one."""
    from allranks.engines.process_environments import declared_python  # noqa: PLC0415
    from allranks.matrix.declaration import find_matrix, load  # noqa: PLC0415

    with suppress(MatrixError):  # a run reports what is wrong with the file
        path = matrix or find_matrix(Path.cwd())
        return declared_python(load(path).matrix.process, path if path.is_dir() else path.parent)
    return None


def _tell(examined: "Iterable[Finding]", options: Options) -> "list[Finding]":
    """Print findings as they come; return those that are problems."""
    findings = []
    for finding in examined:
        findings.append(finding)
        if not options.json and (finding.remedy or not options.quiet):
            say(finding.line)
    problems = [each for each in findings if each.remedy]
    if options.json:
        told = [{"subject": each.subject, "state": each.text, "remedy": each.remedy or None} for each in findings]
        say_json(problems=len(problems), findings=told)
    else:
        say(f"{len(problems)} problem(s)" if problems else "no problem was found")
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
