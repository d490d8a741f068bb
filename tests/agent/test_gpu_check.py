"""Health checks of GPUs at the start of a job; here with the CPU as the device."""

import os
import re
import signal

import pytest
import torch
from long_lists import quick

from allranks.agent import linux
from allranks.agent.gpus import check_gpus, compute, errors_of_gpus
from allranks.protocol.config import GpuToCheck
from allranks.protocol.records import AgentFailed, Collected, FailureKind, GpuFailed, GpusChecked, TestStarted

GPUS = tuple(GpuToCheck(gpu=f"GPU-{letter}", visible=f"UUID-{letter}", name=f"GPU {letter}") for letter in "ab")


class Journal(list):
    def write(self, record):
        self.append(record)


@pytest.fixture(autouse=True)
def one_thread():
    """Use one thread as in an agent, because a fork has no thread of its parent's pool."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_child_is_left():
    before = linux.children()  # of other tests in this process
    yield
    assert linux.children() <= before


def on_b(act):
    """A function that acts only on the second GPU."""

    def work():
        if os.environ["CUDA_VISIBLE_DEVICES"] == os.environ["HIP_VISIBLE_DEVICES"] == "UUID-b":
            act()

    return work


def test_a_device_that_computes_is_healthy():
    compute("cpu")
    assert errors_of_gpus(GPUS, lambda: compute("cpu"), 60) == {}


def test_one_wrong_number_is_noticed():
    def multiply(one, other):
        product = one @ other
        product[17, 4] += 1
        return product

    with pytest.raises(ArithmeticError, match="1 of 65536 elements"):
        compute("cpu", multiply)


def test_a_device_that_hangs_is_unhealthy():
    with pytest.raises(NotImplementedError):
        compute("meta")


@pytest.mark.usefixtures("no_child_is_left")
@pytest.mark.parametrize(
    ("act", "limit", "message"),
    [
        (lambda: compute("cpu", torch.sub), 60, "ArithmeticError: .* of 65536 elements"),
        (lambda: torch.zeros(1).to("cuda"), 60, "(AssertionError|RuntimeError): .*CUDA|NVIDIA"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), 60, "the process that used it was killed by SIGKILL"),
        (lambda: os._exit(3), 60, "the process that used it ended with exit status 3"),
        (signal.pause, 0.5, "it did not compute a result within 0.5 s"),
    ],
    ids=["wrong numbers", "an error", "a crash", "an exit", "a hang"],
)
def test_an_error_on_one_gpu_affects_no_other(act, limit, message):
    errors = errors_of_gpus(GPUS, on_b(act), limit)
    assert list(errors) == ["GPU-b"]
    assert re.match(message, errors["GPU-b"])
    assert os.environ.get("CUDA_VISIBLE_DEVICES") != "UUID-b"


def test_healthy_gpus_are_recorded():
    journal = Journal()
    assert check_gpus(GPUS, "cpu", 60, journal)
    [checked] = journal
    assert isinstance(checked, GpusChecked)
    assert checked.gpus == ("GPU-a", "GPU-b")


def test_a_check_that_runs_out_of_memory_does_not_blame_the_device(monkeypatch):
    journal, kills = Journal(), iter((0, 1))
    monkeypatch.setattr(linux, "killed_for_memory", lambda: next(kills))
    assert not check_gpus(GPUS, "cpu", 60, journal)
    [failed] = journal
    assert isinstance(failed, AgentFailed)
    assert failed.kind is FailureKind.OUT_OF_MEMORY
    assert "limits.memory_mib" in failed.message


def test_with_a_torch_for_cpus_no_gpu_is_checked(monkeypatch):
    journal = Journal()
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None)
    assert check_gpus(GPUS, "cuda", 60, journal)
    assert journal == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has GPUs")
def test_with_a_torch_for_cuda_absent_gpus_are_unhealthy(monkeypatch):
    journal = Journal()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert not check_gpus(GPUS, "cuda", 60, journal)
    assert [type(record) for record in journal] == [GpusChecked, GpuFailed, GpuFailed]
    assert journal[1].name == "GPU a"


SUITE = {"suite/test_small.py": "def test_small(): pass\n"}


def test_an_agent_checks_its_gpus_and_runs_its_tests(start_agent):
    run = start_agent(SUITE, check_gpus=GPUS, gpu_device="cpu").go()
    assert run.wait() == 0
    assert run.all(GpusChecked)[0].gpus == ("GPU-a", "GPU-b")
    assert len(run.arrived("test_small")) == 2


RESET = """
    import os

    import torch
    from torch import distributed

    torch.cuda.is_available, torch.cuda.device_count = (lambda: True), (lambda: 2)
    join = distributed.init_process_group

    def join_at_first(*args, rank, **kwargs):
        if int(os.environ["ALLRANKS_GANG"]) > FIRST and rank == 1:
            raise RuntimeError("CUDA error: unspecified launch failure")
        join(*args, rank=rank, **kwargs)

    distributed.init_process_group = join_at_first
"""
TESTS = "def test_a(rank): assert rank\ndef test_b(): pass\ndef test_c(): pass\n"


@pytest.mark.parametrize(("gangs", "ended"), quick(1, [(0, []), (1, ["test_a"]), (2, ["test_a", "test_b"])]))
def test_a_gang_that_cannot_start_on_a_lost_gpu_does_not_fail_its_test(start_agent, gangs, ended):
    files = {"conftest.py": RESET.replace("FIRST", str(gangs)), "test_it.py": TESTS}
    run = start_agent(files, gpu_count=2, gpu_device="meta", isolation="test", limits={"peer_grace": 0.3}).go()
    assert run.wait() == 1
    [failed] = run.all(AgentFailed)
    assert failed.kind is FailureKind.GPU
    following = ["test_a", "test_b", "test_c"][gangs]
    assert failed.message.startswith(f"the GPU of rank 1 failed before suite/test_it.py::{following}: Not")
    assert [record.nodeid.partition("::")[2] for record in run.all(TestStarted)] == ended


@pytest.mark.thorough
def test_a_gang_that_cannot_start_on_healthy_gpus_is_an_error_of_its_test(start_agent):
    files = {"conftest.py": RESET.replace("FIRST", "1"), "test_it.py": TESTS}
    run = start_agent(files, gpu_count=2, gpu_device="cpu", isolation="test", limits={"peer_grace": 0.3}).go()
    assert run.wait() == 0
    assert run.all(AgentFailed) == []
    assert run.outcomes("test_b") == ("aborted", "errored")
    message = run.cases(1)["test_b"].message
    assert message == "the process group could not be created: CUDA error: unspecified launch failure"


def test_an_agent_with_an_unhealthy_gpu_collects_nothing(start_agent):
    run = start_agent(SUITE, check_gpus=GPUS[:1], gpu_device="meta")
    assert run.wait() == 1
    [failed] = run.all(GpuFailed)
    assert failed.gpu == "GPU-a"
    assert "NotImplementedError" in failed.message
    assert "NotImplementedError" in run.log
    assert run.all(Collected) == []
