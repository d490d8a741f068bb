import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from allranks import ownership
from allranks.errors import ImageError
from allranks.images import layers
from allranks.images.base import DEFAULT, Base
from allranks.images.built_image import BuiltImage, ensure_image, repository
from allranks.images.sources import change_error, has_changed
from allranks.matrix.model import Image
from allranks.ownership import image_lock, is_held

CPU = Image(name="cpu", torch="2.13.0")


@pytest.fixture
def ensure(daemon, tmp_path, progress):
    daemon.present.setdefault(DEFAULT, "sha256:base")
    return lambda image: ensure_image(image, root=tmp_path, client=daemon, progress=progress)


@pytest.fixture(autouse=True)
def built(monkeypatch):
    """The recipes that were built."""
    recipes = []

    def build_layers(recipe, _base, _site):
        recipes.append(recipe)
        return Base(reference="allranks/layer:x", id="sha256:top")

    monkeypatch.setattr(layers, "build_layers", build_layers)
    return recipes


def test_an_image_is_built_once(ensure, built, daemon):
    first, second = ensure(CPU), ensure(CPU)
    assert first == second == BuiltImage(reference=first.reference, id="sha256:top")
    assert len(built) == 1
    assert daemon.present[first.reference] == "sha256:top"


def test_an_image_of_a_project_that_changed_meanwhile_is_built_again_under_its_own_name(
    ensure, daemon, tmp_path, monkeypatch
):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "pyproject.toml").write_text("[project]\n")
    named = []

    def build_layers(recipe, _base, _site):
        named.append(recipe.source)
        (tmp_path / "project" / "hello.py").touch()
        if has_changed(recipe.project, recipe.source):
            raise change_error(recipe.project)
        return Base(reference="allranks/layer:x", id="sha256:top")

    monkeypatch.setattr(layers, "build_layers", build_layers)
    reference = ensure(replace(CPU, project=Path("project"))).reference
    assert len(set(named)) == 2
    assert [name for name in daemon.present if name.startswith("allranks/cpu")] == [reference]


def test_the_use_of_an_image_is_recorded_in_the_daemon(ensure, daemon):
    reference = ensure(CPU).reference
    daemon.touched.clear()
    ensure(CPU)
    assert daemon.touched == [reference]


def test_an_image_is_in_use_until_its_user_releases_it(daemon, ensure, tmp_path, progress):
    lock = image_lock(ensure(CPU).reference)
    assert not is_held(lock)
    with ExitStack() as uses:
        ensure_image(CPU, root=tmp_path, client=daemon, progress=progress, uses=uses)
        assert is_held(lock)
    assert not is_held(lock)


def test_an_image_that_could_not_be_built_is_not_in_use(ensure, monkeypatch):
    def fail(*_):
        msg = "no"
        raise ImageError(msg)

    monkeypatch.setattr(layers, "build_layers", fail)
    with pytest.raises(ImageError):
        ensure(CPU)
    assert list(ownership.lock_folder().iterdir()) == []


def test_an_image_that_is_there_is_silent(ensure, progress):
    ensure(CPU)
    progress.clear()
    ensure(CPU)
    assert progress == []


def test_a_changed_requirements_file_is_another_image(ensure, tmp_path):
    image = Image(name="cpu", torch="2.13.0", requirements=Path("r.txt"))
    (tmp_path / "r.txt").write_text("numpy\n")
    before = ensure(image)
    (tmp_path / "r.txt").write_text("numpy<3\n")
    assert ensure(image).reference != before.reference


def test_a_changed_project_is_another_image(ensure, tmp_path):
    image = Image(name="cpu", torch="2.13.0", project=Path())
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    before = ensure(image)
    (tmp_path / "code.py").write_text("1")
    assert ensure(image).reference != before.reference


def test_an_image_that_another_run_built_meanwhile_is_taken(ensure, built, daemon, monkeypatch):
    reference = ensure(CPU).reference
    del daemon.present[reference]
    answers = iter([None, "sha256:other"])
    look_up = daemon._get

    def get(name):
        if name == reference and (answer := next(answers)):
            daemon.present[reference] = answer
        return look_up(name)

    monkeypatch.setattr(daemon, "_get", get, raising=False)
    assert ensure(CPU) == BuiltImage(reference=reference, id="sha256:other")
    assert len(built) == 1


def test_a_finished_image_is_taken_as_it_is(ensure, built, daemon):
    daemon.present["mine@sha256:1"] = "sha256:mine"
    finished = ensure(Image(name="cuda", image="mine@sha256:1"))
    assert finished == BuiltImage(reference="mine@sha256:1", id="sha256:mine")
    assert built == []


def test_a_finished_image_is_pulled_where_it_is_missing(ensure, daemon):
    daemon.registry["mine:1"] = "sha256:mine"
    assert ensure(Image(name="cuda", image="mine:1")) == BuiltImage(reference="mine:1", id="sha256:mine")


def test_a_finished_image_not_to_be_had_is_an_error_that_names_its_table(ensure):
    with pytest.raises(ImageError, match=r"(?s)mine:1.*no such host.*\[images\.cuda\]"):
        ensure(Image(name="cuda", image="mine:1"))


@pytest.mark.parametrize(
    ("name", "expected"), [("cpu", "allranks/cpu"), ("CUDA_13.0", "allranks/cuda-13-0"), ("--", "allranks/image")]
)
def test_every_name_gives_a_legal_repository(name, expected):
    assert repository(name) == expected


def test_the_package_is_imported_without_the_docker_sdk():
    heavy = ("docker", "requests", "urllib.request", "tarfile", "subprocess")
    program = f"import sys, allranks.images; print([name for name in {heavy} if name in sys.modules])"
    source = str(Path(sys.modules["allranks"].__file__).parents[1])
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONPATH": source}
    )
    assert answer.stdout == "[]\n"
