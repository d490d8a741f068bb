"""Merging: repeatable, exclusive, and careful with what is not ours."""

import fcntl
import resource
import shutil
import threading
from pathlib import Path

import pytest

from allranks.errors import ExitCode, ResultsError, UsageError
from allranks.report.junit import JUnitWriter
from allranks.report.merging import LOCK_NAME, merge

JOB = "gloo-w2-g0-env/s"
SKIP = {"outcome": "skipped", "message": "no NCCL", "skip_kind": "environment", "skip_code": 76}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_merging_twice_changes_nothing(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {"t.py::a": "failed", "t.py::b": SKIP})
    merge(run_folder.path, environ={})
    once = contents(run_folder.path)
    merge(run_folder.path, environ={})
    assert contents(run_folder.path) == once
    assert {"junit.xml", "summary.md"} <= set(once)


def test_a_foreign_folder_can_be_merged_twice(write_ranks):
    root = write_ranks("gloo-w1-g0-env/unit/rank-0.xml", ['<testcase name="a"/>'])
    merge(root, environ={})
    once = contents(root)
    assert merge(root, environ={}).counts.tests == 1
    assert contents(root) == once


def test_a_copy_of_the_folder_merges_to_the_same_report(run_folder, tmp_path: Path):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {"t.py::a": "failed"})
    copy = tmp_path / "elsewhere"
    shutil.copytree(run_folder.path, copy)
    assert merge(copy, environ={}).junit.read_bytes() == merge(run_folder.path, environ={}).junit.read_bytes()


def test_the_latest_link_is_followed(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {"t.py::a": "passed"})
    latest = run_folder.path.parent / "latest"
    latest.symlink_to("r1")
    assert merge(latest, environ={}).junit == run_folder.path.resolve() / "junit.xml"


@pytest.mark.parametrize(
    ("argument", "manifest", "environ", "expected"),
    [
        (None, None, {}, "skip"),
        (None, None, {"SANDCASTLE": "1"}, "pass"),
        (None, None, {"SANDCASTLE": "0"}, "skip"),
        (None, None, {"TW_JOB_USER": "sandcastle"}, "pass"),
        (None, "skip", {"SANDCASTLE": "1"}, "skip"),
        (None, "pass", {}, "pass"),
        ("skip", "pass", {"SANDCASTLE": "1"}, "skip"),
        ("pass", "skip", {}, "pass"),
    ],
)
def test_the_policy_is_the_argument_else_the_matrix_files_else_sandcastles(
    run_folder, argument, manifest, environ, expected
):
    run_folder.manifest(JOB, policy={"skip": manifest, "mixed_skip": []})
    run_folder.both(JOB, {"t.py::a": SKIP})
    merged = merge(run_folder.path, policy=argument, environ=environ)
    assert merged.policy == expected
    assert merged.counts.skip_but_pass == (1 if expected == "pass" else 0)


@pytest.mark.parametrize(("allowed", "passed"), [([], 0), (["t.py::*"], 1), (["u.py::*"], 0)])
def test_ranks_may_disagree_on_the_skips_that_the_matrix_file_names(run_folder, allowed, passed: int):
    run_folder.manifest(JOB, policy={"skip": None, "mixed_skip": allowed})
    run_folder.job(JOB, collected=["t.py::a"])
    run_folder.rank(JOB, 0, {"t.py::a": "skipped"})
    run_folder.rank(JOB, 1, {"t.py::a": "passed"})
    assert merge(run_folder.path, environ={}).counts.passed == passed


def test_a_merge_waits_for_another_one(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {"t.py::a": "passed"})
    merging = threading.Thread(target=merge, args=(run_folder.path,), kwargs={"environ": {}})
    with (run_folder.path / LOCK_NAME).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        merging.start()
        merging.join(timeout=0.3)
        assert merging.is_alive()
        assert not (run_folder.path / "junit.xml").exists()
    merging.join(timeout=30)
    assert (run_folder.path / "junit.xml").exists()


def test_a_report_of_somebody_else_is_not_overwritten(write_ranks):
    root = write_ranks("junit.xml", ['<testcase name="a"/>'])
    before = (root / "junit.xml").read_bytes()
    with pytest.raises(ResultsError, match="was not written by allranks"):
        merge(root, environ={})
    assert (root / "junit.xml").read_bytes() == before


def test_a_folder_that_is_not_there_is_an_error_of_usage(tmp_path: Path):
    with pytest.raises(UsageError, match="no results folder"):
        merge(tmp_path / "nowhere", environ={})


def test_a_folder_without_results_is_an_error_of_usage(tmp_path: Path):
    with pytest.raises(UsageError, match="nothing to merge") as caught:
        merge(tmp_path, environ={})
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {"t.py::a": "passed"})
    (run_folder.path / "junit.xml").mkdir()  # stands for any refusal: root may write where others may not
    with pytest.raises(ResultsError) as caught:
        merge(run_folder.path, environ={})
    assert caught.value.remedy


def test_an_unfinished_report_is_never_left_behind(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {"t.py::a": "passed"})
    merge(run_folder.path, environ={})
    assert not list(run_folder.path.glob(".*unfinished"))


@pytest.mark.parametrize("name", ["junit.xml", "summary.md"])
def test_a_write_that_fails_half_way_leaves_the_earlier_report(run_folder, monkeypatch, name: str):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {"t.py::a": "passed"})
    merge(run_folder.path, environ={})
    before = (run_folder.path / name).read_bytes()

    def half(path: str | Path, *_: object, **__: object) -> None:
        with Path(path).open("w") as file:
            file.write("<half")
        raise OSError(28, "No space left on device", str(path))

    if name == "junit.xml":
        monkeypatch.setattr(JUnitWriter, "add", lambda writer, _: half(writer._path.with_name(".junit.xml.unfinished")))
    else:
        monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(ResultsError, match="No space left"):
        merge(run_folder.path, environ={})
    assert (run_folder.path / name).read_bytes() == before
    assert not list(run_folder.path.glob(".*unfinished"))


def test_a_full_disk_leaves_no_unfinished_report(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {f"t.py::test_{number}": "passed" for number in range(200)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # as on a full disk, closing a file fails like writing it
    try:
        with pytest.raises(ResultsError, match="free disk space"):
            merge(run_folder.path, environ={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(run_folder.path.glob(".*unfinished"))
