"""``allranks clean --images``, without a daemon."""

import json
from contextlib import nullcontext

import pytest

from allranks.errors import EngineError
from allranks.images.inventory import StoredImage

OLD, NEW = (
    StoredImage(
        id=f"sha256:{name}", names=(f"allranks/{name}:1",), torch=torch, layer="torch", size=2000, own=1000,
        created=0.0, used=used, diffs=(name,), users=users,
    )
    for name, torch, used, users in (("old", "", 60.0, ()), ("new", "2.13.0", 2e10, ("a container",)))
)  # fmt: skip


@pytest.fixture
def images(monkeypatch):
    """A daemon with two images, one of them unused for decades."""
    monkeypatch.setattr("allranks.images.inventory._daemon", nullcontext)
    monkeypatch.setattr("allranks.images.inventory._list_images", lambda _client: (OLD, NEW))


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize(
    ("arguments", "removed"), [(["--dry-run"], ["sha256:old"]), (["--dry-run", "--older-than", "5000w"], [])]
)
def test_images_can_be_printed_as_json(allranks, arguments, removed):
    code, out, err = allranks("clean", "--images", "--json", *arguments)
    document = json.loads(out)
    assert (code, document["schema"]) == (0, 1)
    assert [image["id"] for image in document["removed"]] == removed
    assert document["images"][-1] == {
        "id": "sha256:new",
        "names": ["allranks/new:1"],
        "torch": "2.13.0",
        "layer": "torch",
        "size": 2000,
        "own": 1000,
        "built": None,
        "used": "2603-10-11T11:33:20+00:00",
        "users": ["a container"],
    }
    assert ("would remove allranks/old:1" in err) == bool(removed)


@pytest.mark.parametrize(
    "option", [["--dry-run"], ["--older-than", "14d"], ["--keep-size", "40GB"], ["--json"]], ids=" ".join
)
def test_options_of_images_need_images(allranks, option):
    code, out, err = allranks("clean", *option)
    assert (code, out) == (2, "")
    assert "Add --images" in err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--older-than=14y", "write an age such as"),
        ("--older-than=14", "write an age such as"),
        ("--keep-size=40d", "write a size such as"),
    ],
)
def test_an_invalid_age_or_size_is_an_error(allranks, option, message):
    code, _, err = allranks("clean", "--images", option)
    assert code == 2
    assert message in err


@pytest.mark.usefixtures("runs")
def test_unused_images_can_be_removed_after_each_run(allranks, monkeypatch):
    asked = []
    monkeypatch.setattr("allranks.images.inventory.prune", lambda limits, _say: asked.append(limits.unused))
    allranks("run")
    monkeypatch.setenv("ALLRANKS_PRUNE_IMAGES", "30d")
    assert allranks("run")[0] == 0
    allranks("run", "--engine", "process")
    assert asked == [30 * 86_400]


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("age", "message"),
    [
        ("soon", "'soon' is invalid: write an age such as 14d"),
        ("1d", "unused images were not removed: No daemon. Why."),
    ],
)
def test_a_failed_removal_of_images_is_only_a_warning(allranks, monkeypatch, age, message):
    def fail(*_):
        msg = "No daemon."
        raise EngineError(msg, why="Why.")

    monkeypatch.setattr("allranks.images.inventory.prune", fail)
    monkeypatch.setenv("ALLRANKS_PRUNE_IMAGES", age)
    code, _, err = allranks("run")
    assert (code, message in err) == (0, True)
