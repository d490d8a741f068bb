import ctypes
import gc
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.testing import captured_output


def c_puts(text):
    ctypes.CDLL(None).puts(text.encode())


def test_output_of_python_c_and_child_processes_is_captured_in_order():
    with captured_output() as (out, err):
        print("python")
        c_puts("c")
        ctypes.CDLL(None).fflush(None)
        os.write(1, b"descriptor\n")
        subprocess.run(["/bin/echo", "child"], check=True)
        print("to stderr", file=sys.stderr)
        os.write(2, b"also\n")
    assert out.getvalue() == "python\nc\ndescriptor\nchild\n"
    assert err.getvalue() == "to stderr\nalso\n"


def test_buffered_c_output_is_read_immediately_and_in_the_right_capture():
    code = """
import ctypes
from allranks.testing.observed import captured_output

libc = ctypes.CDLL(None)
libc.puts(b"outside")
with captured_output() as (out, _):
    libc.puts(b"early")
    assert out.getvalue() == "early\\n", out.getvalue()
    libc.puts(b"late")
assert out.getvalue() == "early\\nlate\\n", out.getvalue()
"""
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=buffered)
    assert done.stdout == "outside\n"


@pytest.mark.thorough
def test_output_of_torchs_cpp_code_is_captured_outside_of_pytest():
    code = """
import torch
from allranks.testing import captured_output

with captured_output() as (out, err):
    torch.ops.aten._print("from C++")
print(out.getvalue() + "outside")
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "outside"
    assert "from C++" in done.stdout


def test_the_innermost_catches():
    with captured_output() as (outer, _):
        print("before")
        with captured_output() as (inner, _):
            print("inside")
            os.write(1, b"and below\n")
        print("after")
    assert (outer.getvalue(), inner.getvalue()) == ("before\nafter\n", "inside\nand below\n")


def test_output_larger_than_a_pipe_is_captured():
    with captured_output() as (out, _):
        os.write(1, b"x" * 5_000_000)
        sys.stdout.write("y" * 5_000_000)
    assert len(out.getvalue()) == 10_000_000


def test_invalid_utf_8_is_replaced():
    with captured_output() as (out, _):
        os.write(1, b"a\xffb")
    assert out.getvalue() == "a\ufffdb"


def test_an_exception_propagates_and_output_is_restored(capfd):
    def print_and_fail():
        print("caught")
        int("no number")

    with pytest.raises(ValueError, match="no number"), captured_output() as (out, _):
        print_and_fail()
    print("free")
    os.write(1, b"below\n")
    assert out.getvalue() == "caught\n"
    assert capfd.readouterr().out == "free\nbelow\n"


def test_a_log_handler_made_meanwhile_still_writes_afterwards(capfd):
    with captured_output() as (_, err):
        handler = logging.StreamHandler()
        handler.emit(logging.makeLogRecord({"msg": "inside"}))
    handler.emit(logging.makeLogRecord({"msg": "outside"}))
    assert err.getvalue() == "inside\n"
    assert capfd.readouterr().err == "outside\n"


def test_no_descriptor_is_left():
    def count():
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    with captured_output():
        pass
    before = count()
    for _ in range(5):
        with captured_output() as captured:
            print("x")
        captured.out.getvalue()
    del captured
    assert count() == before
