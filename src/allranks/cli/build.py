"""``allranks build``: the images of jobs, apart from the jobs."""

import argparse
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.cli.command_parser import CommandParser, OptionGroup
from allranks.cli.options import add_engine, add_quiet, add_selection, chosen_jobs, read_request, say
from allranks.errors import ExitCode, UsageError
from allranks.matrix.expand import Expansion
from allranks.matrix.model import Image, Job
from allranks.runner.ci_service import untrusted_output

if TYPE_CHECKING:
    from allranks.images.daemon import Site
    from allranks.images.sharing import Shelf

# The Docker SDK and the modules that need it are imported late: see engines/docker.py.


def add(parser: CommandParser) -> None:
    """Declare the arguments of ``allranks build``."""
    parser.usage = "allranks build [CELL ...] [options]"
    add_selection(parser)
    group = parser.add_argument_group("which of their images")
    meaning = "build the images of all jobs of this plan, instead of those of the selected cells"
    group.add_argument("--plan-file", type=Path, metavar="FILE", help=meaning)
    group.add_argument("--without-gpus", action="store_true", help="only the images of jobs without GPUs")
    add_engine(group)
    add_quiet(group, "print the finished images alone")
    _add_destination(parser.add_argument_group("where to put them"))
    parser.set_defaults(command=_build)


def _add_destination(group: OptionGroup) -> None:
    meaning = "also put them into this folder, for `allranks run --images DIR`"
    group.add_argument("--export", type=Path, metavar="DIR", help=meaning)
    meaning = "with --export: images that this registry (ghcr.io/owner/repository) has are taken from it, not built"
    group.add_argument("--registry", metavar="NAME", help=meaning)
    group.add_argument("--push", action="store_true", help="push missing images to it")
    meaning = "with --plan-file: if the build fails, leave the reason here as the result of each job of the plan"
    group.add_argument("--results", type=Path, metavar="DIR", help=meaning)
    group.add_argument("--dry-run", action="store_true", help="print the names and the keys of the contents, and stop")


def _build(options: argparse.Namespace) -> ExitCode:
    expansion = read_request(options)
    _build_for(_jobs_to_build_for(expansion, options), expansion.matrix.root, options)
    return ExitCode.OK


def _jobs_to_build_for(expansion: Expansion, options: argparse.Namespace) -> Sequence[Job]:
    from allranks.runner.machines.plan_file import planned_jobs  # noqa: PLC0415 - no other build needs it

    if options.plan_file is None:
        return chosen_jobs(expansion, options)
    if options.cells or options.where or options.suite:
        msg = "A plan file already names its cells and suites."
        raise UsageError(msg, remedy="Drop cells, --where and --suite, or drop --plan-file.")
    return planned_jobs(expansion, options.plan_file)


def _build_for(jobs: Iterable[Job], root: Path, options: argparse.Namespace) -> None:
    from allranks.engines.registry import choose_engine  # noqa: PLC0415
    from allranks.images.daemon import Site  # noqa: PLC0415

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
        _build_images(
            images, Site(client=client, root=root, progress=_silent if options.detail == "quiet" else say), options
        )


def _silent(_line: str) -> None:
    """Take a line of progress."""


def _check(options: argparse.Namespace) -> None:
    if options.results and options.plan_file is None:
        what = "--results needs --plan-file: the reason of a failed build is the result of each job of a plan."
        raise UsageError(what, remedy="Add --plan-file FILE, or drop --results.")
    if options.registry and not options.export:
        what = "--registry needs --export: other machines read the address of an image from the exported folder."
        raise UsageError(what, remedy="Add --export DIR, and give that folder to `allranks run --images DIR`.")
    if options.push and not options.registry:
        msg = "--push has no registry to push to."
        raise UsageError(msg, remedy="Add --registry NAME.")


def _write_empty(folder: Path) -> None:
    from allranks.images.sharing import write_list  # noqa: PLC0415

    write_list(folder, ())


def _build_images(images: Sequence[Image], site: "Site", options: argparse.Namespace) -> None:
    from allranks.images.built_image import ensure_image, image_reference  # noqa: PLC0415
    from allranks.images.sharing import export_images  # noqa: PLC0415

    if options.dry_run:
        # CI steps parse standard output: nothing else may be on it, such as progress of pulling a base image.
        silent = replace(site, progress=_silent)
        for image in images:
            say(f"{image.name} {image_reference(image, silent)}")
        return
    with untrusted_output(say):  # a project's own build prints what it likes
        if options.export:
            for exported in export_images(images, _shelf(options), site):
                say(f"{exported.name}: {exported.reference}{f' in {exported.file}' if exported.file else ''}")
        else:
            for image in images:
                built = ensure_image(image, root=site.root, client=site.client, progress=site.progress)
                say(f"{image.name}: {built.reference}")


def _shelf(options: argparse.Namespace) -> "Shelf":
    from allranks.images.sharing import Shelf, as_archive, by_push, in_no_registry, look_up  # noqa: PLC0415

    return Shelf(
        folder=options.export,
        put=by_push(options.registry) if options.push else as_archive,
        known=look_up(options.registry) if options.registry else in_no_registry,
    )
