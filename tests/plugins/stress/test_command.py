"""``allranks stress``: which run it asks for."""

import os
from dataclasses import asdict

import pytest

from allranks.plugins.stress.agent.settings import Stress
from allranks.plugins.stress.agent.skew import max_delay


@pytest.fixture
def asked(allranks, runs, monkeypatch):
    """The command's options of the run, and the matrix and the jobs that it was asked for."""
    jobs_of = []

    def run(expansion, jobs, options, _say):
        jobs_of.append((expansion.matrix, jobs, options))
        return 0

    def asked(*arguments, cell="gloo-w2-g0-env"):
        monkeypatch.setattr("allranks.runner.run_jobs.run", run)
        code, _, err = allranks("stress", cell, "--suite", "tiny", *arguments)
        assert (code, err, runs) == (0, "", [])
        return jobs_of.pop()

    return asked


@pytest.mark.parametrize(
    ("arguments", "stress"),
    [
        (["--count", "1000"], Stress(count=1000)),
        (["--duration", "90"], Stress(seconds=90)),
        (["--duration", "1.5m", "--count", "3"], Stress(count=3, seconds=90)),
        (["--duration", "2h"], Stress(seconds=7200)),
        (["--replay", "517"], Stress(count=10, replay=517)),
        (["--replay", "517", "--count", "3"], Stress(count=3, replay=517)),
        (["--count", "3", "--skew", "1:before:2:40.0ms"], Stress(count=3, skew="1:before:2:40ms")),
        (["--count", "3", "--beside", "torch"], Stress(count=3, baseline=True)),
    ],
    ids=str,
)
def test_a_run_is_told_how_often_and_how_long(asked, arguments, stress):
    _, _, options = asked(*arguments)
    assert options.policy.plugins == {"stress": asdict(stress)}
    assert options.pytest_args == ()


def test_the_first_failure_ends_jobs_and_run(asked):
    _, _, options = asked("--until-failure", "--", "-k", "x")
    assert options.policy.plugins == {"stress": asdict(Stress())}
    assert options.pytest_args == ("-x", "-k", "x")
    assert options.policy.fail_fast


def test_a_job_has_time_for_its_repetitions(asked):
    matrix, _, _ = asked("--duration", "10m")
    assert matrix.limits.job == 1800 + 600
    assert asked("--count", "5")[0].limits.job == 86_400


@pytest.mark.parametrize(
    ("cores", "arguments", "gangs"),
    [(1, [], 1), (8, [], 4), (8, ["--gangs", "3"], 3), (8, ["--engine", "slurm"], 1), (999, [], 32)],
    ids=str,
)
def test_as_many_gangs_as_there_are_cores_for(asked, monkeypatch, cores, arguments, gangs):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(cores))
    _, [job], _ = asked("--count", "5", *arguments)
    assert job.suite.overlap == gangs


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Repetitions need a limit"),
        (["--count", "0"], "'0' is not a whole number of at least 1"),
        (["--duration", "soon"], "'soon' is invalid: write a time such as 90"),
        (["--count", "5", "--resume"], "no option --resume"),
        (["--count", "5", "--skew", "1:40ms"], "'1:40ms' is not a delay"),
        (["--count", "5", "--skew", "4:before:1:40ms"], "1 is the highest rank here"),
        (["--count", "5", "--skew", "65:busy:0:40ms"], "64 is the highest number of processes here"),
        (["--replay", "4294967296"], "'4294967296' is not a whole number from 0 to 4294967295"),
        (["--count", "5", "--beside", "pytest"], "'pytest' is not a beside: choose from torch"),
        (["--count", "5", "--beside", "torch", "--skew", "light"], "cannot be combined with --skew"),
    ],
    ids=str,
)
def test_what_has_no_end_or_makes_no_sense_is_refused(allranks, runs, arguments, words):
    code, _, err = allranks("stress", *arguments)
    assert (code, runs) == (2, [])
    assert words in err


def test_limits_of_ours_are_stretched_by_what_delays_may_add(asked):
    usual = asked("--count", "5")[0].limits.process_group
    matrix, _, options = asked("--count", "5", "--skew", "heavy")
    assert options.policy.plugins["stress"]["skew"] == "heavy"
    assert matrix.limits.process_group == usual + max_delay("heavy", 2) > usual + 4


def test_beside_torch_one_gang_has_the_load_of_the_other_runner_and_a_job_time_for_both(asked):
    matrix, [job], _ = asked("--duration", "10m", "--beside", "torch")
    assert (job.suite.overlap, matrix.limits.job) == (1, 1800 + 1200)
    assert asked("--count", "5", "--beside", "torch", "--gangs", "2")[1][0].suite.overlap == 2
