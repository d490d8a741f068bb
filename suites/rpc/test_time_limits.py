"""Time limits of calls and references: what must not end in time waits at a gate, and the rest has ample time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.distributed import rpc

from allranks.testing import get_timeout_error_regex, wait_until_owners_and_forks_on_rank

from .gates import SHORT, Gated, closed_gate, open_gate, wait_at

timed_out = get_timeout_error_regex()


@contextmanager
def default_limit(seconds: float) -> Iterator[None]:
    """Another default limit of this worker's calls; zero for none."""
    before = rpc.get_rpc_timeout()  # type: ignore[attr-defined]
    rpc._set_rpc_timeout(seconds)  # type: ignore[attr-defined]  # noqa: SLF001 - torch has no public way
    try:
        yield
    finally:
        rpc._set_rpc_timeout(before)  # type: ignore[attr-defined]  # noqa: SLF001 - as above


def call_sync(peer: str, gate: str, **limit: float) -> object:
    """Wait in the call."""
    return rpc.rpc_sync(peer, wait_at, args=(gate, 7), **limit)


def call_later(peer: str, gate: str, **limit: float) -> object:
    """Wait for the future."""
    return rpc.rpc_async(peer, wait_at, args=(gate, 7), **limit).wait()


both_calls = pytest.mark.parametrize("call", [call_sync, call_later], ids=["sync", "later"])


@both_calls
def test_limit_of_a_call(peer: str, call: Callable[..., object]) -> None:
    """The caller gives up, and the next call is answered."""
    with closed_gate(peer) as gate:
        with pytest.raises(RuntimeError, match=timed_out):
            call(peer, gate, timeout=SHORT)
        open_gate(peer, gate)
        assert call(peer, gate) == 7


@both_calls
def test_default_limit_counts_without_one_of_the_call(peer: str, call: Callable[..., object]) -> None:
    """The world's default is the limit of every call that states none."""
    with closed_gate(peer) as gate, default_limit(SHORT), pytest.raises(RuntimeError, match=timed_out):
        call(peer, gate)


def test_default_limit_counts_for_each_of_many_calls(peer: str) -> None:
    """All of them fail by themselves."""
    with closed_gate(peer) as gate, default_limit(SHORT):
        futures = [rpc.rpc_async(peer, wait_at, args=(gate,)) for _ in range(10)]
        for future in futures:
            with pytest.raises(RuntimeError, match=timed_out):
                future.wait()


@both_calls
@pytest.mark.parametrize("limit", [120.0, 0.0], ids=["longer", "none"])
def test_limit_of_a_call_goes_before_the_default(
    rank: int, peer: str, call: Callable[..., object], limit: float
) -> None:
    """A call with a longer limit, or with zero for none, outlives the default: a second call times out meanwhile."""
    with closed_gate(peer) as gate, default_limit(SHORT):
        lasting = rpc.rpc_async(peer, wait_at, args=(gate, rank), timeout=limit)
        with pytest.raises(RuntimeError, match=timed_out):
            call(peer, gate)
        assert not lasting.done()
        open_gate(peer, gate)
        assert lasting.wait() == rank
        assert call(peer, gate, timeout=limit) == 7


def test_new_default_leaves_started_calls_alone(rank: int, peer: str) -> None:
    """A call keeps the limit that it began with."""
    with closed_gate(peer) as gate:
        started = rpc.rpc_async(peer, wait_at, args=(gate, rank))
        with default_limit(SHORT), pytest.raises(RuntimeError, match=timed_out):
            rpc.rpc_sync(peer, wait_at, args=(gate,))
        assert not started.done()
        open_gate(peer, gate)
        assert started.wait() == rank


