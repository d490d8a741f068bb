"""Debuggers with ``pytest --ranks N``: pdb in one rank, in the terminal of the session, and editors."""

import os
import pty
import select
import subprocess
import sys

import pytest
from editors import Breakpoint, debug_in_pycharm, debug_in_vscode
from long_lists import quick

SUITE = """
import torch
import torch.distributed as dist

def test_sum(process_group, rank):
    tensor = torch.full((1,), float(rank))
    if rank == 1:
        breakpoint()
    dist.all_reduce(tensor)
    assert tensor.item() == {sum}
"""


@pytest.fixture
def debugged(tmp_path, environment_without_ranks):
    """``debugged(suite, ("(rank 1) ", "c"), ...)``: waits for texts, and types lines; returns the exit status."""

    def debug(suite, *steps):
        (tmp_path / "test_it.py").write_text(suite)
        environment = {**environment_without_ranks, "TMPDIR": str(tmp_path), "TERM": "dumb"}
        own, theirs = pty.openpty()
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:hypothesispytest", "--ranks=2", "--pdb-rank=1"]
        with subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        ) as process:
            os.close(theirs)
            seen = ""
            for wanted, typed in steps:
                while wanted not in seen:
                    assert select.select([own], [], [], 120)[0], seen
                    seen += os.read(own, 4096).decode()
                seen = seen.partition(wanted)[2]
                os.write(own, f"{typed}\n".encode() if typed else b"")
            status = process.wait(60)
        os.close(own)
        return status

    return debug


@pytest.mark.parametrize(
    ("total", "ending"), [pytest.param(1, "1 passed", marks=pytest.mark.thorough), (5, "1 failed")]
)
def test_a_rank_stops_on_the_terminal_of_the_session(debugged, total, ending):
    steps = [("(rank 1) ", "p 'rank', rank"), ("('rank', 1)", "c")]
    if total != 1:
        steps += [("(rank 1) ", "p tensor.item()"), ("1.0", "c")]  # where it fails
    assert debugged(SUITE.format(sum=total), *steps, (ending, "")) == (total != 1)


FAILING = """
import torch
import torch.distributed as dist

def test_fails(process_group, rank):
    assert rank == 0
    dist.all_reduce(torch.ones(1))

def test_breaks(process_group, rank):
    breakpoint()
    dist.all_reduce(torch.ones(1))

def test_last(): pass
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("commands", "endings", "status"),
    quick(
        1,
        [
            (["c", "c"], ["1 failed, 2 passed"], 1),
            (["p rank", "c", "c"], ["1 failed, 2 passed"], 1),
            (["q"], ["Interrupted: stopped by q in the debugger", "1 failed in"], 2),
            (["c", "q"], ["Interrupted: stopped by q in the debugger", "2 failed in"], 2),
            (["\x04"], ["Interrupted: stopped by q in the debugger", "1 failed in"], 2),
        ],
    ),
    ids=str,
)
def test_a_session_continues_or_ends_with_the_debugger(debugged, commands, endings, status):
    steps = [*(("(rank 1) ", command) for command in commands), *((ending, "") for ending in endings)]
    assert debugged(FAILING, *steps) == status


@pytest.fixture
def editor_environment(tmp_path, environment_without_ranks, plugins):
    return {
        **environment_without_ranks,
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([plugins, *sys.path]),  # has the debuggers
    }


@pytest.mark.thorough
@pytest.mark.parametrize("debug", [debug_in_vscode, debug_in_pycharm], ids=["vscode", "pycharm"])
@pytest.mark.parametrize(("arguments", "stops"), [("", 1), ("--ranks=2 --ranks-timeout=1", 2)], ids=["plain", "ranks"])
def test_breakpoints_of_an_editor_stop_every_rank(tmp_path, editor_environment, debug, arguments, stops):
    file = tmp_path / "test_it.py"
    file.write_text("import time\n\ndef test_it(rank):\n    at = time.time()\n    assert at\n    time.sleep(2)\n")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\naddopts = {arguments}\n")
    seen = debug(Breakpoint(file, 5, "rank"), editor_environment)
    assert seen.status == 0, seen.output
    assert "1 passed" in seen.output
    assert {stop.place for stop in seen.stops} == {("test_it", "test_it.py", 5)}
    assert len({stop.process for stop in seen.stops}) == stops
    assert sorted(stop.value for stop in seen.stops) == [str(rank) for rank in range(stops)]
