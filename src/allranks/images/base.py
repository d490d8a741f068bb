"""The base image of a build, the Dockerfile, and the Python in an image."""

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
from allranks.ownership import image_lock, shared
from allranks.user_cache import keep, made_cache_folder

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image as DaemonImage


def dockerfile_path() -> Path:
    """The Dockerfile of all layers: beside this module in a wheel, in ``docker/`` in a checkout or editable install."""
    here = Path(__file__).resolve().parent
    installed = here / _DOCKERFILE
    return installed if installed.is_file() else here.parents[2] / "docker" / _DOCKERFILE


_DOCKERFILE = "Dockerfile.cuda"

DEFAULT = Image.base
LOCAL = "allranks/base:bookworm"
"""The image that ``scripts/base-image`` makes on hosts that reach no registry."""

VARIABLE = "ALLRANKS_BASE_IMAGE"
"""Names this host's base image, in place of the default one of a matrix file."""

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

    reference: str  # the name to build from
    id: str  # the image's id, which changes with its content
    reason: str = ""  # why it is not the one in the matrix file; empty if it is
    digest: str = ""  # its name with its digest in a registry; empty if it was made here

    @property
    def pinned(self) -> str:
        """The name that a build starts from: a tag may have been moved to another image since it was looked up."""
        return self.digest or self.reference


@dataclass(frozen=True, kw_only=True)
class ImagePython:
    """The Python of an image, as far as wheels depend on it."""

    version: tuple[int, int]  # major and minor version
    abi: str  # the ABI tag of its extension modules, such as ``cp311``
    platforms: tuple[str, ...]  # platform tags it can load, the best first
    markers: Mapping[str, str]  # its environment markers (PyPA dependency specifiers)


def find_base(client: DockerClient, name: str, *, environ: Mapping[str, str], progress: Progress) -> Base:
    """The base image to build from.

    Images in the daemon precede those of a registry. Only the default base can be replaced by the host, in this order:
    ``ALLRANKS_BASE_IMAGE``, the default base, the image that ``scripts/base-image`` made, and only then a pull; so
    once that script has run, no run waits for a registry that cannot be reached.
    """
    chosen, reason = _chosen(name, environ)
    if image := find(client, chosen):
        return Base(reference=chosen, id=str(image.id), reason=reason, digest=_digest_of(image, chosen))
    if chosen == DEFAULT and (image := find(client, LOCAL)):
        return Base(reference=LOCAL, id=str(image.id), reason=f"{DEFAULT} is not on this host")
    pulled = pull(client, chosen, progress=progress, remedy=_remedy(chosen, reason))
    return Base(reference=chosen, id=str(pulled.id), reason=reason, digest=_digest_of(pulled, chosen))


def _digest_of(image: DaemonImage, name: str) -> str:
    """One of its names by digest: if several registries have it, that of the registry in `name`."""
    digests: list[str] = image.attrs.get("RepoDigests") or []
    return min(digests, key=lambda each: (not name.startswith(each.partition("@")[0]), each), default="")


def _chosen(name: str, environ: Mapping[str, str]) -> tuple[str, str]:
    override = environ.get(VARIABLE, "")
    if name == DEFAULT and override:
        return override, f"{VARIABLE} names it"
    return name, ""


def _remedy(chosen: str, reason: str) -> str:
    if reason:
        return f"Correct {VARIABLE}, or unset it."
    if chosen != DEFAULT:
        return (
            'Correct base of [images.NAME] in the matrix file, or name a base there that this host has (base = "...").'
        )
    return (
        f"Without a registry, {_SCRIPT} makes {LOCAL} from Debian packages. Or name a base that "
        f'this host has: base = "..." in [images.NAME] for all hosts, {VARIABLE} for this host.'
    )


_SCRIPT = "scripts/base-image (in allranks' source distribution)"


def python_of(client: DockerClient, base: Base) -> ImagePython:
    """The Python of a base image, asked once per image."""
    file = made_cache_folder("pythons") / f"{base.id.removeprefix('sha256:')}.json"
    if file.is_file():
        return read_probe(file.read_text(encoding="utf-8"), base=base.reference)
    answer = _ask(client, base)
    python = read_probe(answer, base=base.reference)
    keep(file, answer)
    return python


def _ask(client: DockerClient, base: Base) -> str:
    from allranks.images.leftovers import LABEL, builder_of  # noqa: PLC0415 - a plan has no SDK, which they import

    what = f"The base image {base.reference} cannot be used."
    remedy = f"Name a base that has python3, such as python:3.11-slim-bookworm, or the one of {_SCRIPT}."
    question = f"python-of-{base.id.removeprefix('sha256:')[:12]}"
    labels = {"allranks": "1", LABEL: builder_of(question)}
    # A process that dies here leaves a container of no run: it is removed with the remains of builds.
    with shared(image_lock(question)), reported(what, remedy=remedy):
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
        raise ImageError(what, why=f"Its python3 ended with code {status}: {output.strip()}", remedy=remedy)
    return output


def read_probe(answer: str, *, base: str) -> ImagePython:
    """The Python that a probe's answer describes.

    Raises:
        ImageError: The Python is too old, no CPython, or not linked to glibc (torch has no musl wheels).
    """
    probe = json.loads(answer)
    major, minor = version = tuple(probe["python"])
    libc, libc_version = probe["libc"]
    implementation = probe["markers"]["platform_python_implementation"]
    if version < OLDEST_PYTHON or implementation != "CPython" or libc != "glibc":
        what = f"The base image {base} cannot be used."
        raise ImageError(
            what,
            why=f"It has {implementation} {major}.{minor} on {libc or 'a C library other than glibc'}.",
            remedy="Name a base with CPython 3.11 or newer on glibc, such as python:3.11-slim-bookworm.",
        )
    return ImagePython(
        version=(major, minor),
        abi=f"cp{major}{minor}{probe['abi_flags']}",
        platforms=platform_tags(libc_version, probe["markers"]["platform_machine"]),
        markers=probe["markers"],
    )


def platform_tags(glibc: str, machine: str) -> tuple[str, ...]:
    """The platform tags that a glibc can load, the newest first (PEP 600, and PEP 599 for its alias).

    Args:
        glibc: Version of the C library, such as ``2.36``.
        machine: Machine as ``uname -m`` prints it.
    """
    newest = int(glibc.split(".")[1])
    manylinux = [f"manylinux_2_{minor}_{machine}" for minor in range(newest, 16, -1)]
    return (*manylinux, f"manylinux2014_{machine}", f"linux_{machine}")


def as_json(python: ImagePython) -> dict[str, object]:
    """The value made of JSON's types, without the markers of the running kernel."""
    values = asdict(python)
    values["markers"] = {
        name: value for name, value in python.markers.items() if name not in ("platform_release", "platform_version")
    }
    return values
