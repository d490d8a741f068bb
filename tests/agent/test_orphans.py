"""Processes that a test leaves behind are killed with their gang, even in other sessions."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from agent_run import AgentRun, launch_command
from long_lists import quick

from allranks.agent import linux
from allranks.agent.orphans import GANG_VARIABLE, NOBODY, Mark, show_marks
from allranks.protocol.records import LeftBehind

SUITE = """
    import multiprocessing
    import os
    import subprocess
    import sys
    import time
    from pathlib import Path

    import pytest
    from allranks.testing import MultiProcessTestCase

    FOLDER = Path(os.environ["FOLDER"])
    SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]

    def leave_fork():
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.closerange(0, 100)
            time.sleep(600)
        return pid

    def leave_daemon():
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.setsid()
            pid = os.fork()
            if pid == 0:
                os.closerange(0, 100)
                time.sleep(600)
            os.write(writing, str(pid).encode())
            os._exit(0)
        os.wait()
        return int(os.read(reading, 100))

    def leave_program():
        return subprocess.Popen(SLEEP, start_new_session=True).pid

    def leave_group():
        return subprocess.Popen(SLEEP, process_group=0).pid

    def first_line(command):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            return int(process.stdout.readline())

    def leave_workers():  # each has its own session, as with torchrun
        program = "import sys; from subprocess import *; print(Popen(sys.argv[1:], start_new_session=True).pid)"
        return first_line([sys.executable, "-c", program, *SLEEP])

    def leave_fork_of_a_program():
        program = "import os, time; print(os.fork() or os.setsid() or time.sleep(600))"
        return first_line([sys.executable, "-c", program])

    KINDS = [leave_fork, leave_daemon, leave_program, leave_group, leave_workers, leave_fork_of_a_program]

    def left():
        return {path.stem: int(path.read_text()) for path in FOLDER.glob("*.pid")}

    def leave(kind, who):
        (FOLDER / f"{kind}-{who}").write_text(str(globals()[kind]()))
        (FOLDER / f"{kind}-{who}").rename(FOLDER / f"{kind}-{who}.pid")

    class Case(MultiProcessTestCase):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            kind = self._testMethodName.removeprefix("test_")
            if self.rank == self.MAIN_PROCESS_RANK and kind in globals():
                leave(kind, "launcher")
            self._spawn_processes()

    class TestGoesOn(Case):
        @pytest.mark.time_limit(60)
        def test_until_all_others_have_left_nothing(self):
            end = time.monotonic() + 30
            while len(left()) < 3 * len(KINDS) or any(Path(f"/proc/{pid}").exists() for pid in left().values()):
                lasting = [name for name, pid in left().items() if Path(f"/proc/{pid}").exists()]
                assert time.monotonic() < end, f"{len(left())} left something, of which there are {lasting}"
                time.sleep(0.01)

    class TestLeaves(Case):
        pass

    for kind in KINDS:
        name = kind.__name__
        setattr(TestLeaves, f"test_{name}", lambda self, name=name: leave(name, self.rank))
"""

KINDS = ["leave_fork", "leave_daemon", "leave_program", "leave_group", "leave_workers", "leave_fork_of_a_program"]


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    environment = {"FOLDER": str(tmp_path_factory.mktemp("left"))}
    folder = tmp_path_factory.mktemp("job")
    run = AgentRun(
        folder, {"test_left.py": SUITE}, launch_command, isolation="test", overlap=2, environment=environment
    )
    assert run.go().wait() == 0, run.log
    yield run
    run.close()


@pytest.mark.thorough
def test_orphans_are_killed_while_another_test_runs(beside):
    case = beside.cases(0)["test_until_all_others_have_left_nothing"]
    assert case.outcome == "passed", case.message


@pytest.mark.parametrize("kind", KINDS)
def test_an_orphan_of_a_launcher_is_reported_with_its_test(beside, kind):
    reported = [record for record in beside.all(LeftBehind) if record.nodeid.endswith(f"::test_{kind}")]
    assert reported


GANGS = """
    import os, time
    import pytest

    @pytest.mark.parametrize("number", range(3))
    def test_leaves(rank, number):
        if rank == number % 2 and os.fork() == 0:
            os.setsid()
            os.closerange(0, 100)
            time.sleep(600)

    def test_kept(rank):
        pass
"""


@pytest.mark.thorough
def test_the_rank_of_an_orphan_in_its_own_session_is_reported(start_command):
    agent = start_command({"test_gangs.py": GANGS}, isolation="test").go()
    assert agent.wait() == 0, agent.log
    assert [(record.nodeid[-2], record.rank) for record in agent.all(LeftBehind)] == [("0", 0), ("1", 1), ("2", 0)]
    agent.assert_nothing_left()


SHOW = """
import os, sys
from allranks.agent import linux
from allranks.agent.orphans import Mark, show_marks

mark = Mark.of_gang(7)
{prelude}
show_marks(mark.environment(3))
if os.fork() == 0:
    os.setsid()
    print(*linux.variables_of(os.getpid()), sep="\\n", flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.parametrize(
    "prelude", quick(1, ["", "os.environ.clear()", "os.environ['LONG'] = 'x' * 100_000", "os.chdir('/')"])
)
@pytest.mark.parametrize("others", quick(1, [{}, {"A" + GANG_VARIABLE: "other"}, {"Z": f"{GANG_VARIABLE}={NOBODY}"}]))
def test_a_fork_shows_the_mark_of_its_parent(prelude, others):
    environment = {**others, **os.environ, GANG_VARIABLE: NOBODY}
    command = [sys.executable, "-c", SHOW.format(prelude=prelude)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    expected = {**environment, **Mark.of_gang(7).environment(3)}
    assert sorted(filter(None, done.stdout.splitlines())) == sorted("=".join(pair) for pair in expected.items())


@pytest.mark.parametrize("given", [None, "", "0", NOBODY[1:], NOBODY + "0"])
def test_a_process_without_the_variable_keeps_its_environment(given):
    environment = {**os.environ, **({} if given is None else {GANG_VARIABLE: given})}
    done = subprocess.run(
        [sys.executable, "-c", SHOW.format(prelude="")], env=environment, capture_output=True, text=True, check=True
    )
    assert sorted(filter(None, done.stdout.splitlines())) == sorted("=".join(pair) for pair in environment.items())


@pytest.mark.parametrize(
    ("value", "rank"),
    [
        ("0000000000000012-00003", 3),
        ("0000000000000013-00003", None),
        (NOBODY, None),
        ("0000000000000012", None),
        ("0000000000000012-x", None),
        ("", None),
    ],
)
def test_a_mark_is_read_from_the_environment(monkeypatch, value, rank):
    monkeypatch.setattr(
        linux, "variables_of", lambda _pid: ["PATH=/", f"X{GANG_VARIABLE}=no", f"{GANG_VARIABLE}={value}"]
    )
    assert Mark.of_gang(12).rank_of(1) == rank


def test_marks_of_launches_differ():
    assert Mark.of_launch() != Mark.of_launch()
    show_marks({})
    assert Path("/proc/self/environ").exists()
