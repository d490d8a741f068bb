"""Images that one machine builds and others load."""

import io
import json
import sys
import tarfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import docker.errors
import pytest

from allranks.errors import ImageError
from allranks.images import sharing
from allranks.images.built_image import BuiltImage
from allranks.images.daemon import BuildContext, find
from allranks.images.sharing import (
    ImageStore,
    PortableImage,
    as_archive,
    by_push,
    export_images,
    look_up,
    read_images,
    take_images,
    write_list,
)
from allranks.matrix.model import Image

sys.path.insert(0, str(Path(__file__).parent))  # the helper, which pytest's importlib mode does not find

from registry_stand_in import serving

KEY = "allranks/portable-test:0123456789ab"
CPU = Image(name="cpu", torch="2.13.0")


@pytest.fixture
def tiny(docker_client, monkeypatch):
    """A small built image instead of that of the matrix file."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("hello"), io.BytesIO())
    name, _, tag = KEY.partition(":")
    docker_client.api.import_image_from_data(content.getvalue(), repository=name, tag=tag)
    built = BuiltImage(reference=KEY, id=docker_client.images.get(KEY).id)
    monkeypatch.setattr(sharing, "image_reference", lambda _image, _context: KEY)
    monkeypatch.setattr(sharing, "ensure_image", lambda *_args, **_named: built)
    yield built
    remove(docker_client, built.id)


def remove(client, reference):
    with suppress(docker.errors.ImageNotFound):
        client.images.remove(reference, force=True)


@pytest.fixture
def context(docker_client, tmp_path, progress):
    return BuildContext(client=docker_client, root=tmp_path, progress=progress)


@pytest.fixture
def store(tmp_path):
    return ImageStore(folder=tmp_path / "images", put=as_archive)


@pytest.mark.docker
def test_an_archive_brings_an_image_to_a_daemon_that_lacks_it_under_the_name_of_its_id(
    tiny, context, store, docker_client
):
    [exported] = export_images([CPU], store, context)
    assert exported == PortableImage(name="cpu", key=KEY, reference=tiny.id, file="cpu.tar")
    remove(docker_client, KEY)
    remove(docker_client, tiny.id)
    assert find(docker_client, tiny.id) is None
    taken = take_images(read_images(store.folder).values(), store.folder, docker_client, context.progress)
    name = f"allranks/cpu:id-{tiny.id.removeprefix('sha256:')}"
    assert taken == {"cpu": name}
    assert docker_client.images.get(tiny.id).tags == [name]


@pytest.mark.docker
@pytest.mark.usefixtures("tiny")
def test_what_was_exported_before_stays_until_the_key_changes(context, store, progress, monkeypatch):
    [first] = export_images([CPU], store, context)
    stamp = (store.folder / "cpu.tar").stat().st_mtime_ns
    assert export_images([CPU], store, context) == (first,)
    assert (store.folder / "cpu.tar").stat().st_mtime_ns == stamp
    assert progress[-1] == f"{KEY} is in {store.folder} already"
    monkeypatch.setattr(sharing, "image_reference", lambda _image, _context: "allranks/portable-test:other")
    export_images([CPU], store, context)
    assert (store.folder / "cpu.tar").stat().st_mtime_ns != stamp


@pytest.mark.docker
def test_a_registry_has_what_was_pushed_under_its_key_and_gives_it_by_digest(tiny, context, store, docker_client):
    with serving() as registry:
        place = f"{registry.name}/Owner/repository"
        pushing = ImageStore(folder=store.folder, put=by_push, registry=place)
        [pushed] = export_images([CPU], pushing, context)
        repository = f"{registry.name}/owner/repository/allranks/portable-test"
        assert pushed.reference.startswith(f"{repository}@sha256:")
        assert not pushed.file
        assert registry.pushed == ["owner/repository/allranks/portable-test:0123456789ab"]
        (store.folder / "images.json").unlink()
        taking = ImageStore(folder=store.folder, put=as_archive, registry=place)
        assert export_images([CPU], taking, context) == (pushed,)
        remove(docker_client, tiny.id)
        docker_client.images.pull(pushed.reference)
        assert docker_client.images.get(pushed.reference).id == tiny.id
        remove(docker_client, pushed.reference)
    (store.folder / "images.json").unlink()
    assert look_up(place, KEY, context) is None  # it does not answer any more: then it is built


def test_a_finished_image_is_passed_on_by_its_name(tmp_path, store, daemon, progress):
    finished = Image(name="own", image="registry.example/image@sha256:1234")
    [exported] = export_images([finished], store, BuildContext(client=daemon, root=tmp_path, progress=progress))
    assert exported.reference == "registry.example/image@sha256:1234"
    assert take_images([exported], store.folder, daemon, progress.append) == {"own": exported.reference}


def test_an_export_that_ends_early_leaves_no_list_that_names_another_images_archive(
    tmp_path, store, daemon, progress, monkeypatch
):
    keys = iter(("allranks/cpu:one", "allranks/cpu:two", "allranks/cpu:one"))
    monkeypatch.setattr(sharing, "image_reference", lambda *_: next(keys))
    monkeypatch.setattr(sharing, "ensure_image", lambda *_, **__: BuiltImage(reference="x", id="sha256:x"))
    context = BuildContext(client=daemon, root=tmp_path, progress=progress)

    def put(image, _built, store, _context):
        (store.folder / "cpu.tar").write_text(image.key)
        if image.key.endswith("two"):
            raise KeyboardInterrupt
        return replace(image, reference="sha256:x", file="cpu.tar")

    store = replace(store, put=put)
    export_images([CPU], store, context)
    with pytest.raises(KeyboardInterrupt):
        export_images([CPU], store, context)
    export_images([CPU], store, context)
    assert (store.folder / "cpu.tar").read_text() == "allranks/cpu:one"


def test_an_export_that_ends_at_its_second_image_lists_what_the_archives_hold(
    tmp_path, store, daemon, progress, monkeypatch
):
    version = ["one"]
    monkeypatch.setattr(sharing, "image_reference", lambda image, _context: f"allranks/{image.name}:{version[0]}")
    monkeypatch.setattr(sharing, "ensure_image", lambda *_, **__: BuiltImage(reference="x", id="sha256:x"))
    context = BuildContext(client=daemon, root=tmp_path, progress=progress)

    def put(image, _built, store, _context):
        (store.folder / f"{image.name}.tar").write_text(image.key)
        if image.key == "allranks/second:two":
            raise KeyboardInterrupt
        return replace(image, reference="sha256:x", file=f"{image.name}.tar")

    store = replace(store, put=put)
    images = [replace(CPU, name="first"), replace(CPU, name="second")]
    export_images(images, store, context)
    version[0] = "two"
    with pytest.raises(KeyboardInterrupt):
        export_images(images, store, context)
    listed = read_images(store.folder)
    assert {name: (store.folder / image.file).read_text() for name, image in listed.items()} == {
        name: image.key for name, image in listed.items()
    }


MANIFEST = [{"Config": "c.json", "RepoTags": None, "Layers": []}]


def archive(path, **files):
    """Write a tar file of JSON values, by name, with ``__`` for the dot."""
    with tarfile.open(path, "w") as content:
        for name, value in files.items():
            info = tarfile.TarInfo(name.replace("__", "."))
            data = json.dumps(value).encode()
            info.size = len(data)
            content.addfile(info, io.BytesIO(data))


def named(name, key="io.containerd.image.name"):
    return {"manifests": [{"annotations": {key: name}}]}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"manifest__json": [{**MANIFEST[0], "RepoTags": ["python:3.11-slim-bookworm"]}]}, "python:3.11-slim-bookworm"),
        ({"manifest__json": MANIFEST, "repositories": {"allranks/cpu": {"x": "y"}}}, "allranks/cpu"),
        ({"manifest__json": MANIFEST, "index__json": named("allranks/cpu:12")}, "allranks/cpu:12"),
        ({"manifest__json": MANIFEST, "index__json": named("x:1", "org.opencontainers.image.ref.name")}, "x:1"),
        ({"manifest__json": MANIFEST * 2}, "contains 2 images"),
        ({"index__json": named("x")}, "contains 0 images"),
    ],
)
def test_an_archive_that_would_name_images_or_bring_several_is_not_loaded(tmp_path, daemon, progress, files, message):
    archive(tmp_path / "cpu.tar", **files)
    image = PortableImage(name="cpu", key=KEY, reference="sha256:12", file="cpu.tar")
    with pytest.raises(ImageError, match=message):
        take_images([image], tmp_path, daemon, progress.append)


def test_an_archive_with_two_lists_is_not_loaded(tmp_path, daemon, progress):
    with tarfile.open(tmp_path / "cpu.tar", "w") as content:
        for name in ("manifest.json", "./manifest.json"):
            info = tarfile.TarInfo(name)
            info.size = len(data := json.dumps(MANIFEST).encode())
            content.addfile(info, io.BytesIO(data))
    image = PortableImage(name="cpu", key=KEY, reference="sha256:12", file="cpu.tar")
    with pytest.raises(ImageError, match="twice"):
        take_images([image], tmp_path, daemon, progress.append)


@pytest.mark.parametrize(
    "name",
    ["x/../manifest.json", ".//manifest.json", "/manifest.json", "../manifest.json", "x/./y", "link/manifest.json"],
)
def test_a_list_that_comes_by_another_way_is_not_loaded(tmp_path, daemon, progress, name):
    with tarfile.open(tmp_path / "cpu.tar", "w") as content:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "."
        content.addfile(link)
        for member in ("manifest.json", name):
            info = tarfile.TarInfo(member)
            info.size = len(data := json.dumps(MANIFEST).encode())
            content.addfile(info, io.BytesIO(data))
    image = PortableImage(name="cpu", key=KEY, reference="sha256:12", file="cpu.tar")
    with pytest.raises(ImageError, match="is not a plain path"):
        take_images([image], tmp_path, daemon, progress.append)


def test_an_archive_that_is_a_link_or_no_archive_is_not_loaded(tmp_path, daemon, progress):
    archive(tmp_path / "elsewhere.tar", manifest__json=MANIFEST)
    image = PortableImage(name="cpu", key=KEY, reference="sha256:12", file="cpu.tar")
    (tmp_path / "cpu.tar").symlink_to(tmp_path / "elsewhere.tar")
    with pytest.raises(ImageError, match="is a link"):
        take_images([image], tmp_path, daemon, progress.append)
    (tmp_path / "cpu.tar").unlink()
    (tmp_path / "cpu.tar").write_text("no tar")
    with pytest.raises(ImageError, match="cannot be used"):
        take_images([image], tmp_path, daemon, progress.append)


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "../cpu", "key": "k", "reference": "r", "file": ""},
        {"name": "cpu", "key": "k", "reference": "r", "file": "../cpu.tar"},
        {"name": "cpu", "key": "k", "reference": "r", "file": "/etc/passwd"},
        {"name": "cpu", "key": "k", "reference": "r"},
        "cpu",
    ],
)
def test_a_list_that_leads_elsewhere_or_is_damaged_is_refused(tmp_path, entry):
    (tmp_path / "images.json").write_text(json.dumps({"schema": 1, "images": [entry]}))
    with pytest.raises(ImageError, match="cannot be read as a list"):
        read_images(tmp_path)


def test_a_list_of_another_version_and_a_missing_one_have_different_errors(tmp_path):
    with pytest.raises(ImageError, match="cannot be read"):
        read_images(tmp_path)
    (tmp_path / "images.json").write_text('{"schema": 2, "images": []}')
    with pytest.raises(ImageError, match="another version"):
        read_images(tmp_path)


def test_an_empty_list_is_a_list(tmp_path):
    write_list(tmp_path / "new", ())
    assert read_images(tmp_path / "new") == {}
