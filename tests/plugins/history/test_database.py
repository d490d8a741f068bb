"""Damaged, foreign, locked and newer files, two merges at once, and a merge that is killed: no report is lost."""

import math
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from allranks.errors import ExitCode
from allranks.plugins.history import recorder
from allranks.plugins.history.database import HistoryError, read, written
from allranks.plugins.history.recorder import HistoryRecorder
from allranks.plugins.history.trends import History
from allranks.report.judge.exit_code import exit_code
from allranks.report.judged import CellSuite
from allranks.report.merging import merge
from allranks.report.results import TestVerdict, Verdict, VerdictKind, VerdictRule
from allranks.report.summary import render_table

A = "s/test_a.py::test_one"
PASSED = Verdict(kind=VerdictKind.PASSED, rule=VerdictRule.PASSED)


def spoilt(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def zeros(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:20480] = bytes(16384)
    path.write_bytes(content)


ENDLESS = "CREATE VIEW job AS WITH RECURSIVE n(run) AS (SELECT 1 UNION ALL SELECT run + 1 FROM n) SELECT run FROM n"
TRIGGER = "CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM run; END"
DAMAGE = {
    "text": (lambda path: path.write_text("hello " * 1000), "is not a history"),
    "cut off": (cut, "is damaged"),
    "zeros": (zeros, "is damaged"),
    "no tables": (lambda path: spoilt(path, "DROP TABLE job", "DROP TABLE change"), "is damaged"),
    "odd status": (lambda path: spoilt(path, "UPDATE change SET status = x'1234'"), "is damaged"),
    "odd letter": (lambda path: spoilt(path, "UPDATE change SET status = 'X'"), "is damaged"),
    "odd number": (lambda path: spoilt(path, "UPDATE job SET run = 'text'"), "is damaged"),
    "odd name": (lambda path: spoilt(path, "UPDATE run SET id = x'00'"), "is damaged"),
    "odd text": (lambda path: spoilt(path, "UPDATE run SET id = CAST(x'ff' AS TEXT)"), "cannot be used"),
    "odd time": (lambda path: spoilt(path, "UPDATE run SET number = 1 << 40"), "is damaged"),
    "odd byte": (lambda path: path.write_bytes(path.read_bytes().replace(b"UNIQUE", b"UN\xe6QUE")), "is damaged"),
    "endless view": (lambda path: spoilt(path, "DROP TABLE job", ENDLESS), "is damaged"),
    "trigger": (lambda path: spoilt(path, TRIGGER), "is damaged"),
    "newer": (lambda path: spoilt(path, "PRAGMA user_version = 99"), "is of schema 99, but this version of allranks"),
    "older": (
        lambda path: spoilt(path, "PRAGMA user_version = 1"),
        "is of schema 1, but this version of allranks reads schema 3",
    ),
    "foreign": (lambda path: spoilt(path, "PRAGMA application_id = 5"), "is a database of another program"),
    "folder": (lambda path: (path.unlink(), path.mkdir()), "is not a regular file"),
    "FIFO": (lambda path: (path.unlink(), os.mkfifo(path)), "is not a regular file"),
    "gone folder": (lambda path: (path.unlink(), path.symlink_to("/nowhere/x")), "cannot be used"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_whatever_is_wrong_with_the_file_the_report_and_the_verdict_stay(merged, tmp_path, damage):
    path = tmp_path / "history.sqlite"
    merged(1, {A: "passed"})
    spoil, message = DAMAGE[damage]
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    found = merged(2, {A: "failed"})
    assert exit_code(found.run, nothing_ran_allowed=False) is ExitCode.TESTS_FAILED
    assert f"{path} does not have this run: it {message}" in found.history.problem
    assert found.history.problem in found.run.notes
    assert "does not have this run" in " ".join(render_table(found.run).split())
    assert all(file.exists() for file in (found.run.junit, found.run.page, found.run.summary))
    assert (path.read_bytes() if path.is_file() else None) == before


@pytest.mark.parametrize("damage", sorted(DAMAGE.keys() - {"odd number", "folder"}))
def test_the_command_has_one_error_for_whatever_is_wrong_with_the_file(merged, allranks, tmp_path, damage):
    path = tmp_path / "history.sqlite"
    merged(1, {A: "passed"})
    spoil, message = DAMAGE[damage]
    spoil(path)
    for arguments in ([], [A], ["--json"]):
        code, out, err = allranks("history", *arguments, "--history", str(path))
        assert (code, out) == (2, "")
        assert f"{path} cannot be read as a history: it {message}" in err


def test_an_empty_file_is_a_new_history(merged, tmp_path):
    (tmp_path / "history.sqlite").touch()
    assert merged(1, {A: "passed"}).history.runs == 1


def test_a_bug_of_ours_does_not_lose_a_report_and_is_not_called_damage(run_folder, tmp_path, monkeypatch):
    run_folder.manifest("gloo-w2-g0-env/suite")
    run_folder.both("gloo-w2-g0-env/suite", {A: "passed"})

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(recorder, "record", broken)
    found = merge(run_folder.path, environ={}, observers=[HistoryRecorder(tmp_path / "history.sqlite")])
    assert any("The section history is missing" in note and "ZeroDivisionError" in note for note in found.notes)
    assert exit_code(found, nothing_ran_allowed=False) is ExitCode.OK


@pytest.mark.parametrize("wrong", ["SELECT absent FROM run", "SELEC 1", "SELECT :unknown", "BEGIN"])
@pytest.mark.parametrize("opened", [read, written])
def test_sql_of_ours_that_is_wrong_is_not_called_damage(merged, tmp_path, opened, wrong):
    merged(1, {A: "passed"})
    with pytest.raises(sqlite3.Error), opened(tmp_path / "history.sqlite") as database:
        database.execute(wrong, {})


def test_a_python_without_sqlite_merges_all_the_same(merged, monkeypatch):
    monkeypatch.setitem(sys.modules, "sqlite3", None)
    found = merged(1, {A: "failed"})
    assert "it needs the module sqlite3, which this Python does not have" in found.history.problem
    assert exit_code(found.run, nothing_ran_allowed=False) is ExitCode.TESTS_FAILED


WITHOUT_SQLITE = "import sys; sys.modules['sqlite3'] = None; import allranks.report.merging, allranks.cli.main"


def test_nothing_that_a_run_imports_needs_sqlite():
    subprocess.run([sys.executable, "-c", WITHOUT_SQLITE], check=True, timeout=60)


def recorder_of(path, number, tests=50, timeout=30.0):
    found = HistoryRecorder(path, timeout=timeout)
    cases = [TestVerdict(nodeid=f"t{test}", classname="", name="", verdict=PASSED) for test in range(tests)]
    found(CellSuite(cell="c", suite="s", tests=tuple(cases), started=float(number)))
    return found


@pytest.mark.parametrize("started", [4e12, -1.0, math.inf, math.nan])
def test_a_start_that_is_no_moment_is_unknown(tmp_path, started):
    path, before = tmp_path / "h.sqlite", int(time.time())
    assert not recorder_of(path, started).record("r1").problem
    with read(path) as database:
        [run] = History(database).runs
    assert before <= run.started <= time.time()


def test_a_file_that_another_process_holds_is_left_alone_after_a_while(tmp_path):
    path = tmp_path / "h.sqlite"
    with written(path):
        recorded = recorder_of(path, 1, timeout=0.05).record("r1")
    assert recorded.problem == f"{path} does not have this run: it has been locked by another process for 0.05 s."


def test_a_file_that_may_not_be_written_is_read(tmp_path, monkeypatch):
    path = tmp_path / "h.sqlite"
    recorder_of(path, 1).record("r1")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with read(path) as database:
        assert [run.id for run in History(database).runs] == ["r1"]


def test_there_has_to_be_a_history_to_read(tmp_path):
    with pytest.raises(HistoryError, match="does not exist"), read(tmp_path / "none.sqlite"):
        pass
    (tmp_path / "empty.sqlite").touch()
    with pytest.raises(HistoryError, match="has no run yet"), read(tmp_path / "empty.sqlite"):
        pass


ONE_OF_MANY = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_database import recorder_of
for number in range(int(sys.argv[1]), int(sys.argv[1]) + 5):
    recorded = recorder_of(Path({path!r}), number).record(f"r{{number}}")
    assert not recorded.problem, recorded.problem
"""


@pytest.mark.thorough
def test_several_merges_at_once_lose_no_run(tmp_path):
    path = tmp_path / "h.sqlite"
    script = ONE_OF_MANY.format(here=str(Path(__file__).parent), path=str(path))
    merges = [subprocess.Popen([sys.executable, "-c", script, str(first)]) for first in (0, 5, 10)]
    assert [merge.wait(120) for merge in merges] == [0, 0, 0]
    with read(path) as database:
        assert [run.id for run in History(database).runs] == [f"r{number}" for number in range(15)]


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_database import recorder, recorder_of
record = recorder.record
def record_and_die(database, *given):
    database.execute("PRAGMA cache_size = 1")  # pages are written before the transaction ends
    record(database, *given)
    os.kill(os.getpid(), signal.SIGKILL)
recorder.record = record_and_die
recorder_of(Path({path!r}), 2, tests=9000).record("r2")
"""


def test_a_merge_that_is_killed_while_it_writes_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "h.sqlite"
    recorder_of(path, 1, tests=5000).record("r1")
    script = KILLED.format(here=str(Path(__file__).parent), path=str(path))
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert path.with_name("h.sqlite-journal").exists(), "it was in the middle"
    with read(path) as database:
        assert [run.id for run in History(database).runs] == ["r1"]
    assert not recorder_of(path, 2).record("r2").problem
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


FULL = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_database import recorder_of
size = Path({path!r}).stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4096, size + 4096))
print(recorder_of(Path({path!r}), 2, tests=9000).record("r2").problem)
"""


@pytest.mark.thorough
def test_a_disk_that_is_full_is_one_sentence_and_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "h.sqlite"
    recorder_of(path, 1).record("r1")
    before = path.read_bytes()
    script = FULL.format(here=str(Path(__file__).parent), path=str(path))
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.startswith(f"{path} does not have this run: it cannot be used (")
    assert (len(done.stdout.splitlines()), done.stderr, path.read_bytes()) == (1, "", before)


READ_ONLY = """
import os, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_database import recorder_of
recorder_of(Path({folder!r}, "h.sqlite"), 1).record("r1")  # imports all that it needs
os.chmod({folder!r} + "/h.sqlite", 0o444)
os.chmod({folder!r}, 0o555)
if os.geteuid() == 0:
    os.setgroups([])
    os.setuid(65534)
for name in ("h.sqlite", "new.sqlite", "closed/h.sqlite"):
    print(recorder_of(Path({folder!r}, name), 2).record("r2").problem)
"""


def test_a_place_that_may_not_be_written_is_one_sentence():
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "closed").mkdir(mode=0)
        script = READ_ONLY.format(here=str(Path(__file__).parent), folder=name)
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
        folder.chmod(0o755)
    assert [line.partition(" it ")[2] for line in done.stdout.splitlines()] == [
        "cannot be used (attempt to write a readonly database).",
        "cannot be used (unable to open database file).",
        "cannot be read (Permission denied).",
    ]
