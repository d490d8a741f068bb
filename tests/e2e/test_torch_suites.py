"""torch's own suites in a container, by name, from the command line to the merged report."""

import subprocess
import sys
from pathlib import Path

import pytest
from junitparser import JUnitXml, Properties

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.docker

C10D = "suites/torch/c10d/test_distributed.py::TestDistributed::"
"""The tests, as a report names them."""

BY_SANDCASTLE = "NCCL Send Recv Only"
"""What ``skip_but_pass_in_sandcastle_if`` has to say about one of them."""


def properties(case):
    return {prop.name.removeprefix("allranks."): prop.value for prop in case.child(Properties)}


def rank_outcomes(done, suite, test):
    """The outcome of a test on each of its ranks, from the ranks' own reports."""
    files = sorted(done.folder.glob(f"cells/*/{suite}/attempt-1/rank-*.xml"))
    cases = [case for file in files for part in JUnitXml.fromfile(file) for case in part if case.name == test]
    return [properties(case)["outcome"] for case in cases]


def merged_again(done, policy):
    """The test cases of a run when its results are merged under a policy."""
    command = [sys.executable, "-m", "allranks", "report", str(done.folder), "--policy", policy]
    subprocess.run(command, check=True, capture_output=True)
    return done.cases


def test_tests_of_torch_distributed_are_named_by_their_path(launch):
    tests = [f"{C10D}test_{name}" for name in ("get_rank", "send_recv_nccl", "all_reduce_group_sum", "new_subgroups")]
    done = launch(ROOT, "gloo-w2-g0-env", "--engine", "docker", "--", *tests)
    assert done.code == 0, done.output
    assert rank_outcomes(done, "torch-c10d", "test_get_rank") == ["passed", "passed"]
    cases = done.cases
    assert {f"{C10D}{name}" for name in cases} == set(tests)
    assert {name: case.result[0].message for name, case in cases.items() if case.is_skipped} == {
        "test_send_recv_nccl": BY_SANDCASTLE,
        "test_all_reduce_group_sum": "Skipped due to small world size.",
        "test_new_subgroups": "https://github.com/pytorch/pytorch/issues/164195",  # by unittest.skipIf
    }
    assert properties(cases["test_send_recv_nccl"])["skip_kind"] == "environment"
    assert properties(cases["test_new_subgroups"])["skip_kind"] == "plain"

    as_passes = merged_again(done, "pass")
    assert {name for name, case in as_passes.items() if not case.is_passed} == {"test_new_subgroups"}
    assert properties(as_passes["test_send_recv_nccl"])["skip_but_pass"] == BY_SANDCASTLE


def test_each_rank_that_torchs_rpc_starts_is_in_the_report(launch):
    done = launch(ROOT, "gloo-w2-g0-tcp", "--engine", "docker", "--suite", "torch-rpc", "--", "-k", "test_worker_id")
    assert done.code == 0, done.output
    assert rank_outcomes(done, "torch-rpc", "test_worker_id") == ["passed"] * 4
