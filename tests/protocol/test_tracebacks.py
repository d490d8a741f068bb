"""Tracebacks in every form that ranks report, folded and in short."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from long_lists import quick

from allranks.protocol.tracebacks import below_packages, excerpt, folded, headline, is_tool, line_in
from allranks.protocol.xml_text import file_of

FILE = "suite/test_a.py"

LONG = """\
rank = 1

    def test_helper(rank):
>       helpers.outer(4)

/repo/suite/test_a.py:15:\x20
_ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _
/repo/suite/helpers.py:6: in outer
    return check(value)
           ^^^^^^^^^^^^
/venv/lib/python3.11/site-packages/_pytest/x.py:7: in between
    a
/venv/lib/python3.11/site-packages/pluggy/_callers.py:8: in between
    b
_ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _

value = 4

    def check(value):
>       assert value == 3
E       AssertionError: not three
E         4 is more

/repo/suite/helpers.py:8: AssertionError"""

DUMP = """\
Fatal Python error: Segmentation fault

Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 1 in wait

Current thread 0x00007f (most recent call first):
  File "/src/allranks/agent/rank/call_counter.py", line 2 in wait
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d.py", line 3 in barrier
  File "/repo/suite/test_a.py", line 16 in test_x
  File "/venv/lib/python3.11/site-packages/_pytest/python.py", line 187 in pytest_pyfunc_call
  File "/src/allranks/agent/collect/fork_server.py", line 206 in <module>
  File "<frozen runpy>", line 88 in _run_code

Extension modules: torch._C"""

NATIVE = """\
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pluggy/_manager.py", line 1, in _hookexec
    return inner()
           ^^^^^^^
  File "/repo/conftest.py", line 2, in pytest_runtest_call
    raise ValueError("a hook")
