"""Which exceptions say no more than that a peer was late or gone; those of torch and gloo are raised for real."""

from datetime import timedelta

import pytest
import torch
from torch import distributed as dist

from allranks.harness.gangs.symptoms import is_symptom


def raised_by(act):
    try:
        act()
    except Exception as error:  # noqa: BLE001 - whatever torch raises
        return error
    return None


def test_a_store_that_waits_for_a_key_in_vain_is_a_symptom(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    store.set_timeout(timedelta(seconds=0.1))
    assert is_symptom(raised_by(lambda: store.get("nobody sets it")))


def test_a_server_that_nobody_starts_is_a_symptom():
    def join():
        dist.TCPStore("127.0.0.1", 1, 2, is_master=False, timeout=timedelta(seconds=1))

    assert is_symptom(raised_by(join))


GLOO = "[../third_party/gloo/gloo/transport/tcp/{}"


@pytest.mark.parametrize(
    "text",
    [
        GLOO.format("pair.cc:553] Connection closed by peer [127.0.0.1]:36127"),
        GLOO.format("pair.cc:547] Read error [127.0.0.1]:1: Connection reset by peer"),
        GLOO.format("unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete"),
    ],
)
def test_what_gloo_says_of_a_peer_is_a_symptom(text):
    assert is_symptom(RuntimeError(text))


@pytest.mark.parametrize(
    "error",
    [
        None,
        AssertionError("the operation timed out"),
        RuntimeError("timed out"),
        TimeoutError("timed out"),
        RuntimeError(GLOO.format("pair.cc:1] op.preamble.length <= op.nbytes. 8 vs 4")),
        dist.DistBackendError("NCCL error: invalid usage"),
        KeyError("connection closed by peer"),
    ],
)
def test_a_rank_s_own_trouble_is_none(error):
    assert not is_symptom(error)


def test_an_exception_may_say_itself_that_it_is_one():
    class Waited(Exception):  # noqa: N818 - what a suite might call it
        allranks_symptom = True

    assert is_symptom(Waited())


def test_a_wrong_argument_to_a_collective_is_no_symptom():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        error = raised_by(lambda: dist.broadcast(torch.ones(1), src=5))
        assert error is not None
        assert not is_symptom(error)
    finally:
        dist.destroy_process_group()
