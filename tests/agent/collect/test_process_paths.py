"""Paths that pytest clears or writes to: each process of a job has its own."""

import textwrap

import pytest
from long_lists import quick

SUITE = """
    import os
    from pathlib import Path
    import pytest

    made = []

    @pytest.fixture(scope="session")
    def of_session(tmp_path_factory):
        return tmp_path_factory.mktemp("of_session")

    @pytest.mark.parametrize("number", range(3))
    def test_files_stay(rank, number, tmp_path, tmpdir, of_session, world_size):
        made.append(tmp_path / "own")
        made[-1].write_text(str(rank))
        assert all(file.read_text() == str(rank) for file in made)
        assert Path(os.environ["BASE"]) in tmp_path.parents
        assert Path(os.environ["BASE"]) in Path(tmpdir).parents
        (of_session / str(number)).touch()

    def test_a_fork_clears_no_folder(tmp_path_factory, tmp_path):
        if os.fork() == 0:
            tmp_path_factory.mktemp("of_fork")
            os._exit(0)
        os.wait()
        assert tmp_path.is_dir()
"""
THREADED = (
    "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
    + textwrap.dedent(SUITE)
)
LAUNCHER = """
    import os
    from pathlib import Path
    import pytest
    from allranks.testing import MultiProcessTestCase

    class TestLauncher(MultiProcessTestCase):
        world_size = 2

        @pytest.fixture(autouse=True)
        def keep_factory(self, tmp_path_factory):
            type(self).factory = tmp_path_factory

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_one(self):
            own = self.factory.mktemp(f"of_rank_{self.rank}")
            assert Path(os.environ["BASE"]) in own.parents
            (own / "own").touch()
            assert (own / "own").exists()

        def test_two(self):
            self.test_one()
"""


@pytest.fixture
def base(tmp_path):
    return tmp_path / "base"


def passes(job, test):
    return set(job.outcomes(test)) == {"passed"}


@pytest.mark.parametrize("isolation", quick(1, ["test", "file", "job"]))
def test_no_rank_clears_the_temporary_files_of_another(run_agent, base, isolation):
    job = run_agent(
        {"test_small.py": SUITE},
        pytest_args=(f"--basetemp={base}",),
        environment={"BASE": str(base)},
        isolation=isolation,
        world_size=3,
    )
    assert all(passes(job, f"test_files_stay[{number}]") for number in range(3))
    assert passes(job, "test_a_fork_clears_no_folder")
    folders = {path.relative_to(base).parts[:4] for path in base.rglob("own")}
    gangs = [f"gang-{number}" for number in range(1, 4)] if isolation == "test" else ["gang-1"]
    assert folders == {("gloo-w2-g0-env", "small", gang, f"rank-{rank}") for gang in gangs for rank in range(3)}


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["addopts", "variable", "relative"])
def test_each_rank_has_its_own_folder_however_it_is_set(run_agent, tmp_path, base, way):
    files, variables, arguments = {"test_small.py": SUITE}, {}, ()
    if way == "addopts":
        files["pytest.ini"] = f"[pytest]\naddopts = --basetemp={base}\n"
    elif way == "variable":
        variables["PYTEST_ADDOPTS"] = f"--basetemp {base}"
    else:
        base, arguments = tmp_path / "code" / "base", ("--basetemp", "base")
    job = run_agent(files, environment={**variables, "BASE": str(base)}, pytest_args=arguments)
    assert all(passes(job, f"test_files_stay[{number}]") for number in range(3))


@pytest.mark.thorough
def test_ranks_in_new_processes_have_their_own_paths(run_agent, base, tmp_path):
    log = tmp_path / "run.log"
    job = run_agent(
        {"test_small.py": THREADED},
        pytest_args=(f"--basetemp={base}", f"--log-file={log}", "--cache-clear"),
        environment={"BASE": str(base)},
        isolation="test",
    )
    assert all(passes(job, f"test_files_stay[{number}]") for number in range(3))
    assert len([*base.rglob("own")]) == 6
    assert len([*tmp_path.glob("run.ranks/*/*/gang-*/rank-*.log")]) == 8


