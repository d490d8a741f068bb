"""Layers of Debian packages, and what pruning takes and leaves, in a real daemon."""

import io
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace

import pytest
from docker.errors import ImageNotFound

from allranks.errors import ExitCode, ImageError
from allranks.images.base import DEFAULT, find_base
from allranks.images.daemon import BuildContext
from allranks.images.docker_client import connect
from allranks.images.inventory import OTHERS, PruneLimits, list_images, remove, to_remove
from allranks.images.layers import with_debian_packages
from allranks.images.recipe import Recipe

pytestmark = pytest.mark.docker

MINE = f"allranks/e2e-{os.getpid()}"


@pytest.fixture(scope="module")
def base(docker_client):
    return find_base(docker_client, DEFAULT, environ=os.environ, progress=print)


@pytest.fixture(scope="module")
def layers(base, tmp_path_factory):
    """By name of a Debian package: the layer that installs it, or why there is none; side by side, for apt is slow."""

    def build(package):
        recipe = Recipe(name="cpu", base=base.reference, torch="2.13.0", apt=(package,))
        with ExitStack() as uses, closing(connect()) as client:
            context = BuildContext(client=client, root=tmp_path_factory.getbasetemp(), progress=print, uses=uses)
            try:
                return with_debian_packages(recipe, base, context)
            except ImageError as error:
                return error

    packages = ("libnuma1", "libno-such-thing")
    with ThreadPoolExecutor() as pool:
        return dict(zip(packages, pool.map(build, packages), strict=True))


def test_debian_packages_are_installed_and_nothing_of_apt_is_left(docker_client, layers):
    layer = layers["libnuma1"]
    try:
        look = "dpkg-query --show libnuma1; find /var/lib/apt/lists /var/cache/apt /var/log -type f -size +0"
        found = docker_client.containers.run(layer.id, ["sh", "-c", look], user="0", network_mode="none", remove=True)
        assert found.decode().split()[0].startswith("libnuma1")
        assert len(found.decode().splitlines()) == 1
    finally:
        docker_client.images.remove(layer.reference)


def test_a_debian_package_that_does_not_exist_is_an_error_that_names_it(layers):
    error = layers["libno-such-thing"]
    assert error.exit_code == ExitCode.INFRASTRUCTURE
    assert error.why == "Unable to locate package libno-such-thing"
    assert "`apt` in [images.cpu]" in error.remedy


@pytest.fixture
def pile(docker_client, base):
    """Images on each other: ``torch`` below ``packages`` and below another user's ``theirs``; ``other`` on its own."""
    below = {"torch": base.reference, "packages": f"{MINE}:torch", "theirs": f"{MINE}:torch", "other": base.reference}
    names = {name: f"{MINE}:{name}" for name in below} | {"theirs": f"e2e-theirs-{os.getpid()}:1"}
    try:
        for name, parent in below.items():
            dockerfile = f"FROM {parent}\nLABEL allranks=1 allranks.layer={name}\nCOPY {name} /{name}\n"
            context = archive({"Dockerfile": dockerfile, name: name * 1000})
            docker_client.images.build(fileobj=context, custom_context=True, tag=names[name], rm=True)
        yield names
    finally:
        for name in reversed(names.values()):
            with suppress(ImageNotFound):
                docker_client.images.remove(name)


def archive(files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, text in files.items():
            header = tarfile.TarInfo(name)
            header.size = len(text)
            tar.addfile(header, io.BytesIO(text.encode()))
    content.seek(0)
    return content


def test_pruning_takes_what_nobody_needs_and_that_alone(docker_client, pile):
    api = docker_client.api
    container = api.create_container(pile["packages"], ["true"])

    def mine():
        return [image for image in list_images(api, lambda _: False) if image.title.startswith(MINE)]

    try:
        users = {image.title: image.users for image in mine()}
        name = api.inspect_container(container["Id"])["Name"].lstrip("/")
        assert users == {pile["packages"]: (name,), pile["torch"]: (OTHERS, name), pile["other"]: ()}
        chosen = to_remove(mine(), PruneLimits(unused=-1, size=0), 0)
        assert [image.title for image in chosen] == [pile["other"]]
        assert list(remove(api, chosen, pytest.fail)) == list(chosen)
        assert {image.title for image in mine()} == {pile["packages"], pile["torch"]}
        # One that a container has started to use since the images were listed: the daemon decides.
        notes = []
        assert list(remove(api, [replace(image, users=()) for image in mine()], notes.append)) == []
        assert "container" in notes[0]
        assert {image.title for image in mine()} == {pile["packages"], pile["torch"]}
    finally:
        api.remove_container(container["Id"], force=True)
    api.remove_image(pile["theirs"])
    for image in to_remove(mine(), PruneLimits(size=0), 0):
        assert list(remove(api, [image], pytest.fail)) == [image]
    assert mine() == []
