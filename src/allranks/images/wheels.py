"""Resolves the wheels of an image with the host's pip, for the image's Python.

Containers need no access to a package index, and the host's pip configuration applies (mirrors, certificates, links).
Only wheels are accepted, since a source distribution would be built for the host.
"""

import email.parser
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from allranks.errors import ImageError
from allranks.images.base import ImagePython, as_json
from allranks.images.child_process import succeeds
from allranks.images.daemon import Progress
from allranks.images.host_pip import run_to_end
from allranks.images.pip_settings import has_pip, python_that_builds
from allranks.images.recipe import Recipe, digest
from allranks.user_cache import cache_limit, free_space, made_cache_folder, mark_used

_OF_AN_EXTRA = re.compile(r"\bextra\s*==")


def identity(wheel: Path) -> str:
    """A wheel's name and a hash of its RECORD, which lists the hashes of its files.

    It does not depend on the archive's time stamps, and does not require reading a wheel of three gigabytes.
    """
    record = "\n".join(sorted(_metadata(wheel, "RECORD").splitlines()))
    return f"{wheel.name}={hashlib.sha256(record.encode()).hexdigest()}"


def requirements(wheel: Path) -> tuple[str, ...]:
    """The requirements of a wheel, without those of its extras."""
    message = email.parser.HeaderParser().parsestr(_metadata(wheel, "METADATA"))
    return tuple(text for text in message.get_all("Requires-Dist", []) if not _OF_AN_EXTRA.search(text))


def is_pure(wheel: Path) -> bool:
    """Whether a wheel is pure Python, so that it can be unpacked into a folder on Python's path."""
    with zipfile.ZipFile(wheel) as archive:
        has_data_files = any(member.partition("/")[0].endswith(".data") for member in archive.namelist())
    message = email.parser.HeaderParser().parsestr(_metadata(wheel, "WHEEL"))
    return message.get("Root-Is-Purelib", "").strip().lower() == "true" and not has_data_files


def _metadata(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        member = next(member for member in archive.namelist() if _is_metadata(member, name))
        return archive.read(member).decode()


def _is_metadata(member: str, name: str) -> bool:
    folder, _, rest = member.partition("/")
    return folder.endswith(".dist-info") and rest == name


@dataclass(frozen=True, kw_only=True)
class PipRequest:
    """The parameters of a run of pip."""

    arguments: Sequence[str]  # the arguments after ``pip``
    what: str  # the error if it fails, as a sentence
    remedy: str  # what to do if it fails, as a sentence
    folder: Path  # the folder that relative paths in requirements start from
    environ: Mapping[str, str]  # environment variables, including the host's configuration of pip
    markers: Mapping[str, str] = field(default_factory=dict)  # environment markers, if not the interpreter's own


def run_pip(request: PipRequest, progress: Progress) -> None:
    """Run the host's pip; `progress` receives a line for each file that it downloads or builds."""
    command = [*_pip_for(request.markers), *request.arguments]
    environ = {**request.environ, "PIP_NO_INPUT": "1"}
    if why := run_to_end(command, progress, environ=environ, folder=request.folder):
        raise ImageError(request.what, why=why, remedy=request.remedy)


def _pip_for(markers: Mapping[str, str]) -> list[str]:
    """The command of the host's pip, patched to use these environment markers.

    pip has options for tags (``--platform``, ``--abi``), but uses the markers of the interpreter that runs it: on a
    newer host, an image's dependencies with "python_version < '3.12'" would be missing. The patch can be removed when
    https://github.com/pypa/pip/issues/11664 is fixed (open in November 2026).
    """
    script = """
import json, runpy, sys
sys.path[:] = [entry for entry in sys.path if entry]
markers = json.loads(sys.argv.pop(1))
if markers:
    import pip._vendor.packaging.markers as module
    own = module.default_environment()
    module.default_environment = lambda: {**own, **markers}
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
    return [_python_with_pip(), "-c", script, json.dumps(dict(markers))]


def _python_with_pip() -> str:
    python = python_that_builds()
    if python and (has_pip() or succeeds([python, "-c", "import pip"])):
        return python
    what = "The packages of the image cannot be resolved."
    raise ImageError(
        what,
        why=f"Neither {sys.executable} nor the python3 on the PATH has pip.",
        remedy="Install pip (Debian: apt install python3-pip; elsewhere: python3 -m ensurepip).",
    )


def without_configuration() -> dict[str, str]:
    """Environment variables that restrict pip to the sources on its command line."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return {**kept, "PIP_CONFIG_FILE": os.devnull}


@dataclass(frozen=True, kw_only=True)
class ResolutionRequest:
    """The input of a resolution."""

    recipe: Recipe
    project_needs: tuple[str, ...]  # requirements of the user's project
    python: ImagePython
    root: Path  # the folder that relative paths in requirements start from


@dataclass(frozen=True, kw_only=True)
class Wheelhouse:
    """Folders of wheels, in the order of their installation."""

    tools: Path  # the wheel of pip, which installs the others and is not installed itself
    torch: Path  # torch and its dependencies
    packages: Path  # all others, except the user's project


def resolve(request: ResolutionRequest, progress: Progress) -> Wheelhouse:
    """Get the wheels of a recipe from the cache or the host's package index.

    All requirements are resolved together, so that no layer of the image replaces a package of another.
    """
    folder = made_cache_folder("wheels") / _key(request)
    limit = cache_limit()
    mark_used(folder)
    if not folder.is_dir():
        progress(f"resolving the packages of image {request.recipe.name}")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="partial-") as scratch:
            _fill(Path(scratch), request, progress)
            _publish(Path(scratch), folder)
        mark_used(folder)
        free_space(folder.parent, limit, progress)
    return Wheelhouse(tools=folder / "tools", torch=folder / "torch", packages=folder / "packages")


