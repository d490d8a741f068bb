"""The command line as a whole: how it is split, and how errors are reported."""

import re
import subprocess
import sys

import pytest

from allranks.cli import main as cli
from allranks.errors import EngineError

pytestmark = pytest.mark.usefixtures("repository")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "nccl-w1-g0-env"], "a GPU for each rank"),
        (["plan", "gloo-w3-g0-env"], "3"),
        (["plan", "--where", "backned=gloo"], "backend"),
        (["plan", "--suite", "tinny"], "tiny"),
        (["run", "--suite", "tinny"], "tiny"),
        (["run", "--suite", "other", "gloo-w1-g0-env"], "nothing to run"),
        (["run", "--suite", "other", "gloo-w1-g0-env"], "other runs in cells with world_size == 2"),
        (["report", "nowhere"], "no results folder"),
        (["plan", "--matrix", "nowhere.toml"], "nowhere.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_requests_are_errors_with_a_remedy(allranks, arguments, message):
    code, out, err = allranks(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("allranks: error: ")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "There is no matrix file."),
        ("[matrix", "matrix.toml"),
        ("[matrix]\nbackend = ['glo']\nworld_size = [1]\n[suites]\nt.path = 'suite'\n[images.i]\n", "gloo"),
        ("[matrix]\nbackend = ['gloo']\nworld_size = [1]\n[suite.tiny]\npath = 'suite'\n", "suites"),
    ],
    ids=["missing", "no TOML", "unknown backend", "unknown key"],
)
def test_wrong_matrix_files_are_errors_with_a_remedy(allranks, repository, text, message):
    (repository / "matrix.toml").unlink()
    if text is not None:
        (repository / "matrix.toml").write_text(text)
    for command in ("plan", "run"):
        code, out, err = allranks(command)
        assert (code, out) == (2, "")
        assert message in err
        assert "Traceback" not in err


def test_debug_adds_the_traceback_to_the_error(allranks):
    code, _, err = allranks("--debug", "plan", "nope")
    assert code == 2
    assert "Traceback" in err
    assert "allranks: error: There is no cell 'nope'." in err


def test_an_infrastructure_error_has_its_own_exit_code(allranks, monkeypatch):
    def fail(*_):
        raise EngineError("No daemon.", why="Refused.", remedy="Start one.")  # noqa: EM101

    monkeypatch.setattr("allranks.runner.run_jobs.run", fail)
    code, _, err = allranks("run")
    assert code == 4
    assert err == "allranks: error: No daemon.\n  Refused.\n  Start one.\n"


def test_an_interrupt_is_exit_code_130_and_no_traceback(allranks, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("allranks.runner.run_jobs.run", interrupt)
    assert allranks("run") == (130, "", "\nallranks: interrupted\n")


@pytest.mark.parametrize(
    "arguments", [[], ["nope"], ["plan", "--nope"], ["doctor", "a", "b"], ["report", "x", "--policy", "y"]], ids=str
)
def test_a_wrong_command_line_is_exit_code_2(allranks, arguments):
    code, _, err = allranks(*arguments)
    assert code == 2
    assert "usage" in err


def test_version_is_printed(allranks):
    assert allranks("--version")[1].startswith("allranks 0.")


def test_a_plan_needs_neither_docker_nor_junitparser():
    program = "import sys; from allranks.cli.main import main; main(['plan']); print(*sorted(sys.modules), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines())
    assert "allranks.matrix.jobs" in loaded
    assert not {"docker", "junitparser", "requests", "torch"} & loaded


def test_pytests_arguments_begin_after_the_first_dashes():
    assert cli._split(["run", "--", "-k", "a", "--", "b"]) == (["run"], ("-k", "a", "--", "b"))
    assert cli._split(["run"]) == (["run"], ())


def test_a_bug_in_allranks_is_reported_without_a_traceback(allranks, monkeypatch):
    def fail(*_):
        raise AttributeError("no such thing")  # noqa: EM101

    monkeypatch.setattr("allranks.runner.run_jobs.run", fail)
    code, _, err = allranks("run")
    assert code == 4
    assert err.startswith("allranks: error: allranks crashed: AttributeError: no such thing\n")
    assert "Traceback" not in err
    assert "--debug" in err


@pytest.mark.parametrize(
    "command",
    [
        f"plan {'x' * 300}.py",
        f"plan --matrix {'x' * 300}.toml",
        f"report {'x' * 300}",
        f"show {'x' * 300}.xml",
        f"init {'x' * 300}",
    ],
    ids=lambda command: command.partition("x")[0],
)
def test_an_error_of_the_operating_system_names_the_path(allranks, command):
    code, out, err = allranks(*command.split())
    assert (code, out) == (4, "")
    assert re.match(r"allranks: error: \S*x{100}\S* cannot be used\.\n  File name too long\.\n  Check paths", err)


def test_a_folder_that_was_removed_is_an_error_with_its_cause(allranks, tmp_path, monkeypatch):
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    code, out, err = allranks("plan")
    assert (code, out) == (4, "")
    assert err.startswith("allranks: error: The operating system reports an error.\n  No such file or directory.\n")
