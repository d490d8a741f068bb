"""The end of an agent after a stop request, at its time limit, and when it is killed. No process may be left."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from agent_run import wait_for_pid
from long_lists import quick

from allranks.agent.job_end import STOPPED_STATUS
from allranks.protocol.records import AgentFailed, Begun, Collected, GangStarted, Imported, Interrupted, JobTimedOut

PASSING = "def test_passes(): pass\n"

WORDS = """
import os, signal, time

def say(word):
    with open(os.environ["WORDS"], "w") as fifo:
        print(word, file=fifo)
"""

HANGING = f"""{WORDS}
def test_before(): pass

def test_hangs():
    if os.environ["CHILDREN"] == "1" and os.fork() == 0:
        signal.pause()
    say("hanging")
    time.sleep(600)

def test_after(): pass
"""


@pytest.fixture
def hanging_agent(start_agent):
    """An agent whose ranks both hang in a test."""

    def start(*, children):
        agent = start_agent({"test_hangs.py": HANGING}, environment={"CHILDREN": str(children)}).go()
        assert [agent.word(), agent.word()] == ["hanging", "hanging"]
        return agent

    return start


def close_stdin(agent):
    agent.close_stdin()


def terminate(agent):
    agent.signal(signal.SIGTERM)


@pytest.mark.parametrize("end", quick(1, [close_stdin, terminate]))
def test_an_agent_writes_all_results_before_it_stops(hanging_agent, end):
    agent = hanging_agent(children=1)
    end(agent)
    assert agent.wait() == STOPPED_STATUS
    agent.assert_nothing_left()
    assert agent.outcomes("test_before") == ("passed", "passed")
    assert agent.outcomes("test_hangs") == ("aborted", "aborted")
    assert agent.cases(1)["test_hangs"].message.startswith("the job was ended from outside at suite/test_hangs.py:")
    assert "test_after" not in agent.cases(0)
    assert agent.all(Interrupted)


@pytest.mark.thorough
def test_a_second_stop_request_changes_nothing(start_agent):
    suite = f"""{WORDS}
def test_is_slow_to_stop():
    signal.signal(signal.SIGTERM, lambda *_: say("stopping"))
    say("hanging")
    while True:
        time.sleep(600)
