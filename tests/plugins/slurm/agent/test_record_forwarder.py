"""Records on a shared file system that is full, slow or away."""

import errno
import os
import threading
import time

import pytest

from allranks.plugins.slurm.agent import record_forwarder
from allranks.plugins.slurm.agent.record_forwarder import RecordForwarder


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(record_forwarder, "_RETRY_DELAY", 0.02)


@pytest.fixture
def pipe(tmp_path):
    """The writing end of a pipe, and its forwarder."""
    source, target = os.pipe()
    return os.fdopen(target, "wb", buffering=0), RecordForwarder(source, tmp_path / "stream")


def refusing(monkeypatch, error, times, part=0):
    """Have the file system refuse some writes, each perhaps after a part of it."""
    left = list(range(times))

    def write(descriptor, data, offset, real=os.pwrite):
        if left:
            left.pop()
            real(descriptor, data[:part], offset)
            raise OSError(error, os.strerror(error))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", write)


def test_all_that_is_written_comes_in_its_order(pipe, tmp_path):
    end, forwarder = pipe
    for number in range(3):
        end.write(b"%d" % number * 50_000)
        time.sleep(0.01)
    end.close()
    forwarder.finish(10)
    assert (tmp_path / "stream").read_bytes() == b"0" * 50_000 + b"1" * 50_000 + b"2" * 50_000
    assert forwarder.storage_error == ""


def test_a_disk_that_was_full_for_a_while_costs_no_byte_and_is_told(pipe, tmp_path, monkeypatch):
    refusing(monkeypatch, errno.ENOSPC, 3, part=2)
    end, forwarder = pipe
    end.write(b"a record")
    end.close()
    forwarder.finish(10)
    assert (tmp_path / "stream").read_bytes() == b"a record"
    assert forwarder.storage_error == "No space left on device, for 0 s"


def test_a_disk_that_stays_full_is_given_up(pipe, monkeypatch):
    refusing(monkeypatch, errno.ENOSPC, 10**6)
    end, forwarder = pipe
    end.write(b"a record")
    end.close()
    forwarder.finish(0.2)
    assert forwarder.stuck > 0.1
    assert forwarder.storage_error.startswith("No space left on device")


def test_a_write_that_hangs_does_not_hold_up_the_writer_and_is_told(pipe, monkeypatch):
    monkeypatch.setattr(record_forwarder, "SLOW", 0.1)
    awake = threading.Event()
    monkeypatch.setattr(os, "pwrite", lambda _descriptor, data, _offset: awake.wait() and len(data))
    end, forwarder = pipe
    end.write(b"a record")
    end.write(b"another")
    end.close()
    forwarder.finish(0.3)
    assert forwarder.storage_error.startswith("no answer for")
    awake.set()
    forwarder._thread.join()


def test_a_folder_that_is_gone_is_given_up_at_once(pipe, tmp_path):
    end, forwarder = pipe
    tmp_path.rmdir()
    began = time.monotonic()
    end.write(b"a record")
    end.close()
    forwarder.finish(10)
    assert time.monotonic() - began < 5
    assert forwarder.storage_error.startswith("No such file or directory")
