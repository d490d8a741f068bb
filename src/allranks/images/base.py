"""The Dockerfile, the base image of a build, and the Python of an image."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from allranks.errors import ImageError
from allranks.images.daemon import Progress, find, pull, reported
from allranks.interruption import block_signals
from allranks.matrix.model import Image
from allranks.ownership import image_lock, shared_lock
from allranks.user_cache import made_cache_folder, write_atomically

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image as DaemonImage


def dockerfile_path() -> Path:
    """The Dockerfile of all layers: next to this module in a wheel, or in ``docker/`` of a checkout."""
    here = Path(__file__).resolve().parent
    installed = here / _DOCKERFILE
    return installed if installed.is_file() else here.parents[2] / "docker" / _DOCKERFILE


_DOCKERFILE = "Dockerfile.cuda"

DEFAULT = Image.base
LOCAL = "allranks/base:bookworm"
"""The image that ``scripts/base-image`` makes on hosts without access to a registry."""

VARIABLE = "ALLRANKS_BASE_IMAGE"
"""Overrides the default base image on this host."""

OLDEST_PYTHON = (3, 11)

_PROBE = """
import json, os, platform, sys
implementation = sys.implementation
version = implementation.version
print(json.dumps({
    "python": list(sys.version_info[:2]),
    "abi_flags": sys.abiflags,
    "libc": list(platform.libc_ver()),
    "markers": {
        "implementation_name": implementation.name,
        "implementation_version": "%d.%d.%d" % version[:3],
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "python_version": "%d.%d" % sys.version_info[:2],
        "sys_platform": sys.platform,
    },
}))
"""


@dataclass(frozen=True, kw_only=True)
class Base:
    """A base image that the daemon has."""

    reference: str  # its name
    id: str  # its id, which depends on its content
    reason: str = ""  # why it is not the base in the matrix file; empty if it is
    digest: str = ""  # its name by digest in a registry; empty if it has none

    @property
    def pinned(self) -> str:
        """An immutable name, if possible: since the lookup, a tag may have moved to another image."""
        return self.digest or self.reference


@dataclass(frozen=True, kw_only=True)
class ImagePython:
    """The properties of an image's Python that select wheels."""

    version: tuple[int, int]  # major and minor version
    abi: str  # the ABI tag of its extension modules, such as ``cp311``
    platforms: tuple[str, ...]  # its platform tags, the best first
    markers: Mapping[str, str]  # its environment markers (PyPA dependency specifiers)


def find_base(client: DockerClient, name: str, *, environ: Mapping[str, str], progress: Progress) -> Base:
    """Find or pull the base image.

    An image that the daemon has is not pulled. ``ALLRANKS_BASE_IMAGE`` replaces the default base, but no other. Without
    it, if the daemon lacks the default base, the image of ``scripts/base-image`` is used if it exists, so that a host
    with this image never waits for an unreachable registry.
    """
    chosen, reason = _chosen(name, environ)
    if image := find(client, chosen):
        return Base(reference=chosen, id=str(image.id), reason=reason, digest=_digest_of(image, chosen))
    if chosen == DEFAULT and (image := find(client, LOCAL)):
        return Base(reference=LOCAL, id=str(image.id), reason=f"{DEFAULT} is not on this host")
    pulled = pull(client, chosen, progress=progress, remedy=_remedy(chosen, reason))
    return Base(reference=chosen, id=str(pulled.id), reason=reason, digest=_digest_of(pulled, chosen))


def _digest_of(image: DaemonImage, name: str) -> str:
    """A name of the image by digest, preferably in the registry of `name`; empty if it has none."""
    digests: list[str] = image.attrs.get("RepoDigests") or []
    return min(digests, key=lambda digest: (not name.startswith(digest.partition("@")[0]), digest), default="")


def _chosen(name: str, environ: Mapping[str, str]) -> tuple[str, str]:
    override = environ.get(VARIABLE, "")
    if name == DEFAULT and override:
        return override, f"set by {VARIABLE}"
    return name, ""