"""
    agent = start_agent({"test_slow.py": suite}, world_size=1).go()
    assert agent.word() == "hanging"
    agent.signal(signal.SIGTERM)
    assert agent.word() == "stopping"
    agent.signal(signal.SIGTERM)
    assert agent.wait() == STOPPED_STATUS
    assert agent.outcomes("test_is_slow_to_stop") == ("aborted",)


def test_ranks_time_out_when_the_job_reaches_its_limit(start_agent):
    agent = start_agent({"test_hangs.py": HANGING}, limits={"job": 2.0}, environment={"CHILDREN": "1"}).go()
    assert agent.wait() == 0
    agent.assert_nothing_left()
    assert agent.all(JobTimedOut)[0].limit == 2.0
    assert agent.outcomes("test_hangs") == ("timed_out", "timed_out")
    assert "the job's time limit of 2 s was reached (limits.job)" in agent.cases(1)["test_hangs"].message


@pytest.mark.thorough
def test_the_time_limit_begins_with_the_start_of_the_job(start_agent):
    agent = start_agent({"test_ok.py": PASSING}, limits={"job": 2.5})
    agent.wait_for(Collected)
    time.sleep(3.0)  # longer than the limit of this job
    assert agent.go().wait() == 0
    assert agent.all(JobTimedOut) == []
    assert set(agent.outcomes("test_passes")) == {"passed"}


def test_ranks_die_with_a_killed_agent(hanging_agent):
    agent = hanging_agent(children=0)
    agent.signal(signal.SIGKILL)
    assert agent.wait() == -signal.SIGKILL
    for pid in agent.gangs()[-1]:
        assert wait_for_pid(pid)
    assert agent.outcomes("test_hangs") == ("missing", "missing")
    assert "ended during this test" in agent.cases(1)["test_hangs"].message


def test_a_stop_request_ends_a_collection_that_hangs(start_agent):
    agent = start_agent({"test_slow.py": f"{WORDS}\nsay('importing')\ntime.sleep(600)\n{PASSING}"})
    assert agent.word() == "importing"
    agent.go()
    agent.close_stdin()
    assert agent.wait() == STOPPED_STATUS


@pytest.mark.thorough
def test_a_stop_request_ends_an_agent_that_waits_for_its_start(start_agent):
    agent = start_agent({"test_a.py": PASSING})
    agent.wait_for(Collected)
    agent.close_stdin()
    assert agent.wait() == STOPPED_STATUS
    assert not agent.all(GangStarted)


def test_an_agent_with_closed_standard_input_imports_nothing(start_agent):
    agent = start_agent({"test_a.py": PASSING}, closed_stdin=True)
    assert agent.wait() == STOPPED_STATUS
    assert not agent.all(Imported)


def test_a_stop_request_ends_the_import_of_torch(start_command):
    agent = start_command({"test_a.py": PASSING})
    agent.wait_for(Begun)
    agent.close_stdin()
    assert agent.wait() == STOPPED_STATUS
    assert not agent.all(Collected)


def test_the_entry_point_of_jobs_runs_a_suite(start_command):
    agent = start_command({"test_a.py": PASSING}, environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}).go()
    assert agent.wait() == 0, agent.log
    assert agent.outcomes("test_passes") == ("passed", "passed")


@pytest.mark.thorough
def test_terminal_summaries_of_installed_plugins_do_not_run(run_agent):
    files = {
        "test_one.py": "def test_one(): pass",
        "conftest.py": """
            import sys

            def pytest_unconfigure():
                print("hypothesis was", "imported" if "hypothesis" in sys.modules else "left alone")
        """,
    }
    agent = run_agent(files, environment={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""})
    assert "plugins: " in agent.log
    assert "hypothesis was left alone" in agent.log


@pytest.mark.thorough
def test_at_the_limit_of_the_job_the_rank_that_others_wait_for_leads(run_agent):
    suite = """
import time
import torch
import torch.distributed as dist

def test_hangs(rank):
    if rank == 1:
        time.sleep(600)
    dist.all_reduce(torch.ones(1))
"""
    agent = run_agent({"test_hangs.py": suite}, limits={"job": 2.0})
    assert agent.outcomes("test_hangs") == ("aborted", "timed_out")
    message = agent.cases(1)["test_hangs"].message
    assert "the job's time limit of 2 s was reached (limits.job)" in message
    assert "in test_hangs" in message
    assert agent.cases(0)["test_hangs"].message.startswith("aborted by rank 1 while waiting at ")


ENDED = f"""{WORDS}
def test_before():
    pass

def test_hangs(rank):
    say("hanging")
    time.sleep(600)

def test_after():
    pass
"""


@pytest.mark.parametrize("seconds", quick(1, [0.3, 0.0, 1.0, 2.0]))
@pytest.mark.parametrize("order", quick(1, ["ranks first", "one rank first", "agent first"]))
def test_ranks_that_a_scheduler_terminates_with_the_agent_are_aborted(start_agent, order, seconds):
    agent = start_agent({"test_ended.py": ENDED}).go()
    assert [agent.word(), agent.word()] == ["hanging", "hanging"]
    ranks = agent.gangs()[-1][: 1 if order == "one rank first" else 2]

    def end_ranks():
        for pid in ranks:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    if order == "agent first":
        agent.signal(signal.SIGTERM)
        time.sleep(seconds)
        end_ranks()
    else:
        end_ranks()
        time.sleep(seconds)
        agent.signal(signal.SIGTERM)
    assert agent.wait() == STOPPED_STATUS
    assert agent.outcomes("test_before") == ("passed", "passed")
    assert agent.outcomes("test_hangs") == ("aborted", "aborted")
    assert "killed by SIGTERM" not in agent.cases(0)["test_hangs"].message + agent.cases(1)["test_hangs"].message
    assert "test_after" not in agent.cases(0)
    assert agent.all(Interrupted)


COLLECTING = f"""{WORDS}
say("collecting")
time.sleep(600)
"""

BETWEEN = f"""{WORDS}
def test_waits(rank):
    if rank == 0:
        say("waiting")
        while not os.path.exists("../code/go"):
            time.sleep(0.01)

