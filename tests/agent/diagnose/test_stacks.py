import os
import signal
import threading

import pytest
from stuck_process import stuck_process

from allranks.agent.diagnose import stacks
from allranks.agent.diagnose.stacks import (
    STACKS_SIGNAL,
    StackFile,
    ask_for_stacks,
    dump_stacks,
    innermost,
    wait_for_stacks,
    waits_in_distributed,
    with_source,
)


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
def test_the_innermost_frame_is_the_first_of_the_users_own(above):
    assert innermost(dump(*above, USER, PYTEST)) == "/home/me/suite/test_a.py:12 in test_a"


TORCH = "/env/lib/python3.11/site-packages/torch/distributed"
IMPORT = ("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed")


def test_a_rank_in_torchs_distributed_waits_for_its_peers():
    assert waits_in_distributed(dump((f"{TORCH}/distributed_c10d.py", 4818, "barrier"), USER, PYTEST))


@pytest.mark.parametrize(
    "frames", [[(f"{TORCH}/tensor/__init__.py", 3, "<module>"), IMPORT], [IMPORT, (f"{TORCH}/rpc.py", 3, "<module>")]]
)
def test_a_rank_that_imports_a_part_of_torchs_distributed_waits_for_nobody(frames):
    stacks = dump(*frames, IMPORT, USER, PYTEST)
    assert not waits_in_distributed(stacks)
    assert innermost(stacks) == "/home/me/suite/test_a.py:12 in test_a"


def test_a_package_that_is_installed_is_the_users_own():
    mine = (threading.__file__.replace("threading.py", "site-packages/mine/ring.py"), 3, "send")
    assert innermost(dump(mine, USER)).endswith("ring.py:3 in send")


def test_a_test_that_comes_with_torch_is_the_users_own():
    folder = "/env/lib/python3.11/site-packages/torch/testing/_internal/distributed"
    test, helper = (f"{folder}/rpc/rpc_test.py", 3, "test_add"), (f"{folder}/rpc_utils.py", 4, "helper")
    assert innermost(dump(helper, test, USER)).endswith("rpc_test.py:3 in test_add")


def test_another_thread_does_not_count():
    other = dump(("/home/me/suite/test_a.py", 99, "elsewhere"), thread="Thread 0x00007e (most recent call first):")
    assert innermost(other + "\n" + dump(USER)) == "/home/me/suite/test_a.py:12 in test_a"


@pytest.mark.parametrize("stacks", ["", "nothing", dump(PYTEST)])
def test_there_may_be_no_frame_of_the_users_own(stacks):
    assert innermost(stacks) == ""


def test_a_stack_file_gives_what_was_added_since(tmp_path):
    path = tmp_path / "rank-0.stacks.txt"
    path.write_text("of an earlier gang")
    file = StackFile(path)
    assert file.added() == ""
    with path.open("ab") as more:
        more.write(b", and new \xff")
    assert file.added() == ", and new \ufffd"


def test_a_stack_file_need_not_be_there(tmp_path):
    assert StackFile(tmp_path / "none").added() == ""


def test_a_rank_that_writes_nothing_is_not_waited_for_for_long(tmp_path):
    assert wait_for_stacks({0: StackFile(tmp_path / "none")}, {0: os.getpid()}) == {0: ""}


def test_stacks_that_are_written_in_pieces_are_waited_for(tmp_path):
    path = tmp_path / "rank-0.stacks.txt"
    path.write_text("")
    whole = dump(("/home/me/suite/conftest.py", 1, "<module>"), USER, ("<frozen runpy>", 88, "_run_module_as_main"))

    class InPieces(StackFile):
        looks = 0

        def added(self):
            self.looks += 1
            if self.looks % 5 == 0 or self.looks == 1:  # a piece comes, and for four looks none does
                path.write_text(whole[: 20 * self.looks])
            return super().added()

    assert wait_for_stacks({0: InPieces(path)}, {0: os.getpid()}) == {0: whole}


