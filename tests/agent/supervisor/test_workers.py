"""How tests are distributed to workers, and the errors of workers, with workers that run no tests."""

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
from allranks.agent.supervisor.test_loop import LauncherWorkers, WorkerLostError, worker_folder

TIMEOUT = 20


class Trial:
    """Runs batches on workers that run no tests.

    Attributes:
        ran: The tests that workers got, with the worker's folder, in order.
        waiting: The batches that no worker has got.
    """

    def __init__(self, folder, workers, batches, actions=None, *, stop_after=None):
        self.ran, self.waiting = [], list(batches)
        self._actions = actions or {}
        self._stop_after = stop_after
        self.workers = LauncherWorkers(
            count=workers, results=folder, make_worker=self._make_worker, next_batch=self._next_batch
        )

    def _next_batch(self):
        if not self.waiting or (self._stop_after is not None and self._stop_after in self.tests):
            return None
        return self.waiting.pop(0)

    def _make_worker(self, folder):
        return Worker(self, folder)

    def run_one(self, folder, index):
        self.ran.append((index, folder))
        self._actions.get(index, lambda: None)()

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
    def action():
        raise error

    return action


def batches_of(sizes):
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]


@given(st.lists(st.integers(1, 3), max_size=8), st.integers(1, 4))
def test_each_test_runs_once_and_a_batch_runs_in_order_on_one_worker(tmp_path_factory, sizes, workers):
    trial = Trial(tmp_path_factory.getbasetemp(), workers, batches_of(sizes))
    trial.workers.run()
    assert sorted(trial.tests) == list(range(sum(sizes)))
    for indices in batches_of(sizes):
        own = [(index, folder) for index, folder in trial.ran if index in indices]
        assert [index for index, _ in own] == indices
        assert len({folder for _, folder in own}) == 1


def test_workers_run_at_the_same_time_each_with_its_own_folder(tmp_path):
    both = threading.Barrier(2)
    action = lambda: both.wait(TIMEOUT)  # noqa: E731 - only passes while the other runs
    trial = Trial(tmp_path, 2, batches_of([1, 1]), {0: action, 1: action})
    trial.workers.run()
    assert {folder for _, folder in trial.ran} == {worker_folder(tmp_path, 1), worker_folder(tmp_path, 2)}
    assert all(folder.is_dir() for _, folder in trial.ran)


def test_only_workers_with_tests_have_a_folder(tmp_path):
    Trial(tmp_path, 4, batches_of([1])).workers.run()
    assert len(list(Path(tmp_path).iterdir())) == 1


def test_no_batch_starts_once_there_are_no_more(tmp_path):
    trial = Trial(tmp_path, 1, batches_of([1] * 5), stop_after=1)
    trial.workers.run()
    assert trial.tests == [0, 1]
    assert trial.waiting == [[2], [3], [4]]


def test_the_error_of_a_worker_has_its_traceback(tmp_path):
    trial = Trial(tmp_path, 1, batches_of([1, 1]), {0: raising(RuntimeError("test 0 breaks its worker"))})
    with pytest.raises(WorkerLostError, match="test 0 breaks its worker") as error:
        trial.workers.run()
    assert "in action" in str(error.value)
    assert trial.tests == [0]


def test_a_worker_whose_folder_cannot_be_created_is_lost(tmp_path):
    (tmp_path / "worker-1").touch()
    trial = Trial(tmp_path, 1, batches_of([1]))
    with pytest.raises(WorkerLostError, match="FileExistsError"):
        trial.workers.run()
    assert trial.tests == []


def test_after_the_error_of_one_worker_the_others_finish_their_batch(tmp_path):
    broken = threading.Event()
    both = threading.Barrier(2)

    def fail():
        both.wait(TIMEOUT)
        broken.set()
        raise ValueError

    def outlast_the_other():
        both.wait(TIMEOUT)
        assert broken.wait(TIMEOUT)
        other.join(TIMEOUT)

    def note_thread():
        nonlocal other
        other = threading.current_thread()
        fail()

    other = threading.current_thread()
    trial = Trial(tmp_path, 2, [[0], [1, 2], [3]], {0: note_thread, 1: outlast_the_other})
    with pytest.raises(WorkerLostError, match="ValueError"):
        trial.workers.run()
    assert sorted(trial.tests) == [0, 1, 2]
    assert trial.waiting == [[3]]


@pytest.mark.parametrize("error", [StopRequestedError(), JobLimitError("late"), ForkServerError("is gone")])
def test_the_end_of_the_job_ends_all_workers_and_none_is_lost(tmp_path, error):
    trial = Trial(tmp_path, 2, batches_of([1] * 8), {0: raising(error), 1: raising(error)})
    with pytest.raises(type(error)):
        trial.workers.run()
    assert trial.waiting


def test_a_stop_request_reaches_every_worker(tmp_path):
    end = JobEnd()
    both = threading.Barrier(3)
    stopped = []

    def wait_for_the_end():
        both.wait(TIMEOUT)
        assert linux.is_readable(end.fileno(), TIMEOUT)
        try:
            end.check()
        except StopRequestedError:
            stopped.append(True)
            raise

    request_stop = threading.Thread(target=lambda: (both.wait(TIMEOUT), end.request_stop()))
    request_stop.start()
    trial = Trial(tmp_path, 2, batches_of([1, 1]), {0: wait_for_the_end, 1: wait_for_the_end})
    with pytest.raises(StopRequestedError):
        trial.workers.run()
    assert stopped == [True, True]
    request_stop.join()
    end.close()


def test_signals_are_handled_while_workers_run(tmp_path):
    end = JobEnd()
    before = signal.signal(signal.SIGUSR1, lambda *_: end.request_stop())

    def signal_and_wait():
        os.kill(os.getpid(), signal.SIGUSR1)
        end.wait_for_start()

    try:
        with pytest.raises(StopRequestedError):
            Trial(tmp_path, 1, [[0]], {0: signal_and_wait}).workers.run()
    finally:
        signal.signal(signal.SIGUSR1, before)
        end.close()
