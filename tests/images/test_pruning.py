from dataclasses import replace

import docker.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.images.inventory import PruneLimits, StoredImage, remove, to_remove
from allranks.ownership import image_lock, shared_lock

GB = 10**9
NOW = 1_000_000.0
DAY = 86_400


def image(name, *, used=NOW, own=GB, diffs=("base", "torch"), users=()):
    return StoredImage(
        id=f"sha256:{name}",
        names=(f"allranks/{name}:1",),
        torch="2.13.0",
        layer="torch",
        size=own,
        own=own,
        created=0,
        used=used,
        diffs=diffs,
        users=users,
    )


def names(images):
    return [item.title.partition(":")[0].removeprefix("allranks/") for item in images]


def test_images_that_were_not_used_for_longer_are_removed():
    images = [image("old", used=NOW - 15 * DAY), image("new", used=NOW - 13 * DAY)]
    assert names(to_remove(images, PruneLimits(unused=14 * DAY), NOW)) == ["old"]


def test_the_least_recently_used_go_until_the_rest_fits():
    images = [image("b", used=2), image("c", used=3), image("a", used=1)]
    assert names(to_remove(images, PruneLimits(size=3 * GB), NOW)) == []
    assert names(to_remove(images, PruneLimits(size=2 * GB), NOW)) == ["a"]
    assert names(to_remove(images, PruneLimits(size=2 * GB - 1), NOW)) == ["a", "b"]
    assert names(to_remove(images, PruneLimits(size=0), NOW)) == ["a", "b", "c"]


def test_images_in_use_are_kept_and_others_are_removed_instead():
    images = [image("needed", used=1, users=("a container",)), image("other", used=2)]
    assert names(to_remove(images, PruneLimits(size=GB), NOW)) == ["other"]
    assert names(to_remove(images, PruneLimits(unused=0), NOW)) == ["other"]


def test_without_limits_all_stays():
    assert to_remove([image("a", used=0)], PruneLimits(), NOW) == ()


def test_an_image_is_removed_before_its_parents():
    images = [image("layer", used=1), image("image", used=1, diffs=("base", "torch", "packages"))]
    assert names(to_remove(images, PruneLimits(unused=0), NOW)) == ["image", "layer"]


@st.composite
def stocks(draw):
    """Images based on item other, with times and users as from :func:`list_images`."""
    count = draw(st.integers(0, 8))
    parents = [draw(st.none() | st.integers(0, number - 1)) if number else None for number in range(count)]
    diffs = []
    for number, parent in enumerate(parents):
        diffs.append((*(("base",) if parent is None else diffs[parent]), str(number)))
    images = [
        image(str(number), used=draw(st.integers(0, 5)), own=draw(st.integers(0, 3)), diffs=own)
        for number, own in enumerate(diffs)
    ]
    needed = draw(st.sets(st.integers(0, len(images))))
    return [
        replace(
            item,
            used=max(other.used for other in (item, *above)),
            users=("x",) if any(int(other.diffs[-1]) in needed for other in (item, *above)) else (),
        )
        for item in images
        for above in [[other for other in images if other.is_based_on(item)]]
    ]


@given(stocks(), st.none() | st.integers(0, 5), st.none() | st.integers(0, 20))
def test_nothing_goes_from_under_another_or_that_is_needed_and_no_more_than_has_to(images, unused, size):
    chosen = to_remove(images, PruneLimits(unused=unused, size=size), now=5)
    left = [item for item in images if item not in chosen]
    assert not any(item.users for item in chosen)
    for place, item in enumerate(chosen):
        assert not any(other.is_based_on(item) for other in [*left, *chosen[place:]])
    if size is not None and sum(item.own for item in left) > size:
        assert all(item.users for item in left)
    for item in left:
        assert item.users or unused is None or 5 - item.used <= unused
    if unused is None and size is not None and chosen:
        assert sum(item.own for item in left) + chosen[-1].own > size


class Api:
    """The methods of a daemon that removal uses."""

    def __init__(self, refused=()):
        self.removed = []
        self._refused = refused

    def inspect_image(self, image):
        return {"Id": image, "Size": 0}

    def remove_image(self, name):
        if name in self._refused:
            msg = "conflict"
            raise docker.errors.APIError(msg, explanation="image is being used by stopped container 1a2b")
        self.removed.append(name)


def test_every_name_of_an_image_is_removed():
    api, both = Api(), replace(image("cpu"), names=("allranks/cpu:1", "allranks/layer:2"))
    assert list(remove(api, [both], print)) == [both]
    assert api.removed == ["allranks/cpu:1", "allranks/layer:2"]


@pytest.mark.parametrize("name", ["allranks/cpu:1", "allranks/layer:2"])
def test_an_image_that_a_run_just_started_to_use_is_kept_with_its_parents(name, progress):
    api = Api()
    layer = image("layer")
    cpu = replace(image("cpu", diffs=("base", "torch", "packages")), names=("allranks/cpu:1", "allranks/layer:2"))
    with shared_lock(image_lock(name)):
        assert list(remove(api, [cpu, layer, image("other", diffs=("base", "x"))], progress)) != []
    assert api.removed == ["allranks/other:1"]
    assert progress == ["kept allranks/cpu:1: a run or build needs it now"]


def test_an_image_that_the_daemon_does_not_remove_is_reported(progress):
    api = Api(refused=["allranks/cpu:1"])
    assert names(remove(api, [image("cpu"), image("other", diffs=("base", "x"))], progress)) == ["other"]
    assert progress == ["kept allranks/cpu:1: image is being used by stopped container 1a2b."]


def test_no_lock_is_left(locks_are_free):
    list(remove(Api(), [image("cpu")], print))
    assert locks_are_free()
