from dataclasses import replace
from pathlib import Path

import pytest

from allranks.images.recipe import Recipe, image_key, layer_key

RECIPE = Recipe(name="cpu", base="debian", torch="2.13.0")


def key(recipe=RECIPE, **changes):
    return image_key(recipe, **{"base_id": "sha256:a", "dockerfile": "FROM x", **changes})


@pytest.mark.parametrize(
    "change",
    [
        {"torch": "2.14.1"},
        {"index": "https://example.org/simple"},
        {"extra_index": ("https://example.org/simple",)},
        {"pip": (".find-links=/wheels",)},
        {"packages": ("pytest", "numpy")},
        {"requirements_text": "numpy\n"},
        {"apt": ("libnuma1",)},
        {"source": "c"},
    ],
)
def test_what_goes_in_changes_the_image_key(change):
    assert key(replace(RECIPE, **change)) != key()


@pytest.mark.parametrize("change", [{"base_id": "sha256:b"}, {"dockerfile": "FROM y"}])
def test_base_and_dockerfile_change_the_image_key(change):
    assert key(**change) != key()


@pytest.mark.parametrize(
    "change", [{"name": "other"}, {"base": "debian:latest"}, {"requirements": Path("/elsewhere/r.txt")}]
)
def test_names_and_paths_do_not_change_the_image_key(change):
    assert key(replace(RECIPE, **change)) == key()


def test_the_image_key_is_the_same_in_every_process():
    assert key() == "4a0169ba80ab"


def test_a_login_does_not_change_the_image_key():
    index = replace(RECIPE, index="https://me:old@example.org/simple")
    assert key(index) == key(replace(RECIPE, index="https://me:new@example.org/simple"))
    assert key(index) != key(replace(RECIPE, index="https://me:old@example.com/simple"))


def test_the_order_of_wheels_does_not_change_the_layer_key():
    one = layer_key(parent_id="p", content=("a", "b"), dockerfile="d")
    assert layer_key(parent_id="p", content=("b", "a"), dockerfile="d") == one


@pytest.mark.parametrize("change", [{"parent_id": "q"}, {"content": ("a",)}, {"dockerfile": "e"}])
def test_parent_wheels_and_dockerfile_change_the_layer_key(change):
    inputs = {"parent_id": "p", "content": ("a", "b"), "dockerfile": "d"}
    assert layer_key(**{**inputs, **change}) != layer_key(**inputs)
