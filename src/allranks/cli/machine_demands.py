"""Checks whether this machine can run cells, before anything is built: ``allranks doctor --cell``.

It checks the number of GPUs, their health, NVIDIA's container toolkit, and whether the driver supports the CUDA version
of each image. Before the build, that version can be known from torch's version or index, from the requirements in
torch's metadata, from the interpreter of the process engine, or from a prebuilt image on this machine. If it is not
known, the driver is not checked, and no problem is reported.
"""

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from allranks.cli.host_checks import check_health
from allranks.engines.base import Finding
from allranks.engines.gpus import GpuMode, Inventory, take_inventory
from allranks.engines.registry import choose_engine
from allranks.errors import AllranksError, DeviceError
from allranks.matrix.model import Cell, Image, Matrix

LEAST_DRIVER: Final[Mapping[int, int]] = {11: 450, 12: 525, 13: 580}
"""The oldest driver branch for each major version of CUDA: a driver runs programs of any minor version of it (NVIDIA,
"CUDA Toolkit Release Notes", table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version
Compatibility", https://docs.nvidia.com/cuda/cuda-toolkit-release-notes). Images with a package for forward
compatibility, ``cuda-compat-*``, are not checked (https://docs.nvidia.com/deploy/cuda-compatibility)."""

_LOCAL_VERSION: Final = re.compile(r"\+cu(\d+)(\d)$")
_INDEX: Final = re.compile(r"/cu(\d+)(\d)/?$")
_RUNTIME: Final = re.compile(
    r"(?:nvidia[-_]cuda[-_]runtime(?:[-_]cu\d+)?|cuda[-_]toolkit)\s*(?:\[[^\]]*\])?\s*==\s*(\d+)\.(\d+)"
)
_REQUIRED: Final = re.compile(r"\bcuda>=(\d+)\.(\d+)")
_FORWARD_COMPATIBILITY: Final = "cuda-compat"
_MODULE_VERSION: Final = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)")
_CHECKS_OF_GPU_ENGINES: Final = frozenset({"Docker", "toolkit", "CDI"})


