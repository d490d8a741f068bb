"""What a matrix file asks of an image, with every file it names, and the key of all that.

An image has two kinds of key. The *image key* is made from the inputs as they are written down: the recipe, the
base image's id, the text of the requirements, the project's sources, the Dockerfile. It is known without
asking a package index, so a run with unchanged inputs costs two requests to the daemon. The price: a
requirement without a version (``numpy``) keeps the version it had when the image was built; to get a
newer one, name its version or remove the image. The *layer key* is made from the wheels themselves, so
two recipes that resolve to the same wheels share their layers.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from allranks.errors import ImageError
from allranks.matrix.model import Image

_EDITABLE = re.compile(r"(?:-e|--ed[a-z]*)(?:[\s=]+|(?<=-e))(?P<target>.+)")
_NAMED = re.compile(r"[\w.-]+\s*(?:\[[^\]]*\])?\s*@\s*(?P<url>\S+)")
_URL = re.compile(r"(?:[a-z]+\+)?(?P<transport>[a-z][a-z0-9.-]*)://", re.IGNORECASE)
_CONTINUED = re.compile(r"\\\r?\n")
_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_MARKER_OR_OPTION = re.compile(r"\s*;|\s--?[a-z]")
_EXTRAS = re.compile(r"\[[^\]]*\]$")
_ARCHIVES = (".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz", ".tar.lzma", ".tlz")


def requirement_lines(text: str) -> Iterator[str]:
    """The non-empty lines of a requirements file, without comments, continued lines as one."""
    lines = (_COMMENT.sub("", line).strip() for line in _CONTINUED.sub("", text).splitlines())
    return (line for line in lines if line)


def names_local_path(requirement: str) -> bool:
    """Whether a requirement, or a line of a requirements file, names a file or folder of this host.

    Options other than ``--editable`` name nothing that would be installed.
    """
    text = os.path.expandvars(requirement.strip())
    if editable := _EDITABLE.fullmatch(text):
        return not _is_remote(_target(editable["target"].strip("\"' ")))
    if text.startswith("-"):
        return False
    target = _target(text)
    return not _is_remote(target) and (target != text or _is_path(text))


def _target(requirement: str) -> str:
    """The target of a ``name @ target``; any other requirement as it is."""
    named = _NAMED.match(requirement)
    return named["url"] if named else requirement


def _is_remote(text: str) -> bool:
    url = _URL.match(text)
    return url is not None and url["transport"].lower() != "file"


def _is_path(text: str) -> bool:
    name = _EXTRAS.sub("", _MARKER_OR_OPTION.split(text, maxsplit=1)[0])
    return name.startswith((".", "file:")) or os.sep in name or name.lower().endswith(_ARCHIVES)


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
        source: A hash of the project's files; empty without a project.
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
    """Refuse requirements that are paths: an image is found by their text, which does not change with the files."""
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


_SCHEMA = 1
_LENGTH = 12


def digest(*parts: object) -> str:
    """A hash of values that JSON can hold, the same in every process and on every host."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def image_key(recipe: Recipe, *, base_id: str, dockerfile: str) -> str:
    """The tag of an image.

    Args:
        recipe: What goes in.
        base_id: Id of the base image in the daemon.
        dockerfile: Text of the Dockerfile.
    """
    inputs = asdict(recipe)
    for not_content in ("name", "base", "requirements", "project"):
        del inputs[not_content]
    return digest(_SCHEMA, inputs, base_id, dockerfile)[:_LENGTH]


def layer_key(*, parent_id: str, content: tuple[str, ...], dockerfile: str) -> str:
    """The tag of one layer of an image.

    Args:
        parent_id: Id of the image below.
        content: What goes in: the :func:`allranks.image.wheels.identity` of each wheel, or the names of Debian
            packages.
        dockerfile: Text of the Dockerfile.
    """
    return digest(_SCHEMA, parent_id, sorted(content), dockerfile)[:_LENGTH]
