"""Finds the image of each cell (``[images.NAME]``)."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from allranks.errors import MatrixError
from allranks.matrix.axes import comparable
from allranks.matrix.model import Cell, Image, Matrix
from allranks.matrix.toml_file import location


def image_for(matrix: Matrix, cell: Cell) -> Image:
    """The image of a cell.

    An image without a torch version has a variant, with its own name, for each version on the axis. If the matrix has
    no images, the result has no name: its cells can only run in the interpreter of the process engine.
    """
    if not matrix.images:
        return Image(name="", torch=cell.torch or None)
    images = [image for image in matrix.images.values() if cell.matches(image.when)]
    if len(images) != 1:
        raise _image_error(matrix, cell, images)
    image = _with_torch(images[0], matrix, cell)
    paths = dict.fromkeys(path for suite in matrix.suites.values() if suite.home is None for path in suite.paths)
    tests = tuple(paths) if image.project else ()
    return replace(image, image=matrix.image_references.get(image.name, image.image), tests=tests)


def check_images(matrix: Matrix, cells: Iterable[Cell]) -> None:
    """Check that each cell has exactly one image."""
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
        remedy = f"""Remove torch to get an image for each version, or add when = "torch == '{image.torch}'"."""
        raise MatrixError(what, remedy=remedy)
    return image


def _image_error(matrix: Matrix, cell: Cell, images: Sequence[Image]) -> MatrixError:
    candidates = images or list(matrix.images.values())
    rules = "; ".join(map(_described, candidates))
    where = location(matrix.path, candidates[-1].line, "images")
    if images:
        what = f"{where}: the cell {cell.id} has {len(images)} images."
        remedy = "Make their conditions exclude each other."
        return MatrixError(what, why=f"All of these match: {rules}.", remedy=remedy)
    remedy = "Add an image whose condition matches the cell, or change one of these."
    return MatrixError(
        f"{where}: the cell {cell.id} has no image.", why=f"None of these matches: {rules}.", remedy=remedy
    )


def _described(image: Image) -> str:
    rule = f"when = {image.when.source!r}" if image.when else "for every cell"
    return f"images.{image.name} on line {image.line}, {rule}"
