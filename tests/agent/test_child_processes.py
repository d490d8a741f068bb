"""Messages about the processes that a test has started, from the events that these have written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from allranks.agent import child_observer
from allranks.agent.child_processes import (
    Began,
    Ended,
    Left,
    Named,
    PassedOn,
    Ranked,
    Replaced,
    Signaled,
    labels_of_children,
    primary,
    read_children,
    table,
    workers_that_raised,
)
from allranks.protocol.typed_json import encode_line

STARTER, FIRST, SECOND = 10, 11, 12
IN_TORCH = (
    '  File "/x-packages/torch/distributed/distributed_c10d.py", line 9 in all_reduce\n  File "/s/a.py", line 2 in f\n'
)
IN_TEST = '  File "/s/a.py", line 3 in g\n'


@pytest.fixture
def events(tmp_path):
    """Write events to the files of their processes."""

    def write(**by_writer):
        for writer, written in by_writer.items():
            lines = b"".join(encode_line(event) + b"\n" for event in written)
            (tmp_path / writer.removeprefix("p")).write_bytes(lines)
        return tmp_path

    return write


def left(pid, at, stack=IN_TEST, **fields):
    return Left(pid=pid, at=at, status=1, message="ValueError: boom", text="Traceback", stack=stack, **fields)


def words(folder, own_rank=None):
    return [f"{child.label} {child.ending(Path('/s'))}" for child in read_children(folder, own_rank)]


def test_a_process_has_the_rank_of_its_group_and_the_line_of_its_exception(events):
    folder = events(p10=[Named(pid=FIRST, at=1, name="Process-1")], p11=[left(FIRST, 2, rank=3)])
    assert words(folder) == ["child process (rank 3) raised ValueError: boom at a.py:3"]


def test_a_rank_that_all_processes_inherited_is_not_shown(events):
    folder = events(
        p10=[Named(pid=FIRST, at=1, name="Process-1"), Named(pid=SECOND, at=1, name="Process-2")],
        p11=[left(FIRST, 2, rank=1)],
        p12=[Began(pid=SECOND, at=1, rank=1)],
    )
    assert words(folder, own_rank=1) == ["child process Process-1 raised ValueError: boom at a.py:3"]
    assert labels_of_children(folder, 1) == {FIRST: "child process Process-1", SECOND: "child process Process-2"}
    assert labels_of_children(folder, 0) == {FIRST: "child process (rank 1)", SECOND: "child process (rank 1)"}


@pytest.mark.parametrize(("index", "own_rank"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_an_inherited_rank_does_not_hide_the_index_of_torch(events, index, own_rank):
    folder = events(
        p10=[Named(pid=FIRST, at=1, name="A", rank=index), Named(pid=SECOND, at=1, name="B", rank=1 - index)],
        p11=[Began(pid=FIRST, at=1, rank=own_rank), left(FIRST, 2, rank=own_rank)],
        p12=[Began(pid=SECOND, at=1, rank=own_rank)],
    )
    [child] = read_children(folder, own_rank)
    assert child.rank == index


def test_unnamed_processes_are_numbered_in_the_order_of_their_starts(events):
    folder = events(
        p10=[Ended(pid=FIRST, at=4, status=-9), Ended(pid=SECOND, at=5, status=-9)],
        p11=[Began(pid=FIRST, parent=STARTER, at=2)],
        p12=[Began(pid=SECOND, parent=STARTER, at=1)],
        p13=[Began(pid=13, parent=SECOND, at=3), left(13, 6)],
    )
    assert [child.label for child in read_children(folder, None)] == [
        "child process 2 of 2",
        "child process 1 of 2",
        "a child process",
    ]


def test_a_process_has_the_rank_that_it_has_set(events):
    folder = events(
        p10=[Named(pid=FIRST, at=1, name="A"), Ended(pid=FIRST, at=3, status=-9)],
        p11=[Began(pid=FIRST, at=1, rank=0), Ranked(pid=FIRST, at=2, rank=4)],
    )
    assert words(folder, own_rank=0) == ["child process (rank 4) was killed by SIGKILL"]
    assert labels_of_children(folder, 0) == {FIRST: "child process (rank 4)"}


def test_processes_of_an_earlier_test_are_marked_unless_they_ended_before(events):
    folder = events(
        p10=[Named(pid=FIRST, at=1, name="A")],
        p11=[left(FIRST, 5)],
        p12=[Began(pid=SECOND, at=1), left(SECOND, 3)],
    )
    [child] = read_children(folder, None, since=4)
    assert child.label == "child process A of an earlier test"


def test_a_process_of_an_earlier_test_leads_last(events):
    folder = events(
        p10=[Named(pid=FIRST, at=1, name="A"), Named(pid=SECOND, at=5, name="B")],
        p11=[left(FIRST, 6)],
        p12=[left(SECOND, 7, IN_TORCH)],
    )
    assert primary(read_children(folder, None, since=4)).pid == SECOND


def test_a_worker_is_reported_with_its_first_exception_of_the_test(events):
    old, new, next_one = (
        PassedOn(pid=FIRST, at=at, message=f"ValueError: {at}", stack=IN_TEST, rank=1) for at in (2, 5, 6)
    )
    folder = events(p11=[Began(pid=FIRST, at=1), old, new, next_one])
    assert read_children(folder, None, since=4) == []
    [child] = workers_that_raised(folder, None, since=4)
    assert child.message(Path("/s")) == "child process (rank 1) of an earlier test raised ValueError: 5 at a.py:3"


@pytest.mark.parametrize(
    ("first", "second", "leads"),
    [
        (left(FIRST, 2), left(SECOND, 3), FIRST),
        (left(FIRST, 3), left(SECOND, 2), SECOND),
        (left(FIRST, 2, IN_TORCH), left(SECOND, 3), SECOND),
        (left(FIRST, 2, IN_TORCH), left(SECOND, 3, IN_TORCH), FIRST),
    ],
)
def test_the_first_that_did_not_wait_for_a_peer_leads(events, first, second, leads):
    folder = events(
        p10=[Named(pid=FIRST, at=1, name="Process-1"), Named(pid=SECOND, at=1, name="Process-2")],
        p11=[first],
        p12=[second],
    )
    children = read_children(folder, None)
    assert primary(children).pid == leads
    assert table(children, Path("/s")).count("\n") == 2


@pytest.mark.parametrize(("sender", "stopped"), [(STARTER, True), (FIRST, False), (SECOND, False)])
def test_only_an_ancestor_stops_a_process(events, sender, stopped):
    signaled = Signaled(pid=FIRST, at=2, number=15)
    ended = [Named(pid=FIRST, at=1, name="Process-1"), Ended(pid=FIRST, at=3, status=-15)]
    own = {STARTER: ended, FIRST: [Began(pid=FIRST, at=1)], SECOND: [Began(pid=SECOND, at=1)]}
    own[sender] = [*own[sender], signaled]
    [child] = read_children(events(**{f"p{writer}": written for writer, written in own.items()}), None)
    assert child.was_stopped == stopped
    assert (primary([child]) is None) == stopped


@pytest.mark.parametrize(
    ("written", "count"),
    [
        ([Ended(pid=FIRST, at=1, status=1)], 0),  # another program, for which it may mean "no"
        ([Ended(pid=FIRST, at=1, status=-9)], 1),
        ([Began(pid=FIRST, at=1), Ended(pid=FIRST, at=2, status=1)], 1),
        ([Began(pid=FIRST, at=1), Ended(pid=FIRST, at=2, status=77)], 0),  # one of torch's skips
        ([Began(pid=FIRST, at=1)], 0),
        ([Began(pid=FIRST, at=1), Replaced(pid=FIRST, at=2), Ended(pid=FIRST, at=3, status=1)], 0),
        ([Ended(pid=FIRST, at=1, status=-13)], 0),  # SIGPIPE
        ([left(FIRST, 1)], 1),
    ],
)
def test_which_ends_count(events, written, count):
    assert len(read_children(events(p10=written), None)) == count


@pytest.mark.parametrize(
    ("number", "status", "sent", "stopped"),
    [(15, -15, 2, True), (15, 3, 2, True), (15, -11, 2, False), (15, -15, 4, False), (10, 3, 2, False)],
)
def test_a_signal_stops_a_process_that_ends_with_it(events, number, status, sent, stopped):
    signaled, ended = Signaled(pid=FIRST, at=sent, number=number), Ended(pid=FIRST, at=3, status=status)
    [child] = read_children(events(p10=[Named(pid=FIRST, at=1, name="A"), signaled, ended]), None)
    assert child.was_stopped == stopped
    assert (child.ending(Path()) == "was stopped by the test (SIGTERM)") == stopped


def test_a_process_may_be_stopped_by_any_ancestor(events):
    folder = events(
        p10=[Named(pid=FIRST, at=1, name="A"), Signaled(pid=SECOND, at=2, number=9)],
        p11=[Began(pid=FIRST, parent=STARTER, at=1), Ended(pid=SECOND, at=3, status=-9)],
        p12=[Began(pid=SECOND, parent=FIRST, at=1)],
    )
    [child] = read_children(folder, None)
    assert child.was_stopped


@pytest.mark.thorough
def test_hostile_files_neither_block_nor_displace_small_ones(events):
    folder = events(p10=[Ended(pid=FIRST, at=2, status=-9)])
    os.mkfifo(folder / "9")
    (folder / "8").symlink_to("/dev/zero")
    for number in range(20, 1_300):
        (folder / str(number)).write_bytes(encode_line(Began(pid=number, at=1)) + b"\n")
    (folder / "7").write_bytes(b"[]\n" * (8 << 20))
    assert words(folder) == ["a child process was killed by SIGKILL"]


def test_damaged_events_are_ignored(events):
    folder = events(p10=[Began(pid=FIRST, at=1), Ended(pid=FIRST, at=2, status=1)])
    with (folder / "10").open("ab") as file:
        file.write(b'["Left", {"pid": 11\n\xff\n["Nothing", {}]\n')
    (folder / "notes").write_text("of someone else")
    assert words(folder) == ["a child process ended with exit status 1"]
    assert read_children(folder / "absent", None) == []


OWN = "import builtins\nbuiltins.own_was_here = __file__\n"


def run(tmp_path, code, *, observed, sitecustomize=OWN):
    own = tmp_path / "own"
    own.mkdir(exist_ok=True)
    (own / "sitecustomize.py").write_text(sitecustomize)
    paths = [child_observer.PYTHON_PATH, str(own)] if observed else [str(own)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), child_observer.FOLDER: str(tmp_path / "events")}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "code",
    [
        "import sys; print(sys.path)",
        "import sys; print(sys.excepthook is sys.__excepthook__)",
        "print(own_was_here)",
        "import sitecustomize as s; print(s)",
    ],
)
def test_the_observer_is_invisible_to_a_program(tmp_path, code):
    observed, plain = run(tmp_path, code, observed=True), run(tmp_path, code, observed=False)
    assert (observed.stdout, observed.stderr) == (plain.stdout, plain.stderr)


def test_the_folder_of_events_is_not_recreated_after_its_gang(tmp_path):
    gone = tmp_path / "gone"
    environment = {**os.environ, "PYTHONPATH": child_observer.PYTHON_PATH, child_observer.FOLDER: str(gone / "events")}
    subprocess.run([sys.executable, "-c", "1 / 0"], env=environment, stderr=subprocess.DEVNULL, check=False)
    assert not gone.exists()


def test_a_sitecustomize_of_the_user_that_fails_is_visible(tmp_path):
    runs = (run(tmp_path, "", observed=observed, sitecustomize="import absent") for observed in (True, False))
    observed, plain = runs
    assert "No module named 'absent'" in plain.stderr
    assert observed.stderr == plain.stderr


def test_an_exception_that_a_program_only_prints_is_not_its_end(tmp_path):
    shown = "import sys\ntry:\n    1 / 0\nexcept Exception:\n    sys.excepthook(*sys.exc_info())"
    assert run(tmp_path, shown, observed=True).returncode == 0
    assert read_children(tmp_path / "events", None) == []


ONE_FAILS_AFTER_ITS_PEER_DIED = """
import os, signal
reader, writer = os.pipe()
pids = [os.fork()]
if not pids[0]:
    os.close(writer)
    os.read(reader, 1)  # until the other has died
    1 / 0