def _key(request: ResolutionRequest) -> str:
    return digest(request.recipe.key_parts(request.project_needs), as_json(request.python))[:16]


def _fill(scratch: Path, request: ResolutionRequest, progress: Progress) -> None:
    for name in ("tools", "torch", "packages"):
        (scratch / name).mkdir()
    file = scratch / "requirements.txt"  # in a folder that only this user can read, since addresses may have passwords
    file.write_text(request.recipe.requirements_file(request.project_needs), encoding="utf-8")
    run_pip(_download(request, scratch / "packages", ["--requirement", str(file)]), progress)
    run_pip(_download(request, scratch / "tools", ["--no-deps", "pip"]), progress)
    for name in _torch_wheels(request, scratch):
        (scratch / "packages" / name).rename(scratch / "torch" / name)


def _publish(scratch: Path, folder: Path) -> None:
    """Move a complete wheelhouse to its folder, unless another run was faster."""
    finished = scratch / "finished"
    finished.mkdir()
    for part in ("tools", "torch", "packages"):
        (scratch / part).rename(finished / part)
    try:
        finished.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        shutil.rmtree(finished)


def target_flags(python: ImagePython) -> list[str]:
    """The options of pip that select wheels for an image's Python."""
    major, minor = python.version
    platforms = [f"--platform={platform}" for platform in python.platforms]
    version = [f"--python-version={major}.{minor}", "--implementation=cp", f"--abi={python.abi}"]
    return ["--only-binary=:all:", *version, *platforms]


def _download(request: ResolutionRequest, into: Path, requirements: Sequence[str]) -> PipRequest:
    options = ["--progress-bar=off", f"--dest={into}", *target_flags(request.python)]
    return _pip_request(request, ["download", *options, *requirements], os.environ)


def _torch_wheels(request: ResolutionRequest, scratch: Path) -> list[str]:
    """The file names of the wheels of torch and its dependencies."""
    report = scratch / "report.json"
    where = ["--no-index", f"--find-links={scratch / 'packages'}", f"--target={scratch / 'never'}"]
    how = ["--dry-run", "--ignore-installed", f"--report={report}", *target_flags(request.python)]
    install = ["install", *how, *where, f"torch=={request.recipe.torch}"]
    run_pip(_pip_request(request, install, without_configuration()), lambda _: None)
    entries = json.loads(report.read_text(encoding="utf-8"))["install"]
    return [Path(unquote(urlsplit(entry["download_info"]["url"]).path)).name for entry in entries]


def _pip_request(request: ResolutionRequest, command: Sequence[str], environ: Mapping[str, str]) -> PipRequest:
    return PipRequest(
        arguments=command,
        what=f"The packages of image {request.recipe.name} could not be resolved.",
        remedy=request.recipe.remedy,
        folder=request.root,
        environ=environ,
        markers=request.python.markers,
    )
