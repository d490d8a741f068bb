import fcntl

import pytest

from allranks.errors import ImageError
from allranks.user_cache import keep, locked, made_cache_folder


def test_the_cache_follows_the_xdg_variable(own_cache):
    assert made_cache_folder("wheels") == own_cache / "allranks/wheels"


def test_without_the_variable_the_cache_is_in_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert made_cache_folder("wheels") == tmp_path / ".cache/allranks/wheels"


def test_a_cache_that_cannot_be_made_is_an_error_with_a_remedy(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ImageError, match="Set XDG_CACHE_HOME"):
        made_cache_folder("wheels")


def test_a_kept_file_is_replaced_as_a_whole(tmp_path):
    keep(tmp_path / "x.json", "long text")
    keep(tmp_path / "x.json", "new")
    assert [(file.name, file.read_text()) for file in tmp_path.glob("x*")] == [("x.json", "new")]


def test_a_held_lock_keeps_others_out_until_the_block_ends(own_cache):
    with locked("key"), (own_cache / "allranks/locks/key.lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (own_cache / "allranks/locks/key.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
