"""The user's cache stays below its limit, and entries in use are kept."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks import user_cache
from allranks.errors import EnvironmentBuildError
from allranks.user_cache import cache_limit, free_space, mark_used, prune_cache, remove_unused, to_remove

KIB = 1 << 10


@pytest.fixture
def add(tmp_path):
    """Adds entries, each used after the previous one."""
    names = []

    def add(name, kib=100):
        entry = tmp_path / name
        (entry / "lib").mkdir(parents=True)
        (entry / "lib" / "file").write_bytes(os.urandom(kib * KIB))
        names.append(name)
        os.utime(entry, (len(names), len(names)))
        return entry

    return add


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        (10_000, ["a", "b", "c", "d"]),
        (450, ["a", "b", "c", "d"]),
        (350, ["b", "c", "d"]),
        (250, ["c", "d"]),
        (150, ["d"]),
        (1, ["d"]),
        (0, ["d"]),
    ],
)
def test_what_was_not_used_for_longest_goes_and_the_newest_stays(add, tmp_path, limit, left):
    for name in "abcd":
        add(name)
    free_space(tmp_path, limit * KIB, print)
    assert names(tmp_path) == left


def test_one_large_entry_does_not_take_smaller_and_newer_ones_with_it(add, tmp_path):
    add("large", 1000)
    add("small")
    add("new")
    free_space(tmp_path, 300 * KIB, print)
    assert names(tmp_path) == ["new", "small"]


def test_a_large_new_entry_does_not_take_what_fits_beside_it_again(add, tmp_path):
    for name, kib in (("old", 50), ("older", 900), ("new", 100)):
        add(name, kib)
    free_space(tmp_path, 200 * KIB, print)
    assert names(tmp_path) == ["new", "old"]


HOLD = """
import sys
from pathlib import Path
from allranks.user_cache import mark_used

mark_used(Path(sys.argv[1]))
print("used", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_run():
    """Starts other processes that use an entry."""
    started = []

    def start(entry):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(entry)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "used\n"
        return process

    yield start
    for process in started:
        process.communicate()


def test_an_entry_that_another_run_uses_stays_as_long_as_that_runs(add, tmp_path, other_run):
    old = add("old")
    add("new")
    runs = [other_run(old), other_run(old)]
    os.utime(old, (1, 1))
    free_space(tmp_path, 0, print)
    assert names(tmp_path) == ["new", "old"]
    for number, run in enumerate(runs):
        assert (number, names(tmp_path)) == (number, ["new", "old"])
        run.communicate()
        free_space(tmp_path, 0, print)
    assert names(tmp_path) == ["new"]


def test_an_entry_that_this_process_uses_stays(add, tmp_path):
    old = add("old")
    add("new")
    mark_used(old)
    os.utime(old, (1, 1))
    free_space(tmp_path, 0, print)
    assert names(tmp_path) == ["new", "old"]


def test_what_was_not_used_for_a_month_goes_from_each_kind_of_entries(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for kind in ("environments", "wheels", "projects", "bytecode", "package"):
        for name, days in (("old", 31), ("new", 29)):
            entry = tmp_path / "allranks" / kind / name
            entry.mkdir(parents=True)
            os.utime(entry, (time.time() - days * 86_400,) * 2)
    removed = prune_cache()
    assert [path.parent.name for path in removed] == ["environments", "wheels", "projects", "bytecode"]
    assert {path.name for path in removed} == {"old"}
    assert not any(path.exists() for path in removed)
    assert names(tmp_path / "allranks" / "wheels") == ["new"]
    assert names(tmp_path / "allranks" / "package") == ["new", "old"]  # what it holds is a link to this allranks


def test_an_old_entry_that_another_run_uses_stays(add, tmp_path, other_run):
    other_run(add("a"))
    os.utime(tmp_path / "a", (1, 1))
    assert remove_unused(tmp_path) == []
    assert names(tmp_path) == ["a"]


def test_use_makes_an_entry_the_newest(add, tmp_path):
    first, _ = add("first"), add("second")
    mark_used(first)
    assert to_remove(tmp_path, 150 * KIB) == [tmp_path / "second"]


def test_a_second_use_costs_no_second_descriptor(add):
    entry = add("entry")
    mark_used(entry)
    before = len(list(Path("/proc/self/fd").iterdir()))
    mark_used(entry)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_what_is_removed_is_said(add, tmp_path):
    add("old")
    add("new")
    lines = []
    free_space(tmp_path, 0, lines.append)
    assert lines == [f"removing {tmp_path / 'old'}: the cache is full"]


def test_what_another_run_is_just_filling_stays(add, tmp_path):
    partial = add("partial-x")
    os.utime(partial)
    add("new")
    free_space(tmp_path, 0, print)
    assert names(tmp_path) == ["new", "partial-x"]
    os.utime(partial, (1, 1))
    free_space(tmp_path, 0, print)
    assert names(tmp_path) == ["new"]


def test_a_cache_that_nobody_may_write_is_used_as_it_is(add, monkeypatch):
    entry = add("entry")

    def refuse(*_arguments, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(user_cache.os, "open", refuse)
    monkeypatch.setattr(user_cache.os, "utime", refuse)
    mark_used(entry)


def test_links_are_neither_followed_nor_counted(add, tmp_path):
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_bytes(bytes(500 * KIB))
    (tmp_path / "link").symlink_to(elsewhere)
    entry = add("entry")
    (entry / "link").symlink_to(elsewhere)
    add("new")
    free_space(tmp_path, 250 * KIB, print)
    assert names(tmp_path) == ["entry", "link", "new"]
    free_space(tmp_path, 0, print)
    assert (elsewhere / "file").exists()


@given(st.lists(st.integers(0, 300), max_size=8), st.integers(0, 1000))
def test_the_rest_is_below_the_limit_and_the_newest_is_never_removed(sizes, limit):
    entries = [(Path(f"/{number}"), size) for number, size in enumerate(sizes)]  # the newest first
    removed = user_cache._beyond(entries, limit)
    rest = [size for path, size in entries if path not in removed]
    assert sum(rest) <= limit or rest == sizes[:1]
    assert not entries or entries[0][0] not in removed


@pytest.mark.parametrize(("given", "limit"), [("", 20 << 30), ("5", 5 << 30), ("0", 0), ("1.5", 3 << 29)])
def test_the_limit_can_be_given(monkeypatch, given, limit):
    monkeypatch.setenv("ALLRANKS_CACHE_GIB", given)
    assert cache_limit() == limit


@pytest.mark.parametrize("given", ["much", "-1", "nan", "inf", "1e400", "5 GB"])
def test_a_limit_that_is_no_number_is_an_error(monkeypatch, given):
    monkeypatch.setenv("ALLRANKS_CACHE_GIB", given)
    with pytest.raises(EnvironmentBuildError, match="ALLRANKS_CACHE_GIB"):
        cache_limit()
