"""What every cell with GPUs can do: collectives on tensors of the GPU that the job has leased, and no other."""

import os

import torch
import torch.distributed as dist
from gpu_acceptance import notes
from gpu_acceptance.device import device as make_gpu

GPU = make_gpu()


def test_all_reduce_sums_over_ranks(rank, world_size, device):
    tensor = torch.full((1 << 16,), rank + 1.0, device=device)
    dist.all_reduce(tensor)
    assert tensor.device.type == GPU.type
    assert tensor.unique().tolist() == [world_size * (world_size + 1) / 2]


def test_broadcast_gives_everyone_the_tensor_of_the_last_rank(rank, world_size, device):
    tensor = torch.arange(1000.0, device=device) * (rank + 1)
    dist.broadcast(tensor, src=world_size - 1)
    assert torch.equal(tensor.cpu(), torch.arange(1000.0) * world_size)


def test_the_group_has_the_backend_and_the_size_of_the_cell(backend, world_size):
    assert dist.get_backend() == backend
    assert dist.get_world_size() == world_size


def test_only_leased_gpus_are_visible(rank, backend, world_size, device):
    leased = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    seen = [GPU.uuid(number) for number in range(GPU.count())]
    assert seen == leased
    dist.barrier()
    notes.leave("basics", rank=rank, backend=backend, world_size=world_size, gpus=seen, on=str(device))
