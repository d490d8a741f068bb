"""The run for programs."""

import json
from dataclasses import asdict

import pytest

from allranks.errors import ResultsError
from allranks.protocol.repetitions import RepetitionTally
from allranks.report.merging import merge
from allranks.report.run_files import JobRecord, as_json

JOB = "gloo-w2-g0-env/collectives"
A, B, C = (f"s/test_a.py::test_{name}" for name in "abc")
SKIP = {"outcome": "skipped", "message": "no NCCL", "skip_kind": "environment", "skip_code": 76}


@pytest.fixture
def document(run_folder):
    run_folder.manifest(JOB, "gloo-w2-g0-tcp/collectives")
    run_folder.both(JOB, {A: "failed"})
    tests = {A: "passed", B: {"outcome": "failed", "message": "]]> </script> \x1b[31m\u2028 é"}, C: SKIP}
    run_folder.job(JOB, number=2, collected=list(tests))
    for rank in range(2):
        run_folder.rank(JOB, rank, {**tests, B: "passed"} if rank else tests, number=2)
    merge(run_folder.path, policy="pass", environ={})
    return json.loads((run_folder.path / "report.json").read_text())


def test_it_has_the_run_and_its_counts(document):
    assert (document["schema"], document["run_id"], document["policy"]) == (1, "r1", "pass")
    counts = document["counts"]
    assert (counts["tests"], counts["passed"], counts["failed"], counts["errors"]) == (4, 2, 1, 1)
    assert (counts["flaky"], counts["skip_but_pass"]) == (1, 1)


def test_it_has_each_job_with_its_axes(document):
    first, absent = document["suites"]
    assert (first["cell"], first["suite"], first["attempt"]) == ("gloo-w2-g0-env", "collectives", 2)
    assert first["axes"] == {"backend": "gloo", "world_size": 2}
    assert "left no results" in absent["tests"][0]["message"]


def test_it_has_each_test_with_its_ranks(document):
    flaky, failed, skipped = document["suites"][0]["tests"]
    assert (flaky["nodeid"], flaky["verdict"], flaky["flaky"], flaky["ranks"]) == (A, "passed", True, "0,1:passed")
    assert (flaky["earlier"][0]["attempt"], flaky["earlier"][0]["verdict"]) == (1, "failure")
    assert (failed["verdict"], failed["leading"], failed["ranks"]) == ("failure", 0, "0:failed 1:passed")
    assert (skipped["verdict"], skipped["skip_but_pass"], skipped["skip_code"]) == ("passed", True, 76)
    assert "executed" not in skipped


def test_a_file_of_that_name_that_is_not_ours_stays(run_folder):
    run_folder.manifest(JOB)
    run_folder.both(JOB, {A: "passed"})
    (run_folder.path / "report.json").write_text("{}")
    with pytest.raises(ResultsError, match="was not written by allranks"):
        merge(run_folder.path, environ={})
    assert (run_folder.path / "report.json").read_text() == "{}"


def test_repeated_tests_have_their_rate_as_numbers(run_folder):
    run_folder.manifest(JOB)
    tally = RepetitionTally(runs=100, bad=5, kept=5, first_bad=3, first_bad_after=0.5, median=0.01, slowest=0.2)
    told = as_json(JobRecord(world_size=2, repeated={A: tally}))["repeated"]
    run_folder.both(JOB, {A: "failed", B: "passed"}, repeated=json.loads(json.dumps(told)))
    merge(run_folder.path, policy="pass", environ={})
    [suite] = json.loads((run_folder.path / "report.json").read_text())["suites"]
    repetitions = {test["nodeid"]: test.get("repetitions") for test in suite["tests"]}
    assert repetitions == {A: {**asdict(tally), "interval": pytest.approx([0.0215, 0.1118], abs=1e-4)}, B: None}
