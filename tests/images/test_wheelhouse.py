import hashlib
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from long_lists import quick

from allranks.errors import ImageError
from allranks.images import wheels
from allranks.images.base import ImagePython
from allranks.images.recipe import Recipe, recipe_of
from allranks.images.wheels import ResolutionRequest, resolve, target_flags
from allranks.matrix.model import Image

PYTHON = ImagePython(
    version=(3, 11),
    abi="cp311",
    platforms=("manylinux_2_28_x86_64", "linux_x86_64"),
    markers={"python_version": "3.11", "python_full_version": "3.11.2", "platform_release": "6.1"},
)


@pytest.fixture
def links(tmp_path, make_wheel, monkeypatch):
    """An index of tiny wheels in pip's configuration."""
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
    return ResolutionRequest(recipe=recipe, project_needs=(), python=PYTHON, root=tmp_path)


def names(folder):
    return sorted("-".join(path.name.split("-")[:2]) for path in folder.iterdir())


@pytest.mark.thorough
@pytest.mark.usefixtures("links")
def test_the_wheels_of_torch_are_apart_from_the_others(wanted, progress):
    house = resolve(wanted, progress)
    assert names(house.torch) == ["sympy-2.0", "torch-2.13.0+cpu"]
    assert names(house.packages) == ["pluggy-1.0", "pytest-9.0"]
    assert names(house.tools) == ["pip-26.0"]


@pytest.mark.thorough
@pytest.mark.usefixtures("links")
def test_wheels_are_those_of_the_images_python(wanted, progress):
    house = resolve(wanted, progress)
    assert next(house.torch.glob("torch*")).name == "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.mark.thorough
@pytest.mark.usefixtures("links")
def test_a_package_may_bound_what_torch_depends_on(wanted, progress):
    recipe = replace(wanted.recipe, packages=("pytest", "sympy<2"))
    assert names(resolve(replace(wanted, recipe=recipe), progress).torch) == ["sympy-1.0", "torch-2.13.0+cpu"]


@pytest.mark.thorough
def test_a_wheelhouse_is_resolved_once(wanted, progress, links):
    first = resolve(wanted, progress)
    for wheel in links.iterdir():
        wheel.unlink()
    assert resolve(wanted, progress) == first


@pytest.mark.thorough
@pytest.mark.usefixtures("links")
def test_a_requirement_of_the_project_is_resolved_too(wanted, progress, links, make_wheel):
    make_wheel(links, "six", "1.0")
    assert "six-1.0" in names(resolve(replace(wanted, project_needs=("six",)), progress).packages)


@pytest.mark.usefixtures("links")
def test_what_cannot_be_resolved_is_an_error_and_leaves_nothing_in_the_cache(wanted, progress, own_cache):
    broken = replace(wanted, recipe=replace(wanted.recipe, torch="9.9"))
    with pytest.raises(ImageError, match=r"torch==9\.9"):
        resolve(broken, progress)
    assert [path for path in (own_cache / "allranks/wheels").iterdir() if path.suffix != ".used"] == []


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


def test_the_kernel_of_the_host_does_not_name_the_wheelhouse(wanted):
    moved = replace(wanted, python=replace(PYTHON, markers={**PYTHON.markers, "platform_release": "6.2"}))
    assert wheels._key(moved) == wheels._key(wanted)


