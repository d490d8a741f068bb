"""Which results of ``pytest --ranks`` are kept in the temporary folder."""

import os
import subprocess
import sys
import tempfile

import pytest
from long_lists import quick

from allranks.pytest_plugin import kept_results
from allranks.pytest_plugin.kept_results import KEPT, new_folder, remove, remove_older


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


SESSION = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from allranks.pytest_plugin.kept_results import new_folder, remove_older

folder = new_folder()
(folder / "log").touch()
remove_older()
print(folder.name, flush=True)
sys.stdin.read()
"""


def start_session(temporary):
    process = subprocess.Popen(
        [sys.executable, "-c", SESSION, str(temporary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    name = process.stdout.readline().strip()
    return process, name


def run_session(temporary):
    process, name = start_session(temporary)
    process.communicate()
    return name


def kept(temporary):
    [root] = temporary.iterdir()
    return sorted(path.name for path in root.iterdir())


def test_the_results_of_the_last_sessions_are_kept(temporary):
    names = [run_session(temporary) for _ in range(KEPT + 2)]
    assert names == [f"session-{number}" for number in range(1, KEPT + 3)]
    assert kept(temporary) == names[-KEPT:]


@pytest.mark.thorough
def test_the_results_of_a_running_session_are_kept(temporary):
    process, name = start_session(temporary)
    others = [run_session(temporary) for _ in range(KEPT + 1)]
    assert kept(temporary) == [name, *others[-KEPT:]]
    process.communicate()
    last = run_session(temporary)
    assert kept(temporary) == [*others[-KEPT + 1 :], last]


def test_a_passed_session_leaves_no_results(temporary):
    first, second = new_folder(), new_folder()
    remove(first)
    assert kept(temporary) == [second.name]
    remove(second)
    assert list(temporary.iterdir()) == []


def test_a_session_begins_while_another_removes_the_last_results(temporary, monkeypatch):
    parent, calls = kept_results.root(), []
    numbered = kept_results._sessions

    def remove_and_look(folder):
        calls.append(folder)
        if len(calls) == 1:
            parent.rmdir()
        return numbered(folder)

    monkeypatch.setattr(kept_results, "_sessions", remove_and_look)
    assert new_folder().parent.parent == temporary


def test_concurrent_sessions_have_separate_folders(temporary):
    sessions = [start_session(temporary) for _ in range(4)]
    for process, _ in sessions:
        process.communicate()
    assert len({name for _, name in sessions}) == 4


def test_only_this_user_can_read_the_results(temporary):
    folder = new_folder()
    assert folder.is_relative_to(temporary)
    assert [path.stat().st_mode & 0o777 for path in (folder, folder.parent)] == [0o700, 0o700]


def as_link(root, elsewhere):
    root.symlink_to(elsewhere)


def as_dangling_link(root, elsewhere):
    root.symlink_to(elsewhere / "nowhere")


def as_file(root, _elsewhere):
    root.touch()


def as_open_folder(root, _elsewhere):
    root.mkdir()
    root.chmod(0o777)


def as_folder_of_another_user(root, _elsewhere):
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder of another user")
    root.mkdir(mode=0o700)
    os.chown(root, 65534, 65534)


@pytest.mark.parametrize("made", [as_link, as_dangling_link, as_file, as_open_folder, as_folder_of_another_user])
def test_a_folder_that_is_not_safe_is_not_used(temporary, made, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for number in range(KEPT + 3):
        (elsewhere / f"session-{number}").mkdir()
    before = sorted(elsewhere.iterdir())
    root = temporary / f"allranks-ranks-of-{os.geteuid()}"
    made(root, elsewhere)
    folder = new_folder()
    assert folder.parent == temporary
    assert folder.stat().st_mode & 0o777 == 0o700
    remove_older()
    assert sorted(elsewhere.iterdir()) == before


def test_a_link_among_the_sessions_is_not_followed(temporary, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "file").touch()
    root = kept_results.root()
    (root / "session-1").symlink_to(elsewhere)
    for _ in range(KEPT + 1):
        run_session(temporary)
    assert (elsewhere / "file").exists()


@pytest.mark.parametrize("name", quick(1, ["session-", "session-x", "session-1-old", "mine"]))
def test_what_has_another_name_stays(temporary, name):
    (kept_results.root() / name).mkdir()
    for _ in range(KEPT + 1):
        run_session(temporary)
    assert name in kept(temporary)
