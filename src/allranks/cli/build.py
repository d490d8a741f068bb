"""``allranks build``: the images of jobs, apart from the jobs."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from allranks.cli.options import engine_option, quiet_option
from allranks.cli.parser import flag, option
from allranks.cli.printing import say
from allranks.cli.selection import Selection, chosen_jobs, read_request
from allranks.cli.variables import IMAGES_VARIABLE, PLAN_FILE_VARIABLE, PlanVariables
from allranks.errors import ExitCode, UsageError
from allranks.matrix.expand import Expansion
from allranks.matrix.model import Image, Job, Matrix
from allranks.runner.ci_service import untrusted_output

if TYPE_CHECKING:
    from allranks.images.daemon import BuildContext
    from allranks.images.sharing import ImageStore

# The Docker SDK and the modules that need it are imported late: see engines/docker.py.


_WHICH = "which of their images"
_WHERE = "where to put them"


@dataclass(frozen=True, kw_only=True)
class Options(Selection):
    """The options of ``allranks build``."""

    usage: ClassVar = "allranks build [CELL ...] [options]"

    without_gpus: bool = flag("--without-gpus", _WHICH, "only the images of jobs without GPUs")
    engine: str = engine_option(_WHICH)
    quiet: bool = quiet_option(_WHICH, "print the finished images alone")
    export: Path | None = option(
        "--export DIR", _WHERE, f"also put them into this folder, for the {IMAGES_VARIABLE} of runs", type=Path
    )
    registry: str | None = option(
        "--registry NAME",
        _WHERE,
        "with --export: images that this registry (ghcr.io/owner/repository) has are taken from it, not built",
    )
    push: bool = flag("--push", _WHERE, "push missing images to it")
    results: Path | None = option(
        "--results DIR",
        _WHERE,
        "if the build fails, leave the reason here as the result of each job of the plan",
        type=Path,
    )
    dry_run: bool = flag("--dry-run", _WHERE, "print the names and the keys of the contents, and stop")


def run(options: Options) -> ExitCode:
    """Build the images of the selected cells, or of all jobs of the plan that a variable names."""
    expansion, options = read_request(options)
    _build_for(_jobs_to_build_for(expansion, options), expansion.matrix, options)
    return ExitCode.OK


def _jobs_to_build_for(expansion: Expansion, options: Options) -> Sequence[Job]:
    from allranks.runner.machines.plan_file import planned_jobs  # noqa: PLC0415 - no other build needs it

    plan_file = PlanVariables.read().file
    if plan_file is None:
        return chosen_jobs(expansion, options)
    if options.cells or options.where or options.suite:
        msg = f"A plan file ({PLAN_FILE_VARIABLE}) already names its cells and suites."
        raise UsageError(msg, remedy=f"Drop cells, --where and --suite, or unset {PLAN_FILE_VARIABLE}.")
    return planned_jobs(expansion, plan_file)


def _build_for(jobs: Iterable[Job], matrix: Matrix, options: Options) -> None:
    from allranks.engines.registry import choose_engine  # noqa: PLC0415
    from allranks.images.daemon import BuildContext  # noqa: PLC0415

    _check(options)
    of = [job for job in jobs if not (options.without_gpus and job.cell.gpu_count)]
    images = list(dict.fromkeys(job.image for job in of))
    engine, why = choose_engine(options.engine)
    client = engine.image_daemon
    if client is None:
        say(f"engine: {engine.name} ({why}), which uses no images")
        if options.export:
            _write_empty(options.export)
        return
    with closing(client):
        context = BuildContext(client=client, root=matrix.root, progress=_silent if options.quiet else say)
        _build_images(images, context, options, matrix.limits.build)


def _silent(_line: str) -> None:
    """Take a line of progress."""


def _check(options: Options) -> None:
    if options.results and PlanVariables.read().file is None:
        what = (
            f"--results needs {PLAN_FILE_VARIABLE}: the reason of a failed build is the result of each job of a plan."
        )
        raise UsageError(what, remedy="Set the variable, or drop --results.")
    if options.registry and not options.export:
        what = "--registry needs --export: other machines read the address of an image from the exported folder."
        raise UsageError(what, remedy=f"Add --export DIR, and give that folder to runs: {IMAGES_VARIABLE}=DIR.")
    if options.push and not options.registry:
        msg = "--push has no registry to push to."
        raise UsageError(msg, remedy="Add --registry NAME.")


def _write_empty(folder: Path) -> None:
    from allranks.images.sharing import write_list  # noqa: PLC0415

    write_list(folder, ())


def _build_images(images: Sequence[Image], context: "BuildContext", options: Options, seconds: float) -> None:
    from allranks.images.built_image import build_limit, ensure_image, image_reference  # noqa: PLC0415
    from allranks.images.sharing import export_images  # noqa: PLC0415

    if options.dry_run:
        # CI steps parse standard output: nothing else may be on it, such as progress of pulling a base image.
        silent = replace(context, progress=_silent)
        for image in images:
            say(f"{image.name} {image_reference(image, silent)}")
        return
    with untrusted_output(say):  # a project's own build prints what it likes
        if options.export:
            for exported in export_images(images, _store(options, options.export), context, seconds):
                say(f"{exported.name}: {exported.reference}{f' in {exported.file}' if exported.file else ''}")
        else:
            for image in images:
                with build_limit(image, seconds):
                    built = ensure_image(image, root=context.root, client=context.client, progress=context.progress)
                say(f"{image.name}: {built.reference}")


def _store(options: Options, folder: Path) -> "ImageStore":
    from allranks.images.sharing import ImageStore, as_archive, by_push, in_no_registry, look_up  # noqa: PLC0415

    return ImageStore(
        folder=folder,
        put=by_push(options.registry) if options.push and options.registry else as_archive,
        known=look_up(options.registry) if options.registry else in_no_registry,
    )
