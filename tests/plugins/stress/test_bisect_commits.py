"""``allranks bisect --git``: in which files a test runs, what is answered, and what is left behind."""

import json
import os
import subprocess
import tempfile

import pytest

from allranks.errors import ExitCode
from allranks.plugins.stress.git_worktree import GitHistory

NODEID = "suite/test_tiny.py::test_y"
IDENTITY = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@pytest.fixture
def git(in_repository, monkeypatch):
    """Run git in the repository, which is one of git now."""
    for name, value in {**IDENTITY, "GIT_CONFIG_GLOBAL": "/dev/null"}.items():
        monkeypatch.setenv(name, value)

    def git(*arguments):
        done = subprocess.run(
            ["/usr/bin/env", "git", *arguments], cwd=in_repository, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    git("init", "--quiet", "--initial-branch=main")
    return git


@pytest.fixture
def commits(git, in_repository):
    """Make a commit of each text of the test, tagged c0, c1 and so on."""

    def make(*texts):
        for number, text in enumerate(texts):
            (in_repository / "suite" / "test_tiny.py").write_text(text)
            git("add", "--all")
            git("commit", "--quiet", "--allow-empty", "--message", f"Change {number}")
            git("tag", f"c{number}")

    return make


@pytest.fixture
def bisect(allranks, fake_runs, monkeypatch, tmp_path):
    """Run the command, with the rate that the test's file has at each commit."""

    def rate_of(matrix, _job):
        text = (matrix.root / "suite" / "test_tiny.py").read_text()
        return text if text.startswith("It") or not text else float(text)

    def run(*arguments, **more):
        runs = fake_runs(**{"rate_of": rate_of, **more})
        monkeypatch.setattr("allranks.runner.run_jobs.run", runs)
        (tmp_path / "scratch").mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
        report = allranks("bisect", NODEID, "--suite", "tiny", "gloo-w2", *arguments)
        assert list((tmp_path / "scratch").iterdir()) == [], "the worktree is removed"
        return *report, runs

    return run


def test_it_finds_the_commit_with_its_subject_and_the_confidence(bisect, commits):
    commits("0", "0", "0", "0.5", "0.5", "0.5")
    code, out, err, runs = bisect("--git", "c0..c5")
    assert (code, err) == (ExitCode.OK, "")
    assert f"{NODEID} starts to fail with " in out
    assert "Change 3: it failed 5 of 10 times at BAD, and none of " in out
    assert "confidence 99" in out
    assert out.endswith("exit code 0: the commit is found\n")
    assert {jobs[0] for jobs, _ in runs.asked} == {"gloo-w2-g0-env/tiny"}
    assert all("-x" in options.pytest_args for _, options in runs.asked[1:]), "one failure makes a commit bad"


def test_a_low_rate_demands_more_repetitions_of_a_good_commit(bisect, commits):
    commits("0", "0", "0.05")
    _, _, _, runs = bisect("--git", "c0..c2")
    assert runs.counts[:4] == [10, 10, 20, 40]
    assert runs.counts[-1] > 100


def test_the_checkout_of_the_user_stays_as_it_is(bisect, commits, git, in_repository):
    commits("0", "0", "1", "1")
    (in_repository / "suite" / "test_tiny.py").write_text("changed, and not committed")
    (in_repository / "new.txt").write_text("")
    before = git("status", "--porcelain"), git("rev-parse", "HEAD"), git("symbolic-ref", "HEAD")
    assert bisect("--git", "c0..c3")[0] == ExitCode.OK
    after = git("status", "--porcelain"), git("rev-parse", "HEAD"), git("symbolic-ref", "HEAD")
    assert after == (before[0] + "\n?? results/" if "results" in after[0] else before[0], *before[1:])
    assert git("worktree", "list").count("\n") == 0


def test_a_commit_that_cannot_run_the_test_is_skipped(bisect, commits):
    commits("0", "0", "It cannot be collected.", "1", "1")
    code, out, _, _ = bisect("--git", "c0..")
    assert code == ExitCode.TESTS_FAILED
    assert "skipped: It cannot be collected." in out
    assert "starts to fail with one of 2 commits, some of which cannot run it: " in out


def test_programs_read_the_answer_alone(bisect, commits, git):
    commits("0", "It cannot be collected.", "0", "1")
    code, out, err, _ = bisect("--git", "c0..c3", "--json")
    report = json.loads(out)
    assert (code, report["exit_code"], report["suspects"]) == (0, 0, [git("rev-parse", "c3")])
    assert report["confidence"] >= 0.99
    assert {item["subject"].partition(" ")[2]: item["runs"] > 0 for item in report["commits"]}["Change 3"] is True
    assert "failed" in err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("texts", "span", "words"),
    [
        (("1", "1"), "c0..c1", "The test also fails at the good commit ("),
        (("0", "0"), "c0..c1", "The test never failed at the bad commit ("),
        (("It is new.", "1"), "c0..c1", "The test could not be run at the good commit ("),
        (("0", "It is old."), "c0..c1", "The test could not be run at the bad commit ("),
        (("0", "1"), "c0", "'c0' is not a range of commits"),
        (("0", "1"), "c0...c1", "'c0...c1' is not a range of commits"),
        (("0", "1"), "c1..c0", "no commits to search between c1 and c0"),
        (("0", "1"), "c0..c0", "no commits to search between c0 and c0"),
        (("0", "1"), "c0..c9", "There is no commit 'c9'"),
        (("0", "1"), "--all..c1", "There is no commit '--all'"),
    ],
)
def test_a_range_that_is_none_is_an_error(bisect, commits, texts, span, words):
    commits(*texts)
    code, _, err, _ = bisect(f"--git={span}", "--most", "20")
    assert code == ExitCode.USAGE
    assert words in err


