"""What all sides of the comparison run: five small collectives, on the process group that is there.

They compare with plain Python, because the first ``torch.testing.assert_close`` of a process imports
``torch.distributed.tensor``, which takes a second and would be all that is measured where every test has fresh ranks.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import distributed


def _expect(tensor: torch.Tensor, wanted: Sequence[float]) -> None:
    if tensor.tolist() != wanted:
        msg = f"{tensor.tolist()} is not {wanted}"
        raise AssertionError(msg)


def all_reduce() -> None:
    """Sums the ranks."""
    tensor = torch.full((8,), float(distributed.get_rank()))
    distributed.all_reduce(tensor)
    _expect(tensor, [float(sum(range(distributed.get_world_size())))] * 8)


def broadcast() -> None:
    """Gives everybody what rank 0 has."""
    tensor = torch.full((8,), float(distributed.get_rank() + 1))
    distributed.broadcast(tensor, src=0)
    _expect(tensor, [1.0] * 8)


def all_gather() -> None:
    """Collects the ranks' numbers."""
    parts = [torch.empty(1) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, torch.tensor([float(distributed.get_rank())]))
    _expect(torch.cat(parts), [float(rank) for rank in range(len(parts))])


def barrier() -> None:
    """Waits for everybody."""
    distributed.barrier()


def send_and_receive() -> None:
    """Passes each rank's number on to the next."""
    rank, size = distributed.get_rank(), distributed.get_world_size()
    received = torch.empty(1)
    work = distributed.isend(torch.tensor([float(rank)]), (rank + 1) % size)
    distributed.recv(received, (rank - 1) % size)
    if work is not None:
        work.wait()
    _expect(received, [float((rank - 1) % size)])


BODIES: Mapping[str, Callable[[], None]] = {
    body.__name__: body for body in (all_reduce, broadcast, all_gather, barrier, send_and_receive)
}
"""The bodies by name."""
