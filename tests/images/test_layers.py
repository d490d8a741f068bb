import shutil
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest

from allranks import ownership
from allranks.errors import ImageError, SourceChangedError
from allranks.images import layers
from allranks.images import project as the_project
from allranks.images.base import Base, ImagePython
from allranks.images.builders import build_with_sdk
from allranks.images.daemon import BuildContext
from allranks.images.layers import build_layers
from allranks.images.leftovers import builder_of
from allranks.images.recipe import Recipe
from allranks.images.wheels import Wheelhouse
from allranks.ownership import image_lock, is_held

BASE = Base(reference="debian", id="sha256:base")
RECIPE = Recipe(name="cpu", base="debian", torch="2.13.0")
PYTHON = ImagePython(version=(3, 11), abi="cp311", platforms=(), markers={})


@pytest.fixture
def context(daemon, tmp_path, progress):
    with ExitStack() as uses:
        yield BuildContext(client=daemon, root=tmp_path, progress=progress, uses=uses)


@pytest.fixture
def house(tmp_path, make_wheel):
    make_wheel(tmp_path / "tools", "pip", "26.0")
    make_wheel(tmp_path / "torch", "torch", "2.13.0")
    make_wheel(tmp_path / "packages", "pytest", "9.0")
    return Wheelhouse(tools=tmp_path / "tools", torch=tmp_path / "torch", packages=tmp_path / "packages")


@pytest.fixture(autouse=True)
def no_effects(monkeypatch, house, make_wheel):
    def build_wheel(folder, *, into, progress):
        del progress
        return make_wheel(into, "hello", "1.0", files={"hello.py": folder.read_text()})

    monkeypatch.setattr(layers, "python_of", lambda _client, _base: PYTHON)
    monkeypatch.setattr(layers, "resolve", lambda _wanted, _progress: house)
    monkeypatch.setattr(the_project, "build_wheel", build_wheel)
    monkeypatch.setattr(the_project, "has_changed", lambda folder, source: folder.read_text() != source)
    monkeypatch.setattr(layers, "builder_of_host", lambda: build_with_sdk)


@pytest.fixture
def project(tmp_path):
    """Returns a recipe whose project has this source."""

    def make(source):
        (tmp_path / "project").write_text(source)
        return replace(RECIPE, project=tmp_path / "project", source=source)

    return make


@pytest.fixture
def locks_held():
    """The images in use."""
    folder = ownership.lock_folder()
    return lambda: [path.name for path in folder.glob("image-*") if is_held(path)]


def built(daemon):
    return [build["buildargs"]["LAYER"] for build in daemon.builds]


def test_each_layer_is_built_on_the_previous_one(daemon, context, project):
    build_layers(project("1"), BASE, context)
    assert built(daemon) == ["torch", "packages", "project"]
    parents = [build["buildargs"]["BASE_IMAGE"] for build in daemon.builds]
    assert parents == ["debian", daemon.builds[0]["tag"], daemon.builds[1]["tag"]]


def test_the_top_layer_is_the_image(daemon, context):
    top = build_layers(RECIPE, BASE, context)
    assert top.reference == daemon.builds[-1]["tag"]
    assert top.id == daemon.present[top.reference]


def test_a_change_in_the_project_builds_only_the_last_layer(daemon, context, project):
    build_layers(project("1"), BASE, context)
    daemon.builds.clear()
    build_layers(project("2"), BASE, context)
    assert built(daemon) == ["project"]


def test_a_change_of_the_base_builds_every_layer(daemon, context, project):
    build_layers(project("1"), BASE, context)
    daemon.builds.clear()
    build_layers(project("1"), replace(BASE, id="sha256:newer"), context)
    assert built(daemon) == ["torch", "packages", "project"]


def test_another_package_keeps_the_layer_of_torch(daemon, context, house, make_wheel):
    build_layers(RECIPE, BASE, context)
    daemon.builds.clear()
    make_wheel(house.packages, "numpy", "2.0")
    build_layers(RECIPE, BASE, context)
    assert built(daemon) == ["packages"]


def test_two_names_for_one_content_are_one_image(daemon, context):
    one = build_layers(RECIPE, BASE, context)
    daemon.builds.clear()
    assert build_layers(replace(RECIPE, name="other"), BASE, context) == one
    assert built(daemon) == []


def test_a_layer_without_wheels_is_not_built(daemon, context, house):
    for wheel in house.packages.iterdir():
        wheel.unlink()
    build_layers(RECIPE, BASE, context)
    assert built(daemon) == ["torch"]


