"""Errors of a call: they are raised at the caller, and printed by the callee."""

import re

import pytest
import torch
from torch.distributed import rpc

from allranks.testing import FileBarrier, captured_output

from .callees import Call, fail, in_each_mode, own_rank

pytestmark = pytest.mark.require_world_size(2)


@in_each_mode
def test_an_error_is_raised_at_the_caller_with_its_type_and_text(
    call: Call, rank: int, next_rank: int, peer: str
) -> None:
    """And with the worker that it is from."""
    with pytest.raises(ValueError, match=f"asked by {rank}") as caught:
        call(peer, fail, f"asked by {rank}")
    assert type(caught.value) is ValueError
    assert re.search(rf"On WorkerInfo\(id={next_rank}, name={peer}\)", str(caught.value))


@in_each_mode
def test_arguments_that_do_not_fit_are_the_error_of_the_callee(call: Call, peer: str) -> None:
    """As in a call at home."""
    with pytest.raises(TypeError, match=r"own_rank\(\) takes 0 positional arguments but 1 was given"):
        call(peer, own_rank, 10)


def test_an_error_on_the_caller_itself_is_raised_too(rank: int) -> None:
    """By a reference to what was never made."""
    reference = rpc.remote(rpc.get_worker_info(), own_rank, args=(rank,))
    with pytest.raises(TypeError, match="takes 0 positional arguments"):
        reference.to_here()


def test_the_callee_prints_the_error(rank: int, world_size: int, peer: str, file_barrier: FileBarrier) -> None:
    """Whoever runs the worker can see it, not only its caller."""
    with captured_output() as (_, err):
        file_barrier()
        with pytest.raises(ValueError, match="printed"):
            rpc.rpc_sync(peer, fail, args=(f"printed for {rank}",))
        file_barrier()
    assert f"ValueError('printed for {(rank - 1) % world_size}')" in err.getvalue()


@in_each_mode
def test_an_error_of_several_lines_keeps_them(call: Call, rank: int, peer: str) -> None:
    """Line ends are not shown as backslashes."""
    text = f"first of {rank}\n second\n\tthird"
    with pytest.raises(ValueError, match="first of") as caught:
        call(peer, fail, text)
    assert f"ValueError: {text}" in str(caught.value)
    assert "\\n" not in str(caught.value)


def test_an_error_is_raised_each_time_that_the_future_is_waited_for(rank: int, peer: str) -> None:
    """Of many futures that fail, one error is raised for all, and later each has its own."""
    futures = [rpc.rpc_async(peer, fail, args=(f"number {100 * rank + number}!",)) for number in range(20)]
    with pytest.raises(ValueError, match="number"):
        torch.futures.wait_all(futures)
    for number, future in enumerate(futures):
        for _ in range(2):
            with pytest.raises(ValueError, match=f"number {100 * rank + number}!"):
                future.wait()


def test_a_worker_serves_on_after_an_error(rank: int, peer: str) -> None:
    """The next call is not affected."""
    with pytest.raises(ValueError, match="once"):
        rpc.rpc_sync(peer, fail, args=("once",))
    assert rpc.rpc_sync(peer, torch.add, args=(torch.ones(1), rank)).item() == rank + 1
