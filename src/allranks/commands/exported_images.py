"""``allranks run --images``: a run takes the images that ``allranks build --export`` has put into a folder."""

import argparse
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from allranks.matrix.model import Matrix

Say = Callable[[str], None]

# The Docker SDK, and what needs it, is imported late: see schedule/host.py.


def add_images(parser: argparse.ArgumentParser) -> None:
    """Where a run takes images from."""
    parser.add_argument(
        "--images", type=Path, metavar="DIR", help="take the images that `allranks build --export DIR` put there"
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
    from allranks.image.portable import read_images, take_images  # noqa: PLC0415

    there = read_images(folder)
    if not (wanted := [there[name] for name in dict.fromkeys(names) if name in there]):
        return matrix
    with closing(connect()) as client:
        return replace(matrix, finished=take_images(wanted, folder, client, say))