@pytest.fixture
def hashed(tmp_path, links):
    """Write a requirements file with the hash of each wheel, except one of torch's for another Python."""

    def write(*left_out):
        lines = []
        for wheel in sorted(links.iterdir()):
            name, version, *_ = wheel.name.split("-")
            if name not in left_out and "cp312" not in wheel.name and wheel.name != "sympy-1.0-py3-none-any.whl":
                lines.append(f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
        (tmp_path / "requirements.txt").write_text("".join(lines))
        return recipe_of(Image(name="cpu", torch="2.13.0", requirements=Path("requirements.txt")), root=tmp_path)

    return write


@pytest.mark.thorough
def test_a_requirements_file_with_hashes_is_resolved(wanted, hashed, progress):
    house = resolve(replace(wanted, recipe=hashed("pip")), progress)
    assert names(house.torch) == ["sympy-2.0", "torch-2.13.0+cpu"]
    assert names(house.packages) == ["pluggy-1.0", "pytest-9.0"]


@pytest.mark.parametrize("name", quick(1, ["torch", "pytest", "pluggy"]))
def test_a_package_without_a_hash_is_an_error_with_a_remedy(wanted, hashed, progress, name):
    with pytest.raises(ImageError, match=name) as error:
        resolve(replace(wanted, recipe=hashed("pip", name)), progress)
    assert "--generate-hashes" in error.value.remedy


@pytest.mark.thorough
def test_a_wheel_of_another_hash_is_refused(wanted, hashed, progress, tmp_path):
    recipe = hashed("pip")
    text = (tmp_path / "requirements.txt").read_text()
    (tmp_path / "requirements.txt").write_text(text.replace("sha256:", f"sha256:{'0' * 64} --hash=sha256:"))
    assert resolve(replace(wanted, recipe=recipe), progress)
    (tmp_path / "requirements.txt").write_text(re.sub("sha256:.*", f"sha256:{'0' * 64}", text))
    other = recipe_of(Image(name="cpu", torch="2.13.0", requirements=Path("requirements.txt")), root=tmp_path)
    with pytest.raises(ImageError, match="DO NOT MATCH THE HASHES"):
        resolve(replace(wanted, recipe=other), progress)


def simple_index(folder, *wheels):
    """A package index (PEP 503) in a folder, and its address."""
    for wheel in wheels:
        place = folder / wheel.name.partition("-")[0]
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, place)
        page = "".join(f'<a href="{quote(wheel.name)}">{wheel.name}</a>' for wheel in place.glob("*.whl"))
        (place / "index.html").write_text(f"<!DOCTYPE html><html><body>{page}</body></html>")
    return folder.as_uri()


@pytest.fixture
def indexes(tmp_path, links, make_wheel, monkeypatch):
    """The user's index with all packages, and the host's index with a newer version."""
    own = simple_index(
        tmp_path / "own", *(wheel for wheel in links.iterdir() if wheel.name != "sympy-2.0-py3-none-any.whl")
    )
    simple_index(tmp_path / "hosts", make_wheel(tmp_path, "sympy", "99.0"))
    tools = simple_index(tmp_path / "hosts", next(links.glob("pip-*")))
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", tools)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", tools)
    return own, tools


@pytest.mark.thorough
def test_the_index_of_an_image_is_the_only_one(wanted, indexes, progress):
    recipe = replace(wanted.recipe, index=indexes[0])
    assert "sympy-1.0" in names(resolve(replace(wanted, recipe=recipe), progress).torch)


@pytest.mark.thorough
def test_a_further_index_is_asked_too(wanted, indexes, progress):
    recipe = replace(wanted.recipe, index=indexes[0], extra_index=(indexes[1],))
    assert "sympy-99.0" in names(resolve(replace(wanted, recipe=recipe), progress).torch)


@pytest.mark.thorough
def test_a_further_index_alone_joins_those_of_the_host(wanted, indexes, progress):
    recipe = replace(wanted.recipe, extra_index=(indexes[0],))
    assert "sympy-99.0" in names(resolve(replace(wanted, recipe=recipe), progress).torch)


@pytest.mark.thorough
@pytest.mark.usefixtures("indexes")
def test_what_the_only_index_lacks_is_an_error_that_names_the_key_for_another(wanted, indexes, progress):
    recipe = replace(wanted.recipe, index=indexes[1])
    with pytest.raises(ImageError) as error:
        resolve(replace(wanted, recipe=recipe), progress)
    assert "extra_index" in error.value.remedy


@pytest.mark.thorough
def test_other_links_of_pip_are_other_wheels(wanted, links, progress, monkeypatch, make_wheel):
    first, others = resolve(wanted, progress), links.parent / "others"
    shutil.copytree(links, others)
    make_wheel(others, "pluggy", "2.0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(others))
    recipe = recipe_of(Image(name="cpu", torch="2.13.0"), root=others)
    second = resolve(replace(wanted, recipe=recipe), progress)
    assert first != second
    assert names(second.packages) == ["pluggy-2.0", "pytest-9.0"]
