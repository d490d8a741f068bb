"""Listing the images of a fake daemon."""

import re

import pytest

from allranks.images.inventory import OTHERS, RUN, list_images, remove, render

GB = 10**9
BASE = "sha256:base"


class Api:
    """The methods of a daemon that listing images uses."""

    def __init__(self):
        self.there = {}
        self.running = []

    def add(self, name, *diffs, size, tags=None, labels=None, named="2026-11-22T08:00:00.123456789Z"):
        ours = {"allranks": "1", "allranks.layer": diffs[-1] if diffs else "", "allranks.torch": "2.13.0"}
        self.there[f"sha256:{name}"] = {
            "Id": f"sha256:{name}",
            "RepoTags": [f"allranks/{name}:1"] if tags is None else tags,
            "Config": {"Labels": ours if labels is None else labels},
            "Size": size,
            "Created": "2026-11-01T00:00:00Z",
            "Metadata": {"LastTagTime": named},
            "RootFS": {"Layers": [BASE, *diffs]},
        }

    def images(self):
        return [{"Id": image_id} for image_id in self.there]

    def inspect_image(self, image):
        return self.there[image]

    def containers(self, **_):
        return [{"Names": [f"/{name}"], "ImageID": image} for name, image in self.running]


@pytest.fixture
def api():
    """A base, a layer with torch, and an image."""
    api = Api()
    api.add("base", size=GB // 10, tags=["allranks/base:bookworm"], labels={"allranks.base": "1"})
    api.add("layer", "torch", size=GB, named="2026-11-20T00:00:00Z")
    api.add("cpu", "torch", "packages", size=int(1.1 * GB))
    return api


def images(api, needed=()):
    return {image.id.removeprefix("sha256:"): image for image in list_images(api, lambda name: name in needed)}


def test_only_what_allranks_has_built_is_listed(api):
    api.add("python", "x", size=GB, tags=["python:3.11"], labels={})
    api.add("loose", "x", size=GB, tags=[])
    assert set(images(api)) == {"layer", "cpu"}


def test_an_image_of_a_user_is_not_ours_and_keeps_its_parents(api):
    api.add("theirs", "torch", "their own", size=2 * GB, tags=["theirs:1"])
    found = images(api)
    assert set(found) == {"layer", "cpu"}
    assert (found["layer"].users, found["cpu"].users) == ((OTHERS,), ())


def test_an_image_of_a_user_without_new_files_keeps_its_parents(api):
    api.add("theirs", "torch", "packages", size=GB, tags=["theirs:1"])
    assert images(api)["cpu"].users == images(api)["layer"].users == (OTHERS,)


def test_an_image_with_a_name_of_a_user_is_in_use(api):
    api.there["sha256:cpu"]["RepoTags"].append("registry.example.org/mine:1")
    assert images(api)["cpu"].users == (OTHERS,)
    assert images(api)["cpu"].names == ("allranks/cpu:1",)


def test_a_container_uses_its_image_and_its_parents(api):
    api.running = [("web", "sha256:cpu")]
    assert images(api)["cpu"].users == images(api)["layer"].users == ("web",)
    api.running = [("web", "sha256:layer")]
    assert (images(api)["cpu"].users, images(api)["layer"].users) == ((), ("web",))


def test_a_run_uses_its_image_and_its_parents(api):
    found = images(api, needed=["allranks/cpu:1"])
    assert found["cpu"].users == found["layer"].users == (RUN,)


def test_a_layer_is_as_recently_used_as_its_children(api):
    found = images(api)
    assert found["layer"].used == found["cpu"].used == pytest.approx(1_795_334_400.12, abs=0.01)


def test_what_was_never_given_a_name_again_was_used_when_it_was_built(api):
    api.add("cpu", "torch", "packages", size=GB, named="0001-01-01T00:00:00Z")
    assert images(api)["cpu"].used == images(api)["cpu"].created > 0


def test_its_own_size_excludes_its_parents(api):
    found = images(api)
    assert (found["layer"].own, found["cpu"].own) == (GB - GB // 10, int(0.1 * GB))


def test_the_least_recently_used_comes_first_and_images_before_their_layers(api):
    api.add("older", "other", size=GB, named="2026-11-10T00:00:00Z")
    assert list(images(api)) == ["older", "cpu", "layer"]


def test_the_list_has_the_properties_and_users_of_images(api):
    api.running = [("web", "sha256:cpu")]
    text = render(list_images(api, lambda _: False), now=1_795_334_400.0 + 3 * 3600 + 1)
    head, layer, cpu, _, total = text.splitlines()
    assert head.split("  ")[0] == "image"
    what, when = ["allranks/layer:1", "2.13.0", "torch", "1.0 GB", "0.9 GB"], ["21 days ago", "3 hours ago"]
    assert re.split(r"  +", layer) == [*what, *when, "web"]
    assert cpu.split()[:3] == ["allranks/cpu:1", "2.13.0", "packages"]
    assert total == "2 images and layers, 1.0 GB"


def test_the_list_has_only_the_first_user_of_an_image(api):
    api.running = [(f"c{number}", "sha256:cpu") for number in range(20)]
    assert "c0 and 19 more" in render(list_images(api, lambda _: False), now=0)


def test_an_image_that_another_host_just_used_is_kept_with_its_parents(api):
    chosen, lines, removed = images(api), [], []
    api.remove_image = removed.append
    api.there["sha256:cpu"]["Metadata"] = {"LastTagTime": "2026-11-22T08:00:01Z"}
    assert list(remove(api, [chosen["cpu"], chosen["layer"]], lines.append)) == []
    assert (lines, removed) == (["kept allranks/cpu:1: a run on another host has just used it"], [])
    assert list(remove(api, [images(api)["cpu"]], lines.append)) == [images(api)["cpu"]]