def test_default_of_zero_is_no_limit(rank: int, peer: str) -> None:
    """The call outlives one with a short limit."""
    with closed_gate(peer) as gate, default_limit(0):
        unlimited = rpc.rpc_async(peer, wait_at, args=(gate, rank))
        with pytest.raises(RuntimeError, match=timed_out):
            rpc.rpc_sync(peer, wait_at, args=(gate,), timeout=SHORT)
        assert not unlimited.done()
        open_gate(peer, gate)
        assert unlimited.wait() == rank


def type_now(reference: Any) -> None:  # noqa: ANN401 - references have no types for mypy
    """Wait in the question for the type."""
    reference._get_type(timeout=SHORT, blocking=True)  # noqa: SLF001 - as above


def type_later(reference: Any) -> None:  # noqa: ANN401 - as above
    """Wait for the answer."""
    reference._get_type(timeout=SHORT, blocking=False).wait()  # noqa: SLF001 - as above


@pytest.mark.parametrize("ask", [type_now, type_later], ids=["blocking", "non_blocking"])
def test_limit_for_the_type_of_a_reference(rank: int, peer: str, ask: Callable[[Any], None]) -> None:
    """The owner does not know the type before it has the object; then the reference is as good as any."""
    with closed_gate(peer) as gate:
        late = rpc.remote(peer, Gated, args=(gate, rank))
        with pytest.raises(RuntimeError, match=timed_out):
            ask(late)
        open_gate(peer, gate)
        assert late.to_here().value == rank


def wait_sync(proxy: Any, method: str, gate: tuple[str, ...]) -> None:  # noqa: ANN401 - proxies have no type
    """The call itself waits."""
    getattr(proxy, method)(*gate)


def wait_later(proxy: Any, method: str, gate: tuple[str, ...]) -> None:  # noqa: ANN401 - as above
    """The future waits."""
    getattr(proxy, method)(*gate).wait()


def wait_for_creation(proxy: Any, method: str, gate: tuple[str, ...]) -> None:  # noqa: ANN401 - as above
    """The reference to the result waits for its creation."""
    result = getattr(proxy, method)(*gate)
    result._get_future().wait()  # noqa: SLF001 - as above


def forget_traceback(error: BaseException) -> None:
    """Free the references in the frames of an async proxy's error.

    In torch 2.13 the proxy's future holds the error, and a frame of its traceback holds the future: a cycle that
    Python's collector does not see.
    """
    error.with_traceback(None)


@pytest.mark.parametrize(("kind", "wait"), [("rpc_sync", wait_sync), ("rpc_async", wait_later)])
def test_limit_of_a_proxys_method(rank: int, next_rank: int, peer: str, kind: str, wait: Callable[..., None]) -> None:
    """The limit is an argument of the proxy, and holds for the method's call."""
    gated = rpc.remote(peer, Gated, args=("", rank))
    # A reference keeps the answer to its first question for the type, also if that came too late.
    assert gated.rpc_sync().value_at_once() == rank
    with closed_gate(peer) as gate, pytest.raises(RuntimeError, match=timed_out) as caught:
        wait(getattr(gated, kind)(timeout=SHORT), "value_after", (gate,))
    wait_until_owners_and_forks_on_rank(1, 1, rank=next_rank)
    forget_traceback(caught.value)
    assert torch.equal(gated.rpc_sync().value_after(gate), torch.tensor(rank))


@pytest.mark.parametrize(
    ("kind", "wait"), [("rpc_sync", wait_sync), ("rpc_async", wait_later), ("remote", wait_for_creation)]
)
def test_limit_of_a_proxy_includes_the_creation_of_its_object(
    rank: int, peer: str, kind: str, wait: Callable[..., None]
) -> None:
    """A proxy asks for the type first, and that has to wait for the object."""
    with closed_gate(peer) as gate:
        late = rpc.remote(peer, Gated, args=(gate, rank))
        with pytest.raises(RuntimeError, match=timed_out) as caught:
            wait(getattr(late, kind)(timeout=SHORT), "value_at_once", ())
        forget_traceback(caught.value)
        open_gate(peer, gate)
        assert late.to_here().value == rank
