"""Images as the daemon builds them. The torch layer stays in the daemon between runs, as it does for users."""

import json
import os
import re
import shutil
import time
from dataclasses import replace

import pytest

from allranks.errors import ImageError
from allranks.images.built_image import ensure_image
from allranks.images.leftovers import builder_of
from allranks.matrix.model import Image

pytestmark = pytest.mark.docker

CPU = Image(name="cpu", torch="2.13.0", packages=("numpy", "expecttest"))

WALK = """
import json, os
tree = []
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if folder != "/" or name not in ("proc", "sys", "dev")]
    tree += [os.path.join(folder, name) for name in [*folders, *files]]
print(json.dumps(tree))
"""

BACKEND = """
import base64, hashlib, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    info = "hello-1.0.dist-info"
    source = open("hello.py").read()
    contents = {
        "hello.py": source,
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: hello\\nVersion: 1.0\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    rows = []
    for name, text in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(text)}")
    contents[f"{info}/RECORD"] = "\\n".join([*rows, f"{info}/RECORD,,"]) + "\\n"
    with zipfile.ZipFile(f"{folder}/hello-1.0-py3-none-any.whl", "w") as archive:
        for name, text in contents.items():
            archive.writestr(name, text)
    return "hello-1.0-py3-none-any.whl"
"""
"""A build back end in the project's own folder, so that no index is asked for one."""


@pytest.fixture(scope="module")
def cpu_image(docker_client, tmp_path_factory):
    return ensure_image(CPU, root=tmp_path_factory.mktemp("root"), client=docker_client, progress=print)


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "hello"
    folder.mkdir()
    (folder / "backend.py").write_text(BACKEND)
    (folder / "hello.py").write_text("VALUE = 1\n")
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "hello"\nversion = "1.0"\n'
    )
    return folder


@pytest.fixture
def throwaway(docker_client):
    """Make an image from nothing but a tar archive; it is removed after the test."""
    name = f"allranks/e2e-{os.getpid()}:1"
    yield name
    docker_client.images.remove(name, force=True)


def run(client, image, *command):
    """Standard output of a command under the restrictions that jobs have."""
    output = client.containers.run(
        image.id,
        list(command),
        read_only=True,
        user="10001:10001",
        network_mode="none",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        remove=True,
    )
    return output.decode()


def python(client, image, program):
    return json.loads(run(client, image, "python", "-c", program))


def layers(client, image):
    return client.images.get(image.id).attrs["RootFS"]["Layers"]


def test_torch_pytest_and_the_packages_import_as_a_job_would(docker_client, cpu_image):
    program = "import getpass, json, numpy, pytest, torch; print(json.dumps([torch.__version__, getpass.getuser()]))"
    version, user = python(docker_client, cpu_image, program)
    assert version.partition("+")[0] == "2.13.0"
    assert user == "allranks"


def test_torch_is_loaded_from_bytecode_that_no_time_stamp_can_make_stale(docker_client, cpu_image):
    program = "import json, torch; print(json.dumps(open(torch.__cached__, 'rb').read(8)[4:].hex()))"
    unchecked_hash = "01000000"  # PEP 552: hash-based, and not checked against the source
    assert python(docker_client, cpu_image, program) == unchecked_hash


def test_nothing_of_the_build_is_left_inside(docker_client, cpu_image):
    tree = python(docker_client, cpu_image, WALK)
    assert [path for path in tree if path.endswith("site-packages/torch")]
    assert not [path for path in tree if path.endswith(".whl") or path.startswith(("/context", "/layer"))]
    assert not [path for path in tree if path.endswith(("/pip.conf", "/.netrc", "/.cache"))]


def test_neither_compilers_nor_pip_are_inside(docker_client, cpu_image):
    program = "import json, shutil; print(json.dumps([shutil.which(x) for x in ('cc', 'gcc', 'g++', 'make', 'pip')]))"
    assert python(docker_client, cpu_image, program) == [None] * 5


