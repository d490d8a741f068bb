"""The order in which tasks begin: never more than fits, nobody waits for ever, and the host is busy."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from allranks.schedule.packing.backlog import Backlog, makespan, ordered, simulate
from allranks.schedule.packing.estimate import Capacity, Running, Task, lower_bound

NEAR = 1.05
HOST = Capacity(gpus=4, cores=8, memory=1000)


def task(number, seconds=1.0, **room):
    return Task(number, Capacity(**room), seconds)


rooms = st.builds(Capacity, gpus=st.integers(0, 5), cores=st.integers(0, 9), memory=st.integers(0, 1200))
lists = st.lists(st.tuples(rooms, st.floats(0.1, 100)), max_size=25).map(
    lambda said: [Task(number, room, seconds) for number, (room, seconds) in enumerate(said)]
)


@given(lists)
def test_every_task_runs_once(tasks):
    assert sorted(stay.task.number for stay in simulate(tasks, HOST)) == [each.number for each in tasks]


@given(lists, st.randoms(use_true_random=False))
def test_no_more_runs_than_fits_however_long_tasks_really_take(tasks, chance):
    stays = simulate(tasks, HOST, lambda task: task.seconds * chance.uniform(0.1, 10))
    for moment in (stay.began for stay in stays):
        used = Capacity()
        for stay in stays:
            if stay.began <= moment < stay.ended:
                used = used.plus(stay.task.room.within(HOST))
        assert HOST.holds(used)


@given(lists)
def test_who_is_first_in_line_waits_for_those_that_run_and_for_nobody_else(tasks):
    stays = {stay.task.number: stay for stay in simulate(tasks, HOST)}
    for place, each in enumerate(tasks):
        before = [stays[other.number] for other in tasks[:place]]
        first_from = max((stay.began for stay in before), default=0.0)
        ran_then = [stay for stay in stays.values() if stay.began < first_from] + before
        assert stays[each.number].began <= max((stay.ended for stay in ran_then), default=0.0)


def test_a_task_that_takes_the_host_is_not_starved_by_small_ones():
    large = task(0, 10, gpus=4)
    small = [task(number, 3, gpus=1) for number in range(2, 200)]
    stays = simulate([task(1, 5, gpus=3), large, *small], HOST)
    assert next(stay.began for stay in stays if stay.task is large) == 5


def test_a_task_further_back_begins_where_it_holds_nobody_up():
    backlog = Backlog([task(0, 5, gpus=4), task(1, 9, gpus=1), task(2, 3, gpus=1)], HOST)
    running = [Running(task(9, 4, gpus=3), 0.0)]
    free = HOST.minus(Capacity(gpus=3))
    assert backlog.take(0.0, free, running).number == 2
    assert backlog.take(0.0, free.minus(Capacity(gpus=1)), running) is None
    assert backlog.take(4.0, HOST, []).number == 0


def test_a_task_that_is_late_is_expected_to_take_longer_yet():
    backlog = Backlog([task(0, 5, gpus=4), task(1, 2, gpus=1)], HOST)
    late = [Running(task(9, 1, gpus=3), 0.0)]
    assert backlog.take(9.0, HOST.minus(Capacity(gpus=3)), late).number == 1


def test_a_task_that_is_not_late_is_expected_to_end_in_time():
    backlog = Backlog([task(0, 5, gpus=4), task(1, 2, gpus=2)], HOST)
    running = [Running(task(9, 100, gpus=2), 0.0)]
    assert backlog.take(99.0, HOST.minus(Capacity(gpus=2)), running) is None


def test_nothing_overtakes_a_task_that_waits_for_somebody_elses_gpus():
    """Nobody knows when those are free: whatever took the GPUs that are free now might have them for ever."""
    backlog = Backlog([task(0, 5, gpus=4), task(1, 2, gpus=1)], HOST)
    assert backlog.take(0.0, Capacity(gpus=2, cores=8, memory=1000), []) is None


def test_what_needs_no_gpu_overtakes_a_task_that_waits_for_somebody_elses():
    backlog = Backlog([task(0, 5, gpus=4, cores=2), task(1, 2, cores=7), task(2, 2, cores=6)], HOST)
    assert backlog.take(0.0, Capacity(gpus=2, cores=8, memory=1000), []).number == 2


def test_beside_one_that_has_been_taken_out_and_waits_begins_what_does_not_hold_it_up():
    backlog = Backlog([task(0, 500, cores=2), task(1, 30, cores=1)], HOST)
    running = [Running(task(9, 100, cores=4), 0.0)]
    free = HOST.minus(Capacity(cores=4))
    assert backlog.take(0.0, free, running, Capacity(cores=8)).number == 1
    assert backlog.take(0.0, free, running, Capacity(cores=8)) is None


def test_a_task_is_put_back_to_where_it_was():
    backlog = Backlog([task(0, 5, gpus=4), task(1, 2), task(2)], HOST)
    taken = backlog.take(0.0, Capacity(cores=8, memory=1000), [])
    backlog.put_back(taken)
    assert [backlog.take_first().number for _ in range(3)] == [0, 1, 2]


def test_what_asks_for_more_than_there_is_runs_alone():
    stays = simulate([task(0, 1, cores=99), task(1, 1, cores=1)], HOST)
    assert [stay.began for stay in stays] == [0.0, 1.0]


def test_a_backlog_ends():
    backlog = Backlog([task(0)], HOST)
    assert backlog.take(0.0, HOST, []).number == 0
    assert (len(backlog), backlog.first, backlog.take(0.0, HOST, [])) == (0, None, None)


@given(lists)
def test_an_order_is_of_the_same_tasks_and_the_same_every_time(tasks):
    found = ordered(tasks, HOST, effort=200)
    assert sorted(each.number for each in found) == [each.number for each in tasks]
    assert ordered(tasks, HOST, effort=200) == found


def made(seed, gpus, count):
    """A job list: counts of GPUs are powers of two, and times are spread as those of suites are."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= gpus]
    return [task(number, chance.lognormvariate(3, 1), gpus=chance.choice(sizes)) for number in range(count)]


