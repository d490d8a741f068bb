"""Images that one machine builds and others load: a folder of archives, and a registry.

The folder goes from one CI machine to another, and may come from an untrusted source, such as the author of a pull
request. An archive therefore holds one image without a name, which is run by a name made of its whole id: it cannot
take the place of an image that a later run on the same daemon looks for.
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
    """An image that other machines can get."""

    name: str  # its name in the matrix file
    key: str  # its name where it was built, with the key of what went in; for a finished image its reference
    reference: str  # its name for runs elsewhere: an id, or its name in a registry
    file: str = ""  # its archive, a file of the folder; empty if the reference is enough


Put = Callable[[PortableImage, BuiltImage, "ImageStore", BuildContext], PortableImage]
"""Puts an image that has been built where others can get it; returns it with its reference there."""


@dataclass(frozen=True, kw_only=True)
class ImageStore:
    """Where portable images are put."""

    folder: Path  # for the list and the archives
    put: Put  # puts built images there: :func:`as_archive`, or :func:`allranks.images.sharing.by_push`
    # Looks up a key in a registry; None if that has nothing, or there is no registry.
    known: Callable[[str, BuildContext], str | None]


def export_images(
    images: Iterable[Image], store: ImageStore, context: BuildContext, seconds: float = math.inf
) -> tuple[PortableImage, ...]:
    """Put images where other machines can get them, and build those that do not exist yet, each within a time limit.

    Images of an earlier call that are still right stay.
    """
    with _as_image_error(store.folder):
        store.folder.mkdir(parents=True, exist_ok=True)
        kept = dict(_kept(store.folder))
        exported: dict[str, PortableImage] = {}
        for image in images:
            with build_limit(image, seconds):
                exported[image.name] = kept[image.name] = _exported(image, store, context, kept)
        write_list(store.folder, exported.values())
    return tuple(exported.values())


def write_list(folder: Path, images: Iterable[PortableImage]) -> None:
    """Write the list of a folder, which is made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = {"schema": SCHEMA, "images": [asdict(image) for image in images]}
    (folder / LIST_NAME).write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")


def in_no_registry(_key: str, _context: BuildContext) -> str | None:
    """The answer of a registry if there is none."""
    return None


def as_archive(image: PortableImage, built: BuiltImage, store: ImageStore, context: BuildContext) -> PortableImage:
    """Write an image into a file of the folder, without its name."""
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
    """The images that a folder lists, by name; none of them is loaded."""
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
    """Load the archives of some images.

    Returns:
        The reference to run each by, by name.
    """
    with _as_image_error(folder):
        return {image.name: _taken(image, folder, client, progress) for image in images}


def _kept(folder: Path) -> Mapping[str, PortableImage]:
    """The images of an earlier export; none if its list cannot be read."""
    with suppress(ImageError):
        return read_images(folder)
    return {}


def _exported(
    image: Image, store: ImageStore, context: BuildContext, kept: Mapping[str, PortableImage]
) -> PortableImage:
    key = image_reference(image, context)
    wanted = PortableImage(name=image.name, key=key, reference=key)
    if image.image is not None:
        return wanted
    before = kept.get(image.name)
    if before and before.key == key and (not before.file or (store.folder / before.file).is_file()):
        context.progress(f"{key} is in {store.folder} already")
        return before
    if known := store.known(key, context):
        context.progress(f"{key} is in the registry already: {known}")
        return replace(wanted, reference=known)
    # The archive of another key leaves the list before it is replaced, so an interrupt leaves no wrong entry.
    write_list(store.folder, (other for name, other in kept.items() if name != image.name))
    return store.put(
        wanted, ensure_image(image, root=context.root, client=context.client, progress=context.progress), store, context
    )


def _portable(entry: Mapping[str, Any]) -> PortableImage:
    image = PortableImage(**{name: str(entry[name]) for name in ("name", "key", "reference", "file")})
    if not _NAME.fullmatch(image.name) or image.file not in ("", f"{image.name}.tar"):
        msg = f"{image.name!r} with the archive {image.file!r} was not written by allranks"
        raise ValueError(msg)
    return image


