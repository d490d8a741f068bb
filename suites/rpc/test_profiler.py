"""torch's older profiler: the caller's profile has its calls, and the operators that they ran on other workers."""

import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.autograd as dist_autograd
from torch import Tensor
from torch.autograd import profiler_legacy
from torch.autograd.profiler import record_function
from torch.distributed import rpc
from torch.distributed.rpc.internal import RPCExecMode, _build_rpc_profiling_key

from allranks.testing import FileBarrier, TensorPipe, get_function_event, worker_name

from .callees import Call
from .sent import async_execution, numbers_of, same, scripted, worker_after

profile: Any = profiler_legacy.profile  # torch gives it no types

REMOTE = "#remote_op: "
"""Stands between a call's name and that of an operator which the call ran."""

BLOCK = "the block of the test"

Work = tuple[Any, ...]
"""A function, and its arguments after the first."""


_all_threads = threading.Barrier(TensorPipe().worker_threads)


def _forget_profiles() -> None:
    """Drop what profiled calls have left in this thread, when all threads of the agent have come here."""
    _all_threads.wait(60)
    torch._C._autograd._clear_callbacks()  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public way


@pytest.fixture(autouse=True)
def _threads_as_new(rank: int, file_barrier: FileBarrier) -> None:
    """Threads that have served no profiled call yet.

    In torch 2.13 such a call leaves its callback in the callee's thread. From the second one that a thread serves, each
    operator is recorded once more, and the caller takes both records for none: with 16 threads, calls began to lack
    operators at the 17th. So each worker clears all threads of its own agent before each test.
    """
    me = worker_name(rank)
    torch.futures.wait_all([rpc.rpc_async(me, _forget_profiles) for _ in range(_all_threads.parties)])
    file_barrier()


def multiplied(numbers: Tensor) -> Tensor:
    """A Python function with one operator in it."""
    return torch.mul(numbers, 2)


def multiplied_in_a_block(numbers: Tensor) -> Tensor:
    """The same in a block that has a name in the profile."""
    with record_function(BLOCK):
        return torch.mul(numbers, 2)


@scripted
def scripted_multiplied(numbers: Tensor) -> Tensor:
    """The same in TorchScript."""
    return torch.mul(numbers, 2)


@async_execution
def multiplied_at(to: str, numbers: Tensor) -> torch.futures.Future[Tensor]:
    """Leave the work to a third worker."""
    return rpc.rpc_async(to, multiplied, args=(numbers,))  # type: ignore[no-any-return]


def name_of(function: Call) -> str:
    """What a profile calls a function."""
    if function is torch.mul:
        return "aten::mul"
    if isinstance(function, torch.jit.ScriptFunction):
        return str(torch._jit_internal._qualified_name(function))  # noqa: SLF001
    return function.__qualname__


def key(mode: RPCExecMode, function: Call, caller: str, callee: str) -> str:
    """The name of a call in a profile."""
    return str(_build_rpc_profiling_key(mode, name_of(function), caller, callee))  # type: ignore[no-untyped-call]


def my_key(mode: RPCExecMode, function: Call, callee: str) -> str:
    """The name of a call of this worker."""
    return key(mode, function, rpc.get_worker_info().name, callee)


def only(events: Iterable[Any], name: str) -> Any:  # noqa: ANN401 - events have no public type
    """The one event of this name."""
    found = [event for event in events if event.name == name]
    assert len(found) == 1, f"{len(found)} events {name}, of {sorted(event.name for event in events)}"
    return found[0]


def operators(events: Iterable[Any], call: str, operator: str) -> list[Any]:
    """The events of an operator that a call ran, the outermost first: one may be made of another of its name."""
    found = [event for event in events if event.name == call + REMOTE + operator]
    assert found, f"no event {call}{REMOTE}{operator}, of {sorted(event.name for event in events)}"
    return found


def call_in(mode: RPCExecMode, to: str, work: Work, numbers: Tensor) -> Tensor:
    """Call, and wait until the profile has all of the call."""
    function, args = work[0], (numbers, *work[1:])
    result: Tensor
    if mode is RPCExecMode.SYNC:
        return rpc.rpc_sync(to, function, args=args)  # type: ignore[no-any-return]
    if mode is RPCExecMode.ASYNC:
        return rpc.rpc_async(to, function, args=args).wait()  # type: ignore[no-any-return]
    reference = rpc.remote(to, function, args=args)
    result = reference.to_here()
    # The call counts as ended when the owner has confirmed the reference, which can be after the fetch.
    reference._get_profiling_future().wait()  # noqa: SLF001 - torch has no public way to ask
    return result


MODES = [RPCExecMode.SYNC, RPCExecMode.ASYNC, RPCExecMode.REMOTE]

every_mode = pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
every_kind = pytest.mark.parametrize(
    "work",
    [(multiplied,), (torch.mul, 2), (scripted_multiplied,)],
    ids=["python", "builtin", "script"],
)


