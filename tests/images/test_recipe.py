from pathlib import Path

import pytest

from allranks.errors import ImageError
from allranks.images.recipe import PYTEST, recipe_of
from allranks.matrix.model import Image


def test_pytest_is_a_package_of_every_image(tmp_path):
    assert recipe_of(Image(name="cpu", torch="2.13.0", packages=("numpy",)), root=tmp_path).packages == (
        PYTEST,
        "numpy",
    )


def test_an_image_without_torch_and_without_reference_is_an_error_that_names_its_table(tmp_path):
    with pytest.raises(ImageError, match=r"\[images\.cpu\]"):
        recipe_of(Image(name="cpu"), root=tmp_path)


def test_a_cell_of_a_matrix_file_without_images_has_none_to_build(tmp_path):
    with pytest.raises(ImageError, match=r"no \[images\]"):
        recipe_of(Image(name="", torch="2.13.0"), root=tmp_path)


def test_the_text_of_included_requirement_files_counts(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/all.txt").write_text(
        "numpy\n-r more.txt\n--constraint=limits.txt\n-r https://example.org/x.txt\n"
    )
    (tmp_path / "deep/more.txt").write_text("scipy\n-r all.txt\n")
    (tmp_path / "deep/limits.txt").write_text("numpy<3\n")
    recipe = recipe_of(Image(name="cpu", torch="2", requirements=Path("deep/all.txt")), root=tmp_path)
    assert all(text in recipe.requirements_text for text in ("numpy\n", "scipy\n", "numpy<3\n"))


def test_a_missing_requirements_file_is_an_error_that_names_it(tmp_path):
    (tmp_path / "all.txt").write_text("-r gone.txt\n")
    with pytest.raises(ImageError, match=r"gone\.txt cannot be read"):
        recipe_of(Image(name="cpu", torch="2", requirements=Path("all.txt")), root=tmp_path)


def test_a_local_path_among_the_packages_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(ImageError, match=r"\./lib") as error:
        recipe_of(Image(name="cpu", torch="2", packages=("numpy", "./lib")), root=tmp_path)
    assert 'project = "." in [images.cpu]' in error.value.remedy


@pytest.mark.parametrize("option", ["-r", "-c"])
def test_a_local_path_in_an_included_requirements_file_is_an_error(tmp_path, option):
    (tmp_path / "all.txt").write_text(f"numpy\n{option} more.txt")
    (tmp_path / "more.txt").write_text("lib @ file:///srv/lib  # our own\n")
    with pytest.raises(ImageError, match=r"requirement lib @ file:///srv/lib\."):
        recipe_of(Image(name="cpu", torch="2", requirements=Path("all.txt")), root=tmp_path)


def test_paths_in_comments_and_options_of_a_requirements_file_are_no_requirements(tmp_path):
    text = "# ./lib\nnumpy  # see ./lib\n--find-links ./wheels\nscipy \\\n    --hash=sha256:00\n"
    (tmp_path / "all.txt").write_text(text)
    recipe = recipe_of(Image(name="cpu", torch="2", requirements=Path("all.txt")), root=tmp_path)
    assert recipe.requirements_text == text


def test_a_project_folder_without_a_build_file_is_an_error(tmp_path):
    with pytest.raises(ImageError, match=r"has no pyproject\.toml"):
        recipe_of(Image(name="cpu", torch="2", project=Path()), root=tmp_path)


def test_the_project_folder_is_relative_to_the_matrix_file(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/pyproject.toml").touch()
    assert recipe_of(Image(name="cpu", torch="2", project=Path("lib")), root=tmp_path).project == tmp_path / "lib"
