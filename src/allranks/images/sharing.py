"""Shares images between machines, through a folder of archives or a registry.

The folder may come from an untrusted source, such as the author of a pull request. An archive therefore contains a
single image, without a name. The loaded image is named by its complete id, which is a name that no run looks up.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from allranks.errors import ImageError
from allranks.images.built_image import BuiltImage, build_limit, ensure_image, image_reference, repository
from allranks.images.daemon import BuildContext, Progress, error_of, find, reported

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.images import Image as DockerImage

    from allranks.matrix.model import Image


LIST_NAME: Final = "images.json"

SCHEMA: Final = 1

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_REMEDY: Final = "Export the folder again (allranks build --export), or unset ALLRANKS_IMAGES to build here."
_NAMES_OF_CONTAINERD: Final = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


@dataclass(frozen=True, kw_only=True)
class PortableImage:
    """An image that other machines can load."""

    name: str  # its name in the matrix file
    key: str  # its name on the machine that built it, with the key of its inputs; or the name of a prebuilt image
    reference: str  # its name on other machines: an id, or its name in a registry
    file: str = ""  # its archive in the folder; empty if it is in a registry


Put = Callable[[PortableImage, BuiltImage, "ImageStore", BuildContext], PortableImage]
"""Stores a built image, and returns it with its reference for other machines."""


@dataclass(frozen=True, kw_only=True)
class ImageStore:
    """A store of portable images."""

    folder: Path  # for the list and the archives
    put: Put  # :func:`as_archive`, or :func:`by_push`
    registry: str = ""  # the prefix of names in a registry, such as ``ghcr.io/owner/repository``; empty for none


def export_images(
    images: Iterable[Image], store: ImageStore, context: BuildContext, seconds: float = math.inf
) -> tuple[PortableImage, ...]:
    """Store images; build missing ones, each within a time limit in seconds.

    Images that an earlier call stored are reused if their keys are the same.
    """
    with _as_image_error(store.folder):
        store.folder.mkdir(parents=True, exist_ok=True)
        earlier = dict(_earlier_images(store.folder))
        exported: dict[str, PortableImage] = {}
        for image in images:
            with build_limit(image, seconds):
                exported[image.name] = earlier[image.name] = _export(image, store, context, earlier)
        write_list(store.folder, exported.values())
    return tuple(exported.values())


def write_list(folder: Path, images: Iterable[PortableImage]) -> None:
    """Write the list of a folder; create the folder if necessary."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = {"schema": SCHEMA, "images": [asdict(image) for image in images]}
    (folder / LIST_NAME).write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")


def as_archive(image: PortableImage, built: BuiltImage, store: ImageStore, context: BuildContext) -> PortableImage:
    """Write an image to an archive in the folder, without its name."""
    file = f"{image.name}.tar"
    draft = store.folder / f".{file}.unfinished"
    context.progress(f"writing {image.key} to {store.folder / file}")
    with (
        reported(f"The image {image.key} could not be written to a file.", remedy="Run again."),
        draft.open("wb") as to,
    ):
        to.writelines(context.client.api.get_image(built.id))
    draft.replace(store.folder / file)
    return replace(image, reference=built.id, file=file)


def read_images(folder: Path) -> dict[str, PortableImage]:
    """The images that a folder lists, by name; they are not loaded."""
    listed = folder / LIST_NAME
    try:
        value = json.loads(listed.read_bytes())
        images = [_portable(entry) for entry in value["images"]] if value["schema"] == SCHEMA else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"{listed} cannot be read as a list of images."
        raise ImageError(what, why=f"{type(error).__name__}: {error}.", remedy=_REMEDY) from error
    if images is None:
        msg = f"{listed} was written by another version of allranks."
        raise ImageError(msg, remedy=_REMEDY)
    return {image.name: image for image in images}


def take_images(
    images: Iterable[PortableImage], folder: Path, client: DockerClient, progress: Progress
) -> dict[str, str]:
    """Load the archives of images; return their references by name."""
    with _as_image_error(folder):
        return {image.name: _take(image, folder, client, progress) for image in images}


def _earlier_images(folder: Path) -> Mapping[str, PortableImage]:
    """The images of an earlier export; none if its list cannot be read."""
    with suppress(ImageError):
        return read_images(folder)
    return {}


def _export(
    image: Image, store: ImageStore, context: BuildContext, earlier: Mapping[str, PortableImage]
) -> PortableImage:
    key = image_reference(image, context)
    portable = PortableImage(name=image.name, key=key, reference=key)
    if image.image is not None:
        return portable
    before = earlier.get(image.name)
    if before and before.key == key and (not before.file or (store.folder / before.file).is_file()):
        context.progress(f"{key} is in {store.folder} already")
        return before
    if known := look_up(store.registry, key, context) if store.registry else None:
        context.progress(f"{key} is in the registry already: {known}")
        return replace(portable, reference=known)
    # The list loses the entry of an archive before the archive is replaced, so that an interrupt leaves no wrong entry.
    write_list(store.folder, (other for name, other in earlier.items() if name != image.name))
    built = ensure_image(image, root=context.root, client=context.client, progress=context.progress)
    return store.put(portable, built, store, context)


def _portable(entry: Mapping[str, Any]) -> PortableImage:
    image = PortableImage(**{name: str(entry[name]) for name in ("name", "key", "reference", "file")})
    if not _NAME.fullmatch(image.name) or image.file not in ("", f"{image.name}.tar"):
        msg = f"{image.name!r} with the archive {image.file!r} was not written by allranks"
        raise ValueError(msg)
    return image


