"""Which tests have a default process group, and groups that a suite creates itself."""

import pytest
from long_lists import quick

CASES = """
    import unittest
    import pytest
    import torch.distributed as dist
    from allranks.testing import skip_if_small_world_size

    class TestImport(unittest.TestCase):
        def test_in_a_module_with_an_import_of_ours(self):
            self.assertTrue(dist.is_initialized())

    class TestFixture(unittest.TestCase):
        @pytest.fixture(autouse=True)
        def be_rank(self, rank):
            self.rank = rank

        def test_fixture_of_ours(self):
            self.assertTrue(dist.is_initialized())

    @pytest.mark.usefixtures("process_group")
    class TestUse(unittest.TestCase):
        def test_use_of_the_group(self):
            self.assertTrue(dist.is_initialized())

    @skip_if_small_world_size(2)
    class TestRequirement(unittest.TestCase):
        def test_requirement(self):
            self.assertTrue(dist.is_initialized())

    class TestMarker(unittest.TestCase):
        @pytest.mark.time_limit(20)
        def test_marker(self):
            self.assertTrue(dist.is_initialized())

    class TestClass:
        def test_pytests_class(self):
            assert dist.is_initialized()

    def test_function():
        assert dist.is_initialized()

    def test_makes_its_own():
        dist.init_process_group("gloo", init_method="env://")
"""


PLAIN = """
    import unittest
    import torch.distributed as dist

    class TestPlain(unittest.TestCase):
        def test_plain_case(self):
            self.assertFalse(dist.is_initialized())

        def test_uses_the_group(self):
            dist.barrier()
"""


@pytest.fixture(scope="module")
def cases(run_once):
    return run_once("cases", {"test_cases.py": CASES, "test_plain.py": PLAIN})


@pytest.mark.parametrize(
    "test",
    [
        "test_plain_case",
        "test_in_a_module_with_an_import_of_ours",
        "test_fixture_of_ours",
        "test_use_of_the_group",
        "test_requirement",
        "test_marker",
        "test_pytests_class",
        "test_function",
    ],
)
def test_only_a_unittest_case_that_does_not_use_allranks_has_no_group(cases, test):
    assert cases.outcomes(test) == ("passed", "passed"), cases.cases(0)[test].text


def test_the_error_of_a_case_without_the_group_names_the_remedy(cases):
    assert cases.outcomes("test_uses_the_group") == ("failed", "failed")
    message = cases.cases(0)["test_uses_the_group"].message
    assert "Default process group has not been initialized" in message
    assert '@pytest.mark.usefixtures("process_group")' in message


def test_the_error_of_a_second_group_names_the_marker_and_the_key(cases):
    case = cases.cases(0)["test_makes_its_own"]
    assert case.outcome == "failed"
    assert "trying to initialize the default process group twice. allranks created" in case.message
    assert "@pytest.mark.no_process_group" in case.message
    assert "process_group = false" in case.message
    assert "process_group = false" in case.text
    assert "Initialize the default distributed process group" not in case.text  # torch's docstring


NO_GROUP = """
    import unittest
    import torch.distributed as dist

    def test_function(rank):
        assert not dist.is_initialized()

    class TestCase(unittest.TestCase):
        def test_case(self):
            self.assertFalse(dist.is_initialized())
"""


@pytest.mark.thorough
def test_the_key_of_the_suite_overrides_the_choice_by_test(run_agent):
    agent = run_agent({"test_a.py": NO_GROUP}, process_group=False)
    assert agent.outcomes("test_function") == agent.outcomes("test_case") == ("passed", "passed")
    assert len(agent.gangs()) == 1


def test_the_key_can_request_the_group_for_all_tests(run_agent):
    tests = NO_GROUP.replace("not dist", "dist").replace("assertFalse", "assertTrue")
    agent = run_agent({"test_a.py": tests}, process_group=True)
    assert agent.outcomes("test_function") == agent.outcomes("test_case") == ("passed", "passed")


OWN_GROUPS = """
    import os
    import pytest
    import torch
    import torch.distributed as dist

    pids = []

    @pytest.fixture(scope="session", autouse=True)
    def group():
        dist.init_process_group("gloo")
        yield dist.group.WORLD
        dist.destroy_process_group()

    def test_one(group, world_size):
        pids.append(os.getpid())
        assert dist.group.WORLD is group
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == world_size

    class TestClass:
        @pytest.fixture(scope="class")
        def pair(self, group):
            pair = dist.new_group([0, 1])
            yield pair
            dist.destroy_process_group(pair)

        def test_two(self, pair):
            dist.barrier(group=pair)

        def test_three(self, group, pair):
            assert dist.group.WORLD is group
            assert pids == [os.getpid()]
            dist.barrier(group=pair)

    def test_parts(rank):
        dist.barrier()
        if rank == 1:
            dist.all_reduce(torch.ones(1))
        dist.barrier()

    def test_last(group):
        dist.barrier()
"""


@pytest.fixture(scope="module")
def own(run_once):
    limits = {"test": 2.0, "peer_grace": 0.3}
    return run_once("own", {"test_own.py": OWN_GROUPS}, process_group=False, limits=limits)


@pytest.mark.parametrize("test", ["test_one", "test_two", "test_three", "test_last"])
def test_a_group_of_a_session_fixture_is_there_for_every_test(own, test):
    assert own.outcomes(test) == ("passed", "passed"), own.cases(0)[test].text


def test_its_ranks_are_kept_until_a_test_fails(own):
    assert len(own.gangs()) == 2


def test_calls_that_differ_in_it_are_named(own):
    case = own.cases(own_leader(own))["test_parts"]
    assert "rank 0 called barrier #" in case.message
    assert "rank 1 all_reduce #" in case.message


def own_leader(agent):
    return next(end.rank for end in agent.arrived("test_parts") if end.outcome.is_bad)


OF_TESTS = """
    import threading
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.fixture
    def group():
        dist.init_process_group("gloo")
        yield
        dist.destroy_process_group()

    def test_before(group):
        dist.all_reduce(torch.ones(1))

    def test_fails(group, rank):
        if rank == 0:
            threading.Event().wait()
        assert rank != 1
        dist.barrier()
"""


@pytest.mark.thorough
def test_calls_in_the_group_of_an_earlier_test_are_not_compared(run_agent):
    limits = {"test": 10.0, "peer_grace": 0.5}
    agent = run_agent({"test_of.py": OF_TESTS}, process_group=False, world_size=3, limits=limits)
    leader = agent.leaders("test_fails")[0]
    assert (leader.rank, leader.message) == (1, "assert 1 != 1")


OF_CLASSES = """
    import os
    import unittest
    import torch.distributed as dist

    pids = set()

    class TestFirst(unittest.TestCase):
        @classmethod
        def setUpClass(cls):
            dist.init_process_group("gloo")

        @classmethod
        def tearDownClass(cls):
            dist.destroy_process_group()

        def test_one(self):
            pids.add(os.getpid())
            dist.barrier()

        def test_two(self):
            dist.barrier()

    class TestSecond(TestFirst):
        def test_three(self):
            dist.barrier()
            self.assertEqual(pids, {os.getpid()})
"""


@pytest.mark.parametrize("init_method", quick(1, ["env", "tcp"]))
def test_a_group_of_a_class_is_made_for_each_class_in_the_same_ranks(run_agent, init_method):
    agent = run_agent({"test_classes.py": OF_CLASSES}, init_method=init_method)
    assert agent.outcomes("test_three") == ("passed", "passed"), agent.cases(0)["test_three"].text
    assert {end.outcome for end in agent.ends} == {"passed"}
    assert len(agent.gangs()) == 1
