"""pip of the host, with the host's configuration: mirrors, certificates, links to look in."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from allranks.errors import ImageError
from allranks.image.child import child, lines_of
from allranks.image.daemon import Progress

_KEPT_LINES = 15

# pip takes tags from --platform and --abi, but reads environment markers off the interpreter that runs it
# (pypa/pip#11664): on a newer host, an image's "python_version < '3.12'" dependencies would be lost.
_WITH_MARKERS = """
import json, os, runpy, sys
sys.path[:] = [entry for entry in sys.path if entry]
markers = json.loads(os.environ.pop("ALLRANKS_MARKERS"))
if markers:
    import pip._vendor.packaging.markers as module
    own = module.default_environment()
    module.default_environment = lambda: {**own, **markers}
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""

_SHOWN = ("Downloading ", "Processing ", "Building wheel for ")


@dataclass(frozen=True, kw_only=True)
class PipRequest:
    """One run of pip.

    Attributes:
        arguments: What follows ``pip`` on its command line.
        what: What went wrong if it fails, as a sentence.
        remedy: What to do then, as a sentence.
        folder: The folder that relative paths in requirements start from.
        markers: Environment markers to resolve for; empty for the running interpreter's.
        environ: The environment variables, with the host's configuration of pip.
    """

    arguments: Sequence[str]
    what: str
    remedy: str
    folder: Path
    environ: Mapping[str, str]
    markers: Mapping[str, str] = field(default_factory=dict)


def run_pip(request: PipRequest, progress: Progress) -> None:
    """Run the host's pip.

    Args:
        request: What it is to do.
        progress: Receives a line for each file that pip fetches or builds.

    Raises:
        ImageError: pip is not to be found, or fails; the cause is in its last lines.
    """
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    command = [_python_with_pip(), "-c", _WITH_MARKERS, *request.arguments]
    environ = {**request.environ, "ALLRANKS_MARKERS": json.dumps(dict(request.markers)), "PIP_NO_INPUT": "1"}
    with child(command, environ=environ, folder=request.folder) as process:
        for line in map(str.strip, lines_of(process)):
            last.append(line)
            if line.startswith(_SHOWN):
                progress(line)
    if process.returncode:
        raise ImageError(request.what, why=cause(last), remedy=request.remedy)


def cause(lines: Iterable[str]) -> str:
    """The lines of pip's output that tell why it failed: its errors, or all of them if it names none."""
    kept = [line for line in lines if line]
    errors = [line.removeprefix("ERROR: ") for line in kept if line.startswith("ERROR: ")]
    return "\n".join(errors or kept)


def python_that_builds() -> str | None:
    """The interpreter whose pip is taken, if it has one: every run asks, so nothing is started to see that."""
    return sys.executable if _has_pip() else shutil.which("python3")


def _has_pip() -> bool:
    """Whether this Python has pip; environments made by uv have none."""
    return importlib.util.find_spec("pip") is not None


def _python_with_pip() -> str:
    python = python_that_builds()
    if python and (
        _has_pip() or subprocess.run([python, "-c", "import pip"], capture_output=True, check=False).returncode == 0
    ):
        return python
    what = "The packages of the image cannot be resolved."
    raise ImageError(
        what,
        why=f"Neither {sys.executable} nor the python3 on the PATH has pip.",
        remedy="Install pip (Debian: apt install python3-pip; elsewhere: python3 -m ensurepip).",
    )


def without_configuration() -> dict[str, str]:
    """Environment variables under which pip looks nowhere but where it is told to."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return {**kept, "PIP_CONFIG_FILE": os.devnull}
