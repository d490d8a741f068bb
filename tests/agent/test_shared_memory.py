"""No shared memory outlives its job, however its ranks end, and resource trackers are not reported as orphans."""

from pathlib import Path

import pytest

from allranks.protocol.records import LeftBehind

SUITE = """
import os, signal, time
from multiprocessing import shared_memory
from pathlib import Path

import torch
import torch.distributed
import torch.multiprocessing

torch.multiprocessing.set_sharing_strategy("file_system")

def leave(names):
    segment = shared_memory.SharedMemory(create=True, size=64)
    tensor = torch.zeros(16).share_memory_()
    names.append((segment, tensor))
    segments = [segment.name.lstrip("/"), *(file.name for file in Path("/dev/shm").glob(f"torch_{os.getpid()}_*"))]
    assert len(segments) == 2
    with open(os.environ["SEGMENTS"], "a") as file:
        print(*segments, file=file)
    torch.distributed.barrier()  # no rank ends before its peer has left its own

KEPT = []

def test_passes():
    leave(KEPT)

def test_fails():
    leave(KEPT)
    assert False

def test_dies():
    leave(KEPT)
    os.kill(os.getpid(), signal.SIGKILL)

def test_hangs():
    leave(KEPT)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
"""


@pytest.mark.thorough
def test_shared_memory_is_gone_with_its_job(run_agent, tmp_path, monkeypatch):
    segments = tmp_path / "segments"
    monkeypatch.setenv("SEGMENTS", str(segments))
    agent = run_agent({"test_shm.py": SUITE}, limits={"test": 5, "peer_grace": 0.5}, isolation="test")
    names = segments.read_text().split()
    assert len(names) == 2 * 2 * 4
    assert [name for name in names if Path("/dev/shm", name).exists()] == []
    assert agent.all(LeftBehind) == []
    assert agent.outcomes("test_passes") == ("passed", "passed")
