"""The recipe of an image, from the matrix file and the files that it names, and the keys of images and layers.

The *image key* is a hash of the inputs: the recipe, the base image's id, the text of the requirements, the project's
source and the Dockerfile. It needs no package index, so a run with unchanged inputs takes three requests to the daemon.
As a consequence, a requirement without a version (``numpy``) keeps the version that it had when the image was built; to
update it, specify its version or remove the image. The *layer key* is a hash of the wheels themselves, so recipes that
resolve to the same wheels share layers.
"""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from allranks.errors import ImageError
from allranks.images.pip_settings import (
    pip_settings,
    requirement_lines,
    requirement_texts,
    with_variables,
    without_logins,
)
from allranks.matrix.model import Image

_EDITABLE = re.compile(r"(?:-e|--ed[a-z]*)(?:[\s=]+|(?<=-e))(?P<target>.+)")
_NAMED = re.compile(r"[\w.-]+\s*(?:\[[^\]]*\])?\s*@\s*(?P<url>\S+)")
_URL = re.compile(r"(?:[a-z]+\+)?(?P<transport>[a-z][a-z0-9.-]*)://", re.IGNORECASE)
_MARKER_OR_OPTION = re.compile(r"\s*;|\s--?[a-z]")
_EXTRAS = re.compile(r"\[[^\]]*\]$")
_ARCHIVES = (".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz", ".tar.lzma", ".tlz")


def names_local_path(requirement: str) -> bool:
    """Whether a requirement, or a line of a requirements file, installs a file or folder of this host.

    Of the options in such a line, only ``--editable`` installs something.
    """
    text = os.path.expandvars(requirement.strip())
    if editable := _EDITABLE.fullmatch(text):
        return not _is_remote(_target(editable["target"].strip("\"' ")))
    if text.startswith("-"):
        return False
    target = _target(text)
    return not _is_remote(target) and (target != text or _is_path(text))


def _target(requirement: str) -> str:
    """The target of ``name @ target``, or the whole requirement."""
    named = _NAMED.match(requirement)
    return named["url"] if named else requirement


def _is_remote(text: str) -> bool:
    url = _URL.match(text)
    return url is not None and url["transport"].lower() != "file"


def _is_path(text: str) -> bool:
    name = _EXTRAS.sub("", _MARKER_OR_OPTION.split(text, maxsplit=1)[0])
    return name.startswith((".", "file:")) or os.sep in name or name.lower().endswith(_ARCHIVES)


PYTEST = "pytest>=8"
"""The agent runs pytest inside every image, so each image has it."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The content of an image to build."""

    name: str
    base: str  # the base image in the matrix file
    torch: str  # exact torch version
    index: str = ""  # address of the package index; empty for the configuration of the host's pip
    extra_index: tuple[str, ...] = ()  # addresses of additional package indexes
    packages: tuple[str, ...] = (PYTEST,)  # requirements, including pytest
    requirements: Path | None = None  # the requirements file
    requirements_text: str = ""  # the content of that file and of the files that it includes, without logins
    project: Path | None = None  # the folder of the user's project
    source: str = ""  # a hash of the project's files; empty without a project
    tests: tuple[Path, ...] = ()  # the files and folders of all suites
    apt: tuple[str, ...] = ()  # names of Debian packages, with or without ``=version``
    pip: tuple[str, ...] = ()  # settings of the host's pip that affect what it installs

    def requirements_file(self, project_needs: Iterable[str] = ()) -> str:
        """All packages, as the text of a requirements file.

        In a file, ``--index-url`` replaces all indexes of pip's configuration; on pip's command line, it would keep the
        extra indexes. The user's file comes first, so that its hashes apply to requirements that are repeated after it.

        Args:
            project_needs: Requirements of the user's project.
        """
        index = [f"--index-url {self.index}"] if self.index else []
        extra = [f"--extra-index-url {address}" for address in self.extra_index]
        file = [f"--requirement {shlex.quote(str(self.requirements.absolute()))}"] if self.requirements else []
        return "\n".join([*index, *extra, *file, f"torch=={self.torch}", *self.packages, *project_needs, ""])

    def key_parts(self, project_needs: Iterable[str] = ()) -> tuple[object, ...]:
        """All packages, as the parts of a cache key, without logins, since these may change."""
        addresses = [without_logins(self.index), *map(without_logins, self.extra_index)]
        packages = [without_logins(requirement) for requirement in (*self.packages, *project_needs)]
        return (self.torch, addresses, packages, self.requirements_text, self.pip)

    @property
    def remedy(self) -> str:
        """What to do if pip cannot find all packages."""
        if "--hash" in self.requirements_text:
            return (
                f"A requirements file with hashes must have all packages: torch=={self.torch}, pytest, those of the "
                "matrix file and of the project, and their dependencies. pip-compile --generate-hashes writes such a "
                "file."
            )
        if self.index and not self.extra_index:
            return (
                f"[images.{self.name}] has only one index: check `index` and the versions in matrix.toml, or add "
                "another one to extra_index."
            )
        return (
            "Check the versions in matrix.toml and this host's package index (`pip config list`); "
            "PIP_FIND_LINKS can supply a package that has no wheel."
        )


