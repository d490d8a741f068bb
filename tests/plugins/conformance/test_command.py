"""``allranks conformance``: what it runs, and what it makes of the results."""

import json
from types import SimpleNamespace

import pytest

from allranks.cli.main import main
from allranks.errors import ExitCode
from allranks.plugins.conformance import command as conformance
from allranks.plugins.conformance.capabilities import BadTest, Capability, CapabilityCell, CapabilityKey, as_document


def table(**states):
    """The document of a run of the backend ``gloo``, by operation."""
    cells = {}
    for operation, state in states.items():
        cells[CapabilityKey(operation)] = cell = CapabilityCell()
        cell.add(Capability(state), BadTest(nodeid="test_x.py::test_x", cell="gloo-w2-g0-tcp", message="1 is not 2"))
    return json.dumps(as_document("r", {"gloo": cells}))


@pytest.fixture
def kit(monkeypatch):
    """Runs the command with a run that leaves these files, and records what it was asked."""
    asked = SimpleNamespace(jobs=(), options=None, matrix=None, modules=set())

    def run_kit(*arguments, code=ExitCode.OK, document=None, tests=()):
        def run(expansion, jobs, options, _say):
            asked.jobs, asked.options, asked.matrix = jobs, options, expansion.matrix
            asked.modules = {path.name for folder in jobs[0].suite.python_path for path in folder.rglob("*")}
            folder = options.results / options.run_id
            folder.mkdir(parents=True)
            (folder / "report.json").write_text(json.dumps({"suites": [{"tests": tests}]}))
            if document:
                (folder / "conformance.json").write_text(document)
            return code

        monkeypatch.setattr("allranks.runner.run_jobs.run", run)
        return main(["conformance", *arguments])

    monkeypatch.setattr(conformance, "installed_torch", lambda: ("2.13.0", True))
    run_kit.asked = asked
    return run_kit


def test_one_job_for_each_world_size_with_short_limits(kit):
    assert kit("--backend", "gloo", "--world-size", "2,4", "-k", "reduce", "--", "-x") == 0
    assert [job.id for job in kit.asked.jobs] == ["gloo-w2-g0-tcp/collectives", "gloo-w4-g0-tcp/collectives"]
    assert kit.asked.matrix.limits.test == 10
    assert kit.asked.options.engine == "process"
    assert kit.asked.options.pytest_args == ("-k", "reduce", "-x")
    assert kit.asked.jobs[0].suite.pytest_args == ("-p", "allranks.testing.unsupported_skips")


def test_nccl_takes_a_gpu_for_each_rank(kit):
    kit("--backend", "nccl", "--world-size", "2")
    assert [job.id for job in kit.asked.jobs] == ["nccl-w2-g2-tcp/collectives"]


def test_a_module_of_this_folder_comes_alone_to_its_job(kit, repository):
    (repository / "mine.py").touch()
    (repository / "mine2.py").touch()
    kit("--backend", "mine", "--import", "mine")
    assert kit.asked.modules == {"mine.py"}
    assert kit.asked.jobs[0].suite.pytest_args[-2:] == ("-p", "mine")


def test_a_package_of_this_folder_comes_whole(kit, repository):
    (repository / "mine").mkdir()
    for name in ("__init__.py", "bad.py"):
        (repository / "mine" / name).touch()
    kit("--backend", "mine", "--import", "mine.bad")
    assert kit.asked.modules == {"mine", "__init__.py", "bad.py"}
    assert kit.asked.jobs[0].suite.pytest_args[-2:] == ("-p", "mine.bad")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--backend", "Gloo"], "cannot be the name of a backend"),
        (["--backend", "mine"], "--import MODULE"),
        (["--backend", "glooo"], "Did you mean 'gloo'?"),
        (["--backend", "mine", "--import", "no_such_module_anywhere"], "There is no module no_such_module_anywhere"),
        (["--backend", "mine", "--import", "mine.py-x"], "cannot be the name of a module"),
        (["--backend", "gloo", "--world-size", "2,zero"], "write 2,4"),
        (["--backend", "gloo", "--world-size", "0"], "write 2,4"),
        (["--backend", "gloo", "--time-limit", "0"], "from 1 to 3600"),
        (["--backend", "gloo", "--time-limit", "9" * 18], "from 1 to 3600"),
        (["--backend", "gloo", "--torch", "2"], "is not one exact version"),
        (["--backend", "gloo", "--suite", "collective"], "did you mean collectives"),
        (["--backend", "gloo", "--compare", "matrix.toml"], "cannot be read"),
        (["--backend", "gloo", "--compare", "absent.json"], "there is no file"),
    ],
)
def test_a_mistake_is_one_error(kit, capsys, arguments, words):
    assert kit(*arguments, document=table(reduce="works")) == 2
    assert words in capsys.readouterr().err


def test_the_table_is_shown_and_what_is_wrong_named(kit, capsys):
    code = kit("--backend", "gloo", code=ExitCode.TESTS_FAILED, document=table(reduce="wrong", scatter="works"))
    shown = capsys.readouterr().out
    assert "reduce   WRONG" in shown
    assert "wrong: reduce (in gloo-w2-g0-tcp): 1 is not 2" in shown
    assert shown.rstrip().endswith("exit code 1: tests failed")
    assert code == 1


TAGGED = {"verdict": "error", "tags": {"operation": "send"}}


@pytest.mark.parametrize(
    ("state", "tests", "code", "expected"),
    [
        ("unsupported", [TAGGED], ExitCode.TESTS_FAILED, 0),
        ("hangs", [TAGGED], ExitCode.TESTS_FAILED, 1),
        ("works", [{"verdict": "error"}], ExitCode.TESTS_FAILED, 1),
        ("works", [], ExitCode.UNACCOUNTED, 3),
        ("works", [], ExitCode.INFRASTRUCTURE, 4),
    ],
)
def test_what_a_backend_refuses_is_no_failure_and_all_else_is(kit, state, tests, code, expected):
    assert kit("--backend", "gloo", code=code, document=table(reduce=state), tests=tests) == expected


def test_a_run_without_a_table_ends_as_it_ended(kit):
    assert kit("--backend", "gloo", code=ExitCode.TESTS_FAILED) == 1


def test_a_second_run_shows_what_changed(kit, capsys):
    kit("--backend", "gloo", document=table(reduce="works", scatter="works"))
    capsys.readouterr()
    kit("--backend", "gloo", document=table(reduce="hangs", scatter="works"))
    assert "gloo: reduce: works -> hangs" in capsys.readouterr().out


def test_a_named_table_is_compared_with(kit, capsys, repository):
    (repository / "old.json").write_text(table(reduce="wrong"))
    kit("--backend", "gloo", "--compare", "old.json", document=table(reduce="works"))
    assert "gloo: reduce: wrong -> works" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("backends", "words"),
    [('{"nccl": []}', "old.json has no table of gloo"), ('{"gloo": 5}', "old.json cannot be read")],
)
def test_a_named_table_without_this_backend_is_refused(kit, capsys, repository, backends, words):
    (repository / "old.json").write_text(f'{{"generator": "allranks", "schema": 1, "backends": {backends}}}')
    assert kit("--backend", "gloo", "--compare", "old.json") == 2
    assert words in capsys.readouterr().err


def test_an_unreadable_table_of_another_run_is_passed_over(kit, capsys, repository):
    (repository / "results" / "broken").mkdir(parents=True)
    (repository / "results" / "broken" / "conformance.json").write_text("{")
    assert kit("--backend", "gloo", document=table(reduce="works")) == 0
    assert "since" not in capsys.readouterr().out