def _taken(image: PortableImage, folder: Path, client: DockerClient, progress: Progress) -> str:
    if not image.file:
        return image.reference
    there = find(client, image.reference) or _loaded(image, folder / image.file, client, progress)
    # The name lets it be found and removed like images built here; no run looks for a name with an id.
    name, tag = repository(image.name), f"id-{str(there.id).removeprefix('sha256:')}"
    with reported(f"The image {image.name} could not be given a name.", remedy="Run again."):
        client.api.tag(there.id, name, tag)
    return f"{name}:{tag}"


def _loaded(image: PortableImage, archive: Path, client: DockerClient, progress: Progress) -> DockerImage:
    _refuse_names(archive)
    progress(f"loading image {image.name} from {archive}")
    remedy = "Free space where the daemon keeps its images, then run again."
    with reported(f"The image {image.name} could not be loaded.", remedy=remedy), archive.open("rb") as file:
        # The id may differ from that where it was built: daemons that keep images in containerd use another id.
        [loaded] = client.images.load(file)
    return loaded


def _refuse_names(archive: Path) -> None:
    """Check that loading an archive gives no image a name.

    Raises:
        ImageError: It would, or it is a link.
    """
    if archive.is_symlink():
        msg = f"{archive} is a link, and is not followed."
        raise ImageError(msg, remedy=_REMEDY)
    names = list(_names_in(archive))
    if names:
        what = f"{archive} would give an image the name {names[0]}."
        raise ImageError(what, why="A later run might take it for its own.", remedy=_REMEDY)


def _names_in(archive: Path) -> Iterator[str]:
    """The names in each list that a daemon reads: Docker's own, its old one, and that of the OCI layout."""
    with tarfile.open(archive, "r:") as content:
        _refuse_odd_paths(content)
        manifest = _json_of(content, "manifest.json") or []
        if len(manifest) != 1:
            msg = f"it holds {len(manifest)} images and not one"
            raise ValueError(msg)
        yield from (name for image in manifest for name in image.get("RepoTags") or ())
        yield from _json_of(content, "repositories") or {}
        for image in (_json_of(content, "index.json") or {}).get("manifests", ()):
            annotations = image.get("annotations") or {}
            yield from (annotations[key] for key in _NAMES_OF_CONTAINERD if annotations.get(key))


def _refuse_odd_paths(content: tarfile.TarFile) -> None:
    """Check that no member of an archive is unpacked, by a detour, over one of the lists."""
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
    """The contents of a file in an archive; None if it is missing. Of two with one name a daemon may take either."""
    found = [member for member in content.getmembers() if member.name.removeprefix("./") == name]
    if not found:
        return None
    if len(found) > 1 or not found[0].isfile():
        msg = f"{name} is there twice, or is not a file"
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


def look_up(registry: str) -> Callable[[str, BuildContext], str | None]:
    """A function that looks up a key in a registry and returns a name by digest; None if there is no answer.

    Args:
        registry: The part of its names above ours, such as ``ghcr.io/owner/repository``.
    """

    def known(key: str, context: BuildContext) -> str | None:
        with suppress(ImageError):
            return _by_digest(_place(registry, key), context)
        return None

    return known


def by_push(registry: str) -> Put:
    """A function that pushes an image to a registry."""

    def put(image: PortableImage, built: BuiltImage, _store: ImageStore, context: BuildContext) -> PortableImage:
        place = _place(registry, image.key)
        name, _, tag = place.rpartition(":")
        context.progress(f"pushing {place}")
        with reported(f"The image {place} could not be pushed.", remedy=_LOGIN):
            context.client.api.tag(built.id, name, tag)
            for event in context.client.api.push(name, tag, stream=True, decode=True):
                if error := error_of(event):
                    msg = f"The image {place} could not be pushed."
                    raise ImageError(msg, why=f"{error}.", remedy=_LOGIN)
        return replace(image, reference=_by_digest(place, context))

    return put


_LOGIN = "Log in to the registry (docker login) with write access, then run again."


def _place(registry: str, key: str) -> str:
    """The name in a registry: only lower case, though the owner of a repository may have capitals."""
    return f"{registry.rstrip('/')}/{key}".lower()


def _by_digest(place: str, context: BuildContext) -> str:
    """The immutable name, by digest, of the image that a name means now."""
    with reported(f"The registry could not be queried for {place}.", remedy=_LOGIN):
        answer = context.client.api.inspect_distribution(place)  # type: ignore[no-untyped-call]
    return f"{place.rpartition(':')[0]}@{answer['Descriptor']['digest']}"
