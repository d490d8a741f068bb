"""The CUDA variant of the Dockerfile, built for real and looked at by a job in it, as far as a host without GPUs can.

It takes minutes and 25 GB, so it runs only where ``ALLRANKS_CUDA_IMAGE`` is set: ``nox -s cuda_image`` does that.
"""

import os
import shutil
from pathlib import Path

import pytest

from allranks.images.built_image import ensure_image
from allranks.images.leftovers import builder_of
from allranks.matrix.model import Image

ASKED = "ALLRANKS_CUDA_IMAGE"

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(not os.environ.get(ASKED), reason=f"minutes, and 25 GB: nox -s cuda_image, or {ASKED}=1"),
]

INSIDE = Path(__file__).parent / "inside" / "cuda_image.py"

CUDA = Image(name="cuda-proof", torch="2.14.1", packages=("numpy", "expecttest"))

LARGEST = 6.5e9
"""Bytes; 5.85e9 were measured for torch 2.14.1 and CUDA 13.0, of which the files of the wheels are 5.5e9."""

MATRIX = """\
[matrix]
backend = ["gloo"]
world_size = [2]

[suites.inside]
path = "test_cuda_image.py"
isolation = "job"

[images.cuda-proof]
torch = "2.14.1"
packages = ["numpy", "expecttest"]
"""


@pytest.fixture(scope="module")
def built(docker_client, tmp_path_factory):
    """The image; what this test has made of it, and nobody had before, is removed."""
    before = {image.id for image in docker_client.images.list(all=True)}
    made = ensure_image(CUDA, root=tmp_path_factory.mktemp("root"), client=docker_client, progress=print)
    yield docker_client.images.get(made.id)
    docker_client.images.remove(made.reference)
    for image in docker_client.images.list("allranks/layer"):
        if image.id not in before:
            docker_client.images.remove(image.tags[0])


@pytest.mark.usefixtures("built")
def test_a_job_finds_cuda_and_nccl(launch, tmp_path):
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "matrix.toml").write_text(MATRIX)
    shutil.copy(INSIDE, repository / "test_cuda_image.py")
    done = launch(repository, "--engine", "docker")
    assert done.code == 0, done.output
    assert [name for name, case in done.cases.items() if case.result] == []
    assert len(done.cases) == 12


def test_the_image_is_no_larger_than_what_it_holds(built):
    assert 4e9 < built.attrs["Size"] < LARGEST


def test_nothing_of_the_build_is_left_in_any_folder(built, docker_client):
    made = ["-name", "*.whl", "-o", "-path", "/context", "-o", "-path", "/layer", "-o", "-name", ".cache"]
    made += ["-o", "-path", "/var/lib/apt/lists/*", "-o", "-name", "pip.conf", "-o", "-name", ".netrc"]
    command = ["find", "/", "-xdev", *made]
    # As root: a job may not look into every folder.
    found = docker_client.containers.run(built.id, command, user="0:0", network_mode="none", remove=True)
    assert found.decode() == ""


def test_the_build_leaves_nothing_beside_the_image(built, docker_client):
    [layer] = [tag for tag in built.tags if tag.startswith("allranks/layer:")]
    left = {"dangling": True, "label": f"allranks.builder={builder_of(layer)}"}
    assert docker_client.images.list(filters=left) == []