OUTSIDE = "\nSeen from outside by py-spy:\n"


def test_a_ranks_own_frames_count_more_than_those_seen_from_outside():
    other = ("/home/me/suite/test_b.py", 1, "elsewhere")
    assert innermost(dump(USER) + OUTSIDE + dump(other)) == "/home/me/suite/test_a.py:12 in test_a"


def test_frames_seen_from_outside_count_where_the_rank_wrote_none():
    assert innermost(OUTSIDE + dump(USER)) == "/home/me/suite/test_a.py:12 in test_a"


@pytest.fixture
def stacks_of(tmp_path):
    """The stacks of one process that is stuck in some manner, and what its stack file holds."""

    def dump_one(manner="answers"):
        path = tmp_path / "rank-0.stacks.txt"
        with stuck_process(path, STACKS_SIGNAL, manner) as pid:
            stopped = {0} if manner == "is stopped" else frozenset()
            file = StackFile(path)
            if stopped:
                os.kill(pid, signal.SIGSTOP)
            else:
                ask_for_stacks(pid)
            [stacks] = dump_stacks({0: pid}, stopped, {0: file}).values()
        return stacks, path.read_text()

    return dump_one


def test_the_main_thread_answers_a_process_that_was_stopped_too(tmp_path):
    path = tmp_path / "rank-0.stacks.txt"
    with stuck_process(path, STACKS_SIGNAL, "has threads") as pid:
        for _ in range(20):
            file = StackFile(path)
            os.kill(pid, signal.SIGSTOP)
            ask_for_stacks(pid)
            os.kill(pid, signal.SIGCONT)
            assert innermost(wait_for_stacks({0: file}, {0: pid})[0]).endswith(" in waits_for_ever")


def test_a_rank_has_its_python_stacks_and_its_native_ones(stacks_of):
    stacks, _ = stacks_of()
    own, outside = stacks.split("Seen from outside by py-spy")
    assert "in waits_for_ever" in own
    assert "in waits_for_ever" in outside
    assert "(libc.so.6)" in outside


@pytest.mark.parametrize("manner", ["blocks", "is stopped"])
def test_a_rank_that_does_not_answer_is_seen_from_outside(stacks_of, manner):
    stacks, _ = stacks_of(manner)
    assert innermost(stacks).endswith(" in waits_for_ever")


def test_what_is_returned_is_in_the_file_too(stacks_of):
    stacks, file = stacks_of()
    assert file == stacks


def test_without_py_spy_there_are_the_ranks_own_stacks_alone(stacks_of, monkeypatch):
    monkeypatch.setattr(stacks, "find_py_spy", lambda: None)
    found, _ = stacks_of()
    assert innermost(found).endswith(" in waits_for_ever")
    assert "py-spy" not in found


def test_what_stops_py_spy_is_said_after_the_ranks_own_stacks(stacks_of, monkeypatch):
    monkeypatch.setattr(stacks, "find_py_spy", lambda: "/bin/false")
    found, _ = stacks_of()
    assert innermost(found).endswith(" in waits_for_ever")
    assert "Seen from outside by py-spy: py-spy failed" in found


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
    assert innermost(with_source(stacks)) == innermost(stacks)


@pytest.mark.parametrize("line", ["0", "99", "9" * 5000])
def test_a_line_that_a_file_does_not_have_is_left_out(tmp_path, line):
    file = tmp_path / "test_a.py"
    file.write_text("x = 1\n")
    stacks = dump((file, line, "f"))
    assert with_source(stacks) == stacks


def test_only_a_regular_file_is_read_for_its_lines(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "link.py").symlink_to("/etc/passwd")
    stacks = dump((tmp_path / "pipe.py", 1, "f"), (tmp_path / "link.py", 1, "f"), ("\0", 1, "f"))
    assert with_source(stacks) == stacks
