"""``[images.NAME]``: the image that each cell runs in."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from allranks.errors import MatrixError, listed, shown
from allranks.matrix.axes import NO_TORCH, Known, comparable, is_version
from allranks.matrix.model import PROJECT_MODES, Cell, Image, Matrix, ProjectMode
from allranks.matrix.toml_file import Table, place

T = TypeVar("T")

BUILD_KEYS = ("base", "torch", "index", "extra_index", "packages", "requirements", "project", "apt", "mode")

DEBIAN_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?(=[A-Za-z0-9.+:~-]+)?")
"""A name (Debian Policy, 5.6.1), with or without architecture and version, as apt-get install accepts it."""


def read_images(file: Table, known: Known) -> dict[str, Image]:
    """Reads the images of a matrix file.

    Args:
        file: The whole file.
        known: Every value that a cell may have, by axis.

    Raises:
        MatrixError: There is none, or a key is wrong.
    """
    tables = file.named_tables("images")
    if not tables:
        raise file.error(name="images", what="there is no image", remedy='Add:  [images.cpu]  torch = "2.13.0"')
    if NO_TORCH in known.values["torch"]:
        for table in tables.values():
            _check_has_torch(table)
    return {name: _image(name, table, known) for name, table in tables.items()}


def _check_has_torch(table: Table) -> None:
    """Refuses an image that does not name its torch if the cells do not either."""
    if not {"image", "torch", "base"} & table.values.keys():
        remedy = 'Add torch = "2.13.0", or image = "name@sha256:…" for a finished one, or a base that has torch.'
        raise table.error(name="", what="the torch version of the image is unknown", remedy=remedy)


def _image(name: str, table: Table, known: Known) -> Image:
    table.only("when", "image", *BUILD_KEYS)
    surplus = [key for key in BUILD_KEYS if key in table]
    if "image" in table and surplus:
        remedy = f"Remove image to have one built, or remove {listed(surplus)}."
        raise table.error(surplus[0], "a finished image is used as it is, and nothing is built into it", remedy)
    requirements, project = (table.text(key, None) for key in ("requirements", "project"))
    return Image(
        name=name,
        when=table.optional_condition(known),
        image=_reference(table, "image", Image.image),
        base=_reference(table, "base", Image.base),
        torch=_torch(table),
        index=table.text("index", Image.index),
        extra_index=table.texts("extra_index"),
        packages=_packages(table),
        requirements=table.existing_path("requirements", requirements) if requirements else None,
        project=table.existing_path("project", project) if project else None,
        apt=_debian_packages(table),
        mode=_project_mode(table),
        line=table.line,
    )


def _reference(table: Table, key: str, default: T) -> str | T:
    text = table.text(key, default, "name:tag")
    if isinstance(text, str) and any(map(str.isspace, text)):
        raise table.error(key, f"{shown(text)} cannot be the name of an image", f'Write {key} = "name:tag".')
    return text


def _torch(table: Table) -> str | None:
    version = table.text("torch", None, "2.13.0")
    if version is not None and not is_version(version):
        what = f"{shown(version)} is not one exact version"
        raise table.error(name="torch", what=what, remedy='Write for example torch = "2.13.0".')
    return version


def _packages(table: Table) -> tuple[str, ...]:
    """Requirements as pip takes them: names with versions, and addresses, paths and options unchecked."""
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415 - a tenth of a plan's time

    packages = table.texts("packages")
    for text in packages:
        if "/" in text or text.startswith(("-", ".")):
            continue
        try:
            Requirement(text)
        except InvalidRequirement as error:
            what = f"{shown(text)} is not a requirement ({str(error).partition(chr(10))[0]})"
            raise table.error(
                name="packages", what=what, remedy='Write packages = ["numpy>=2", "expecttest"].'
            ) from None
    return packages


def _debian_packages(table: Table) -> tuple[str, ...]:
    names = table.texts("apt")
    for name in names:
        if not DEBIAN_PACKAGE.fullmatch(name):
            what = f"{shown(name)} cannot be the name of a Debian package"
            example = 'apt = ["libnuma1"], or with a version "libnuma1=2.0.16-1"'
            raise table.error(name="apt", what=what, remedy=f"Write {example}; pip's packages go into packages.")
    return names


def _project_mode(table: Table) -> ProjectMode:
    if "mode" in table and "project" not in table:
        remedy = 'Name the folder of your project (project = "."), or remove mode.'
        raise table.error(name="mode", what="there is no project for it", remedy=remedy)
    return table.choice("mode", PROJECT_MODES, Image.mode)


def image_for(matrix: Matrix, cell: Cell) -> Image:
    """The one image of a cell; an image without its own torch has a variant, with its own name, for each version.

    Raises:
        MatrixError: No ``[images.NAME]`` holds for the cell, more than one does, or it has another torch.
    """
    images = [image for image in matrix.images.values() if cell.matches(image.when)]
    if len(images) != 1:
        raise _image_error(matrix, cell, images)
    image = _with_torch(images[0], matrix, cell)
    paths = dict.fromkeys(path for suite in matrix.suites.values() if suite.home is None for path in suite.paths)
    tests = tuple(paths) if image.project else ()
    return replace(image, image=matrix.finished.get(image.name, image.image), tests=tests)


def check_images(matrix: Matrix, cells: Iterable[Cell]) -> None:
    """Refuses a matrix in which a cell does not have exactly one image.

    Raises:
        MatrixError: For the first such cell, as in :func:`image_for`.
    """
    for cell in cells:
        image_for(matrix, cell)


def _with_torch(image: Image, matrix: Matrix, cell: Cell) -> Image:
    if image.image is not None or not cell.torch:
        return image
    if image.torch is None:
        return replace(image, name=f"{image.name}-t{cell.torch}", torch=cell.torch)
    if comparable("torch", image.torch) != comparable("torch", cell.torch):
        where = place(matrix.path, image.line, f"images.{image.name}")
        what = f"{where}: the cell {cell.id} would run in an image with torch {image.torch}."
        remedy = f"""Drop torch to have an image for each version, or add when = "torch == '{image.torch}'"."""
        raise MatrixError(what, remedy=remedy)
    return image


def _image_error(matrix: Matrix, cell: Cell, images: Sequence[Image]) -> MatrixError:
    candidates = images or list(matrix.images.values())
    rules = "; ".join(_described(image) for image in candidates) or "there is no [images.NAME]"
    where = place(matrix.path, candidates[-1].line if candidates else matrix.line, "images")
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
