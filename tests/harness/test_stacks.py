import threading

import pytest

from allranks.harness.stacks import StackFile, innermost, wait_for_stacks


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


def test_a_package_that_is_installed_is_the_users_own():
    mine = (threading.__file__.replace("threading.py", "site-packages/mine/ring.py"), 3, "send")
    assert innermost(dump(mine, USER)).endswith("ring.py:3 in send")


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
    assert wait_for_stacks({0: StackFile(tmp_path / "none")}) == {0: ""}
