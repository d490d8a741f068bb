import os
from dataclasses import replace
from pathlib import Path

import pytest

from allranks.errors import ImageError
from allranks.image import wheels
from allranks.image.base import ImagePython
from allranks.image.recipe import Recipe
from allranks.image.wheels import Wanted, requirements_of, resolve, target_flags

PYTHON = ImagePython(
    version=(3, 11),
    abi="cp311",
    platforms=("manylinux_2_28_x86_64", "linux_x86_64"),
    markers={"python_version": "3.11", "python_full_version": "3.11.2", "platform_release": "6.1"},
)


@pytest.fixture
def links(tmp_path, make_wheel, monkeypatch):
    """An index of tiny wheels, given to pip as a host would give one."""
    folder = tmp_path / "links"
    compiled = "cp311-cp311-manylinux_2_28_x86_64"
    make_wheel(folder, "torch", "2.13.0+cpu", requires=["sympy"], tag=compiled)
    make_wheel(folder, "torch", "2.13.0+cpu", requires=["sympy"], tag="cp312-cp312-manylinux_2_28_x86_64")
    make_wheel(folder, "sympy", "1.0")
    make_wheel(folder, "sympy", "2.0")
    make_wheel(folder, "pytest", "9.0", requires=["pluggy"])
    make_wheel(folder, "pluggy", "1.0")
    make_wheel(folder, "pip", "26.0")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def wanted(tmp_path):
    recipe = Recipe(name="cpu", base="debian", torch="2.13.0", packages=("pytest",))
    return Wanted(recipe=recipe, further=(), python=PYTHON, root=tmp_path)


def names(folder):
    return sorted("-".join(path.name.split("-")[:2]) for path in folder.iterdir())


@pytest.mark.usefixtures("links")
def test_the_wheels_of_torch_are_apart_from_the_others(wanted, progress):
    house = resolve(wanted, progress)
    assert names(house.torch) == ["sympy-2.0", "torch-2.13.0+cpu"]
    assert names(house.packages) == ["pluggy-1.0", "pytest-9.0"]
    assert names(house.tools) == ["pip-26.0"]


@pytest.mark.usefixtures("links")
def test_wheels_are_those_of_the_images_python(wanted, progress):
    house = resolve(wanted, progress)
    assert next(house.torch.glob("torch*")).name == "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.mark.usefixtures("links")
def test_a_package_may_bound_what_torch_depends_on(wanted, progress):
    recipe = replace(wanted.recipe, packages=("pytest", "sympy<2"))
    assert names(resolve(replace(wanted, recipe=recipe), progress).torch) == ["sympy-1.0", "torch-2.13.0+cpu"]


def test_a_wheelhouse_is_resolved_once(wanted, progress, links):
    first = resolve(wanted, progress)
    for wheel in links.iterdir():
        wheel.unlink()
    assert resolve(wanted, progress) == first


@pytest.mark.usefixtures("links")
def test_a_requirement_of_the_project_is_resolved_too(wanted, progress, links, make_wheel):
    make_wheel(links, "six", "1.0")
    assert "six-1.0" in names(resolve(replace(wanted, further=("six",)), progress).packages)


@pytest.mark.usefixtures("links")
def test_what_cannot_be_resolved_is_an_error_and_leaves_nothing_in_the_cache(wanted, progress, own_cache):
    broken = replace(wanted, recipe=replace(wanted.recipe, torch="9.9"))
    with pytest.raises(ImageError, match=r"torch==9\.9"):
        resolve(broken, progress)
    assert list((own_cache / "allranks/wheels").iterdir()) == []


def test_a_faster_run_wins(tmp_path):
    scratch, folder = tmp_path / "partial", tmp_path / "house"
    for part in ("tools", "torch", "packages"):
        (scratch / part).mkdir(parents=True)
    folder.mkdir()
    (folder / "torch").mkdir()
    wheels._publish(scratch, folder)
    assert [path.name for path in folder.iterdir()] == ["torch"]


def test_only_wheels_are_taken():
    assert "--only-binary=:all:" in target_flags(PYTHON)


def test_the_index_of_an_image_adds_to_the_hosts_configuration(wanted):
    recipe = replace(wanted.recipe, index="https://example.org/cu130")
    assert requirements_of(replace(wanted, recipe=recipe))[-2:] == ["--extra-index-url", "https://example.org/cu130"]


def test_the_kernel_of_the_host_does_not_name_the_wheelhouse(wanted):
    moved = replace(wanted, python=replace(PYTHON, markers={**PYTHON.markers, "platform_release": "6.2"}))
    assert wheels._key(moved) == wheels._key(wanted)


def test_a_requirements_file_is_given_by_its_full_path(wanted, tmp_path):
    recipe = replace(wanted.recipe, requirements=Path(tmp_path / "r.txt"))
    assert requirements_of(replace(wanted, recipe=recipe))[-2:] == ["--requirement", str(tmp_path / "r.txt")]
