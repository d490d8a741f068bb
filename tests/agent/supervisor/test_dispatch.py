"""Who gets which tests, and what becomes of what goes wrong in a lane, with workers that run none."""

import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.agent import linux
from allranks.agent.gangs.forks import ForkServerError
from allranks.agent.job_end import JobEnd, JobLimitError, StopRequestedError
from allranks.agent.supervisor.test_loop import DriverWorkers, WorkerLostError, lane_folder

PATIENCE = 20


class Trial:
    """Lanes with workers that run no tests.

    Attributes:
        ran: The tests that were given to workers, with the lane's folder, in their order.
        waiting: The assemblies that nobody has got.
    """

    def __init__(self, folder, lanes, assemblies, deeds=None, *, stop_after=None):
        self.ran, self.waiting = [], list(assemblies)
        self._deeds = deeds or {}
        self._stop_after = stop_after
        self.lanes = DriverWorkers(
            count=lanes, results=folder, make_worker=self._make_worker, next_work=self._next_work
        )

    def _next_work(self):
        if not self.waiting or (self._stop_after is not None and self._stop_after in self.tests):
            return None
        return self.waiting.pop(0)

    def _make_worker(self, folder):
        return Worker(self, folder)

    def run_one(self, folder, index):
        self.ran.append((index, folder))
        self._deeds.get(index, lambda: None)()

    @property
    def tests(self):
        return [index for index, _ in self.ran]


class Worker:
    def __init__(self, trial, folder):
        self._trial, self._folder = trial, folder

    def run_some(self, indices):
        for index in indices:
            self._trial.run_one(self._folder, index)


def raising(error):
    def deed():
        raise error

    return deed


def assemblies_of(sizes):
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


@given(st.lists(st.integers(1, 3), max_size=8), st.integers(1, 4))
def test_each_test_is_run_once_and_an_assembly_in_its_order_by_one_lane(tmp_path_factory, sizes, lanes):
    trial = Trial(tmp_path_factory.getbasetemp(), lanes, assemblies_of(sizes))
    trial.lanes.run()
    assert sorted(trial.tests) == list(range(sum(sizes)))
    for indices in assemblies_of(sizes):
        own = [(index, folder) for index, folder in trial.ran if index in indices]
        assert [index for index, _ in own] == indices
        assert len({folder for _, folder in own}) == 1


def test_lanes_run_at_the_same_time_each_with_a_folder_of_its_own(tmp_path):
    both = threading.Barrier(2)
    deed = lambda: both.wait(PATIENCE)  # noqa: E731 - only passes while the other runs
    trial = Trial(tmp_path, 2, assemblies_of([1, 1]), {0: deed, 1: deed})
    trial.lanes.run()
    assert {folder for _, folder in trial.ran} == {lane_folder(tmp_path, 1), lane_folder(tmp_path, 2)}
    assert all(folder.is_dir() for _, folder in trial.ran)


def test_no_more_lanes_have_a_folder_than_have_work(tmp_path):
    Trial(tmp_path, 4, assemblies_of([1])).lanes.run()
    assert len(list(Path(tmp_path).iterdir())) == 1


def test_nothing_new_is_begun_when_there_is_to_be_no_more(tmp_path):
    trial = Trial(tmp_path, 1, assemblies_of([1] * 5), stop_after=1)
    trial.lanes.run()
    assert trial.tests == [0, 1]
    assert trial.waiting == [[2], [3], [4]]


def test_a_lane_that_breaks_says_why_and_where(tmp_path):
    trial = Trial(tmp_path, 1, assemblies_of([1, 1]), {0: raising(RuntimeError("test 0 breaks its lane"))})
    with pytest.raises(WorkerLostError, match="test 0 breaks its lane") as error:
        trial.lanes.run()
    assert "in deed" in str(error.value)
    assert trial.tests == [0]


def test_a_lane_whose_folder_cannot_be_made_is_lost(tmp_path):
    (tmp_path / "lane-1").touch()
    trial = Trial(tmp_path, 1, assemblies_of([1]))
    with pytest.raises(WorkerLostError, match="FileExistsError"):
        trial.lanes.run()
    assert trial.tests == []


def test_after_the_error_of_one_lane_the_others_end_what_they_have_and_begin_nothing(tmp_path):
    broken = threading.Event()
    both = threading.Barrier(2)

    def break_down():
        both.wait(PATIENCE)
        broken.set()
        raise ValueError

    def outlast():
        both.wait(PATIENCE)
        assert broken.wait(PATIENCE)
        other.join(PATIENCE)

    def note_thread():
        nonlocal other
        other = threading.current_thread()
        break_down()

    other = threading.current_thread()
    trial = Trial(tmp_path, 2, [[0], [1, 2], [3]], {0: note_thread, 1: outlast})
    with pytest.raises(WorkerLostError, match="ValueError"):
        trial.lanes.run()
    assert sorted(trial.tests) == [0, 1, 2]
    assert trial.waiting == [[3]]


@pytest.mark.parametrize("error", [StopRequestedError(), JobLimitError("late"), ForkServerError("is gone")])
def test_the_end_of_the_job_is_that_of_all_lanes_and_no_lost_lane(tmp_path, error):
    trial = Trial(tmp_path, 2, assemblies_of([1] * 8), {0: raising(error), 1: raising(error)})
    with pytest.raises(type(error)):
        trial.lanes.run()
    assert trial.waiting


def test_a_hangup_reaches_every_lane(tmp_path):
    end = JobEnd()
    both = threading.Barrier(3)
    hung_up = []

    def wait_for_the_end():
        both.wait(PATIENCE)
        assert linux.is_readable(end.fileno(), PATIENCE)
        try:
            end.check()
        except StopRequestedError:
            hung_up.append(True)
            raise

    stop = threading.Thread(target=lambda: (both.wait(PATIENCE), end.request_stop()))
    stop.start()
    trial = Trial(tmp_path, 2, assemblies_of([1, 1]), {0: wait_for_the_end, 1: wait_for_the_end})
    with pytest.raises(StopRequestedError):
        trial.lanes.run()
    assert hung_up == [True, True]
    stop.join()
    end.close()


def test_a_signal_while_lanes_run_is_that_of_the_thread_that_waits_for_them(tmp_path):
    end = JobEnd()
    before = signal.signal(signal.SIGUSR1, lambda *_: end.request_stop())

    def be_told():
        os.kill(os.getpid(), signal.SIGUSR1)
        end.wait_for_start()

    try:
        with pytest.raises(StopRequestedError):
            Trial(tmp_path, 1, [[0]], {0: be_told}).lanes.run()
    finally:
        signal.signal(signal.SIGUSR1, before)
        end.close()