def test_an_interrupted_run_leaves_no_worktree(bisect, commits, git):
    commits("0", "1")
    assert bisect("--git", "c0..c1", code=ExitCode.INTERRUPTED)[0] == ExitCode.INTERRUPTED
    assert git("worktree", "list").count("\n") == 0


def test_an_interpreter_that_imports_the_checkout_is_refused(bisect, commits, in_repository):
    python = in_repository / "python"
    python.write_text(f'#!/bin/sh\necho \'["/usr", "{in_repository}/src"]\'\n')
    python.chmod(0o755)
    with (in_repository / "matrix.toml").open("a") as file:
        file.write('\n[process]\npython = "./python"\n')
    commits("0", "1")
    code, _, err, runs = bisect("--git", "c0..c1")
    assert (code, runs.asked) == (ExitCode.USAGE, [])
    assert f"imports from your checkout ({in_repository}/src), whichever commit is tested" in err
    assert bisect("--git", "c0..c1", "--engine", "docker")[0] == ExitCode.OK


def test_what_the_path_of_python_has_of_the_checkout_is_that_of_the_commit(bisect, commits, in_repository, monkeypatch):
    (in_repository / "src").mkdir()
    (in_repository / "src" / "a.py").write_text("")
    commits("0", "1")
    ignored = f"{in_repository}/.venv{os.pathsep}/elsewhere"
    monkeypatch.setenv("PYTHONPATH", f"{in_repository}/src{os.pathsep}{ignored}")
    seen = []

    def rate_of(matrix, _job):
        seen.append((os.environ["PYTHONPATH"], f"{matrix.root}/src{os.pathsep}{ignored}"))
        return float((matrix.root / "suite" / "test_tiny.py").read_text())

    bisect("--git", "c0..c1", rate_of=rate_of)
    assert all(there == own for there, own in seen)
    assert os.environ["PYTHONPATH"].startswith(f"{in_repository}/src")


def test_a_hook_and_the_variables_of_one_do_not_matter(bisect, commits, in_repository, monkeypatch):
    commits("0", "1")
    hook = in_repository / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {in_repository}/ran\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert bisect("--git", "c0..c1")[0] == ExitCode.OK
    assert not (in_repository / "ran").exists()


def test_files_that_a_commit_left_are_gone_at_the_next(git, commits, in_repository):
    commits("0", "1")
    with GitHistory(in_repository).worktree(git("rev-parse", "c1")) as tree:
        (tree.top / "suite" / "__pycache__").mkdir()
        tree.check_out(git("rev-parse", "c0"))
        assert sorted(path.name for path in (tree.top / "suite").iterdir()) == ["test_tiny.py"]
    assert not tree.top.parent.exists()