@every_mode
def test_name_of_a_call_tells_how_what_and_between_whom(mode: RPCExecMode) -> None:
    """It is the same in every profile."""
    kind = {"sync": "rpc_sync", "async": "rpc_async", "remote": "rpc_remote"}[mode.value]
    assert _build_rpc_profiling_key(mode, "work", "one", "two") == f"{kind}#work(one -> two)"  # type: ignore[no-untyped-call]


@every_mode
@every_kind
def test_profile_has_the_call_and_its_operator(
    rank: int, next_rank: int, peer: str, mode: RPCExecMode, work: Work
) -> None:
    """The call is the caller's event, and the operator that of the callee."""
    with profile() as profiled:
        result = call_in(mode, peer, work, numbers_of(rank))
    assert same(result, numbers_of(rank) * 2)
    call = get_function_event(profiled.function_events, my_key(mode, work[0], peer))
    assert (call.count, call.node_id, call.is_remote) == (1, rank, False)
    for operator in operators(profiled.function_events, call.name, "aten::mul"):
        assert (operator.count, operator.node_id, operator.is_remote) == (1, next_rank, True)


@every_kind
def test_profile_has_a_reference_to_ones_own_worker(rank: int, work: Work) -> None:
    """A worker that leaves work to itself is both ends of the call."""
    me = worker_name(rank)
    with profile() as profiled:
        result = call_in(RPCExecMode.REMOTE, me, work, numbers_of(rank))
    assert same(result, numbers_of(rank) * 2)
    call = get_function_event(profiled.function_events, my_key(RPCExecMode.REMOTE, work[0], me))
    assert (call.count, call.node_id) == (1, rank)


@every_mode
@every_kind
def test_call_lies_within_the_callers_block(rank: int, peer: str, mode: RPCExecMode, work: Work) -> None:
    """The block begins before the call and ends after it, and comes first in the profile."""
    with profile() as profiled, record_function(BLOCK):
        call_in(mode, peer, work, numbers_of(rank))
    events = list(profiled.function_events)
    block, call = only(events, BLOCK), get_function_event(events, my_key(mode, work[0], peer))
    assert block.time_range.start <= call.time_range.start <= call.time_range.end <= block.time_range.end
    names = [event.name for event in events]
    assert names.index(block.name) < names.index(call.name)


def test_profile_has_the_callees_block(rank: int, next_rank: int, peer: str) -> None:
    """It is the callee's event, and the operator lies within it."""
    with profile() as profiled:
        rpc.rpc_async(peer, multiplied_in_a_block, args=(numbers_of(rank),)).wait()
    call = my_key(RPCExecMode.ASYNC, multiplied_in_a_block, peer)
    events = list(profiled.function_events)
    block, operator = only(events, call + REMOTE + BLOCK), operators(events, call, "aten::mul")[0]
    assert block.node_id == operator.node_id == next_rank
    assert block.time_range.start <= operator.time_range.start <= operator.time_range.end <= block.time_range.end


def test_profile_follows_an_async_function(rank: int, world_size: int, next_rank: int, peer: str) -> None:
    """What a third worker did for the callee has both calls in its name."""
    third = worker_after(rank, world_size, 2)
    with profile() as profiled:
        result = rpc.rpc_async(peer, multiplied_at, args=(third, numbers_of(rank))).wait()
    assert same(result, numbers_of(rank) * 2)
    inner = my_key(RPCExecMode.ASYNC, multiplied_at, peer) + REMOTE + key(RPCExecMode.ASYNC, multiplied, peer, third)
    assert only(profiled.function_events, inner).node_id == next_rank
    by_third = operators(profiled.function_events, inner, "aten::mul")
    assert {operator.node_id for operator in by_third} == {(rank + 2) % world_size}


@pytest.mark.parametrize("order", ["context_outside", "profile_outside"])
def test_profile_of_a_call_in_an_autograd_context(rank: int, next_rank: int, peer: str, order: str) -> None:
    """A message carries both, whichever was begun first."""
    numbers = numbers_of(rank).requires_grad_()
    if order == "context_outside":
        with dist_autograd.context(), profile() as profiled:
            rpc.rpc_async(peer, torch.mul, args=(numbers, 2)).wait()
    else:
        with profile() as profiled, dist_autograd.context():
            rpc.rpc_async(peer, torch.mul, args=(numbers, 2)).wait()
    by_peer = operators(profiled.function_events, my_key(RPCExecMode.ASYNC, torch.mul, peer), "aten::mul")
    assert {operator.node_id for operator in by_peer} == {next_rank}


@pytest.mark.parametrize("what", ["input_shapes", "cpu_memory_usage"])
def test_what_is_recorded_of_operators(rank: int, peer: str, what: str) -> None:
    """The callee records what the caller's profile asks for: the same as for an operator that runs here."""
    numbers = torch.ones(100 * (rank + 1))
    wanted = {"input_shapes": {"record_shapes": True}, "cpu_memory_usage": {"profile_memory": True}}[what]
    with profile(**wanted) as profiled:
        rpc.rpc_sync(peer, multiplied, args=(numbers,))
    with profile(**wanted) as here:
        multiplied(numbers)
    remote = operators(profiled.function_events, my_key(RPCExecMode.SYNC, multiplied, peer), "aten::mul")[0]
    expected = getattr(get_function_event(here.function_events, "aten::mul"), what)
    assert expected
    assert getattr(remote, what) == expected


