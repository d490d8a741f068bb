"""Forms of the report that other packages add, which are stand-ins here."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from allranks.errors import ResultsError
from allranks.report import merging
from allranks.report.merging import merge


class Counts:
    """Writes the number of jobs and the run's name."""

    def __init__(self, folder):
        self._path = folder / "counts.txt"
        self._jobs = []

    def add(self, suite):
        self._jobs.append(suite.row.id)

    def finish(self, run):
        self._path.write_text(f"{run.run_id}: {', '.join(self._jobs)}; {run.junit.name} is there: {run.junit.exists()}")


class LeavesAtTheEnd(Counts):
    def finish(self, _run):
        sys.exit(0)


class FailsAtAJob(Counts):
    def add(self, suite):
        msg = f"no {suite.row.id}"
        raise LookupError(msg)


@pytest.fixture
def formats(monkeypatch):
    def register(**found):
        module = ModuleType("far_forms")
        vars(module).update(found)
        monkeypatch.setitem(sys.modules, "far_forms", module)
        points = [EntryPoint(name, f"far_forms:{name}", merging.FORMATS) for name in found]
        points += [EntryPoint("absent", "far_forms:absent", merging.FORMATS)] if not found else []
        monkeypatch.setattr(merging, "entry_points", lambda *, group: points if group == merging.FORMATS else [])

    return register


@pytest.fixture
def results(run_folder):
    run_folder.both("gloo-w2-g0-env/unit", {"unit/test_a.py::test_x": "passed"})
    return run_folder


def test_a_form_of_another_package_gets_all_jobs_and_then_the_run(results, formats):
    formats(counts=Counts)
    merged = merge(results.path)
    assert (results.path / "counts.txt").read_text() == (
        f"{merged.run_id}: gloo-w2-g0-env/unit; junit.xml is there: True"
    )


def test_one_that_fails_is_an_error_after_all_others_have_been_written(results, formats):
    formats(bad=FailsAtAJob, counts=Counts)
    with pytest.raises(ResultsError) as raised:
        merge(results.path)
    assert raised.value.what == "The report bad could not be written (far_forms:bad)."
    assert raised.value.why == "LookupError: no gloo-w2-g0-env/unit"
    for name in ("junit.xml", "report.html", "report.json", "summary.md", "counts.txt"):
        assert (results.path / name).exists()


def test_one_that_leaves_with_status_0_ends_no_run(results, formats):
    formats(leaves=LeavesAtTheEnd)
    with pytest.raises(ResultsError) as raised:
        merge(results.path)
    assert raised.value.why == "SystemExit: 0"


def test_one_that_cannot_be_imported_is_an_error_that_names_it(results, formats):
    formats()
    with pytest.raises(ResultsError, match=r"The report absent could not be written \(far_forms:absent\)"):
        merge(results.path)
    assert (results.path / "junit.xml").exists()