@dataclass(frozen=True, kw_only=True)
class Cuda:
    """The CUDA version that an image needs, and the source of this information."""

    major: int
    minor: int
    source: str


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where the jobs are going to run."""

    engine: str
    mode: GpuMode
    root: Path = Path("/")


def check_demands(cells: Mapping[Cell, Image], matrix: Matrix, target: Target) -> Iterator[Finding]:
    """Check what cells and their images need of this machine; cells without GPUs need nothing."""
    with_gpus = {cell: image for cell, image in cells.items() if cell.gpu_count}
    if not with_gpus:
        yield Finding("GPUs", "none of these cells needs a GPU")
        return
    try:
        inventory = take_inventory(target.mode)
    except DeviceError as error:
        yield Finding("GPUs", f"{error.what} {error.why}", error.remedy)
        return
    yield _check_number(with_gpus, len(inventory.gpus))
    yield from check_health(inventory)
    if inventory.driver != "rocm":
        yield from _check_driver(with_gpus.values(), matrix, target, inventory.version or _loaded_version(target.root))
    yield from _check_engine(target, inventory)


def _check_number(cells: Iterable[Cell], available: int) -> Finding:
    most = max(cells, key=lambda cell: cell.gpu_count)
    text = f"{most.id} needs {most.gpu_count}; this machine has {available}"
    remedy = "Correct `gpus` in its [[runners]] entry of the matrix file, or run `allranks doctor` on this machine."
    return Finding("GPUs", text, remedy if available < most.gpu_count else "")


def _loaded_version(root: Path) -> str:
    """The version of the loaded driver, without NVML; empty if none is loaded."""
    with suppress(OSError):
        found = _MODULE_VERSION.search((root / "proc/driver/nvidia/version").read_text(encoding="ascii"))
        return found[1] if found else ""
    return ""


def _check_driver(images: Iterable[Image], matrix: Matrix, target: Target, version: str) -> Iterator[Finding]:
    for image in dict.fromkeys(images):
        try:
            cuda = cuda_of(image, matrix, target.engine)
        except AllranksError as error:
            yield Finding("driver", f"the CUDA version of image {image.name} is unknown: {error.what} {error.why}")
            continue
        yield compare_driver(image, cuda, version)


def compare_driver(image: Image, cuda: Cuda | None, version: str) -> Finding:
    """Check whether the driver supports the CUDA version of an image.

    Args:
        image: The image.
        cuda: Its CUDA version; None if it is unknown.
        version: The driver's version, such as ``535.104.05``; empty if it is unknown.
    """
    if cuda is None:
        return Finding("driver", f"the CUDA version of image {image.name} is unknown before its build")
    least = LEAST_DRIVER.get(cuda.major)
    subject = f"image {image.name} has CUDA {cuda.major}.{cuda.minor} ({cuda.source})"
    if any(name.startswith(_FORWARD_COMPATIBILITY) for name in image.apt):
        return Finding("driver", f"{subject} and a package for forward compatibility: not checked")
    if not version:
        return Finding("driver", f"{subject}; the driver's version is unknown")
    if least is None:
        return Finding("driver", f"{subject}; this version of allranks does not know which driver that needs")
    text = f"{subject}, which needs driver {least} or newer; this machine has {version}"
    remedy = f"Install NVIDIA's driver {least} or newer, or use a torch with an older CUDA in the image."
    return Finding("driver", text, remedy if int(version.partition(".")[0]) < least else "")


def cuda_of(image: Image, matrix: Matrix, engine: str) -> Cuda | None:
    """The CUDA version of an image, if it is known before its build."""
    if engine == "process" and matrix.process.python:
        return _cuda_of_interpreter(matrix)
    if image.image is not None:
        return _cuda_of_prebuilt_image(image.image)
    for text, pattern, source in (
        (image.torch or "", _LOCAL_VERSION, f"torch {image.torch}"),
        *((index, _INDEX, "torch's index") for index in (image.index, *image.extra_index)),
    ):
        if cuda := _parsed(pattern.search(text), source):
            return cuda
    return _cuda_of_metadata(image, matrix.root) if image.torch else None


def _parsed(found: re.Match[str] | None, source: str) -> Cuda | None:
    return Cuda(major=int(found[1]), minor=int(found[2]), source=source) if found else None


def _cuda_of_interpreter(matrix: Matrix) -> Cuda | None:
    from allranks.images.environments import probe  # noqa: PLC0415 - only this engine needs it

    python = matrix.process.python or ""
    versions = probe(str(matrix.root / python) if "/" in python else python).versions
    requirements = [f"{name}=={version}" for name, version in versions.items()]
    return _cuda_of_requirements(requirements, f"the packages of {python}")


def _cuda_of_prebuilt_image(reference: str) -> Cuda | None:
    """The CUDA version in the variables of NVIDIA's base images; None if the daemon lacks the image."""
    client = choose_engine("docker")[0].image_daemon
    if client is None:
        return None
    import docker.errors  # noqa: PLC0415 - see engines/docker.py

    inspect: Callable[[str], Mapping[str, Any]] = client.api.inspect_image
    with closing(client):
        try:
            attributes = inspect(reference)
        except docker.errors.NotFound:
            return None
    variables = dict(text.split("=", 1) for text in (attributes.get("Config") or {}).get("Env") or ())
    found = re.match(r"(\d+)\.(\d+)", variables.get("CUDA_VERSION", ""))
    return _parsed(found or _REQUIRED.search(variables.get("NVIDIA_REQUIRE_CUDA", "")), "its variables")


def _cuda_of_metadata(image: Image, root: Path) -> Cuda | None:
    """The CUDA version that the metadata of the torch that pip would choose requires; pip reads only the metadata."""
    from allranks.images.wheels import PipRequest, run_pip  # noqa: PLC0415 - rarely needed

    with tempfile.TemporaryDirectory() as folder:
        file, report = Path(folder, "requirements.txt"), Path(folder, "report.json")
        lines = [f"--index-url {image.index}"] if image.index else []
        lines += [f"--extra-index-url {index}" for index in image.extra_index]
        file.write_text("\n".join([*lines, f"torch=={image.torch}", ""]), encoding="utf-8")
        options = ["--dry-run", "--no-deps", "--ignore-installed", "--only-binary=:all:", f"--report={report}"]
        request = PipRequest(
            arguments=["install", *options, "--requirement", str(file)],
            what=f"pip finds no torch {image.torch} for this Python.",
            remedy="",
            folder=root,
            environ=os.environ,
        )
        run_pip(request, lambda _line: None)
        [torch] = json.loads(report.read_text(encoding="utf-8"))["install"]
    version, requirements = torch["metadata"]["version"], torch["metadata"].get("requires_dist") or ()
    source = f"torch {version}"
    return _parsed(_LOCAL_VERSION.search(version), source) or _cuda_of_requirements(requirements, source)


def _cuda_of_requirements(requirements: Sequence[str], source: str) -> Cuda | None:
    return _parsed(next(filter(None, map(_RUNTIME.match, requirements)), None), source)


def _check_engine(target: Target, inventory: Inventory) -> Iterator[Finding]:
    """Check whether the engine can pass GPUs to jobs."""
    try:
        engine, _ = choose_engine(target.engine)
        with closing(engine):
            findings = engine.check(inventory)
            yield from (finding for finding in findings if finding.subject in _CHECKS_OF_GPU_ENGINES)
    except AllranksError as error:
        yield Finding(target.engine, f"{error.what} {error.why}".strip(), error.remedy)
