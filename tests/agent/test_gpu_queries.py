"""Queries of GPUs, with a fake driver that notes which process initializes CUDA."""

import os
from types import SimpleNamespace

import pytest
import torch

from allranks.agent import gpus

H100 = SimpleNamespace(name="H100", major=9, minor=0, total_memory=80 << 30, uuid=object(), _private=1)


@pytest.fixture
def initialized_in(tmp_path, monkeypatch):
    """The processes that have initialized CUDA so far."""
    note = tmp_path / "processes"
    note.touch()

    def initialize():
        with note.open("a") as file:
            file.write(f"{os.getpid()}\n")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "_lazy_init", initialize)
    monkeypatch.setattr(torch.cuda, "_get_device_properties", lambda _index: H100, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", torch.cuda.get_device_properties)  # restored afterwards
    monkeypatch.setattr(torch.cuda, "current_device", torch.cuda.current_device)
    gpus._queries.cache_clear()
    yield lambda: [int(line) for line in note.read_text().split()]
    gpus._queries.cache_clear()


def in_fork(work):
    """The exit status of a fork, which is 0 if the function returns true."""
    pid = os.fork()
    if pid == 0:
        os._exit(not work())
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_query_runs_once_in_a_fork_without_cuda_in_this_process(initialized_in):
    gpus.query_gpus_in_forks()
    found = torch.cuda.get_device_properties(1)
    assert (found.name, found.major, found.total_memory) == ("H100", 9, 80 << 30)
    assert isinstance(found.uuid, str)
    assert "name='H100'" in repr(found)
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.cuda.get_device_name("cuda:1") == "H100"
    assert torch.cuda.current_device() == 0
    assert os.getpid() not in initialized_in()
    assert len(set(initialized_in())) == 1


@pytest.mark.usefixtures("initialized_in")
def test_gpus_are_counted_in_a_fork_and_again_if_others_are_visible(tmp_path, monkeypatch):
    note = tmp_path / "counted"

    def count():
        with note.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return 2 if os.environ["CUDA_VISIBLE_DEVICES"] == "0,1" else 1

    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", count)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    gpus.query_gpus_in_forks()
    assert (torch.cuda.device_count(), torch.cuda.device_count()) == (2, 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert torch.cuda.device_count() == 1
    counted_in = [int(line) for line in note.read_text().split()]
    assert len(set(counted_in)) == len(counted_in) == 2
    assert os.getpid() not in counted_in


@pytest.mark.usefixtures("initialized_in")
def test_a_gpu_that_does_not_exist_is_an_error():
    gpus.query_gpus_in_forks()
    with pytest.raises(AssertionError, match="there is no GPU 2: the number of GPUs is 2"):
        torch.cuda.get_device_properties(2)
    with pytest.raises(ValueError, match="cpu is not a GPU"):
        torch.cuda.get_device_properties("cpu")


def test_a_fork_initializes_cuda_itself_even_after_a_query(initialized_in):
    gpus.query_gpus_in_forks()
    torch.cuda.get_device_properties(0)
    assert in_fork(lambda: torch.cuda.get_device_properties(0) is H100 and os.getpid() in initialized_in()) == 0


def test_a_fork_can_query_gpus_in_forks_as_well(initialized_in):
    def as_a_driver():
        gpus.query_gpus_in_forks()
        return torch.cuda.get_device_capability() == (9, 0) and os.getpid() not in initialized_in()

    gpus.query_gpus_in_forks()
    assert in_fork(as_a_driver) == 0


@pytest.mark.usefixtures("initialized_in")
def test_a_process_that_has_initialized_cuda_queries_gpus_itself(monkeypatch):
    gpus.query_gpus_in_forks()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert torch.cuda.get_device_properties(0) is H100


@pytest.mark.usefixtures("initialized_in")
def test_an_error_is_raised_by_the_query(monkeypatch):
    def fail():
        msg = "the driver is too old"
        raise RuntimeError(msg)

    monkeypatch.setattr(torch.cuda, "_lazy_init", fail)
    gpus.query_gpus_in_forks()
    with pytest.raises(RuntimeError, match="the driver is too old"):
        torch.cuda.get_device_capability()


@pytest.mark.usefixtures("initialized_in")
def test_a_crash_is_an_error_as_well(monkeypatch):
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: os._exit(1))
    gpus.query_gpus_in_forks()
    with pytest.raises(RuntimeError, match="has crashed"):
        torch.cuda.get_device_properties(0)


def test_without_cuda_support_torch_is_used(initialized_in, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    gpus.query_gpus_in_forks()
    with pytest.raises(AssertionError):
        torch.cuda.get_device_properties(0)
    assert os.getpid() in initialized_in()
