"""How long jobs are expected to run, one by one and together on one host."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.matrix.model import Cell, Image, Job, Shard, Suite
from allranks.runner.tasks import GUESS, OVERHEAD, Capacity, Task, expected, host_seconds, longest_first

HOST = Capacity(gpus=8, cores=16)


def job(suite="s", backend="gloo", shards=1):
    return Job(
        cell=Cell(backend=backend, world_size=2, gpu_count=0, init_method="env"),
        suite=Suite(name=suite, paths=("s",), shards=shards),
        image=Image(name="cpu"),
        environment={},
        shard=Shard(number=1, count=shards) if shards > 1 else None,
    )


def tasks_of(said):
    return [Task(number, Capacity(*room), seconds) for number, (room, seconds) in enumerate(said)]


rooms = st.tuples(st.integers(0, 9), st.integers(1, 18))
lists = st.lists(st.tuples(rooms, st.floats(0.1, 100)), max_size=25).map(tasks_of)


def test_a_job_is_expected_to_take_what_its_tests_took_and_its_start():
    durations = {"s": {"gloo": {"a": 40.0, "b": 2.0}}}
    assert expected(durations, [job()]) == [(42 + OVERHEAD, True)]


def test_a_shard_is_expected_to_take_its_part():
    durations = {"s": {"gloo": {"a": 40.0, "b": 2.0}}}
    assert expected(durations, [job(shards=4), job(shards=2)]) == [(10.5 + OVERHEAD, True), (21 + OVERHEAD, True)]


def test_a_job_that_nothing_is_known_of_counts_as_the_median_of_the_others():
    durations = {name: {"gloo": {"t": seconds}} for name, seconds in (("a", 1.0), ("b", 10.0), ("c", 100.0))}
    assert expected(durations, [job(name) for name in "abcd"])[-1] == (10 + OVERHEAD, False)


def test_what_one_backend_takes_says_nothing_of_another():
    durations = {"s": {"gloo": {"t": 7.0}}}
    assert [each.is_measured for each in expected(durations, [job(), job(backend="nccl")])] == [True, False]


def test_where_nothing_is_known_at_all_it_is_a_guess():
    assert expected({}, [job()]) == [(GUESS, False)]


def test_the_longest_tasks_start_first_and_of_equally_long_ones_those_with_the_most_gpus():
    tasks = tasks_of([((1, 1), 5), ((0, 4), 9), ((4, 4), 5), ((8, 8), 1)])
    assert [task.number for task in longest_first(tasks)] == [1, 2, 0, 3]


@pytest.mark.parametrize(
    ("tasks", "seconds"),
    [
        ([], 0),
        ([((8, 8), 10), ((8, 8), 5)], 15),  # one after the other
        ([((4, 4), 10), ((4, 4), 5)], 10),  # side by side
        ([((2, 2), 10)] * 8, 20),  # four at a time
        ([((6, 6), 10), ((6, 6), 9), ((2, 2), 8)], 19),  # the short one overtakes the one that does not fit
        ([((0, 16), 10), ((8, 1), 5)], 15),  # cores are what they share
        ([((99, 99), 3), ((1, 1), 2)], 5),  # one that asks for more than there is runs alone
    ],
)
def test_a_host_runs_the_longest_tasks_that_fit(tasks, seconds):
    assert host_seconds(tasks_of(tasks), HOST) == seconds


@given(lists)
def test_a_host_takes_at_least_as_long_as_no_schedule_can_beat_and_at_most_one_task_after_the_other(tasks):
    rooms = [task.room.within(HOST) for task in tasks]
    work = [sum(room[kind] * task.seconds for room, task in zip(rooms, tasks, strict=True)) for kind in (0, 1)]
    least = max([work[0] / HOST.gpus, work[1] / HOST.cores, *(task.seconds for task in tasks)])
    assert 0.999 * least <= host_seconds(tasks, HOST) <= 1.001 * sum(task.seconds for task in tasks)


@given(lists, st.randoms(use_true_random=False))
def test_the_order_of_tasks_changes_no_estimate(tasks, chance):
    assert host_seconds(chance.sample(tasks, len(tasks)), HOST) == host_seconds(tasks, HOST)
