"""``[images.NAME]``: the image that each cell runs in."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from allranks.errors import MatrixError
from allranks.matrix.axes import comparable
from allranks.matrix.model import Cell, Image, Matrix
from allranks.matrix.toml_file import location


def image_for(matrix: Matrix, cell: Cell) -> Image:
    """The one image of a cell; an image without its own torch has a variant, with its own name, for each version.

    In a file without any, it has no name: its cells run only in the interpreter of processes.
    """
    if not matrix.images:
        return Image(name="", torch=cell.torch or None)
    images = [image for image in matrix.images.values() if cell.matches(image.when)]
    if len(images) != 1:
        raise _image_error(matrix, cell, images)
    image = _with_torch(images[0], matrix, cell)
    paths = dict.fromkeys(path for suite in matrix.suites.values() if suite.home is None for path in suite.paths)
    tests = tuple(paths) if image.project else ()
    return replace(image, image=matrix.finished.get(image.name, image.image), tests=tests)


def check_images(matrix: Matrix, cells: Iterable[Cell]) -> None:
    """Refuses a matrix in which a cell does not have exactly one image."""
    for cell in cells:
        image_for(matrix, cell)


def _with_torch(image: Image, matrix: Matrix, cell: Cell) -> Image:
    if image.image is not None or not cell.torch:
        return image
    if image.torch is None:
        return replace(image, name=f"{image.name}-t{cell.torch}", torch=cell.torch)
    if comparable("torch", image.torch) != comparable("torch", cell.torch):
        where = location(matrix.path, image.line, f"images.{image.name}")
        what = f"{where}: the cell {cell.id} would run in an image with torch {image.torch}."
        remedy = f"""Drop torch to have an image for each version, or add when = "torch == '{image.torch}'"."""
        raise MatrixError(what, remedy=remedy)
    return image


def _image_error(matrix: Matrix, cell: Cell, images: Sequence[Image]) -> MatrixError:
    candidates = images or list(matrix.images.values())
    rules = "; ".join(map(_described, candidates))
    where = location(matrix.path, candidates[-1].line, "images")
    if images:
        what = f"{where}: the cell {cell.id} has {len(images)} images."
        return MatrixError(what, why=f"All of these hold: {rules}.", remedy="Make their conditions exclude each other.")
    remedy = "Add an image whose condition holds there, or widen one of these."
    return MatrixError(
        f"{where}: the cell {cell.id} has no image.", why=f"None of these holds: {rules}.", remedy=remedy
    )


def _described(image: Image) -> str:
    rule = f"when = {image.when.source!r}" if image.when else "for every cell"
    return f"images.{image.name} in line {image.line}, {rule}"
