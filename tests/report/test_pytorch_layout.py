"""PyTorch's layout of a report: a file for each test file, in the folders and with the names of its own runner."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from allranks.errors import ResultsError
from allranks.report.merging import merge
from allranks.report.pytorch_layout import PyTorchLayout

STORE = "test/distributed/test_store.py"
JOB = "gloo-w2-g0-env/pytorch"


def lay_out(folder: Path) -> dict[str, ET.Element]:
    """The files below ``test-reports``, by the folders they are in."""
    layout = PyTorchLayout(folder.resolve())
    for error in merge(folder, environ={}, observers=[layout.add]).errors:
        raise error
    files = sorted((folder / "test-reports").rglob("*.xml"))
    return {f"{path.parent.relative_to(folder)} {path.name}": ET.parse(path).getroot() for path in files}  # noqa: S314 - ours


@pytest.fixture
def results(run_folder):
    run_folder.manifest(JOB)
    tests = {
        f"{STORE}::TCPStoreTest::test_repr": {"outcome": "failed", "message": "no match", "text": "in test_repr"},
        f"{STORE}::TCPStoreTest::test_set": "passed",
        f"{STORE}::test_plain[a::b]": "passed",
        "test/distributed/fsdp/test_fsdp_misc.py::TestMisc::test_gpu": {
            "outcome": "skipped", "message": "Need 2 CUDA devices", "skip_kind": "environment", "skip_code": 75,
        },
    }  # fmt: skip
    run_folder.both(JOB, tests)
    return run_folder


def test_each_test_file_has_a_file_below_a_folder_with_its_name(results):
    store, misc = sorted(lay_out(results.path), key=lambda place: "fsdp" in place)
    assert store.startswith("test-reports/python-pytest/distributed.test_store distributed.test_store-")
    assert misc.startswith(
        "test-reports/python-pytest/distributed.fsdp.test_fsdp_misc distributed.fsdp.test_fsdp_misc-"
    )
    digits = store.removesuffix(".xml").rpartition("-")[2]
    assert len(digits) == 16
    assert int(digits, 16)


def test_a_testcase_has_its_class_alone_and_its_file_below_test(results):
    _, document = lay_out(results.path).popitem()
    cases = [(case.get("classname"), case.get("name"), case.get("file")) for case in document.iter("testcase")]
    assert cases == [
        ("TCPStoreTest", "test_repr", "distributed/test_store.py"),
        ("TCPStoreTest", "test_set", "distributed/test_store.py"),
        ("test_store", "test_plain[a::b]", "distributed/test_store.py"),
    ]


def test_outcomes_and_counts_are_those_of_the_report(results):
    misc, store = lay_out(results.path).values()
    [suite] = store.iter("testsuite")
    assert [suite.get(name) for name in ("name", "tests", "failures", "skipped")] == ["pytest", "3", "1", "0"]
    [failure] = store.iter("failure")
    assert failure.get("message") == "rank 0 failed: no match"
    assert "in test_repr" in (failure.text or "")
    [skip] = misc.iter("skipped")
    assert "Need 2 CUDA devices" in (skip.get("message") or "")


def test_cells_have_files_of_their_own_that_name_them(run_folder):
    jobs = ("gloo-w2-g0-env/pytorch", "gloo-w2-g0-file/pytorch")
    run_folder.manifest(*jobs)
    for job in jobs:
        run_folder.both(job, {f"{STORE}::C::test_a": "passed"})
    documents = lay_out(run_folder.path).values()
    cells = {
        each.get("value") for root in documents for each in root.iter("property") if each.get("name") == "allranks.cell"
    }
    assert cells == {"gloo-w2-g0-env", "gloo-w2-g0-file"}


def test_an_earlier_attempt_is_a_rerun(run_folder):
    run_folder.manifest(JOB)
    test = f"{STORE}::C::test_a"
    run_folder.both(JOB, {test: {"outcome": "failed", "message": "once", "text": "the trace"}})
    run_folder.job(JOB, number=2, collected=[test])
    for rank in range(2):
        run_folder.rank(JOB, rank, {test: "passed"}, number=2)
    _, document = lay_out(run_folder.path).popitem()
    [case] = document.iter("testcase")
    assert [(each.tag, each.get("message")) for each in case] == [("rerun", "rank 0 failed: once")]


def test_an_error_that_belongs_to_no_test_is_in_a_file_of_its_own(run_folder):
    run_folder.manifest(JOB)
    run_folder.job(JOB, exit_status=3, error="the agent was killed")
    place, document = lay_out(run_folder.path).popitem()
    assert place.startswith("test-reports/python-pytest/allranks allranks-")
    assert [case.get("classname") for case in document.iter("testcase")] == ["allranks"]
    assert list(document.iter("error"))


def test_a_second_merge_reads_none_of_it_and_writes_the_same(write_ranks):
    folder = write_ranks("gloo-w1-g0-env/unit/rank-0.xml", ['<testcase classname="t" name="a"/>'])
    once = {place: ET.tostring(root) for place, root in lay_out(folder).items()}
    assert {place: ET.tostring(root) for place, root in lay_out(folder).items()} == once


def test_what_an_earlier_merge_has_laid_out_is_removed(write_ranks):
    root = write_ranks(
        "gloo-w1-g0-env/unit/rank-0.xml", ['<testcase classname="test_x.T" name="test_a" file="test_x.py"/>']
    )
    assert len(lay_out(root)) == 1
    (root / "gloo-w1-g0-env/unit/rank-0.xml").write_text('<testsuite><testcase name="a" file="test_y.py"/></testsuite>')
    assert ["test_y" in place for place in lay_out(root)] == [True]


def test_a_link_out_of_the_results_is_refused(results, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (results.path / "test-reports").symlink_to(elsewhere)
    with pytest.raises(ResultsError, match="points outside the results folder"):
        lay_out(results.path)
    assert not list(elsewhere.iterdir())


def test_the_longest_names_of_other_scripts_have_a_file(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {f"test/{'測試' * 120}.py::test_a": "passed"})
    (place,) = lay_out(run_folder.path)
    assert "測試" in place


def test_a_layout_that_cannot_be_written_is_an_error_beside_a_complete_report(results):
    (results.path / "test-reports").write_text("a file")
    layout = PyTorchLayout(results.path.resolve())
    [error] = merge(results.path, environ={}, observers=[layout.add]).errors
    assert "layout in " in error.what
    assert len(list(ET.parse(results.path / "junit.xml").getroot().iter("testcase"))) == 4  # noqa: S314 - ours
    assert (results.path / "report.html").exists()
    assert (results.path / "summary.md").exists()
