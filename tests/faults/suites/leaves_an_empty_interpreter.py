"""Tests leave one rank without modules, streams or modes of its own: each next one begins as the first did."""

import builtins
import os
import sys
import threading

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

FAULT = {
    "verdict": ("passed", ""),
    "ranks": ["passed", "passed"],
    "exit_code": 0,
    "seconds": 6,
}


def test_fault(rank):
    if rank == 1:
        sys.modules.clear()
        sys.meta_path.clear()


def test_imports(world_size):
    import decimal
    import wave

    assert decimal
    assert wave
    all_reduce(world_size)


def test_leaves_no_output(rank):
    if rank == 1:
        sys.stdout.close()
        sys.stderr = None


def test_prints(world_size, capfd):
    print("a word", flush=True)
    print("another", file=sys.stderr)
    assert capfd.readouterr() == ("a word\n", "another\n")
    all_reduce(world_size)


def test_leaves_closed_descriptors(rank):
    if rank == 1:
        os.close(1)


def test_writes(world_size):
    os.write(1, b"a word\n")
    all_reduce(world_size)


def test_leaves_a_mode(rank):
    class Mode(TorchFunctionMode):
        def __torch_function__(self, *_):
            raise RuntimeError

    builtins.input = None
    if rank == 1:
        Mode().__enter__()


def test_computes(world_size):
    assert input
    assert (torch.ones(1) + 1).item() == 2
    all_reduce(world_size)


def test_leaves_a_thread(rank):
    def late():
        leaves.wait(0.5)
        dist.all_reduce(torch.ones(1))

    leaves = threading.Event()
    if rank == 1:
        threading.Thread(target=late, daemon=True).start()


def test_is_alone(world_size):
    threading.Event().wait(0.7)
    all_reduce(world_size)


def all_reduce(world_size):
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == world_size


def test_after(world_size):
    all_reduce(world_size)