@pytest.mark.parametrize(
    ("gpus", "count"), [(1, 40), (2, 40), (4, 60), (8, 100), (16, 200), (64, 300), (256, 800), (1024, 1500)]
)
def test_many_jobs_end_near_the_lower_bound(gpus, count):
    for seed in range(2):
        tasks, host = made(seed, gpus, count), Capacity(gpus=gpus)
        assert makespan(simulate(ordered(tasks, host), host)) <= NEAR * lower_bound(tasks, host)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 11])
@pytest.mark.parametrize("gpus", [2, 4, 8, 16])
def test_few_jobs_end_near_the_best_that_a_solver_proves(gpus, count):
    tasks, host = made(gpus, gpus, count), Capacity(gpus=gpus)
    assert makespan(simulate(ordered(tasks, host), host)) <= NEAR * optimum(tasks, gpus)


def optimum(tasks, gpus):
    """The shortest schedule, proven by a solver; in hundredths of a second, rounded down."""
    lengths = [int(each.seconds * 100) for each in tasks]
    model = cp_model.CpModel()
    spans = [
        model.new_fixed_size_interval_var(model.new_int_var(0, sum(lengths), ""), length, "") for length in lengths
    ]
    model.add_cumulative(spans, [each.room.gpus for each in tasks], gpus)
    end = model.new_int_var(0, sum(lengths), "")
    for span in spans:
        model.add(span.end_expr() <= end)
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return solver.objective_value / 100


def test_the_plain_order_is_not_enough():
    """What the search is for: the longest first would leave half of the host idle here."""
    host = Capacity(gpus=4)
    tasks = [task(0, 6, gpus=3), task(1, 5, gpus=3), task(2, 4, gpus=1), task(3, 4, gpus=1), task(4, 3, gpus=1)]
    longest_first = sorted(tasks, key=lambda each: -each.seconds)
    assert all(one.seconds >= other.seconds for one, other in pairwise(longest_first))
    assert makespan(simulate(ordered(tasks, host), host)) == 11
