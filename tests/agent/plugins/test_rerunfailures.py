"""pytest-rerunfailures: all ranks run a test again together, and the report says so."""

import pytest
from long_lists import quick

from allranks.protocol.records import AgentFailed, CollectionFailed, FailureKind, NotRun, RankEnded, TestStarted

RERUN = ["rerunfailures"]

ONCE = """
    import os
    import pytest
    import torch.distributed as dist

    def goes_wrong(times, rank=0):
        notes = os.path.join(os.path.dirname(__file__), f"times-{dist.get_rank()}")
        with open(notes, "a+") as file:
            file.write(".")
            file.seek(0)
            return len(file.read()) <= times and dist.get_rank() == rank
"""


def times(agent, test):
    return [started.number for started in agent.all(TestStarted) if started.nodeid.endswith(f"::{test}")]


def last(agent, test):
    """What the ranks came to in the end, by rank."""
    return [end.outcome.value for end in sorted(agent.arrived(test)[-2:], key=lambda end: end.rank)]


def test_a_test_runs_again_on_all_ranks_until_it_passes(run_with):
    tests = (
        ONCE
        + """
    def test_flaky():
        assert not goes_wrong(2, rank=1)
        dist.barrier()

    def test_after():
        dist.barrier()
    """
    )
    agent = run_with(RERUN, {"test_a.py": tests}, "--reruns=3")
    assert times(agent, "test_flaky") == [1, 2, 3]
    assert last(agent, "test_flaky") == ["passed", "passed"]
    assert times(agent, "test_after") == [1]


@pytest.mark.thorough
def test_a_test_that_stays_bad_is_bad(run_with):
    agent = run_with(RERUN, {"test_a.py": "def test_bad(): assert 0"}, "--reruns=2", "--reruns-delay=0.01")
    assert times(agent, "test_bad") == [1, 2, 3]
    assert agent.outcomes("test_bad") == ("failed", "failed")


@pytest.mark.thorough
def test_a_crash_and_a_broken_fixture_are_tried_again_too(run_with):
    tests = (
        ONCE
        + """
    def test_crash():
        if goes_wrong(1):
            os.kill(os.getpid(), 9)

    @pytest.fixture
    def broken():
        assert not goes_wrong(3)

    def test_fixture(broken):
        pass
    """
    )
    agent = run_with(RERUN, {"test_a.py": tests}, "--reruns=1")
    assert times(agent, "test_crash") == times(agent, "test_fixture") == [1, 2]
    assert last(agent, "test_crash") == last(agent, "test_fixture") == ["passed", "passed"]


@pytest.mark.thorough
def test_markers_say_how_often(run_with):
    tests = """
        import pytest

        @pytest.mark.flaky
        def test_once_more(): assert 0

        @pytest.mark.flaky(reruns=2)
        def test_twice_more(): assert 0

        @pytest.mark.flaky(reruns=2, condition=False)
        def test_elsewhere(): assert 0

        @pytest.mark.flaky(reruns=2)
        @pytest.mark.xfail
        def test_expected(): assert 0

        def test_never(): assert 0
    """
    agent = run_with(RERUN, {"test_a.py": tests})
    assert times(agent, "test_once_more") == [1, 2]
    assert times(agent, "test_twice_more") == [1, 2, 3]
    assert times(agent, "test_elsewhere") == times(agent, "test_never") == times(agent, "test_expected") == [1]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(("--force-reruns=1",), [1, 2]), (("--reruns=1", "--reruns-mode=append"), [1, 2, 3, 4])],
)
def test_options_and_markers_add_up_as_the_plugin_says(run_with, arguments, expected):
    tests = "import pytest\n@pytest.mark.flaky(reruns=2)\ndef test_bad(): assert 0\n"
    assert times(run_with(RERUN, {"test_a.py": tests}, *arguments), "test_bad") == expected


@pytest.mark.thorough
def test_launcher_tests_run_again(run_with):
    tests = """
        import pathlib
        from torch.testing._internal.common_distributed import MultiProcessTestCase

        class TestLauncher(MultiProcessTestCase):
            world_size = 2

            def setUp(self):
                super().setUp()
                self._spawn_processes()

            def test_flaky(self):
                note = pathlib.Path(__file__).with_name(f"note-{self.rank}")
                if not note.exists():
                    note.touch()
                    raise ValueError
    """
    agent = run_with(RERUN, {"test_a.py": tests}, "--reruns=1")
    assert times(agent, "test_flaky") == [1, 2]
    assert last(agent, "test_flaky") == ["passed", "passed"]