pids.append(os.fork())
if not pids[1]:
    os.kill(os.getpid(), signal.SIGKILL)
os.close(writer)
for pid in pids:
    os.waitpid(pid, 0)
"""


def test_a_process_that_died_leads_although_its_parent_waited_for_another_one_first(tmp_path):
    assert run(tmp_path, ONE_FAILS_AFTER_ITS_PEER_DIED, observed=True).returncode == 0
    children = read_children(tmp_path / "events", None)
    assert len(children) == 2
    assert primary(children).ending(Path()) == "was killed by SIGKILL"


DIVISION = "raised ZeroDivisionError: division by zero at <string>:1"


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("1 / 0", DIVISION),
        ("exec('f(:')", "raised SyntaxError: invalid syntax at <string>:1"),
        # Like torch.distributed.init_process_group:
        ("import sys; hook = sys.excepthook; sys.excepthook = lambda *args: hook(*args); 1 / 0", DIVISION),
    ],
)
def test_an_observed_program_fails_as_without_the_observer(tmp_path, code, ending):
    observed, plain = (run(tmp_path, code, observed=is_observed) for is_observed in (True, False))
    assert (observed.returncode, observed.stderr) == (plain.returncode, plain.stderr)
    [child] = read_children(tmp_path / "events", None)
    assert child.ending(Path()) == ending