def test_after():
    pass
"""


@pytest.mark.thorough
@pytest.mark.parametrize("seconds", quick(1, [0.5, 0.0, 2.0]))
def test_a_scheduler_that_ends_all_processes_at_collection_interrupts_the_job(start_command, seconds):
    agent = start_command({"test_collecting.py": COLLECTING})
    assert agent.word() == "collecting"
    end_children(agent)
    time.sleep(seconds)
    agent.signal(signal.SIGTERM)
    assert agent.wait() == STOPPED_STATUS
    assert agent.all(AgentFailed) == []


@pytest.mark.parametrize("seconds", quick(1, [0.5, 0.0, 2.0]))
def test_a_scheduler_that_ends_all_processes_of_a_test_interrupts_the_job(start_command, seconds):
    agent = start_command({"test_ended.py": ENDED}, isolation="test").go()
    assert [agent.word(), agent.word()] == ["hanging", "hanging"]
    end_children(agent)
    time.sleep(seconds)
    agent.signal(signal.SIGTERM)
    assert agent.wait() == STOPPED_STATUS
    assert agent.outcomes("test_hangs") == ("aborted", "aborted")
    assert agent.all(AgentFailed) == []
    assert agent.all(Interrupted)


@pytest.mark.thorough
@pytest.mark.parametrize("seconds", quick(1, [0.5, 0.0, 2.0]))
def test_a_scheduler_that_ends_the_fork_server_first_interrupts_the_job(start_command, seconds):
    agent = start_command({"test_between.py": BETWEEN}, isolation="test").go()
    assert agent.word() == "waiting"
    ranks = set(agent.gangs()[-1])
    end_children(agent, but=ranks)
    (agent.folder / "code" / "go").touch()
    time.sleep(seconds)
    agent.signal(signal.SIGTERM)
    assert agent.wait() == STOPPED_STATUS
    assert agent.all(AgentFailed) == []
    assert agent.all(Interrupted)


def end_children(agent, but=()):
    for pid in set(map(int, Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split())) - set(but):
        os.kill(pid, signal.SIGTERM)


@pytest.mark.thorough
@pytest.mark.parametrize("number", quick(2, [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS]))
def test_a_rank_killed_by_another_signal_before_the_end_of_the_job_leads(start_agent, number):
    agent = start_agent({"test_ended.py": ENDED}, limits={"peer_grace": 20.0}).go()
    assert [agent.word(), agent.word()] == ["hanging", "hanging"]
    [first, second] = agent.gangs()[-1]
    os.kill(first, number)
    while Path(f"/proc/{first}").exists():
        time.sleep(0.01)
    os.kill(second, signal.SIGTERM)
    time.sleep(0.3)
    agent.signal(signal.SIGTERM)
    assert agent.wait() == STOPPED_STATUS
    assert agent.outcomes("test_hangs") == ("crashed", "aborted")


ALONE = """
    import os, signal, time
    import torch
    import torch.distributed as dist

    def test_ends_itself(rank):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        dist.all_reduce(torch.ones(1))

    def test_after():
        pass
"""


@pytest.mark.thorough
def test_a_rank_that_ends_itself_by_sigterm_leads(run_agent):
    agent = run_agent({"test_alone.py": ALONE})
    [first] = [end for end in agent.arrived("test_ends_itself") if not end.consequence and end.outcome.is_bad]
    assert (first.rank, first.message) == (1, "rank 1 was killed by SIGTERM")
    assert agent.outcomes("test_after") == ("passed", "passed")
