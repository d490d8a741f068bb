"""The expected durations of jobs, and their order."""

from allranks.matrix.model import Cell, Image, Job, Shard, Suite
from allranks.runner.tasks import GUESS, OVERHEAD, Capacity, Task, expected, longest_first


def job(suite="s", backend="gloo", shards=1):
    return Job(
        cell=Cell(backend=backend, world_size=2, gpu_count=0, init_method="env"),
        suite=Suite(name=suite, paths=("s",), shards=shards),
        image=Image(name="cpu"),
        environment={},
        shard=Shard(number=1, count=shards) if shards > 1 else None,
    )


def tasks_of(demands):
    return [Task(number, Capacity(*room), seconds) for number, (room, seconds) in enumerate(demands)]


def test_the_expected_duration_is_that_of_the_tests_and_the_overhead():
    durations = {"s": {"gloo": {"a": 40.0, "b": 2.0}}}
    assert expected(durations, [job()]) == [(42 + OVERHEAD, True)]


def test_the_expected_duration_of_a_shard_is_its_fraction():
    durations = {"s": {"gloo": {"a": 40.0, "b": 2.0}}}
    assert expected(durations, [job(shards=4), job(shards=2)]) == [(10.5 + OVERHEAD, True), (21 + OVERHEAD, True)]


def test_an_unmeasured_job_has_the_median_of_the_others():
    durations = {name: {"gloo": {"t": seconds}} for name, seconds in (("a", 1.0), ("b", 10.0), ("c", 100.0))}
    assert expected(durations, [job(name) for name in "abcd"])[-1] == (10 + OVERHEAD, False)


def test_durations_of_one_backend_do_not_count_for_another():
    durations = {"s": {"gloo": {"t": 7.0}}}
    assert [each.is_measured for each in expected(durations, [job(), job(backend="nccl")])] == [True, False]


def test_without_any_measurement_the_duration_is_a_guess():
    assert expected({}, [job()]) == [(GUESS, False)]


def test_the_longest_tasks_start_first_and_of_equally_long_ones_those_with_the_most_gpus():
    tasks = tasks_of([((1, 1), 5), ((0, 4), 9), ((4, 4), 5), ((8, 8), 1)])
    assert [task.number for task in longest_first(tasks)] == [1, 2, 0, 3]
