"""Agents that run selected tests of their suite, or in another order."""

from itertools import groupby

import pytest
from agent_run import AgentRun

from allranks.protocol.config import Selection
from allranks.protocol.records import Collected, Finished, Imported, Notice, TestStarted

FILES = {
    "test_a.py": """
        class TestA:
            def test_1(self): pass
            def test_2(self): pass
            def test_3(self): pass
        def test_4(): pass
        def test_5(): pass
    """,
    "test_b.py": "def test_1(): pass\ndef test_2(): pass\n",
    "test_c.py": "import pytest\npytest.skip('not here', allow_module_level=True)\n",
}
A1, A5, B2, C = "test_a.py::TestA::test_1", "test_a.py::test_5", "test_b.py::test_2", "test_c.py"


def ran(agent):
    names = dict.fromkeys(record.nodeid for record in agent.all(TestStarted))
    return [name.removeprefix("suite/") for name in names]


def collected(agent):
    return [name.removeprefix("suite/") for name in agent.all(Collected)[0].tests]


def test_only_selected_tests_are_collected(run_agent):
    agent = run_agent(FILES, world_size=1, only=(f"suite/{B2}", f"suite/{A1}", "suite/test_b.py::test_gone"))
    assert (ran(agent), collected(agent)) == ([A1, B2], [A1, B2])
    assert agent.all(Collected)[0].deselected == 0


def test_a_module_that_skips_itself_can_be_selected(run_agent):
    agent = run_agent(FILES, world_size=1, only=(f"suite/{C}",))
    assert (ran(agent), collected(agent)) == ([], [C])
    assert agent.all(Finished)


def test_nothing_is_collected_if_no_selected_test_exists(run_agent):
    agent = run_agent(FILES, world_size=1, only=("suite/test_b.py::test_gone",))
    assert collected(agent) == []
    assert agent.all(Finished)


def test_tests_may_be_selected_and_ordered_while_the_agent_imports_torch(start_command, tmp_path):
    file = tmp_path / "selection.json"
    agent = start_command(FILES, world_size=1, pytest_args=("-k", "nothing"), selection_file=str(file))
    agent.wait_for(Imported)
    Selection(pytest_args=("suite",), only=(f"suite/{B2}", f"suite/{A1}")).write(file)
    agent.go()
    assert agent.wait() == 0, agent.log
    assert (ran(agent), collected(agent)) == ([B2, A1], [B2, A1])


@pytest.fixture
def order(launch_fork, tmp_path_factory):
    """A function that returns the order in which an agent runs the tests."""

    def order(**changes):
        agent = AgentRun(tmp_path_factory.mktemp("agent"), FILES, launch_fork, **{"world_size": 1, **changes}).go()
        assert agent.wait() == 0, agent.log
        agent.close()
        return ran(agent)

    return order


@pytest.mark.thorough
def test_shuffling_keeps_files_and_classes_together_and_ignores_the_selection(order):
    usual = order()
    everything = order(shuffle=3)
    assert everything != usual
    assert sorted(everything) == sorted(usual)
    files = [name for name, _ in groupby(everything, lambda name: name.split("::")[0])]
    assert len(files) == len(set(files))
    of_class = [index for index, name in enumerate(everything) if "TestA" in name]
    assert of_class == list(range(of_class[0], of_class[0] + 3))
    part = {A1, A5, B2}
    assert order(shuffle=3, only=tuple(f"suite/{name}" for name in part)) == [
        name for name in everything if name in part
    ]


@pytest.mark.thorough
def test_the_seed_decides_the_order_on_all_ranks(order):
    assert len({tuple(order(shuffle=seed, world_size=2)) for seed in range(4)}) > 1


@pytest.mark.thorough
def test_a_notice_has_the_seed_of_the_order(run_agent):
    notices = [event.text for event in run_agent(FILES, world_size=1, shuffle=3).all(Notice)]
    assert "Tests were shuffled (--shuffle 3)." in notices
