"""What a matrix file asks of an image, with every file it names read."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from allranks.errors import ImageError
from allranks.image.local_path import names_local_path, requirement_lines
from allranks.matrix.model import Image

PYTEST = "pytest>=8"
"""The harness runs pytest inside every image, whether or not the suites' packages name it."""

_INCLUDE = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)[\s=]*(?P<path>\S+)", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What goes into a built image.

    Attributes:
        name: The image's name in the matrix file.
        base: Base image as the matrix file names it.
        torch: Exact torch version.
        index: Address of a further package index; empty for none.
        packages: Requirement strings, pytest among them.
        requirements: The requirements file, or None.
        requirements_text: The content of that file and of all that it includes.
        project: The folder of the user's project, or None.
        source: A hash of the project's files, for what is built of them; empty without one.
        apt: Names of Debian packages, with or without ``=version``.
    """

    name: str
    base: str
    torch: str
    index: str = ""
    packages: tuple[str, ...] = (PYTEST,)
    requirements: Path | None = None
    requirements_text: str = ""
    project: Path | None = None
    source: str = ""
    apt: tuple[str, ...] = ()


def recipe_of(image: Image, *, root: Path) -> Recipe:
    """Read what an image declaration names.

    Args:
        image: A declaration that is to be built (``image.image`` is None).
        root: The folder that its relative paths start from.

    Raises:
        ImageError: The torch version is missing, or a file or folder that the declaration names, or a requirement
            names a path.
    """
    if not image.torch:
        what = f"Image {image.name} cannot be built."
        raise ImageError(
            what,
            why="Neither a torch version nor a finished image is given.",
            remedy=f'Add torch = "<version>" or image = "<reference>" to [images.{image.name}].',
        )
    requirements = root / image.requirements if image.requirements else None
    requirements_text = "\n".join(_texts(requirements, set())) if requirements else ""
    _refuse_local_paths(image, (*image.packages, *requirement_lines(requirements_text)))
    return Recipe(
        name=image.name,
        base=image.base,
        torch=image.torch,
        index=image.index,
        packages=(PYTEST, *image.packages),
        requirements=requirements,
        requirements_text=requirements_text,
        project=_project_folder(image, root),
        apt=image.apt,
    )


def _refuse_local_paths(image: Image, requirements: Iterable[str]) -> None:
    """An image is found again by the text of its requirements, which says nothing of what lies behind a path."""
    local = next((requirement for requirement in requirements if names_local_path(requirement)), None)
    if local is None:
        return
    what = f"Image {image.name} cannot be built from the requirement {local}."
    raise ImageError(
        what,
        why="It names a path of this host, and a change of what lies there would not reach the image.",
        remedy=f'Remove it, and let project = "." of [images.{image.name}] name the folder of your own code.',
    )


def _project_folder(image: Image, root: Path) -> Path | None:
    if image.project is None:
        return None
    folder = (root / image.project).resolve()
    if not any((folder / name).is_file() for name in ("pyproject.toml", "setup.py")):
        what = f"The project of image {image.name} cannot be built."
        raise ImageError(
            what,
            why=f"{folder} has no pyproject.toml and no setup.py.",
            remedy=f"Let project of [images.{image.name}] name the folder that pip install would take.",
        )
    return folder


def _texts(file: Path, seen: set[Path]) -> Iterator[str]:
    """The text of a requirements file, then of each file it includes, every file once."""
    if file in seen:
        return
    seen.add(file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = f"The requirements file {file} cannot be read."
        raise ImageError(
            what,
            why=f"{error}.",
            remedy="Correct the path, which is relative to the file that names it.",
        ) from error
    yield text
    for include in _INCLUDE.finditer(text):
        if "://" not in include["path"]:
            yield from _texts(file.parent / include["path"], seen)