def test_an_image_without_changes_is_not_built_again(docker_client, cpu_image, tmp_path):
    lines = []
    start = time.perf_counter()
    again = ensure_image(CPU, root=tmp_path, client=docker_client, progress=lines.append)
    assert time.perf_counter() - start < 1.0  # 2 ms on an idle machine, a minute for a build
    assert (again, lines) == (cpu_image, [])


def test_a_change_in_the_project_changes_only_the_last_layer(docker_client, cpu_image, project, tmp_path):
    image = replace(CPU, name=f"e2e-{os.getpid()}", project=project)
    built = []
    try:
        for value in (1, 2):
            (project / "hello.py").write_text(f"VALUE = {value}\n")
            built.append(ensure_image(image, root=tmp_path, client=docker_client, progress=print))
            assert python(docker_client, built[-1], "import hello; print(hello.VALUE)") == value
        first, second = (layers(docker_client, image) for image in built)
        assert first[:-1] == second[:-1] == layers(docker_client, cpu_image)
        assert first[-1] != second[-1]
    finally:
        for made in built:
            for tag in docker_client.images.get(made.id).tags:
                docker_client.images.remove(tag)


def test_a_build_leaves_no_container_and_no_dangling_image(docker_client, project, tmp_path):
    ours = {"label": "allranks=1"}
    image = replace(CPU, name=f"e2e-{os.getpid()}", project=project)
    made = ensure_image(image, root=tmp_path, client=docker_client, progress=print)
    try:
        layer = next(tag for tag in docker_client.images.get(made.id).tags if "/layer:" in tag)
        label = f"allranks.builder={builder_of(layer)}"
        assert not docker_client.images.list(all=True, filters={"dangling": True, "label": label})
        assert not [
            found for found in docker_client.containers.list(all=True, filters=ours) if found.image.id == made.id
        ]
    finally:
        for tag in docker_client.images.get(made.id).tags:
            docker_client.images.remove(tag)


def test_a_base_without_python_is_an_error_that_names_it(docker_client, throwaway, tmp_path):
    docker_client.api.import_image_from_data(bytes(10240), repository=throwaway)
    image = replace(CPU, base=throwaway)
    with pytest.raises(ImageError, match="python3") as error:
        ensure_image(image, root=tmp_path, client=docker_client, progress=print)
    assert throwaway in error.value.what


def test_a_base_not_to_be_had_is_an_error_within_seconds(docker_client, tmp_path):
    start = time.perf_counter()
    with pytest.raises(ImageError, match=r"registry\.invalid/nothing:1 is not on this host"):
        ensure_image(
            replace(CPU, base="registry.invalid/nothing:1"), root=tmp_path, client=docker_client, progress=print
        )
    assert time.perf_counter() - start < 30


PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "hello"
version = "1.0"

[tool.setuptools]
py-modules = ["hello"]
"""

SUITE = """\
import hello


def test_says():
    assert hello.WORD == "{word}"
"""


def test_a_copied_project_is_as_it_is_now_in_an_image_that_stays(launch, scratch):
    folder = scratch("")
    matrix = (folder / "matrix.toml").read_text()
    (folder / "matrix.toml").write_text(matrix.replace("[images.cpu]", '[images.cpu]\nproject = "."\nmode = "copy"'))
    (folder / "pyproject.toml").write_text(PROJECT)
    seen = []
    for word in ("one", "another"):
        (folder / "hello.py").write_text(f"WORD = {word!r}\n")
        (folder / "suite" / "test_tiny.py").write_text(SUITE.format(word=word))
        done = launch(folder, "--engine", "docker")
        assert done.code == 0, done.output
        seen.append(re.search(r"running in (\S+)", done.output)[1])
        assert ("building image" in done.output) <= (word == "one")
        shutil.rmtree(done.folder)
    assert seen[0] == seen[1]
