"""What a job finds in an image of torch for CUDA, on a host without GPUs: collected inside the container alone."""

import ctypes
import os
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

PACKAGES = Path(torch.__file__).parents[1]

BUILD_TOOLS = ("cc", "gcc", "g++", "clang", "ld", "as", "make", "cmake", "ninja", "nvcc", "git", "pip", "uv")


def of_process(field):
    """A line of /proc/self/status."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return lines[field].strip()


def test_torch_is_the_build_for_cuda():
    assert torch.__version__.startswith("2.14.1")
    assert torch.version.cuda == "13.0"
    assert torch.backends.cuda.is_built()


def test_nccl_is_there_and_is_the_version_that_torch_was_made_for():
    version = ctypes.c_int()
    [library] = PACKAGES.glob("nvidia/**/libnccl.so.2")
    assert ctypes.CDLL(str(library)).ncclGetVersion(ctypes.byref(version)) == 0
    major, minor, patch = torch.cuda.nccl.version()
    assert dist.is_nccl_available()
    assert version.value == major * 10_000 + minor * 100 + patch >= 2_27_00


def test_nccl_lacks_nothing_but_a_gpu():
    with pytest.raises(Exception, match=r"(?i)no GPUs found"):
        dist.new_group(backend="nccl")


def test_gloo_works_in_the_same_build(rank, world_size):
    tensor = torch.full((3,), float(rank))
    dist.all_reduce(tensor)
    assert tensor.tolist() == [sum(range(world_size))] * 3


def test_gpus_come_from_the_device_request_alone():
    assert os.environ["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert os.environ["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert not torch.cuda.is_available()


def test_the_user_is_not_root_and_can_do_nothing_that_root_can():
    assert (os.getuid(), os.getgid()) == (10001, 10001)
    assert int(of_process("CapEff"), 16) == int(of_process("CapBnd"), 16) == 0
    assert of_process("NoNewPrivs") == "1"


@pytest.mark.parametrize("folder", ["/", "/etc", "/opt/venv", str(PACKAGES / "torch")])
def test_the_root_file_system_cannot_be_written(folder):
    assert os.statvfs(folder).f_flag & os.ST_RDONLY
    with pytest.raises(OSError, match=r"Read-only file system|Permission denied"):
        (Path(folder) / "written").touch()


def test_torch_writes_no_bytecode_because_all_of_it_is_there():
    sources = list((PACKAGES / "torch" / "distributed").rglob("*.py"))
    compiled = list((PACKAGES / "torch" / "distributed").rglob("*.pyc"))
    assert len(sources) == len(compiled) > 100


def test_no_build_tool_is_inside():
    assert [tool for tool in BUILD_TOOLS if shutil.which(tool)] == []
    assert not list(PACKAGES.glob("pip"))
