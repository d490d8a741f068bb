"""How long jobs are expected to run, one by one and together."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.matrix.model import Cell, Image, Job, Shard, Suite
from allranks.schedule.packing.backlog import makespan, ordered, simulate
from allranks.schedule.packing.estimate import (
    GUESS,
    OVERHEAD,
    Capacity,
    Task,
    expected,
    lower_bound,
    packed_seconds,
    share,
)

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


@pytest.mark.parametrize(
    ("room", "part"),
    [
        (Capacity(gpus=8, cores=1), 1),
        (Capacity(gpus=2, cores=2), 1 / 4),
        (Capacity(gpus=3, cores=3), 1 / 2),
        (Capacity(gpus=1, cores=16), 1),
        (Capacity(gpus=99, cores=1), 1),
        (Capacity(), 0),
    ],
)
def test_a_task_takes_the_part_of_a_host_that_others_like_it_leave_it(room, part):
    assert share(room, HOST) == part


@given(lists)
def test_no_estimate_is_below_what_no_schedule_can_beat(tasks):
    fitting = [Task(task.number, task.room.within(HOST), task.seconds) for task in tasks]
    assert packed_seconds(tasks, HOST) >= 0.999 * lower_bound(fitting, HOST)


@settings(max_examples=40)
@given(lists)
def test_an_estimate_is_near_what_the_scheduler_makes_of_it(tasks):
    real = makespan(simulate(ordered(tasks, HOST, effort=2000), HOST))
    assert real * 0.6 <= packed_seconds(tasks, HOST) <= real * 2


@given(lists, st.randoms(use_true_random=False))
def test_the_order_of_tasks_changes_no_estimate(tasks, chance):
    assert packed_seconds(chance.sample(tasks, len(tasks)), HOST) == packed_seconds(tasks, HOST)


def test_many_tasks_are_packed_without_gaps():
    tasks = tasks_of([((gpus, gpus), seconds) for gpus in (1, 2, 4, 8) for seconds in range(1, 60)])
    assert packed_seconds(tasks, HOST) <= 1.01 * lower_bound(tasks, HOST)


def test_nothing_takes_no_time():
    assert packed_seconds([], HOST) == 0
