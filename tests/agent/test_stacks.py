"""Stacks of a process: its line in user code, and whether it waits for its peers."""

import os
import threading

import pytest

from allranks.agent.stacks import Stacks, with_source


def dump(*frames, thread="Current thread 0x00007f (most recent call first):"):
    return "\n".join([thread, *(f'  File "{file}", line {line} in {name}' for file, line, name in frames), ""])


USER = ("/home/me/suite/test_a.py", 12, "test_a")
PYTEST = ("/env/lib/python3.11/site-packages/_pytest/python.py", 166, "pytest_pyfunc_call")


@pytest.mark.parametrize(
    "above",
    [
        [],
        [(threading.__file__, 331, "wait")],
        [("/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 4818, "barrier")],
        [PYTEST, ("/env/site-packages/pluggy/_callers.py", 1, "_multicall")],
    ],
)
def test_the_innermost_frame_is_the_first_of_user_code(above):
    assert Stacks(dump(*above, USER, PYTEST)).innermost == "/home/me/suite/test_a.py:12 in test_a"


TORCH = "/env/lib/python3.11/site-packages/torch/distributed"
IMPORT = ("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed")


def test_a_rank_in_torchs_distributed_waits_for_its_peers():
    assert Stacks(dump((f"{TORCH}/distributed_c10d.py", 4818, "barrier"), USER, PYTEST)).waits_in_distributed()


@pytest.mark.parametrize(
    "frames", [[(f"{TORCH}/tensor/__init__.py", 3, "<module>"), IMPORT], [IMPORT, (f"{TORCH}/rpc.py", 3, "<module>")]]
)
def test_a_rank_that_imports_torch_distributed_does_not_wait_for_peers(frames):
    stacks = dump(*frames, IMPORT, USER, PYTEST)
    assert not Stacks(stacks).waits_in_distributed()
    assert Stacks(stacks).innermost == "/home/me/suite/test_a.py:12 in test_a"


def test_an_installed_package_is_user_code():
    mine = (threading.__file__.replace("threading.py", "site-packages/mine/ring.py"), 3, "send")
    assert Stacks(dump(mine, USER)).innermost.endswith("ring.py:3 in send")


def test_a_test_in_the_torch_wheel_is_user_code():
    folder = "/env/lib/python3.11/site-packages/torch/testing/_internal/distributed"
    test, helper = (f"{folder}/rpc/rpc_test.py", 3, "test_add"), (f"{folder}/rpc_utils.py", 4, "helper")
    assert Stacks(dump(helper, test, USER)).innermost.endswith("rpc_test.py:3 in test_add")


def test_another_thread_does_not_count():
    other = dump(("/home/me/suite/test_a.py", 99, "elsewhere"), thread="Thread 0x00007e (most recent call first):")
    assert Stacks(other + "\n" + dump(USER)).innermost == "/home/me/suite/test_a.py:12 in test_a"


@pytest.mark.parametrize("stacks", ["", "nothing", dump(PYTEST)])
def test_there_may_be_no_frame_of_user_code(stacks):
    assert Stacks(stacks).innermost == ""


OUTSIDE = "\nSeen from outside by py-spy:\n"


def test_frames_written_by_the_rank_take_precedence_over_py_spy():
    other = ("/home/me/suite/test_b.py", 1, "elsewhere")
    assert Stacks(dump(USER) + OUTSIDE + dump(other)).innermost == "/home/me/suite/test_a.py:12 in test_a"


def test_frames_of_py_spy_count_if_the_rank_wrote_none():
    assert Stacks(OUTSIDE + dump(USER)).innermost == "/home/me/suite/test_a.py:12 in test_a"


CUT = dump((threading.__file__, 331, "wait")) + "  ...\n"


def test_frames_of_py_spy_count_if_the_rank_did_not_write_the_outermost_ones():
    stacks = Stacks(CUT + OUTSIDE + dump((threading.__file__, 331, "wait"), USER))
    assert stacks.innermost == "/home/me/suite/test_a.py:12 in test_a"
    assert not stacks.is_cut


@pytest.mark.parametrize("outside", ["", OUTSIDE])
def test_cut_frames_count_if_there_are_no_others(outside):
    stacks = Stacks(CUT + outside)
    assert stacks.is_cut
    assert [frame.name for frame in stacks.frames] == ["wait"]


def test_threads_show_where_a_process_was_whose_main_thread_is_in_a_library():
    thread = "Thread 0x00007e (most recent call first):"
    waiting = dump((f"{TORCH}/distributed_c10d.py", 4818, "barrier"), ("/suite/b.py", 2, "waits"), thread=thread)
    busy = dump((threading.__file__, 331, "wait"), ("/suite/b.py", 1, "sleeps"), thread=thread)
    words = "; a thread was in /suite/b.py:1 in sleeps; a thread was in /suite/b.py:2 in waits"
    assert Stacks("\n".join([waiting, busy, busy, dump(PYTEST)])).words == words
    assert Stacks("\n".join([busy, dump(USER, PYTEST)])).words == "; it was in /home/me/suite/test_a.py:12 in test_a"


def test_frames_have_the_line_of_code_below_them(tmp_path):
    file = tmp_path / "test_a.py"
    file.write_text("def test_a():\n    time.sleep(100)\n\f\nx = 1\n")
    stacks = dump((file, 2, "test_a"), (file, 4, "f"), PYTEST, ("/nowhere/b.py", 1, "g"))
    assert with_source(stacks).splitlines()[1:] == [
        f'  File "{file}", line 2 in test_a',
        "    time.sleep(100)",
        f'  File "{file}", line 4 in f',
        "    x = 1",
        '  File "/env/lib/python3.11/site-packages/_pytest/python.py", line 166 in pytest_pyfunc_call',
        '  File "/nowhere/b.py", line 1 in g',
    ]
    assert Stacks(with_source(stacks)).innermost == Stacks(stacks).innermost


@pytest.mark.parametrize("line", ["0", "99", "9" * 5000])
def test_a_line_beyond_the_end_of_a_file_is_left_out(tmp_path, line):
    file = tmp_path / "test_a.py"
    file.write_text("x = 1\n")
    stacks = dump((file, line, "f"))
    assert with_source(stacks) == stacks


def test_only_a_regular_file_is_read_for_its_lines(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    stacks = dump((tmp_path / "pipe.py", 1, "f"), (tmp_path / "link.py", 1, "f"), ("\0", 1, "f"))
    assert with_source(stacks) == stacks