def _remedy(chosen: str, reason: str) -> str:
    if reason:
        return f"Correct {VARIABLE}, or unset it."
    if chosen != DEFAULT:
        return "Correct `base` of [images.NAME] in the matrix file; an image on this host will do."
    return (
        f"Without a registry, {_SCRIPT} makes {LOCAL} from Debian packages. Or use another image on this host: "
        f'set base = "..." in [images.NAME] for all hosts, or {VARIABLE} for this host.'
    )


_SCRIPT = "scripts/base-image (in allranks' source distribution)"


def python_of(client: DockerClient, base: Base) -> ImagePython:
    """The Python of a base image; the result is cached."""
    file = made_cache_folder("pythons") / f"{base.id.removeprefix('sha256:')}.json"
    if file.is_file():
        return read_probe(file.read_text(encoding="utf-8"), base=base.reference)
    output = _probe(client, base)
    python = read_probe(output, base=base.reference)
    write_atomically(file, output)
    return python


def _probe(client: DockerClient, base: Base) -> str:
    from allranks.images.leftovers import LABEL, builder_of  # noqa: PLC0415 - `allranks plan` needs no SDK

    what = f"The base image {base.reference} cannot be used."
    remedy = f"Use a base with python3, such as python:3.11-slim-bookworm, or that of {_SCRIPT}."
    name = f"python-of-{base.id.removeprefix('sha256:')[:12]}"
    labels = {"allranks": "1", LABEL: builder_of(name)}
    # If this process is killed, the container is removed with the leftovers of builds.
    with shared_lock(image_lock(name)), reported(what, remedy=remedy):
        with block_signals():
            container = client.containers.create(
                base.id, [_PROBE], entrypoint=["python3", "-c"], network_mode="none", labels=labels
            )
        try:
            container.start()
            status = container.wait(timeout=60)["StatusCode"]
            output = container.logs(stdout=True, stderr=True).decode(errors="replace")
        finally:
            container.remove(force=True)
    if status:
        raise ImageError(what, why=f"Its python3 exited with code {status}: {output.strip()}", remedy=remedy)
    return output


def read_probe(output: str, *, base: str) -> ImagePython:
    """Read the output of the probe.

    Raises:
        ImageError: The Python is too old, not CPython, or not linked to glibc (torch has no musl wheels).
    """
    probe = json.loads(output)
    major, minor = version = tuple(probe["python"])
    libc, libc_version = probe["libc"]
    implementation = probe["markers"]["platform_python_implementation"]
    if version < OLDEST_PYTHON or implementation != "CPython" or libc != "glibc":
        what = f"The base image {base} cannot be used."
        raise ImageError(
            what,
            why=f"It has {implementation} {major}.{minor} on {libc or 'a C library other than glibc'}.",
            remedy="Use a base with CPython 3.11 or newer on glibc, such as python:3.11-slim-bookworm.",
        )
    return ImagePython(
        version=(major, minor),
        abi=f"cp{major}{minor}{probe['abi_flags']}",
        platforms=platform_tags(libc_version, probe["markers"]["platform_machine"]),
        markers=probe["markers"],
    )


def platform_tags(glibc: str, machine: str) -> tuple[str, ...]:
    """The platform tags that a glibc supports, the newest first (PEP 600; PEP 599 for manylinux2014).

    Args:
        glibc: Version of the C library, such as ``2.36``.
        machine: Machine as ``uname -m`` prints it.
    """
    newest = int(glibc.split(".")[1])
    manylinux = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 16, -1)]
    return (*manylinux, f"manylinux2014_{machine}", f"linux_{machine}")


def as_json(python: ImagePython) -> dict[str, object]:
    """A form with only JSON types, without the markers of the running kernel."""
    values = asdict(python)
    values["markers"] = {
        name: value for name, value in python.markers.items() if name not in ("platform_release", "platform_version")
    }
    return values