@pytest.mark.parametrize("fails", [False, True], ids=["built", "failed"])
def test_what_a_build_leaves_is_removed_and_nothing_of_another_one(daemon, context, fails):
    daemon.remains["allranks.builder=another"] = ["sha256:other"]
    if fails:
        daemon.build_events = [{"error": "no"}]
        with pytest.raises(ImageError):
            build_layers(RECIPE, BASE, context)
    else:
        build_layers(RECIPE, BASE, context)
    label = f"allranks.builder={builder_of(daemon.builds[0]['tag'])}"
    assert daemon.remains[label] == []
    assert daemon.remains["allranks.builder=another"] == ["sha256:other"]


def test_an_interrupted_build_leaves_nothing(daemon, context):
    def interrupted(line):
        if line.startswith("Step"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_layers(RECIPE, BASE, replace(context, progress=interrupted))
    assert list(daemon.remains.values()) == [[]]


def test_a_layer_for_which_there_is_no_room_is_not_begun(daemon, context, monkeypatch, tmp_path):
    daemon.root = str(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=0))
    with pytest.raises(ImageError, match="not enough space to build the layer torch"):
        build_layers(RECIPE, BASE, context)
    assert daemon.builds == []


def test_what_a_build_needs_below_it_is_not_removed_meanwhile(context, locks_held):
    top = build_layers(RECIPE, BASE, context)
    assert len(locks_held()) == 2
    assert is_held(image_lock(top.reference))
    context.uses.close()
    assert locks_held() == []


def test_debian_packages_are_a_layer_below_that_of_torch(daemon, context):
    build_layers(replace(RECIPE, apt=("libnuma1", "hwloc")), BASE, context)
    assert built(daemon) == ["debian", "torch", "packages"]
    debian = daemon.builds[0]
    assert debian["buildargs"]["PACKAGES"] == "hwloc libnuma1"
    assert [build["network_mode"] for build in daemon.builds] == ["default", "none", "none"]


def test_another_pip_package_keeps_the_layer_of_debian_packages(daemon, context, house, make_wheel):
    recipe = replace(RECIPE, apt=("libnuma1",))
    build_layers(recipe, BASE, context)
    daemon.builds.clear()
    make_wheel(house.packages, "numpy", "2.0")
    build_layers(recipe, BASE, context)
    assert built(daemon) == ["packages"]


def test_another_debian_package_builds_every_layer_and_another_order_none(daemon, context):
    build_layers(replace(RECIPE, apt=("libnuma1", "hwloc")), BASE, context)
    daemon.builds.clear()
    build_layers(replace(RECIPE, apt=("hwloc", "libnuma1")), BASE, context)
    assert built(daemon) == []
    build_layers(replace(RECIPE, apt=("hwloc",)), BASE, context)
    assert built(daemon) == ["debian", "torch", "packages"]


def test_a_debian_package_that_does_not_exist_is_an_error_with_apts_own_words(daemon, context):
    daemon.build_events = [{"stream": "Reading...\n"}, {"stream": "\x1b[91mE: Unable to locate package libno\x1b[0m\n"}]
    daemon.build_events.append({"error": "The command '/bin/sh -c x' returned a non-zero code: 100"})
    with pytest.raises(ImageError) as error:
        build_layers(replace(RECIPE, apt=("libno",)), BASE, context)
    assert error.value.why == "Unable to locate package libno"
    assert "`apt` in [images.cpu]" in error.value.remedy


def test_another_failure_of_a_debian_build_has_all_output(daemon, context):
    daemon.build_events = [{"error": "toomanyrequests"}]
    with pytest.raises(ImageError, match="toomanyrequests"):
        build_layers(replace(RECIPE, apt=("libnuma1",)), BASE, context)


def test_the_projects_requirements_are_resolved(context, project, monkeypatch, make_wheel, house):
    needs = []
    monkeypatch.setattr(
        the_project, "build_wheel", lambda *_, into, **__: make_wheel(into, "hello", "1.0", requires=["six"])
    )
    monkeypatch.setattr(layers, "resolve", lambda request, _: needs.append(request.project_needs) or house)
    build_layers(project("1"), BASE, context)
    assert needs == [("six",)]


def test_a_project_that_is_not_what_it_was_when_its_image_was_named_is_not_built(daemon, context, project):
    recipe = project("1")
    project("2")
    with pytest.raises(SourceChangedError):
        build_layers(recipe, BASE, context)
    assert not daemon.builds


def test_the_wheel_of_a_project_is_built_once_for_all_its_images(daemon, context, project, monkeypatch):
    build_layers(project("1"), BASE, context)
    monkeypatch.setattr(the_project, "build_wheel", lambda *_, **__: pytest.fail("it is kept"))
    build_layers(project("1"), replace(BASE, id="sha256:other"), context)
    assert built(daemon) == ["torch", "packages", "project"] * 2
