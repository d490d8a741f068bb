import fcntl
import resource

import pytest

from allranks.errors import EnvironmentBuildError, ImageError
from allranks.user_cache import cache_folder, locked, made_cache_folder, write_atomically


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


def test_a_cache_that_cannot_be_written_is_the_same_error(monkeypatch):
    monkeypatch.setattr("allranks.user_cache.os.access", lambda *_: False)  # root may write everywhere
    with pytest.raises(ImageError, match="not writable") as error:
        made_cache_folder("wheels")
    assert "XDG_CACHE_HOME" in error.value.remedy


def test_a_user_without_a_home_is_an_error_with_a_remedy(monkeypatch):
    def fail():
        msg = "Could not determine home directory."
        raise RuntimeError(msg)

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("allranks.user_cache.Path.home", fail)
    with pytest.raises(EnvironmentBuildError, match="Neither HOME nor XDG_CACHE_HOME"):
        cache_folder()


def test_a_kept_file_is_replaced_as_a_whole(tmp_path):
    write_atomically(tmp_path / "x.json", "long text")
    write_atomically(tmp_path / "x.json", "new")
    assert [(file.name, file.read_text()) for file in tmp_path.glob("x*")] == [("x.json", "new")]


def test_a_file_stays_if_the_disk_is_full(tmp_path):
    write_atomically(tmp_path / "x.json", "old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            write_atomically(tmp_path / "x.json", "new" * 1024)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [(file.name, file.read_text()) for file in tmp_path.glob("*x.json*")] == [("x.json", "old")]


def test_a_held_lock_keeps_others_out_until_the_block_ends(own_cache):
    with locked("key"), (own_cache / "allranks/locks/key.lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (own_cache / "allranks/locks/key.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