@pytest.mark.thorough
def test_a_launcher_and_its_ranks_keep_their_files(run_agent, base):
    job = run_agent({"test_small.py": LAUNCHER}, pytest_args=(f"--basetemp={base}",), environment={"BASE": str(base)})
    assert job.outcomes("test_one") == job.outcomes("test_two") == ("passed", "passed")
    assert len([*base.rglob("own")]) == 4


@pytest.mark.thorough
def test_a_job_clears_only_the_files_of_earlier_jobs_of_its_cell(run_agent, base):
    kept, stale = base / "gloo-w2-g0-tcp" / "small" / "kept", base / "gloo-w2-g0-env" / "small" / "gang-9" / "stale"
    mine = base / "mine"
    for path in (kept, stale, mine):
        path.mkdir(parents=True)
    run_agent({"test_small.py": SUITE}, pytest_args=(f"--basetemp={base}",), environment={"BASE": str(base)})
    assert kept.is_dir()
    assert mine.is_dir()
    assert not stale.exists()


LOGGING = """
    import logging

    log = logging.getLogger("app")

    def test_first(rank): log.warning("first of %s", rank)

    def test_fails(rank):
        log.warning("fails on %s", rank)
        assert rank == 0

    def test_last(rank): log.warning("last of %s", rank)
"""


@pytest.mark.parametrize(
    ("arguments", "ini"),
    quick(
        1,
        [
            (("--log-file=logs/run.log",), ""),
            (("--log-file", "logs/run.log", "--log-file-mode=a"), ""),
            (("-o", "log_file=logs/run.log"), ""),
            ((), "log_file = logs/run.log"),
            (("--debug=logs/run.log",), ""),
        ],
    ),
)
def test_each_process_writes_its_own_file(run_agent, tmp_path, arguments, ini):
    job = run_agent({"pytest.ini": f"[pytest]\n{ini}\n", "test_small.py": LOGGING}, pytest_args=arguments)
    assert job.outcomes("test_fails") == ("passed", "failed")
    folder = tmp_path / "code" / "logs" / "run.ranks" / "gloo-w2-g0-env" / "small"
    written = {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*.log")}
    assert written.keys() == {"agent.log", *(f"gang-{gang}/rank-{rank}.log" for gang in (1, 2) for rank in (0, 1))}
    if "--debug=logs/run.log" not in arguments:
        for rank in (0, 1):
            lines = written[f"gang-1/rank-{rank}.log"].splitlines()
            assert [line.partition("py:")[2].partition(" ")[2] for line in lines] == [
                f"first of {rank}",
                f"fails on {rank}",
            ]
    assert all("test_last" in text or "last of" in text for name, text in written.items() if "gang-2" in name)
    assert not (tmp_path / "code" / "logs" / "run.log").exists()


@pytest.mark.parametrize(
    "arguments", quick(1, map(pytest.param, [("--log-file=/dev/null",), ("-p", "no:tmpdir"), ("-p", "no:logging")]))
)
def test_paths_that_are_not_files_are_not_changed(run_agent, arguments):
    job = run_agent({"test_small.py": "def test_passes(): pass"}, pytest_args=arguments)
    assert job.outcomes("test_passes") == ("passed", "passed")


@pytest.mark.thorough
def test_a_folder_that_cannot_be_created_fails_the_tests_that_use_it(run_agent, tmp_path):
    (tmp_path / "file").touch()
    suite = "def test_asks(tmp_path): pass\ndef test_passes(): pass"
    job = run_agent({"test_small.py": suite}, pytest_args=(f"--basetemp={tmp_path / 'file' / 'below'}",))
    assert job.outcomes("test_asks") == ("errored", "errored")
    assert job.outcomes("test_passes") == ("passed", "passed")
