"""``allranks build``: the images of jobs, apart from the jobs; and ``--images``, which takes what it has exported."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.errors import UsageError
from allranks.matrix.model import Image, Job, Matrix

if TYPE_CHECKING:
    from allranks.image.daemon import Site
    from allranks.image.portable import Shelf

Say = Callable[[str], None]

# The Docker SDK, and what needs it, is imported late: see schedule/host.py.


def add_build(parser: argparse.ArgumentParser) -> None:
    """What becomes of the images; which they are, other options say."""
    parser.add_argument(
        "--export", type=Path, metavar="DIR", help="also put them into this folder, for `allranks run --images DIR`"
    )
    parser.add_argument(
        "--registry",
        metavar="NAME",
        help="with --export: what this registry has (ghcr.io/owner/repository) is not built, and taken from there",
    )
    parser.add_argument("--without-gpus", action="store_true", help="only those that a job without GPUs runs in")
    parser.add_argument("--push", action="store_true", help="what it does not have is pushed to it")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the names, with the key of what goes in, and stop"
    )


def add_images(parser: argparse.ArgumentParser) -> None:
    """Where a run takes images from."""
    parser.add_argument(
        "--images", type=Path, metavar="DIR", help="take the images that `allranks build --export DIR` put there"
    )


def build(matrix: Matrix, jobs: Iterable[Job], options: argparse.Namespace, say: Say) -> None:
    """Have the images of jobs built.

    Args:
        matrix: Where the jobs come from.
        jobs: Whose images.
        options: Of :func:`add_build`, and the engine.
        say: Prints one line.

    Raises:
        UsageError: The options contradict each other.
        EngineError: The docker engine was asked for, and no daemon answers.
        ImageError: An image cannot be built, or cannot be put where it should go.
    """
    from allranks.image.daemon import Site  # noqa: PLC0415
    from allranks.schedule.host import client_for  # noqa: PLC0415

    _check(options)
    of = [job for job in jobs if not (options.without_gpus and job.cell.gpu_count)]
    images = list(dict.fromkeys(job.image for job in of))
    client, why = client_for(options.engine)
    if client is None:
        say(f"engine: process ({why}), which runs no images")
        if options.export:
            _write_empty(options.export)
        return
    with closing(client):
        _build(images, Site(client=client, root=matrix.root, progress=say), options, say)


def _check(options: argparse.Namespace) -> None:
    if options.registry and not options.export:
        what = "--registry says where other machines find an image, and nothing tells them."
        raise UsageError(what, remedy="Add --export DIR, and give that folder to `allranks run --images DIR`.")
    if options.push and not options.registry:
        msg = "--push has no registry to push to."
        raise UsageError(msg, remedy="Add --registry NAME.")


def _write_empty(folder: Path) -> None:
    from allranks.image.portable import write_list  # noqa: PLC0415

    write_list(folder, ())


def _build(images: Sequence[Image], site: "Site", options: argparse.Namespace, say: Say) -> None:
    from allranks.image.build import ensure_image, image_reference  # noqa: PLC0415
    from allranks.image.portable import export_images  # noqa: PLC0415

    if options.dry_run:
        # What the steps of a CI go by: nothing else may be on standard output, such as that a base image is pulled.
        silent = replace(site, progress=lambda _line: None)
        for image in images:
            say(f"{image.name} {image_reference(image, silent)}")
    elif options.export:
        for exported in export_images(images, _shelf(options), site):
            say(f"{exported.name}: {exported.reference}{f' in {exported.file}' if exported.file else ''}")
    else:
        for image in images:
            say(f"{image.name}: {ensure_image(image, root=site.root, client=site.client, progress=say).reference}")


def _shelf(options: argparse.Namespace) -> "Shelf":
    from allranks.image.portable import Shelf, as_archive, in_no_registry  # noqa: PLC0415
    from allranks.image.registry import by_push, look_up  # noqa: PLC0415

    return Shelf(
        folder=options.export,
        put=by_push(options.registry) if options.push else as_archive,
        known=look_up(options.registry) if options.registry else in_no_registry,
    )


def taking_images(matrix: Matrix, folder: Path, names: Iterable[str], say: Say) -> Matrix:
    """The matrix with the images that a folder has in the place of those that it would build; archives are loaded.

    Args:
        matrix: As the file has it.
        folder: What ``allranks build --export`` left.
        names: The images that are needed; those that are not in the folder stay as they are.
        say: Prints one line.

    Raises:
        EngineError: No daemon answers that could load them.
        ImageError: The folder or an image cannot be used.
    """
    from allranks.engine.docker import connect  # noqa: PLC0415
    from allranks.image.portable import read_images, take_images, with_images  # noqa: PLC0415

    there = read_images(folder)
    if not (wanted := [there[name] for name in dict.fromkeys(names) if name in there]):
        return matrix
    with closing(connect()) as client:
        return with_images(matrix, take_images(wanted, folder, client, say))
