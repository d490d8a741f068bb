"""A rank may leave its process group and session, as a script may, and is still ended."""

import pytest
from long_lists import quick

from allranks.protocol.records import GangStarted, LeftBehind

HEAD = """
    import os, signal, subprocess, time
    import pytest
"""

CALLS = {
    "setpgrp": "os.setpgrp()\n        assert os.getpgrp() == os.getpid()",
    "setpgid": "os.setpgid(0, 0)",
    "setsid": "os.setsid()\n        assert os.getsid(0) == os.getpid()",
    "setpgrp_twice": "os.setpgrp()\n        os.setpgrp()",
    "child_in_session": "subprocess.run(['true'], start_new_session=True, check=True)",
    "child_in_group": "subprocess.run(['true'], process_group=0, check=True)",
    "join_a_childs_group": "child = subprocess.Popen(['sleep', '60'], process_group=0)\n"
    "        os.setpgid(0, child.pid)\n        child.kill()\n        child.wait()",
    "signal_to_the_group": "child = subprocess.Popen(['sleep', '60'])\n"
    "        before = signal.signal(signal.SIGUSR1, lambda *_: None)\n"
    "        os.killpg(os.getpgrp(), signal.SIGUSR1)\n        assert child.wait() == -signal.SIGUSR1\n"
    "        signal.signal(signal.SIGUSR1, before)",
    "job_control": "assert subprocess.run(['bash', '-mc', 'sleep 0 & wait'], check=False).returncode == 0",
}


def suite(calls):
    return HEAD + "".join(f"\n    def test_{name}(rank):\n        {CALLS[name]}\n" for name in calls)


@pytest.mark.thorough
def test_a_rank_may_change_its_group_and_session_like_a_script(run_agent):
    job = run_agent({"test_small.py": suite(CALLS)}, isolation="job")
    assert {name: job.outcomes(name) for name in job.cases(0)} == {f"test_{name}": ("passed",) * 2 for name in CALLS}
    assert not job.all(LeftBehind)


@pytest.mark.parametrize("name", quick(1, ["setpgrp", "setsid"]))
def test_a_rank_that_left_its_group_runs_no_other_test(run_agent, name):
    files = {"test_small.py": suite([name]) + "\n    def test_after():\n        os.setsid()\n"}
    job = run_agent(files, isolation="job")
    assert len(job.all(GangStarted)) == 2
    assert job.outcomes("test_after") == ("passed", "passed")


@pytest.mark.parametrize("call", quick(1, ["pass", "os.setpgrp()", "os.setsid()"]))
@pytest.mark.parametrize(
    "end",
    quick(1, ["pass", "time.sleep(99) if rank else None", "assert rank == 0", "os.kill(os.getpid(), signal.SIGKILL)"]),
)
def test_children_of_a_rank_end_with_it_even_if_it_left_its_group(start_agent, call, end):
    body = f"""
    def test_small(rank):
        subprocess.Popen(["sleep", "77"])
        {call}
        subprocess.Popen(["sleep", "77"])
        subprocess.Popen(["sleep", "77"], process_group=0)
        {end}
"""
    job = start_agent({"test_small.py": HEAD + body}, limits={"test": 3}).go()
    assert job.wait() == 0, job.log
    job.assert_nothing_left()
    if end == "pass":
        assert len(job.all(LeftBehind)) == 6


@pytest.mark.thorough
def test_ranks_of_a_launcher_may_leave_their_group(run_agent):
    launcher = """
        import os
        from allranks.testing import MultiProcessTestCase

        class TestLauncher(MultiProcessTestCase):
            world_size = 2

            def setUp(self):
                super().setUp()
                self._spawn_processes()

            def test_setpgrp(self):
                os.setpgrp()

            def test_setsid(self):
                os.setsid()
    """
    job = run_agent({"test_small.py": launcher})
    assert job.outcomes("test_setpgrp") == job.outcomes("test_setsid") == ("passed", "passed")