def recipe_of(image: Image, *, root: Path) -> Recipe:
    """Create the recipe of an image, from the matrix file and the files that it names."""
    if not image.name:
        what = "There is no image to run: the matrix file has no [images], only an interpreter for processes."
        raise ImageError(what, remedy='Add [images.NAME] with torch = "2.13.0", or use --engine process.')
    if not image.torch:
        what = f"Image {image.name} cannot be built."
        raise ImageError(
            what,
            why="It has neither a torch version nor a prebuilt image.",
            remedy=f'Add torch = "<version>" or image = "<reference>" to [images.{image.name}].',
        )
    requirements = root / image.requirements if image.requirements else None
    requirements_text = _text(requirements) if requirements else ""
    _check_local_paths(image, (*image.packages, *requirement_lines(requirements_text)))
    return Recipe(
        name=image.name,
        base=image.base,
        torch=image.torch,
        index=with_variables(image.index),
        extra_index=tuple(map(with_variables, image.extra_index)),
        packages=(PYTEST, *map(with_variables, image.packages)),
        requirements=requirements,
        requirements_text=requirements_text,
        project=_project_folder(image, root),
        tests=tuple(root.resolve() / path for path in image.tests),
        apt=image.apt,
        pip=pip_settings(root),
    )


def _check_local_paths(image: Image, requirements: Iterable[str]) -> None:
    """Reject requirements that are paths: the image key contains their text, but not the content of the files."""
    local = next((requirement for requirement in requirements if names_local_path(requirement)), None)
    if local is None:
        return
    what = f"Image {image.name} cannot be built from the requirement {local}."
    raise ImageError(
        what,
        why="It is a path on this host, and allranks would not notice when its files change.",
        remedy=f'Remove it, and set project = "." in [images.{image.name}] to the folder of your own code.',
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
            remedy=f"Set `project` in [images.{image.name}] to a folder that pip can install.",
        )
    return folder


def _text(file: Path) -> str:
    try:
        return "\n".join(requirement_texts(file))
    except OSError as error:
        what = f"The requirements file {error.filename or file} cannot be read."
        raise ImageError(
            what,
            why=f"{error.strerror}.",
            remedy="Correct the path, which is relative to the file that names it.",
        ) from error


_SCHEMA = 2
_LENGTH = 12


def digest(*parts: object) -> str:
    """A hash of values of JSON types, which is the same in every process and on every host."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def image_key(recipe: Recipe, *, base_id: str, dockerfile: str) -> str:
    """The tag of an image."""
    return digest(_SCHEMA, recipe.key_parts(), recipe.source, recipe.apt, base_id, dockerfile)[:_LENGTH]


def layer_key(*, parent_id: str, content: tuple[str, ...], dockerfile: str) -> str:
    """The tag of one layer of an image.

    Args:
        parent_id: The id of the image below.
        content: The :func:`allranks.images.wheels.identity` of each wheel, or the names of Debian packages.
        dockerfile: The text of the Dockerfile.
    """
    return digest(_SCHEMA, parent_id, sorted(content), dockerfile)[:_LENGTH]
