"""Dividing jobs among the machines of a CI."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from allranks.errors import ExitCode, UsageError
from allranks.matrix.expand import expand
from allranks.matrix.jobs import plan
from allranks.matrix.model import Image, Limits, Matrix, Rule, RunnerRule, Suite
from allranks.matrix.runners import minutes_of, runner_for
from allranks.matrix.when import parse_condition
from allranks.report.run_files import Manifest
from allranks.runner.machines.batches import distribute, divide_jobs, work
from allranks.runner.machines.plan_file import plan_document
from allranks.runner.machines.planning import render_entries
from allranks.runner.results_folder import with_planned_jobs
from allranks.runner.tasks import Capacity, Task

HOST = Capacity(gpus=8, cores=16)
ILLEGAL_IN_ARTIFACTS = re.compile(r'["<>|*?\r\n\\/:]')
CPU, GPU = parse_condition("gpu_count == 0"), parse_condition("gpu_count > 0")

durations = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.dictionaries(st.sampled_from(["gloo", "nccl"]), st.dictionaries(st.just("t"), st.floats(0.1, 9000))),
)
wishes = st.fixed_dictionaries({"most": st.integers(12, 256), "minutes": st.integers(1, 200)})


@st.composite
def matrices(draw):
    """A matrix whose images have names that differ only by case, with or without their own machines."""
    world_sizes = tuple(draw(st.sets(st.integers(1, 9), min_size=1, max_size=4)))
    small = draw(st.sampled_from([1, 2, 4]))
    return Matrix(
        path=Path("matrix.toml"),
        axes={
            "backend": ("gloo", "nccl"),
            "world_size": world_sizes,
            "gpu_count": (0, 1, 2, 4, 8),
            "init_method": ("env", "tcp"),
            "nodes": draw(st.sampled_from([(1,), (1, 2)])),
            "torch": ("",),
        },
        excludes=(
            Rule(when=parse_condition("nodes > world_size"), reason="a rank for each", line=1),
            Rule(when=parse_condition("backend == 'nccl' and gpu_count < world_size"), reason="a GPU for each", line=2),
            Rule(when=parse_condition("backend == 'gloo' and gpu_count > 0"), reason="CPU tensors", line=3),
        ),
        suites={
            "a": Suite(name="a", paths=(Path("a"),)),
            "b": Suite(name="b", paths=(Path("b"),), shards=draw(st.integers(1, 3))),
            "c": Suite(name="c", paths=(Path("c"),), overlap=draw(st.integers(1, 2))),
        },
        images={"Torch": Image(name="Torch", when=CPU), "torch": Image(name="torch", when=GPU)},
        limits=Limits(job=draw(st.sampled_from([600.0, 1800.0, 10_000.0]))),
        runners=(
            RunnerRule(when=CPU, labels=("ubuntu-latest",), hosted=True, line=1),
            RunnerRule(when=parse_condition(f"gpu_count <= {small}"), labels=("gpu",), gpus=small, line=2),
            RunnerRule(labels=("self-hosted", "big"), gpus=8, cores=16, hosted=draw(st.booleans()), line=3),
        ),
    )


def divided(matrix, known, wished):
    jobs = plan(matrix, expand(matrix).cells)
    return jobs, divide_jobs(matrix, jobs, known, **{"most": 256, "minutes": 20, **wished})


def divided_if_possible(matrix, known, wished):
    """Divide jobs, and discard examples that need too many machines."""
    try:
        return divided(matrix, known, wished)
    except UsageError as error:
        assume("entries of the job matrix, and the limit" not in error.what)
        raise


@given(matrices(), durations, wishes)
def test_each_job_is_on_one_machine_that_can_run_it(matrix, known, wished):
    jobs, division = divided_if_possible(matrix, known, wished)
    assert sorted(number for batch in division.batches for number in batch.jobs) == list(range(len(jobs)))
    assert 1 <= len(division.batches) <= wished["most"]
    for batch in division.batches:
        for job in (jobs[number] for number in batch.jobs):
            assert runner_for(matrix, job.cell) == batch.rule
            assert job.image.name == batch.image
            assert job.cell.gpu_count <= batch.gpus <= batch.rule.gpus


@given(matrices(), durations, wishes)
def test_time_limits_nest_and_none_is_above_what_the_machine_allows(matrix, known, wished):
    _, division = divided_if_possible(matrix, known, wished)
    for batch in division.batches:
        assert matrix.limits.job < 60 * batch.run_minutes < 60 * batch.step_minutes < 60 * batch.job_minutes
        assert batch.job_minutes <= minutes_of(batch.rule)


@given(matrices(), durations, wishes)
def test_slugs_are_valid_short_and_unique_regardless_of_case(matrix, known, wished):
    slugs = [batch.slug for batch in divided_if_possible(matrix, known, wished)[1].batches]
    assert len({slug.lower() for slug in slugs}) == len(slugs)
    assert not any(ILLEGAL_IN_ARTIFACTS.search(slug) or len(slug) > 60 for slug in slugs)


@given(matrices(), durations, wishes)
def test_the_same_jobs_get_the_same_batches(matrix, known, wished):
    assert divided_if_possible(matrix, known, wished) == divided_if_possible(matrix, known, wished)


tasks = st.lists(
    st.builds(
        Task,
        st.just(0),
        st.builds(Capacity, gpus=st.integers(0, 9), cores=st.integers(1, 18)),
        st.floats(0.1, 100),
    ),
    min_size=1,
    max_size=40,
).map(lambda some: [replace(task, number=number) for number, task in enumerate(some)])


@given(tasks, st.integers(1, 12))
def test_machines_differ_by_the_work_of_one_job_at_most_and_none_is_idle(tasks, count):
    batches = distribute(tasks, HOST, min(count, len(tasks)))
    assert sorted(task.number for batch in batches for task in batch) == list(range(len(tasks)))
    assert all(batches)
    durations = [sum(work(task, HOST) for task in batch) for batch in batches]
    assert max(durations) - min(durations) <= max(work(task, HOST) for task in tasks) + 1e-6  # sums are rounded


@pytest.mark.parametrize(
    ("seconds", "count", "shared"),
    [
        ([100, 1, 1, 1, 1], 2, [[100], [1, 1, 1, 1]]),
        ([8, 7, 6, 5, 4], 2, [[4, 5, 8], [6, 7]]),
        ([2, 2, 2, 2], 4, [[2], [2], [2], [2]]),
        ([9, 5, 4], 2, [[9], [4, 5]]),
        ([3, 1], 1, [[1, 3]]),
    ],
)
def test_the_longest_job_goes_first_to_the_machine_with_the_least_work(seconds, count, shared):
    batches = distribute([Task(number, HOST, duration) for number, duration in enumerate(seconds)], HOST, count)
    assert sorted(sorted(task.seconds for task in batch) for batch in batches) == sorted(shared)


@pytest.mark.parametrize(
    ("room", "seconds"),
    [
        (Capacity(gpus=8, cores=1), 12),
        (Capacity(gpus=2, cores=2), 3),
        (Capacity(gpus=1, cores=16), 12),
        (Capacity(gpus=99, cores=1), 12),
        (Capacity(cores=4), 3),
    ],
)
def test_a_job_that_uses_part_of_a_machine_is_less_work(room, seconds):
    assert work(Task(0, room, 12), HOST) == seconds


def small_matrix(**changes):
    axes = {"backend": ("gloo",), "world_size": (1,), "gpu_count": (0,), "init_method": ("env",), "nodes": (1,)}
    axes |= {"torch": ("",)}
    suites = {f"s{number}": Suite(name=f"s{number}", paths=(Path("s"),)) for number in range(changes.pop("suites", 40))}
    return Matrix(path=Path("matrix.toml"), axes=axes, suites=suites, images={"cpu": Image(name="cpu")}, **changes)


def rule(**changes):
    return RunnerRule(labels=("self-hosted",), cores=1, **changes)


def known(matrix, seconds):
    return {name: {"gloo": {"t": seconds - 3}} for name in matrix.suites}


def test_little_work_gets_one_machine():
    matrix = small_matrix(runners=(rule(),))
    assert len(divided(matrix, known(matrix, 25), {"minutes": 20})[1].batches) == 1


def test_fewer_minutes_per_machine_need_more_machines():
    matrix = small_matrix(runners=(rule(),))
    counts = [len(divided(matrix, known(matrix, 60), {"minutes": minutes})[1].batches) for minutes in (40, 20, 5, 1)]
    assert counts == [1, 2, 8, 40]


def test_no_machine_idles_while_the_longest_job_runs():
    matrix = small_matrix(runners=(rule(),))
    lengths = {**known(matrix, 60), "s0": {"gloo": {"t": 1200.0}}}
    assert len(divided(matrix, lengths, {"minutes": 1})[1].batches) == 3


def test_a_batch_that_would_not_end_in_time_is_split():
    matrix = small_matrix(runners=(rule(hosted=True),), limits=Limits(job=1800))
    division = divided(matrix, known(matrix, 900), {"minutes": 1000})[1]
    assert len(division.batches) > 3
    assert all(batch.job_minutes <= 360 for batch in division.batches)


def test_a_job_whose_limit_does_not_fit_is_an_error_that_names_it():
    matrix = small_matrix(runners=(rule(hosted=True),), limits=Limits(job=30_000))
    with pytest.raises(UsageError, match=r"^The job gloo-w1-g0-env/s0 does not fit into the 360 minutes") as caught:
        divided(matrix, {}, {})
    assert "30000 s" in caught.value.why
    assert caught.value.exit_code is ExitCode.USAGE


def test_jobs_that_need_more_machines_than_allowed_are_an_error():
    matrix = small_matrix(runners=(rule(hosted=True),), limits=Limits(job=12_000))
    with pytest.raises(UsageError, match=r"at least \d+ entries of the job matrix, and the limit is 3") as caught:
        divided(matrix, known(matrix, 12_000), {"most": 3})
    assert "--where" in caught.value.remedy


def test_more_kinds_of_machines_than_entries_are_an_error():
    other = RunnerRule(when=parse_condition("world_size == 2"), labels=("b",), line=2)
    matrix = small_matrix(runners=(other, rule()))
    matrix = Matrix(**{**matrix.__dict__, "axes": {**matrix.axes, "world_size": (1, 2)}})
    with pytest.raises(UsageError, match=r"2 entries .* limit is 1"):
        divided(matrix, {}, {"most": 1})


def test_cells_of_several_nodes_share_machines_with_others():
    matrix = small_matrix(runners=(rule(),), suites=1)
    matrix = Matrix(**{**matrix.__dict__, "axes": {**matrix.axes, "world_size": (2,), "nodes": (1, 2)}})
    [batch] = divided(matrix, {}, {})[1].batches
    assert (batch.rule.engine, len(batch.jobs)) == (None, 2)


def test_the_longest_names_fit_into_githubs_limit():
    matrix = small_matrix(suites=256, runners=(RunnerRule(labels=tuple("l" * 60 + str(n) for n in range(5)), cores=1),))
    image = Image(name="i" * 63)
    matrix = Matrix(**{**matrix.__dict__, "images": {image.name: image}})
    jobs, division = divided(matrix, known(matrix, 3000), {})
    document = plan_document(with_planned_jobs(Manifest(run_id="r" * 60), jobs, ()), matrix, division.batches, {})
    assert len(division.batches) == 256
    assert len(render_entries(document, division, jobs)) < 1 << 19
