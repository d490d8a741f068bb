"""Tasks divided among hosts: each once, none idle, and as even as the tasks allow."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allranks.schedule.packing.division import divide
from allranks.schedule.packing.estimate import Capacity, Task, packed_seconds

HOST = Capacity(gpus=8, cores=16)
ALONE = Capacity(gpus=8, cores=8)


def tasks_of(said):
    return [Task(number, room, seconds) for number, (room, seconds) in enumerate(said)]


gpus = st.sampled_from([1, 2, 3, 4, 8])
lists = st.lists(
    st.tuples(gpus.map(lambda count: Capacity(count, count)), st.floats(0.1, 100)), min_size=1, max_size=40
)


@given(lists.map(tasks_of), st.integers(1, 12))
def test_every_task_is_on_one_host_and_no_host_is_idle(tasks, count):
    hosts = divide(tasks, HOST, count)
    assert sorted(task.number for host in hosts for task in host) == [task.number for task in tasks]
    assert len(hosts) == min(count, len(tasks))
    assert all(hosts)


@given(lists.map(tasks_of), st.integers(1, 12))
def test_tasks_of_a_host_are_in_their_order_and_the_same_come_to_the_same(tasks, count):
    hosts = divide(tasks, HOST, count)
    assert all([task.number for task in host] == sorted(task.number for task in host) for host in hosts)
    assert divide(list(tasks), HOST, count) == hosts


@settings(max_examples=150)
@given(lists.map(tasks_of), st.integers(2, 12))
def test_hosts_are_done_within_a_tenth_of_each_other_or_the_last_ones_tasks_explain_it(tasks, count):
    hosts = divide(tasks, HOST, count)
    seconds = [packed_seconds(host, HOST) for host in hosts]
    last = max(range(len(hosts)), key=seconds.__getitem__)
    late = seconds[last] - min(seconds)
    assert late <= 0.1 * seconds[last] or late <= max(task.seconds for task in hosts[last])


def test_many_tasks_are_even_within_a_few_hundredths():
    chance = random.Random(1)  # noqa: S311 - no secret
    tasks = tasks_of(
        [(Capacity(g := chance.choice([1, 2, 4, 8]), g), chance.lognormvariate(3, 1)) for _ in range(2000)]
    )
    seconds = [packed_seconds(host, HOST) for host in divide(tasks, HOST, 12)]
    assert min(seconds) >= 0.97 * max(seconds)


def test_one_long_task_keeps_a_host_and_the_others_are_even_among_themselves():
    tasks = tasks_of([(ALONE, 100.0), *[(ALONE, 1.0)] * 30])
    assert sorted(packed_seconds(host, HOST) for host in divide(tasks, HOST, 4)) == [10, 10, 10, 100]


def test_tasks_that_run_side_by_side_count_by_the_time_that_the_host_takes():
    tasks = tasks_of([(Capacity(2, 2), 10.0)] * 8 + [(ALONE, 10.0)] * 2)
    assert [packed_seconds(host, HOST) for host in divide(tasks, HOST, 2)] == [20, 20]


@pytest.mark.parametrize("lengths", [(8, 7, 6, 5, 4), (5, 5, 4, 4, 3, 3, 3), (3, 3, 2, 2, 2)])
def test_what_the_longest_first_rule_leaves_uneven_is_mended(lengths):
    tasks = tasks_of([(ALONE, float(length)) for length in lengths])
    assert max(packed_seconds(host, HOST) for host in divide(tasks, HOST, 2)) == -(-sum(lengths) // 2)
