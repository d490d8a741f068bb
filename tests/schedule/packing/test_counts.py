"""How many hosts each kind of work gets."""

from hypothesis import given
from hypothesis import strategies as st

from allranks.schedule.packing.division import Work, host_counts


def work(seconds, longest=1.0, tasks=1000, least=1):
    return Work(seconds=seconds, longest=longest, tasks=tasks, least=least)


works = st.builds(
    Work, seconds=st.floats(1, 1e6), longest=st.floats(0.1, 5e3), tasks=st.integers(5, 5000), least=st.integers(1, 5)
)


@given(st.lists(works, min_size=1, max_size=8), st.floats(1, 1e5), st.integers(40, 256))
def test_there_are_never_more_hosts_than_may_be_and_never_fewer_than_needed(some, seconds, most):
    counts = host_counts(some, seconds, most)
    assert sum(counts) <= most
    assert all(each.least <= count <= each.tasks for each, count in zip(some, counts, strict=True))


def test_each_host_has_about_as_much_to_do_as_is_wished():
    assert host_counts([work(12_000)], 1200, 256) == [10]


def test_little_work_is_not_spread_over_many_hosts():
    assert host_counts([work(100), work(700)], 1200, 256) == [1, 1]


def test_no_host_is_there_to_be_done_before_the_longest_task():
    assert host_counts([work(12_000, longest=6000)], 1200, 256) == [2]


def test_where_there_may_be_few_hosts_each_has_more_to_do():
    assert sum(host_counts([work(100_000), work(50_000)], 600, 30)) in {29, 30}


def test_hosts_of_all_kinds_are_done_at_about_the_same_time():
    seconds = [5_000.0, 7_700.0, 110_000.0, 431_000.0]
    counts = host_counts([work(each) for each in seconds], 1200, 256)
    each = [total / count for total, count in zip(seconds, counts, strict=True)]
    assert min(each) >= 0.9 * max(each)
