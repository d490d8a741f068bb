"""Whether a test has used up the room that its job has, and by whom."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent import evidence
from allranks.agent.evidence import DiskUse

MIB = 1 << 20
VOLUME = 512 * MIB
DISK = 1000 << 30


@pytest.fixture
def folders(tmp_path):
    results, shared = tmp_path / "results", tmp_path / "shared"
    results.mkdir()
    shared.mkdir()
    return results, shared


@pytest.fixture
def looks(monkeypatch, folders):
    """Say what is free in both folders, and what this process has written; returns what was used up meanwhile."""

    def judge(before, after, *, written, size=VOLUME):
        seen = {}

        def look(free, count):
            seen.update(zip(folders, free, strict=True))
            monkeypatch.setattr(evidence, "_space_of", lambda folder: (size, seen[folder]))
            monkeypatch.setattr(evidence, "_written", lambda: count)

        look(before, 1000)
        watched = DiskUse(*folders)
        watched.begin()
        look(after, 1000 + written)
        return watched.overrun()

    return judge


def test_who_has_written_what_filled_a_folder_is_told_with_its_size(looks, folders):
    overrun = looks((VOLUME, VOLUME), (0, VOLUME), written=VOLUME)
    assert overrun.is_own
    assert overrun.message.startswith(
        f"{folders[0]}, which has a size of 512 MiB, was filled during this test: this rank wrote 512 MiB."
    )
    assert "limits.disk_mib" in overrun.message


def test_the_folder_that_was_filled_is_named(looks, folders):
    assert looks((VOLUME, VOLUME), (VOLUME, 0), written=VOLUME).message.startswith(str(folders[1]))


def test_a_folder_that_was_filled_by_no_writing_of_this_rank_is_told_as_maybe_a_peers(looks):
    """A file may grow by fallocate, too, which nobody counts."""
    overrun = looks((VOLUME, VOLUME), (0, VOLUME), written=5)
    assert not overrun.is_own
    assert "cannot be told" in overrun.message


def test_a_hosts_disk_that_others_fill_is_nobodys_fault(looks):
    assert looks((DISK, DISK), (0, DISK), written=VOLUME, size=DISK) is None
    assert looks((DISK, DISK), (0, DISK), written=DISK // 2, size=DISK).is_own


def test_a_folder_is_told_as_full_once(looks):
    assert looks((0, VOLUME), (0, VOLUME), written=VOLUME) is None


@given(
    free=st.tuples(*[st.integers(0, VOLUME)] * 4),
    written=st.integers(0, 2 * VOLUME),
    size=st.sampled_from([VOLUME, DISK]),
)
def test_no_test_is_blamed_unless_something_has_become_full(free, written, size):
    with pytest.MonkeyPatch.context() as patch:
        spaces = iter([(size, each) for each in free])
        counts = iter([0, written])
        patch.setattr(evidence, "_space_of", lambda _folder: next(spaces))
        patch.setattr(evidence, "_written", lambda: next(counts))
        watched = DiskUse("a", "b")
        overrun = watched.overrun()
    became_full = any(has < MIB <= had for had, has in zip(free[:2], free[2:], strict=True))
    assert overrun is None or became_full
    assert overrun is not None or not became_full or size == DISK
    assert overrun is None or overrun.is_own == (written * 16 >= size)


def test_results_over_the_limit_are_told_where_no_volume_limits_them(monkeypatch, folders):
    monkeypatch.setattr(evidence, "RESULTS_BYTES", MIB)
    watched = DiskUse(*folders)
    watched.begin()
    (folders[0] / "deep").mkdir()
    (folders[0] / "deep" / "dump").write_bytes(b"x" * 2 * MIB)
    overrun = watched.overrun()
    assert overrun.is_own
    assert f"{folders[0]} holds 2 MiB of files, and no more than 1 MiB" in overrun.message
    watched.begin()
    assert watched.overrun() is None  # the next test has added nothing


def test_what_a_child_that_has_ended_wrote_counts(folders):
    before = evidence._written()
    subprocess.run([sys.executable, "-c", f"open({str(folders[0] / 'x')!r}, 'wb').write(b'x' * {4 * MIB})"], check=True)
    assert evidence._written() - before >= 4 * MIB


def test_a_file_system_without_inodes_has_no_room(monkeypatch, tmp_path):
    found = {"f_blocks": 10, "f_frsize": 4096, "f_bavail": 10, "f_files": 5}
    for left, free in ((0, 0), (3, 40960)):
        monkeypatch.setattr(os, "statvfs", lambda _, left=left: SimpleNamespace(**found, f_favail=left))
        assert evidence._space_of(tmp_path) == (40960, free)


def test_a_folder_that_is_gone_is_not_full(folders):
    watched = DiskUse(*folders)
    folders[0].rmdir()
    assert watched.overrun() is None


@pytest.mark.parametrize(("free", "is_full"), [(0, True), (MIB, False)])
def test_a_folder_without_room_for_a_line_is_full(monkeypatch, tmp_path, free, is_full):
    monkeypatch.setattr(evidence, "_space_of", lambda _folder: (VOLUME, free))
    assert evidence.is_full(tmp_path) == is_full