ValueError: a hook
with two lines"""


def test_frames_of_pytest_pluggy_and_allranks_are_folded_into_one_line():
    assert (
        "    return check(value)\n           ^^^^^^^^^^^^\n[... 2 frames of pytest, pluggy and allranks ...]\n_ _"
        in (folded(LONG))
    )
    assert folded(DUMP).splitlines()[5:10] == [
        "Current thread 0x00007f (most recent call first):",
        "  [... 1 frame of pytest, pluggy and allranks ...]",
        '  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d.py", line 3 in barrier',
        '  File "/repo/suite/test_a.py", line 16 in test_x',
        "  [... 3 frames of pytest, pluggy and allranks ...]",
    ]
    assert folded(NATIVE).splitlines()[1:3] == [
        "  [... 1 frame of pytest, pluggy and allranks ...]",
        '  File "/repo/conftest.py", line 2, in pytest_runtest_call',
    ]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('  File "/x/_pytest/a.py", line 1, in a\n  File "/x/_pytest/b.py", line 2, in b\nE: x', "b.py"),
        ('  File "/x/_pytest/a.py", line 1 in a\n  File "/x/_pytest/b.py", line 2 in b', "a.py"),
    ],
    ids=["traceback", "stack"],
)
def test_of_nothing_but_frames_of_tools_the_innermost_is_shown(text, kept):
    for shown in (folded(text), "\n".join(excerpt(text))):
        assert kept in shown
        assert ("a.py" in shown) != ("b.py" in shown)


@pytest.mark.parametrize(
    ("file", "is_tools"),
    [
        ("/v/site-packages/_pytest/python.py", True), ("/v/dist-packages/pluggy/_hooks.py", True),
        ("/opt/allranks/plugins/stress/agent/skewed_calls.py", True), ("/u/plugins/mine/agent/calls.py", False),
        ("/opt/allranks/agent/rank/rank.py", True), ("/opt/allranks/testing/stores.py", True),
        ("<frozen runpy>", True), ("/home/me/pluggy/tests/test_a.py", False), ("/allranks/tests/test_a.py", False),
        ("/opt/allranks/protocol/typed_json.py", True), ("/home/me/allranks/test_a.py", False),
        ("/v/site-packages/torch/nn.py", False), ("<string>", False),
    ],
)  # fmt: skip
def test_one_filter_knows_the_tools(file, is_tools):
    assert is_tool(file) is is_tools


def test_an_excerpt_has_the_last_frames_the_values_and_the_error():
    assert excerpt(LONG, FILE, "rank 1 failed: AssertionError: not three") == (
        "suite/test_a.py:15 in test_helper",
        "    helpers.outer(4)",
        "suite/helpers.py:6 in outer",
        "    return check(value)",
        "suite/helpers.py:8 in check",
        "    assert value == 3",
        "value = 4",
        "E     4 is more",
    )


def test_an_excerpt_of_stacks_is_of_the_thread_that_was_asked_and_ends_with_its_innermost_frame():
    assert excerpt(DUMP, FILE) == ("suite/test_a.py:16 in test_x", "torch/distributed/c10d.py:3 in barrier")


def test_an_excerpt_prefers_what_the_rank_wrote_itself():
    outside = DUMP.replace("test_x", "other")
    assert excerpt(f"{DUMP}\nSeen from outside by py-spy:\n{outside}", FILE) == excerpt(DUMP, FILE)
    assert excerpt(f"Seen from outside by py-spy:\n{outside}", FILE)[0] == "suite/test_a.py:16 in other"


def test_an_excerpt_of_pythons_own_traceback_has_its_whole_message():
    assert excerpt(NATIVE) == (
        "/repo/conftest.py:2 in pytest_runtest_call",
        '    raise ValueError("a hook")',
        "E   ValueError: a hook",
        "E   with two lines",
    )


def test_of_a_deep_stack_the_first_frame_and_the_last_are_shown():
    frames = "\n".join(f'  File "/repo/f.py", line {n}, in f{n}' for n in range(1, 21))
    assert [line.split()[0] for line in excerpt(f"Traceback (most recent call last):\n{frames}\nE: x")] == [
        "/repo/f.py:1", "[...", "/repo/f.py:18", "/repo/f.py:19", "/repo/f.py:20", "E",
    ]  # fmt: skip


def test_a_text_without_frames_is_shown_at_its_end():
    assert excerpt("first\nsecond\n\nthird", message="first") == ("second", "third")
    assert excerpt("only this", message="rank 0 aborted: only this") == ()


def test_an_excerpt_has_no_control_characters_and_is_short():
    hostile = LONG.replace("4 is more", "\x1b[2J\x9b\u202e" + "x" * 100_000 + "\nE   y" * 100)
    shown = excerpt(hostile, FILE)
    assert all(line.isprintable() and len(line) <= 200 for line in shown)
    assert len(shown) <= 30


@pytest.mark.parametrize(("text", "line"), [(LONG, 15), (DUMP, 16), (NATIVE, None), ("", None)])
def test_the_line_is_the_one_in_the_tests_own_file(text, line):
    assert line_in(text, FILE) == line


def test_of_several_lines_in_the_tests_own_file_the_innermost_counts():
    outer = DUMP.replace("line 16 in test_x", f'line 16 in test_x\n  File "/repo/{FILE}", line 99 in outer')
    assert line_in(outer, FILE) == 16
    assert line_in(f"{LONG}\n\n/repo/{FILE}:20: ValueError", FILE) == 20


def test_a_line_of_another_file_or_of_a_message_is_none():
    assert line_in('  File "/repo/other_suite/test_a.py", line 3, in x', FILE) is None
    assert line_in(f'E   File "/{FILE}", line 3, in x', FILE) is None
    assert line_in(f"file /repo/{FILE}, line 73\n  def test_x(nowhere):", FILE) == 73
    assert line_in('  File "/repo/a.py", line 3, in x', "") is None


@pytest.mark.parametrize(
    ("nodeid", "file"), [(f"{FILE}::T::t[a::b]", FILE), (FILE, ""), ("allranks::job", ""), ("c.T::t", "")]
)
def test_the_file_is_the_one_that_a_node_id_names(nodeid, file):
    assert file_of(nodeid) == file


pieces = st.sampled_from(
    [*LONG.split("\n"), *DUMP.split("\n"), *NATIVE.split("\n"), "  | ", "  +-+---- 1 ----", "", "E"]
)


@given(st.lists(pieces | st.text(max_size=20), max_size=40).map("\n".join))
def test_any_text_can_be_read_and_loses_nothing_but_frames_of_tools(text):
    kept = [
        line
        for line in text.split("\n")
        if not any(word in line for word in ("packages/", "allranks/", "frozen", "    "))
    ]
    lines = iter(folded(text).split("\n"))
    assert all(line in lines for line in kept)
    assert all(line.isprintable() for line in excerpt(text, FILE))


@pytest.mark.parametrize(
    "piece",
    quick(1, [
        "a:1: ", "-", "+", "+-", " |", "E\n", "a/", "\n\n", '  File "', '  File "a", line 1, in a\n', "a:1: in a\n",
        "a:1: \n\n", "_ _ _\n", "Traceback (most recent call last):\n", "Thread 0x", "  +- 1 -\n", "9", "\t", "suite/",
        'Current thread 0x (most recent call first):\n  File "a", line 1 in a\n',
    ]),
)  # fmt: skip
@pytest.mark.parametrize("around", quick(1, ["{}", '  File "{}', "/repo/suite/test_a.py:{}"]))
def test_no_text_takes_more_than_linear_time(piece, around):
    text = around.format(piece * (100_000 // len(piece)))
    began = time.process_time()
    folded(text), headline(text), excerpt(text, FILE, "x"), line_in(text + FILE, FILE)
    assert time.process_time() - began < 3


ENDED = "Process 1 terminated with the following error:"
CHILD = (
    f"torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- {ENDED}\n"
    'Traceback (most recent call last):\n  File "spawn.py", line 9, in _wrap\n    fn(i, *args)\n'
    '  File "t.py", line 3, in fail\n    raise ValueError("no room\\nat all")\nValueError: no room\nat all\n'
)
CHAINED = (
    "E: in a worker\nOriginal Traceback (most recent call last):\n  File: a\nKeyError: 1\n\n"
    "The above exception was the direct cause of the following exception:\n\n"
    "Traceback (most recent call last):\n  File: b\nOSError: full\n"
)
THREADS = "".join(
    f"Thread {number} exited with exception:\nTraceback (most recent call last):\n  File: a\n{error}: x\n\n\n"
    for number, error in ((1, "KeyError"), (0, "OSError"))
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"RuntimeError: {THREADS}", "RuntimeError: Thread 1 exited with exception: KeyError: x"),
        (CHILD, f"torch.multiprocessing.spawn.ProcessRaisedException: {ENDED} ValueError: no room"),
        (
            "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL",
            "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL",
        ),
        (CHAINED, "E: in a worker: OSError: full"),
        ("ExceptionGroup: several (2 sub-exceptions)", "ExceptionGroup: several (2 sub-exceptions)"),
        ("RuntimeError: \n\n  the cause\nmore", "RuntimeError: the cause"),
        ("RuntimeError: ======\n  fn FAILED\n------", "RuntimeError: fn FAILED"),
        ("AssertionError: these differ:\n- a: 1\n- b: 2", "AssertionError: these differ: a: 1"),
        ("a.b.Error:\nfirst:\nsecond:\nthird", "a.b.Error: first: second"),
        ("RuntimeError", "RuntimeError"),
        ("RuntimeError: ", "RuntimeError"),
        ("RuntimeError: \n \t\n", "RuntimeError"),
        ("test_it.Bad: <exception str() failed>", "test_it.Bad: <exception str() failed>"),
        ('  File "f.py", line 1\n    a b\n      ^\nSyntaxError: invalid syntax', "SyntaxError: invalid syntax"),
        ("assert 1 == 2", "assert 1 == 2"),
        ("E: no end\nTraceback (most recent call last):\n  File", "E: no end"),
        ("", ""),
        ("---", "---"),
    ],
)
def test_the_headline_of_an_exception_names_the_original_error(text, line):
    assert headline(text) == line


@given(st.lists(pieces | st.text(max_size=20) | st.sampled_from(["Traceback (most recent call last):", "A:", ":"])))
def test_a_headline_is_one_line_and_only_empty_for_nothing(found):
    line = headline("\n".join(found))
    assert len(line.splitlines()) < 2
    assert bool(line) == bool("\n".join(found).strip())


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/venv/lib/python3.11/site-packages/pkg/mod.py", "pkg/mod.py"),
        ("/usr/lib/python3/dist-packages/pkg/mod.py", "pkg/mod.py"),
        ("/home/me/.cache/allranks/projects/0a1b-2c3d/site/pkg/mod.py", "pkg/mod.py"),
        ("/home/me/projects/site/mod.py", "/home/me/projects/site/mod.py"),
    ],
)
def test_the_path_of_an_installed_file_starts_with_its_package(file, shown):
    assert below_packages(file) == shown
