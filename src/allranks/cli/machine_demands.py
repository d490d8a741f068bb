"""Whether this machine has what cells need, before anything is built: ``allranks doctor --cell``.

Compared are the number of GPUs, their health, the driver with the CUDA of each image, and NVIDIA's container toolkit.
An image's CUDA is known before its build from torch's version or index, from the requirements in torch's metadata, from
the interpreter of the process engine, or from a finished image that is on this machine. If none of these has it, the
driver cannot be judged, and that is no problem.
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

from allranks.cli.host_checks import examine_health
from allranks.engines.base import Finding
from allranks.engines.gpus import GpuMode, Inventory, take_inventory
from allranks.engines.registry import choose_engine
from allranks.errors import AllranksError, DeviceError
from allranks.matrix.model import Cell, Image, Matrix

LEAST_DRIVER: Final[Mapping[int, int]] = {11: 450, 12: 525, 13: 580}
"""The oldest branch of the driver for each major version of CUDA: within one, a driver runs programs of any minor
version (NVIDIA, "CUDA Toolkit Release Notes", table "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor
Version Compatibility", https://docs.nvidia.com/cuda/cuda-toolkit-release-notes). The exception are packages for forward
compatibility, ``cuda-compat-*``: an image that names one makes no demand here
(https://docs.nvidia.com/deploy/cuda-compatibility)."""

_LOCAL_VERSION: Final = re.compile(r"\+cu(\d+)(\d)$")
_INDEX: Final = re.compile(r"/cu(\d+)(\d)/?$")
_RUNTIME: Final = re.compile(
    r"(?:nvidia[-_]cuda[-_]runtime(?:[-_]cu\d+)?|cuda[-_]toolkit)\s*(?:\[[^\]]*\])?\s*==\s*(\d+)\.(\d+)"
)
_REQUIRED: Final = re.compile(r"\bcuda>=(\d+)\.(\d+)")
_FORWARD: Final = "cuda-compat"
_MODULE_VERSION: Final = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)")
_OF_ENGINE: Final = frozenset({"Docker", "toolkit", "CDI"})


@dataclass(frozen=True, kw_only=True)
class Cuda:
    """The version of CUDA that an image needs, and how that is known."""

    major: int
    minor: int
    source: str


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where the jobs are to run: as for a run."""

    engine: str
    mode: GpuMode
    root: Path = Path("/")


def examine_demands(cells: Mapping[Cell, Image], matrix: Matrix, where: Where) -> Iterator[Finding]:
    """Check what cells, each with its image, need of this machine; without GPUs that is nothing."""
    with_gpus = {cell: image for cell, image in cells.items() if cell.gpu_count}
    if not with_gpus:
        yield Finding("GPUs", "none of these cells needs any")
        return
    try:
        inventory = take_inventory(where.mode)
    except DeviceError as error:
        yield Finding("GPUs", f"{error.what} {error.why}", error.remedy)
        return
    yield _number(with_gpus, len(inventory.gpus))
    yield from examine_health(inventory)
    if inventory.driver != "rocm":
        yield from _drivers(with_gpus.values(), matrix, where, inventory.version or _loaded_version(where.root))
    yield from _engine(where, inventory)


def _number(cells: Iterable[Cell], there: int) -> Finding:
    most = max(cells, key=lambda cell: cell.gpu_count)
    text = f"{most.id} needs {most.gpu_count}, and this machine has {there}"
    remedy = "Correct gpus of its [[runners]] in the matrix file, or see `allranks doctor` on this machine."
    return Finding("GPUs", text, remedy if there < most.gpu_count else "")


def _loaded_version(root: Path) -> str:
    """The version of the loaded driver, where NVML was not asked; empty without one."""
    with suppress(OSError):
        found = _MODULE_VERSION.search((root / "proc/driver/nvidia/version").read_text(encoding="ascii"))
        return found[1] if found else ""
    return ""


def _drivers(images: Iterable[Image], matrix: Matrix, where: Where, version: str) -> Iterator[Finding]:
    for image in dict.fromkeys(images):
        try:
            cuda = cuda_of(image, matrix, where.engine)
        except AllranksError as error:
            yield Finding("driver", f"the CUDA of image {image.name} is not known yet: {error.what} {error.why}")
            continue
        yield compare_driver(image, cuda, version)


def compare_driver(image: Image, cuda: Cuda | None, version: str) -> Finding:
    """Compare the driver with what an image needs.

    Args:
        image: The image.
        cuda: Its CUDA; None if it is unknown.
        version: The driver's version, as ``535.104.05``; empty if it is unknown.
    """
    if cuda is None:
        return Finding("driver", f"the CUDA of image {image.name} is not known before it is there")
    least = LEAST_DRIVER.get(cuda.major)
    needs = f"image {image.name} has CUDA {cuda.major}.{cuda.minor} ({cuda.source})"
    if any(name.startswith(_FORWARD) for name in image.apt):
        return Finding("driver", f"{needs} and packages for forward compatibility, and is not compared")
    if least is None or not version:
        what = (
            "this version of allranks does not know its least driver" if version else "the driver's version is unknown"
        )
        return Finding("driver", f"{needs}; {what}")
    text = f"{needs}, which needs driver {least} or newer, and this machine has {version}"
    remedy = f"Install NVIDIA's driver {least} or newer, or give the image a torch of an older CUDA."
    return Finding("driver", text, remedy if int(version.partition(".")[0]) < least else "")


def cuda_of(image: Image, matrix: Matrix, engine: str) -> Cuda | None:
    """The CUDA of an image as far as it is known before a build; None if it is not."""
    if engine == "process" and matrix.process.python:
        return _of_interpreter(matrix)
    if image.image is not None:
        return _of_finished(image.image)
    for text, pattern, source in (
        (image.torch or "", _LOCAL_VERSION, f"torch {image.torch}"),
        *((index, _INDEX, "torch's index") for index in (image.index, *image.extra_index)),
    ):
        if found := pattern.search(text):
            return Cuda(major=int(found[1]), minor=int(found[2]), source=source)
    return _of_metadata(image, matrix.root) if image.torch else None


def _of_interpreter(matrix: Matrix) -> Cuda | None:
    from allranks.images.environments import probe  # noqa: PLC0415 - only this engine needs it

    python = matrix.process.python or ""
    versions = probe(str(matrix.root / python) if "/" in python else python).versions
    return _of_requirements([f"{name}=={version}" for name, version in versions.items()], f"the packages of {python}")


def _of_finished(reference: str) -> Cuda | None:
    """By the variables that NVIDIA's base images set, and NVIDIA's toolkit reads, if the daemon has the image."""
    client = choose_engine("docker")[0].image_daemon
    if client is None:
        return None
    import docker.errors  # noqa: PLC0415 - see engines/docker.py

    look: Callable[[str], Mapping[str, Any]] = client.api.inspect_image
    with closing(client):
        try:
            said = look(reference)
        except docker.errors.NotFound:
            return None
    variables = dict(each.split("=", 1) for each in (said.get("Config") or {}).get("Env") or ())
    found = re.match(r"(\d+)\.(\d+)", variables.get("CUDA_VERSION", "")) or _REQUIRED.search(
        variables.get("NVIDIA_REQUIRE_CUDA", "")
    )
    return Cuda(major=int(found[1]), minor=int(found[2]), source="its variables") if found else None


def _of_metadata(image: Image, root: Path) -> Cuda | None:
    """By the requirements of the torch that pip would choose, whose metadata an index has apart from the wheel."""
    from allranks.images.wheels import PipRequest, run_pip  # noqa: PLC0415 - most demands are known without

    with tempfile.TemporaryDirectory() as folder:
        file, report = Path(folder, "requirements.txt"), Path(folder, "report.json")
        lines = [f"--index-url {image.index}"] if image.index else []
        lines += [f"--extra-index-url {each}" for each in image.extra_index]
        file.write_text("\n".join([*lines, f"torch=={image.torch}", ""]), encoding="utf-8")
        how = ["--dry-run", "--no-deps", "--ignore-installed", "--only-binary=:all:", f"--report={report}"]
        request = PipRequest(
            arguments=["install", *how, "--requirement", str(file)],
            what=f"pip finds no torch {image.torch} for this Python.",
            remedy="",
            folder=root,
            environ=os.environ,
        )
        run_pip(request, lambda _line: None)
        [torch] = json.loads(report.read_text(encoding="utf-8"))["install"]
    version = torch["metadata"]["version"]
    if found := _LOCAL_VERSION.search(version):
        return Cuda(major=int(found[1]), minor=int(found[2]), source=f"torch {version}")
    return _of_requirements(torch["metadata"].get("requires_dist") or (), f"torch {version}")


def _of_requirements(requirements: Sequence[str], source: str) -> Cuda | None:
    found = next(filter(None, map(_RUNTIME.match, requirements)), None)
    return Cuda(major=int(found[1]), minor=int(found[2]), source=source) if found else None


def _engine(where: Where, inventory: Inventory) -> Iterator[Finding]:
    """Check whether the engine can pass GPUs on."""
    try:
        engine, _ = choose_engine(where.engine)
        with closing(engine):
            yield from (each for each in engine.check(inventory) if each.subject in _OF_ENGINE)
    except AllranksError as error:
        yield Finding(where.engine, f"{error.what} {error.why}".strip(), error.remedy)
