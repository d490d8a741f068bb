"""send and recv: two ranks exchange tensors, and nobody else takes part."""

import pytest
import torch
import torch.distributed as dist

from allranks.testing import skip_if_odd_world_size, skip_if_small_world_size, skip_unsupported

from .tensors import ALL_DTYPES, assert_equal, blanks, dtype_name, payload

pytestmark = pytest.mark.conformance(operation="send, recv", ranks="some")


@skip_if_small_world_size(2)
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=dtype_name)
def test_last_rank_sends_to_the_first(rank: int, world_size: int, device: torch.device, dtype: torch.dtype) -> None:
    """Each dtype arrives bit by bit."""
    tensor = payload(rank, dtype=dtype, device=device)
    if rank == world_size - 1:
        dist.send(tensor, dst=0)
    elif rank == 0:
        dist.recv(tensor, src=world_size - 1)
        assert_equal(tensor, payload(world_size - 1, dtype=dtype, device=device))


@skip_if_odd_world_size
def test_neighbours_swap(rank: int, device: torch.device) -> None:
    """Of each pair the even rank sends first, so that nobody waits for somebody who waits."""
    partner = rank ^ 1
    received = torch.zeros(4, device=device)
    if rank % 2 == 0:
        dist.send(payload(rank, device=device), dst=partner)
        dist.recv(received, src=partner)
    else:
        dist.recv(received, src=partner)
        dist.send(payload(rank, device=device), dst=partner)
    assert_equal(received, payload(partner, device=device))


@skip_if_small_world_size(2)
def test_receiver_learns_who_sent(rank: int, world_size: int, device: torch.device) -> None:
    """Recv returns the sender's rank."""
    if rank == world_size - 1:
        dist.send(payload(rank, device=device), dst=0)
    elif rank == 0:
        assert dist.recv(torch.zeros(4, device=device), src=world_size - 1) == world_size - 1


@skip_if_small_world_size(2)
def test_messages_to_one_rank_keep_their_order(rank: int, world_size: int, device: torch.device) -> None:
    """What is sent first is received first."""
    received = blanks(torch.zeros(2, device=device), 5)
    for number in range(5):
        if rank == world_size - 1:
            dist.send(torch.full((2,), number + 1.0, device=device), dst=0)
        elif rank == 0:
            dist.recv(received[number], src=world_size - 1)
    if rank == 0:
        assert_equal(received, [torch.full((2,), number + 1.0, device=device) for number in range(5)])


@pytest.mark.conformance(feature="tags")
@skip_if_small_world_size(2)
@skip_unsupported("tags", on=["nccl"])
def test_tags_tell_messages_apart(rank: int, world_size: int, device: torch.device) -> None:
    """A message is received by its tag, whatever was sent before it."""
    first, second = torch.zeros(4, device=device), torch.zeros(4, device=device)
    if rank == world_size - 1:
        works = [dist.isend(payload(tag, device=device), dst=0, tag=tag) for tag in (1, 2)]
        for work in works:
            assert work is not None
            work.wait()
    elif rank == 0:
        dist.recv(second, src=world_size - 1, tag=2)
        dist.recv(first, src=world_size - 1, tag=1)
        assert_equal([first, second], [payload(1, device=device), payload(2, device=device)])


@pytest.mark.conformance(feature="any source")
@skip_if_small_world_size(2)
@skip_unsupported("recv from any source", on=["nccl"])
def test_any_source(rank: int, world_size: int, device: torch.device) -> None:
    """Without a source the receiver takes what comes, and learns from whom."""
    if rank > 0:
        dist.send(payload(rank, device=device), dst=0)
        return
    senders = []
    for _ in range(world_size - 1):
        received = torch.zeros(4, device=device)
        sender = dist.recv(received)
        assert_equal(received, payload(sender, device=device))
        senders.append(sender)
    assert sorted(senders) == list(range(1, world_size))


@pytest.mark.conformance(feature="any source", mode="async")
@skip_if_small_world_size(2)
@skip_unsupported("recv from any source", on=["nccl"])
def test_any_source_asynchronously(rank: int, world_size: int, device: torch.device) -> None:
    """The handle of an irecv without a source is done when somebody has sent."""
    if rank == world_size - 1:
        dist.send(payload(rank, device=device), dst=0)
    elif rank == 0:
        received = torch.zeros(4, device=device)
        work = dist.irecv(received)
        assert work is not None
        work.wait()
        assert_equal(received, payload(world_size - 1, device=device))


@pytest.mark.conformance(mode="async")
@skip_if_small_world_size(2)
@skip_unsupported("isend before an irecv on both sides outside of a batch", on=["nccl"])
def test_ring_of_asynchronous_messages(rank: int, world_size: int, device: torch.device) -> None:
    """Everybody sends to the right before anybody receives from the left."""
    received = torch.zeros(4, device=device)
    sent = payload(rank, device=device)
    works = [dist.isend(sent, dst=(rank + 1) % world_size), dist.irecv(received, src=(rank - 1) % world_size)]
    for work in works:
        assert work is not None
        work.wait()
    assert_equal(received, payload((rank - 1) % world_size, device=device))


@pytest.mark.conformance(operation="batch_isend_irecv", mode="async")
@skip_if_small_world_size(2)
def test_ring_in_one_batch(rank: int, world_size: int, device: torch.device) -> None:
    """A batch may hold sends and receives that need each other."""
    received = torch.zeros(4, device=device)
    send = dist.P2POp(dist.isend, payload(rank, device=device), (rank + 1) % world_size)
    receive = dist.P2POp(dist.irecv, received, (rank - 1) % world_size)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    assert_equal(received, payload((rank - 1) % world_size, device=device))


@pytest.mark.conformance(operation="batch_isend_irecv", mode="async")
@skip_if_small_world_size(2)
def test_all_pairs_in_one_batch(rank: int, world_size: int, device: torch.device) -> None:
    """Everybody sends to everybody else: an all_to_all by hand."""
    peers = [peer for peer in range(world_size) if peer != rank]
    received = {peer: torch.zeros(2, device=device) for peer in peers}
    messages = {peer: torch.tensor([10.0 * (rank + 1), peer], device=device) for peer in peers}
    operations = [dist.P2POp(dist.isend, messages[peer], peer) for peer in peers]
    operations += [dist.P2POp(dist.irecv, received[peer], peer) for peer in peers]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    for peer in peers:
        assert_equal(received[peer], torch.tensor([10.0 * (peer + 1), rank], device=device))


@skip_if_small_world_size(2)
def test_token_goes_round(rank: int, world_size: int, device: torch.device) -> None:
    """Each rank waits for its left neighbour, adds its share, and passes the sum on."""
    token = torch.zeros(1, device=device)
    if rank > 0:
        dist.recv(token, src=rank - 1)
    token += rank + 1
    dist.send(token, dst=(rank + 1) % world_size)
    if rank == 0:
        dist.recv(token, src=world_size - 1)
        assert_equal(token, torch.tensor([world_size * (world_size + 1) / 2], device=device))


@skip_if_small_world_size(2)
def test_only_the_slice_is_written(rank: int, world_size: int, device: torch.device) -> None:
    """A view into a larger buffer leaves the rest of the buffer alone."""
    buffer = torch.zeros(6, device=device)
    if rank == world_size - 1:
        dist.send(payload(rank, count=2, device=device), dst=0)
    elif rank == 0:
        dist.recv(buffer[2:4], src=world_size - 1)
        expected = torch.zeros(6, device=device)
        expected[2:4] = payload(world_size - 1, count=2, device=device)
        assert_equal(buffer, expected)
