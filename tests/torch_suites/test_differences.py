"""What counts as a difference between allranks and torch's own runner, and what is made of it."""

import json
import re

import pytest
from allranks_run import _write_repository, jobs_of_suites, one_job
from compare import is_good, main, report
from differences import Known, compare, read_known
from outcomes import SEEN_ELSEWHERE, Outcome, of_verdict
from suite_files import ROOT, SUITES, suite_of
from torch_record import Record

from allranks.matrix.declaration import load
from allranks.report.results import TestVerdict, Verdict, VerdictKind, VerdictRule

PASSED = Outcome("passed")
NO_CUDA = Outcome("skipped", "CUDA is not available.")
FAILED = Outcome("failed", "ValueError: no")


def one(torch, allranks, *, known=None, flaky=None):
    record = Record(
        torch="9.9",
        suites={"torch-rpc": {"T::x": torch} if torch else {}},
        flaky={"torch-rpc": {"T::x": flaky}} if flaky else {},
    )
    ran = {"torch-rpc": {"T::x": allranks}} if allranks else {}
    [compared] = compare(record, ran, {"torch-rpc": ("T::x",)}, {("torch-rpc", "T::x"): known} if known else {})
    return compared


@pytest.mark.parametrize(
    ("torch", "allranks", "relation"),
    [
        (PASSED, PASSED, "same"),
        (NO_CUDA, NO_CUDA, "same"),
        (FAILED, Outcome("failed", "failed: rank 1 failed: ValueError: no"), "same"),
        (Outcome("skipped", SEEN_ELSEWHERE), NO_CUDA, "same"),
        (PASSED, FAILED, "differs"),
        (PASSED, NO_CUDA, "differs"),
        (NO_CUDA, PASSED, "differs"),
        (NO_CUDA, Outcome("skipped", "Need at least 2 CUDA devices"), "differs"),
        (PASSED, Outcome("xfailed"), "differs"),
        (PASSED, None, "not run"),
        (None, PASSED, "not on record"),
        (None, FAILED, "not on record"),
    ],
)
def test_a_test_compares(torch, allranks, relation):
    assert one(torch, allranks).relation == relation


def test_a_flaky_test_may_end_in_any_way_that_torchs_runner_has_shown():
    assert one(PASSED, FAILED, flaky=(PASSED, FAILED)).relation == "same"
    assert one(PASSED, NO_CUDA, flaky=(PASSED, FAILED)).relation == "differs"


def test_a_listed_difference_is_known_by_its_cause():
    compared = one(PASSED, FAILED, known=Known(allranks=FAILED, cause="torch's fault"))
    assert (compared.relation, compared.cause) == ("known", "torch's fault")


def test_another_difference_than_the_listed_one_is_not_known():
    assert one(PASSED, NO_CUDA, known=Known(allranks=FAILED, cause="torch's fault")).relation == "differs"


def test_all_that_is_on_record_must_have_run():
    record = Record(torch="9.9", suites={"torch-rpc": {"T::x": PASSED, "T::y": PASSED}})
    compared = compare(record, {"torch-rpc": {"T::x": PASSED, "T::z": PASSED}}, {"torch-rpc": ()}, {})
    assert {comparison.test: comparison.relation for comparison in compared} == {
        "T::x": "same",
        "T::y": "not run",
        "T::z": "not on record",
    }


def test_a_difference_is_shown_with_both_sides():
    text = report([one(PASSED, FAILED), one(PASSED, PASSED)], [])
    assert text.splitlines() == [
        "differs: torch-rpc::T::x",
        "  torch:    passed",
        "  allranks: failed: ValueError: no",
        "2 tests: 1 same, 0 known, 0 not on record, 1 differs, 0 not run",
    ]


def test_what_is_not_on_record_is_shown():
    assert "(not on record)" in report([one(None, PASSED)], [])


def test_only_what_is_the_same_or_listed_or_not_on_record_is_good():
    assert is_good([one(PASSED, PASSED), one(None, PASSED)], [])
    assert not is_good([one(PASSED, PASSED), one(PASSED, FAILED)], [])
    assert not is_good([one(PASSED, None)], [])
    assert not is_good([one(PASSED, PASSED)], ["the job was lost"])
    assert not is_good([], [])


def test_the_command_ends_with_2_where_no_record_is(monkeypatch, capsys):
    monkeypatch.setattr("compare.installed_torch", lambda: "0.0.1")
    assert main(["torch-rpc"]) == 2
    assert "There is no record of torch 0.0.1" in capsys.readouterr().err


def test_listed_differences_name_what_allranks_says_and_why(tmp_path):
    path = tmp_path / "known.json"
    path.write_text(json.dumps({"torch-rpc": {"T::x": {"allranks": ["failed", "lost"], "cause": "torch's"}}}))
    assert read_known(path) == {("torch-rpc", "T::x"): Known(allranks=Outcome("failed", "lost"), cause="torch's")}


def test_the_docs_show_the_form_of_a_known_difference(tmp_path):
    [text] = re.findall(r"```json\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "known.json").write_text(text)
    [known] = read_known(tmp_path / "known.json").values()
    assert known == Known(allranks=Outcome("failed", "its message"), cause="why")


def test_the_differences_that_are_listed_here_have_a_cause():
    assert all(known.cause for known in read_known().values())


@pytest.mark.parametrize(
    ("verdict", "outcome"),
    [
        (Verdict(kind=VerdictKind.PASSED, rule=VerdictRule.PASSED), PASSED),
        (
            Verdict(kind=VerdictKind.SKIPPED, rule=VerdictRule.SKIPPED, reason="pytest.skip", message=NO_CUDA.reason),
            NO_CUDA,
        ),
        (Verdict(kind=VerdictKind.SKIPPED, rule=VerdictRule.SKIPPED, reason="pytest.xfail"), Outcome("xfailed")),
        (
            Verdict(kind=VerdictKind.ERROR, rule=VerdictRule.RANKS_DISAGREE, reason="x", message="y"),
            Outcome("failed", "x: y"),
        ),
    ],
)
def test_a_verdict_over_all_ranks_is_an_outcome(verdict, outcome):
    assert of_verdict(TestVerdict(nodeid="f::T::x", classname="T", name="x", verdict=verdict)) == outcome


def test_every_suite_has_a_file_and_is_known_by_it():
    for suite in SUITES.values():
        assert (ROOT / suite.file).is_file()
        assert suite_of(f"{suite.file}::T::test_x") == suite.name


def test_the_jobs_of_a_comparison_are_suites_of_a_matrix_file(tmp_path):
    chosen = {"torch-rpc": ("T::x",), "torch-c10d": ()}
    _write_repository(tmp_path, [*jobs_of_suites(chosen), one_job("together", chosen)])
    suites = load(tmp_path).matrix.suites
    [nodeid] = [arg for arg in suites["torch-rpc"].pytest_args if "::" in arg]
    assert nodeid == f"{SUITES['torch-rpc'].file}::T::x"
    assert not any("::" in arg for arg in suites["torch-c10d"].pytest_args)
    assert suites["together"].pytest_args == (nodeid, SUITES["torch-c10d"].file)
    assert list(map(str, suites["together"].paths)) == ["suites/torch"]
