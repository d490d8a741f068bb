"""``allranks build``: builds the images of jobs without running the jobs."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from allranks.cli.options import engine_option, quiet_option
from allranks.cli.parser import flag, option
from allranks.cli.printing import say
from allranks.cli.selection import Selection, read_request, selected_jobs
from allranks.cli.variables import IMAGES_VARIABLE, PLAN_FILE_VARIABLE, PlanVariables
from allranks.errors import ExitCode, UsageError
from allranks.matrix.expand import Expansion
from allranks.matrix.model import Image, Job, Matrix
from allranks.runner.ci_service import untrusted_output

if TYPE_CHECKING:
    from allranks.images.daemon import BuildContext
    from allranks.images.sharing import ImageStore

# The Docker SDK and the modules that need it are imported late: see engines/docker.py.


_WHICH = "which images to build"
_WHERE = "where to store them"


@dataclass(frozen=True, kw_only=True)
class Options(Selection):
    """The options of ``allranks build``."""

    usage: ClassVar = "allranks build [CELL ...] [options]"

    without_gpus: bool = flag("--without-gpus", _WHICH, "only the images of jobs without GPUs")
    engine: str = engine_option(_WHICH)
    quiet: bool = quiet_option(_WHICH, "print only the finished images")
    export: Path | None = option(
        "--export DIR", _WHERE, f"also export them to this folder, to set as {IMAGES_VARIABLE} for runs", type=Path
    )
    registry: str | None = option(
        "--registry NAME",
        _WHERE,
        "with --export: do not build images that are in this registry, such as ghcr.io/owner/repository",
    )
    push: bool = flag("--push", _WHERE, "push missing images to that registry")
    results: Path | None = option(
        "--results DIR",
        _WHERE,
        "if the build fails, record the error here as the result of each job of the plan",
        type=Path,
    )
    dry_run: bool = flag("--dry-run", _WHERE, "print the names and references of the images, and stop")


def run(options: Options) -> ExitCode:
    """Build the images of the selected cells, or of all jobs of a plan."""
    expansion, options = read_request(options)
    _build_for(_jobs_to_build_for(expansion, options), expansion.matrix, options)
    return ExitCode.OK


def _jobs_to_build_for(expansion: Expansion, options: Options) -> Sequence[Job]:
    plan_file = PlanVariables.read().file
    if plan_file is None:
        return selected_jobs(expansion, options)
    if options.cells or options.where or options.suite:
        msg = f"The plan file in {PLAN_FILE_VARIABLE} already selects cells and suites."
        raise UsageError(msg, remedy=f"Drop cells, --where and --suite, or unset {PLAN_FILE_VARIABLE}.")
    from allranks.runner.machines.plan_file import planned_jobs  # noqa: PLC0415 - no other build needs it

    return planned_jobs(expansion, plan_file)


def _build_for(jobs: Iterable[Job], matrix: Matrix, options: Options) -> None:
    from allranks.engines.registry import choose_engine  # noqa: PLC0415
    from allranks.images.daemon import BuildContext  # noqa: PLC0415

    _check_options(options)
    images = dict.fromkeys(job.image for job in jobs if not (options.without_gpus and job.cell.gpu_count))
    engine, why = choose_engine(options.engine)
    client = engine.image_daemon
    if client is None:
        from allranks.images.sharing import write_list  # noqa: PLC0415

        say(f"engine: {engine.name} ({why}), which uses no images")
        if options.export:
            write_list(options.export, ())
        return
    with closing(client):
        context = BuildContext(client=client, root=matrix.root, progress=_silent if options.quiet else say)
        _build_images(list(images), context, options, matrix.limits.build)


def _silent(_message: str) -> None:
    """Print no progress."""


def _check_options(options: Options) -> None:
    if options.results and PlanVariables.read().file is None:
        what = f"--results needs {PLAN_FILE_VARIABLE}: it records a failed build for each job of a plan."
        raise UsageError(what, remedy="Set the variable, or drop --results.")
    if options.registry and not options.export:
        what = "--registry needs --export: other machines read the names of the images from the exported folder."
        raise UsageError(what, remedy=f"Add --export DIR, and set {IMAGES_VARIABLE}=DIR for allranks run.")
    if options.push and not options.registry:
        msg = "--push needs --registry."
        raise UsageError(msg, remedy="Add --registry NAME.")


def _build_images(images: Sequence[Image], context: "BuildContext", options: Options, seconds: float) -> None:
    from allranks.images.built_image import build_limit, ensure_image, image_reference  # noqa: PLC0415
    from allranks.images.sharing import export_images  # noqa: PLC0415

    if options.dry_run:
        # CI steps parse standard output, so the progress of pulling a base image must not be printed.
        silent = replace(context, progress=_silent)
        for image in images:
            say(f"{image.name} {image_reference(image, silent)}")
        return
    with untrusted_output(say):  # a project's own build may print anything
        if options.export:
            for exported in export_images(images, _store(options, options.export), context, seconds):
                say(f"{exported.name}: {exported.reference}{f' in {exported.file}' if exported.file else ''}")
        else:
            for image in images:
                with build_limit(image, seconds):
                    built = ensure_image(image, root=context.root, client=context.client, progress=context.progress)
                say(f"{image.name}: {built.reference}")


def _store(options: Options, folder: Path) -> "ImageStore":
    from allranks.images.sharing import ImageStore, as_archive, by_push  # noqa: PLC0415

    return ImageStore(folder=folder, put=by_push if options.push else as_archive, registry=options.registry or "")