def test_memory_is_not_recorded_unasked(rank: int, peer: str) -> None:
    """Neither here nor on the callee."""
    with profile() as profiled:
        rpc.rpc_sync(peer, multiplied, args=(numbers_of(rank),))
    assert {event.cpu_memory_usage for event in profiled.function_events} == {0}


def test_exported_trace_has_the_callees_operators(rank: int, peer: str, tmp_path: Path) -> None:
    """A trace for Chrome names both the call and what it ran."""
    with profile() as profiled:
        rpc.rpc_async(peer, multiplied, args=(numbers_of(rank),)).wait()
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    names = [event["name"] for event in json.loads((tmp_path / "trace.json").read_text())]
    call = my_key(RPCExecMode.ASYNC, multiplied, peer)
    assert call in names
    assert call + REMOTE + "aten::mul" in names


def test_newer_profiler_leaves_calls_out(rank: int, peer: str) -> None:
    """It does not know RPC: two calls at once do not disturb it, and neither is in its profile."""
    if rank > 0:
        # Its first use in a process takes a second of a processor, and one rank shows it.
        return
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        futures = [rpc.rpc_async(peer, multiplied, args=(numbers_of(rank),)) for _ in range(2)]
        results = [future.wait() for future in futures]
        torch.neg(results[0])
    assert all(same(result, numbers_of(rank) * 2) for result in results)
    names = [str(event.name) for event in profiled.events()]
    assert "aten::neg" in names
    assert not [name for name in names if "rpc_async" in name]


def test_block_ends_with_a_future_once(rank: int, peer: str) -> None:
    """A block can be handed to a future, but not to a second one."""
    with profile() as profiled, record_function(BLOCK) as block:
        future = rpc.rpc_async(peer, multiplied, args=(numbers_of(rank),))
        handed = block._call_end_callbacks_on_future(future)  # noqa: SLF001 - torch has no public way
        with pytest.raises(RuntimeError, match=r"can only be called once"):
            block._call_end_callbacks_on_future(future)  # noqa: SLF001 - as above
        assert same(handed.wait(), numbers_of(rank) * 2)
    assert only(profiled.function_events, BLOCK).count == 1


def test_block_of_the_older_operators_ends_with_a_future(rank: int, peer: str) -> None:
    """TorchScript of old has a handle for a block."""
    older = torch.ops.profiler
    with profile() as profiled:
        handle = older._record_function_enter(BLOCK, None)  # noqa: SLF001 - their only names
        try:
            future = rpc.rpc_async(peer, multiplied, args=(numbers_of(rank),))
            handed = older._call_end_callbacks_on_jit_fut(handle, future)  # noqa: SLF001 - as above
        finally:
            older._record_function_exit(handle)  # noqa: SLF001 - as above
        assert same(handed.wait(), numbers_of(rank) * 2)
    assert BLOCK in [event.name for event in profiled.function_events]


def test_block_of_a_scripted_call_has_its_result(rank: int, peer: str) -> None:
    """The future that ends the block holds what the call returns."""
    name = "my own: " + my_key(RPCExecMode.ASYNC, scripted_multiplied, peer)
    with profile() as profiled:
        with record_function(name) as block:
            future = rpc.rpc_async(peer, scripted_multiplied, args=(numbers_of(rank),))
            handed = torch.ops.profiler._call_end_callbacks_on_jit_fut(block.record, future)  # noqa: SLF001 - as above
        assert same(handed.wait(), numbers_of(rank) * 2)
    assert only(profiled.function_events, name).count == 1


def names_in(profiled: Any) -> set[str]:  # noqa: ANN401 - a reference to a profile
    """The names of all events of all threads; only on the profile's own worker."""
    threads = profiled.local_value().process_global_function_events
    return {event.name for thread in threads for event in thread}


def test_profile_of_all_that_a_worker_does_for_others(rank: int, peer: str) -> None:
    """Of two nested ones, the inner has what ran meanwhile, and the outer has all."""
    numbers = numbers_of(rank)
    outer, inner = (rpc.remote(peer, rpc._server_process_global_profile) for _ in range(2))  # type: ignore[attr-defined]  # noqa: SLF001
    outer.rpc_sync().__enter__()
    rpc.rpc_sync(peer, torch.add, args=(numbers, 1))
    inner.rpc_sync().__enter__()
    rpc.rpc_sync(peer, torch.sub, args=(numbers, 1))
    inner.rpc_sync().__exit__(None, None, None)
    outer.rpc_sync().__exit__(None, None, None)
    both = {"aten::add", "aten::sub"}
    assert rpc.rpc_sync(peer, names_in, args=(inner,)) & both == {"aten::sub"}
    assert rpc.rpc_sync(peer, names_in, args=(outer,)) & both == both
