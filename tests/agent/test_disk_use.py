"""Whether a test has used up the disk space of its job, and which rank is responsible."""

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
def overrun_of(monkeypatch, folders):
    """A function that returns the overrun, given the free space in both folders before and after a test."""

    def overrun(before, after, *, written, size=VOLUME):
        space = {}

        def simulate(free, count):
            space.update(zip(folders, free, strict=True))
            monkeypatch.setattr(evidence, "_space_of", lambda folder: (size, space[folder]))
            monkeypatch.setattr(evidence, "_written", lambda: count)

        simulate(before, 1000)
        disk_use = DiskUse(*folders)
        disk_use.begin()
        simulate(after, 1000 + written)
        return disk_use.overrun()

    return overrun


def test_the_rank_that_filled_a_folder_is_responsible(overrun_of, folders):
    overrun = overrun_of((VOLUME, VOLUME), (0, VOLUME), written=VOLUME)
    assert overrun.is_own
    assert overrun.message.startswith(f"{folders[0]} (512 MiB) was filled during this test: this rank wrote 512 MiB.")
    assert "limits.disk_mib" in overrun.message


def test_the_message_names_the_full_folder(overrun_of, folders):
    assert overrun_of((VOLUME, VOLUME), (VOLUME, 0), written=VOLUME).message.startswith(str(folders[1]))


def test_a_folder_that_this_rank_did_not_fill_is_reported_without_a_culprit(overrun_of):
    """A file may also grow by fallocate, which is not counted."""
    overrun = overrun_of((VOLUME, VOLUME), (0, VOLUME), written=5)
    assert not overrun.is_own
    assert "could not be determined" in overrun.message


def test_a_disk_that_other_programs_fill_is_not_reported(overrun_of):
    assert overrun_of((DISK, DISK), (0, DISK), written=VOLUME, size=DISK) is None
    assert overrun_of((DISK, DISK), (0, DISK), written=DISK // 2, size=DISK).is_own


def test_a_full_folder_is_reported_once(overrun_of):
    assert overrun_of((0, VOLUME), (0, VOLUME), written=VOLUME) is None


@given(
    free=st.tuples(*[st.integers(0, VOLUME)] * 4),
    written=st.integers(0, 2 * VOLUME),
    size=st.sampled_from([VOLUME, DISK]),
)
def test_no_test_is_blamed_unless_something_has_become_full(free, written, size):
    with pytest.MonkeyPatch.context() as patch:
        spaces = iter([(size, bytes_free) for bytes_free in free])
        counts = iter([0, written])
        patch.setattr(evidence, "_space_of", lambda _folder: next(spaces))
        patch.setattr(evidence, "_written", lambda: next(counts))
        disk_use = DiskUse("a", "b")
        overrun = disk_use.overrun()
    became_full = any(after < MIB <= before for before, after in zip(free[:2], free[2:], strict=True))
    assert overrun is None or became_full
    assert overrun is not None or not became_full or size == DISK
    assert overrun is None or overrun.is_own == (written * 16 >= size)


def test_results_over_the_limit_are_reported(monkeypatch, folders):
    monkeypatch.setattr(evidence, "RESULTS_BYTES", MIB)
    disk_use = DiskUse(*folders)
    disk_use.begin()
    (folders[0] / "deep").mkdir()
    (folders[0] / "deep" / "dump").write_bytes(b"x" * 2 * MIB)
    overrun = disk_use.overrun()
    assert overrun.is_own
    assert f"{folders[0]} has 2 MiB of files, but a job may return only 1 MiB: " in overrun.message
    disk_use.begin()
    assert disk_use.overrun() is None  # the next test has added nothing


def test_bytes_written_by_ended_children_count(folders):
    before = evidence._written()
    subprocess.run([sys.executable, "-c", f"open({str(folders[0] / 'x')!r}, 'wb').write(b'x' * {4 * MIB})"], check=True)
    assert evidence._written() - before >= 4 * MIB


def test_a_file_system_without_inodes_is_full(monkeypatch, tmp_path):
    found = {"f_blocks": 10, "f_frsize": 4096, "f_bavail": 10, "f_files": 5}
    for left, free in ((0, 0), (3, 40960)):
        monkeypatch.setattr(os, "statvfs", lambda _, left=left: SimpleNamespace(**found, f_favail=left))
        assert evidence._space_of(tmp_path) == (40960, free)


def test_a_removed_folder_is_not_full(folders):
    disk_use = DiskUse(*folders)
    folders[0].rmdir()
    assert disk_use.overrun() is None


@pytest.mark.parametrize(("free", "is_full"), [(0, True), (MIB, False)])
def test_a_folder_with_less_than_1_mib_is_full(monkeypatch, tmp_path, free, is_full):
    monkeypatch.setattr(evidence, "_space_of", lambda _folder: (VOLUME, free))
    assert evidence.is_full(tmp_path) == is_full