@pytest.mark.thorough
def test_a_try_that_fails_stops_no_launcher_test_beside_it(run_with):
    tests = """
        import pathlib
        import pytest
        import time
        from torch.testing._internal.common_distributed import MultiProcessTestCase

        NOTE = pathlib.Path(__file__).with_name("note")

        class TestLauncher(MultiProcessTestCase):
            world_size = 1

            def setUp(self):
                super().setUp()
                self._spawn_processes()

            @pytest.mark.flaky(reruns=1, reruns_delay=2)
            def test_a_flaky(self):
                if not NOTE.exists():
                    NOTE.touch()
                    raise ValueError

            def test_b(self):
                while not NOTE.exists():
                    time.sleep(0.01)

            for number in range(12):
                def test_later(self): pass
                locals()[f"test_later_{number}"] = test_later
    """
    agent = run_with(RERUN, {"test_a.py": tests}, "-x", overlap=2)
    assert not agent.all(NotRun)
    [failed] = [place for place, record in enumerate(agent.records) if isinstance(record, RankEnded)]
    starts = [record for record in agent.records[failed:] if isinstance(record, TestStarted)]
    assert starts[0].number == 1, "nothing ran beside it until its second try"
    assert [start.number for start in starts].count(2) == 1


LAUNCHER = """
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class TestLauncher(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_one(self):
            note = pathlib.Path(__file__).with_name(f"note-{self.rank}")
            if note.exists():
                pytest.skip("not here")
            note.touch()
            raise ValueError
"""
PLAIN = """
    def test_one(rank):
        note = pathlib.Path(__file__).with_name(f"note-{rank}")
        if note.exists():
            pytest.skip("not here")
        note.touch()
        raise ValueError
"""


@pytest.mark.thorough
@pytest.mark.parametrize("tests", [PLAIN, LAUNCHER])
def test_a_skip_settles_no_try_that_failed(run_with, tests):
    head = "    import pathlib\n    import pytest\n"
    agent = run_with(RERUN, {"test_a.py": head + tests, "test_b.py": "def test_after(): pass"}, "--reruns=2", "-x")
    assert times(agent, "test_one") == [1, 2]
    assert last(agent, "test_one") == ["skipped", "skipped"]
    assert [each.tests for each in agent.all(NotRun)] == [("suite/test_b.py::test_after",)]


@pytest.mark.thorough
def test_what_passes_in_the_end_does_not_stop_a_job(run_with):
    tests = (
        ONCE
        + """
    def test_flaky():
        assert not goes_wrong(1)

    def test_bad():
        assert 0

    def test_never():
        pass
    """
    )
    agent = run_with(RERUN, {"test_a.py": tests}, "--reruns=1", "-x")
    assert [each.tests for each in agent.all(NotRun)] == [("suite/test_a.py::test_never",)]
    assert times(agent, "test_bad") == [1, 2]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "flag"),
    quick(
        1,
        [
            (("--reruns=1", "--only-rerun=ValueError"), "--only-rerun"),
            (("--rerun-except=ValueError",), "--rerun-except"),
            (("--fail-on-flaky",), "--fail-on-flaky"),
            (("-o", "only_rerun=ValueError"), "--only-rerun"),
            (("--reruns=1", "--max-suite-reruns=3"), "--max-suite-reruns"),
        ],
    ),
)
def test_what_one_rank_would_decide_alone_is_refused(start_with, arguments, flag):
    agent = start_with(RERUN, {"test_a.py": "def test_a(): pass"}, *arguments).go()
    agent.wait()
    [failed] = agent.all(AgentFailed)
    assert failed.kind is FailureKind.USAGE
    assert failed.message.startswith(f"{flag} cannot be used")


@pytest.mark.thorough
@pytest.mark.parametrize("marker", ["condition='error'", "only_rerun=['x']", "reruns='many'", "reruns_delay='x'"])
def test_a_marker_that_cannot_be_had_names_its_test(run_with, marker):
    tests = f"import pytest\n@pytest.mark.flaky({marker})\ndef test_a(): assert 0\n"
    [failed] = run_with(RERUN, {"test_a.py": tests}).all(CollectionFailed)
    assert failed.nodeid == "suite/test_a.py::test_a"
    assert "@pytest.mark.flaky" in failed.text