def _take(image: PortableImage, folder: Path, client: DockerClient, progress: Progress) -> str:
    if not image.file:
        return image.reference
    loaded = find(client, image.reference) or _load(image, folder / image.file, client, progress)
    # With a name, the image can be listed and removed like images built here; no run looks up a name with an id.
    name, tag = repository(image.name), f"id-{str(loaded.id).removeprefix('sha256:')}"
    with reported(f"The image {image.name} could not be tagged.", remedy="Run again."):
        client.api.tag(loaded.id, name, tag)
    return f"{name}:{tag}"


def _load(image: PortableImage, archive: Path, client: DockerClient, progress: Progress) -> DockerImage:
    _check_names(archive)
    progress(f"loading image {image.name} from {archive}")
    remedy = "Free space where the daemon stores its images, then run again."
    with reported(f"The image {image.name} could not be loaded.", remedy=remedy), archive.open("rb") as file:
        # Its id may differ from the one in the list: daemons that store images in containerd use other ids.
        [loaded] = client.images.load(file)
    return loaded


def _check_names(archive: Path) -> None:
    """Check that an archive has no name for its image, since the daemon would assign the name.

    Raises:
        ImageError: The archive has a name, or is a link.
    """
    if archive.is_symlink():
        msg = f"{archive} is a link, and is not followed."
        raise ImageError(msg, remedy=_REMEDY)
    names = list(_names_in(archive))
    if names:
        what = f"{archive} would give an image the name {names[0]}."
        raise ImageError(what, why="A later run might use it instead of its own image.", remedy=_REMEDY)


def _names_in(archive: Path) -> Iterator[str]:
    """Yield the names in all lists that a daemon reads: Docker's current one, its old one, and the OCI layout's."""
    with tarfile.open(archive, "r:") as content:
        _check_paths(content)
        manifest = _json_of(content, "manifest.json") or []
        if len(manifest) != 1:
            msg = f"it contains {len(manifest)} images instead of one"
            raise ValueError(msg)
        yield from (name for image in manifest for name in image.get("RepoTags") or ())
        yield from _json_of(content, "repositories") or {}
        for image in (_json_of(content, "index.json") or {}).get("manifests", ()):
            annotations = image.get("annotations") or {}
            yield from (annotations[key] for key in _NAMES_OF_CONTAINERD if annotations.get(key))


def _check_paths(content: tarfile.TarFile) -> None:
    """Check that no member of an archive can overwrite one of the lists, for example through a link."""
    members = content.getmembers()
    links = {posixpath.normpath(member.name) for member in members if member.issym() or member.islnk()}
    for member in members:
        name = member.name.removeprefix("./").rstrip("/")
        parents = {parent.as_posix() for parent in PurePosixPath(name).parents}
        is_plain = name in ("", ".", posixpath.normpath(name)) and not name.startswith(("/", ".."))
        if not is_plain or parents & links or ("/" not in name and name in links):
            msg = f"the path {member.name!r} is not a plain path"
            raise ValueError(msg)


def _json_of(content: tarfile.TarFile, name: str) -> Any:  # noqa: ANN401 - JSON
    """The content of a JSON file in an archive; None if it is missing. Two files with the same name are an error."""
    found = [member for member in content.getmembers() if member.name.removeprefix("./") == name]
    if not found:
        return None
    if len(found) > 1 or not found[0].isfile():
        msg = f"{name} occurs twice, or is not a file"
        raise ValueError(msg)
    file = content.extractfile(found[0])
    return json.load(file) if file else None


@contextmanager
def _as_image_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, tarfile.TarError, ValueError, AttributeError, TypeError) as error:
        what = f"The folder of images {folder} cannot be used."
        raise ImageError(what, why=f"{error}.", remedy=_REMEDY) from error


def look_up(registry: str, key: str, context: BuildContext) -> str | None:
    """The name by digest of the image with this key in a registry; None if there is none."""
    with suppress(ImageError):
        return _by_digest(_registry_name(registry, key), context)
    return None


def by_push(image: PortableImage, built: BuiltImage, store: ImageStore, context: BuildContext) -> PortableImage:
    """Push an image to the registry."""
    reference = _registry_name(store.registry, image.key)
    name, _, tag = reference.rpartition(":")
    what = f"The image {reference} could not be pushed."
    context.progress(f"pushing {reference}")
    with reported(what, remedy=_LOGIN):
        context.client.api.tag(built.id, name, tag)
        for event in context.client.api.push(name, tag, stream=True, decode=True):
            if error := error_of(event):
                raise ImageError(what, why=f"{error}.", remedy=_LOGIN)
    return replace(image, reference=_by_digest(reference, context))


_LOGIN = "Log in to the registry (docker login) with write access, then run again."


def _registry_name(registry: str, key: str) -> str:
    """The name of a key in a registry, in lower case, since the owner of a repository may have capitals."""
    return f"{registry.rstrip('/')}/{key}".lower()


def _by_digest(reference: str, context: BuildContext) -> str:
    """The immutable name (by digest) of the image that a name in a registry currently means."""
    with reported(f"The registry could not be queried for {reference}.", remedy=_LOGIN):
        found = context.client.api.inspect_distribution(reference)  # type: ignore[no-untyped-call]
    return f"{reference.rpartition(':')[0]}@{found['Descriptor']['digest']}"
