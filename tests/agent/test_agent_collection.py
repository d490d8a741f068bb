"""Collection: its errors, skipped modules, and the selection of tests."""

import pytest
from long_lists import quick

from allranks.protocol.records import (
    AgentFailed,
    Collected,
    CollectionFailed,
    FailureKind,
    GangStarted,
    NotRun,
    SuiteWarning,
)

PASSING = "def test_passes(): pass\n"
UNGUARDED = "import unittest\nclass TestA(unittest.TestCase):\n  def test_a(self): pass\nunittest.main()\n"
EXITING_HOOK = "def pytest_generate_tests(): sys.exit(0)\n"


def test_modules_that_cannot_be_imported_are_reported_and_others_run(run_agent):
    files = {
        "test_syntax.py": "def test_broken(:",
        "test_import.py": "import there_is_no_such_module",
        "test_root.py": "import suite.test_fine",
        "test_fine.py": PASSING,
    }
    agent = run_agent(files)
    failures = {event.nodeid: event.text for event in agent.all(CollectionFailed)}
    assert set(failures) == {"suite/test_syntax.py", "suite/test_import.py", "suite/test_root.py"}
    # The last one would be found under `python -m pytest`.
    remedies = {event.nodeid: event.remedy.partition(" ")[0] for event in agent.all(CollectionFailed) if event.remedy}
    assert remedies == {"suite/test_root.py": "suite"}
    assert "SyntaxError" in failures["suite/test_syntax.py"]
    assert "there_is_no_such_module" in failures["suite/test_import.py"]
    assert agent.outcomes("test_passes") == ("passed", "passed")


@pytest.mark.thorough
def test_with_dash_x_a_broken_module_prevents_all_tests(run_agent):
    agent = run_agent({"test_broken.py": "1 / 0", "test_fine.py": PASSING}, pytest_args=("-x",))
    assert "ZeroDivisionError" in agent.all(CollectionFailed)[0].text
    assert not agent.all(GangStarted)


@pytest.mark.parametrize(
    ("files", "words"),
    quick(
        1,
        [
            ({"conftest.py": "import there_is_no_such_module", "test_a.py": PASSING}, "there_is_no_such_module"),
            ({"conftest.py": "import suite", "test_a.py": PASSING}, "No module named 'suite'"),
            ({"inner/conftest.py": "1 / 0", "inner/test_a.py": PASSING}, "ZeroDivisionError"),
            ({"test_a.py": "def test_a(no_such_mark):\n  pass\nimport pytest\npytest.exit('at import')"}, "at import"),
        ],
    ),
)
def test_the_text_of_a_failed_collection_is_from_pytest(start_agent, files, words):
    agent = start_agent(files, world_size=1).go()
    agent.wait()
    failures = agent.all(CollectionFailed)
    assert failures, (agent.log, agent.all(AgentFailed))
    assert words in failures[0].text
    assert ("python -m pytest" in failures[0].remedy) == ("'suite'" in words)
    assert not agent.all(GangStarted)


@pytest.mark.thorough
def test_a_module_that_exits_like_a_script_does_not_affect_others(run_agent):
    files = {
        "test_lacking.py": "import sys\nprint('no GPUs')\nsys.exit(0)\n" + PASSING,
        "test_wrong.py": "import sys\nsys.exit('at import')",
        "test_unguarded.py": UNGUARDED,
        "test_status_1.py": "import sys\nsys.exit(0.0)",
        "test_class.py": "import sys\nclass TestA:\n  def test_a(self, b): pass\n" + EXITING_HOOK,
        "inner/conftest.py": "import sys\nsys.exit(0)",
        "inner/test_inner.py": PASSING,
        "package/__init__.py": "import sys\nsys.exit(0)",
        "package/test_packed.py": PASSING,
        "test_fine.py": PASSING,
    }
    agent = run_agent(files, world_size=1)
    failed = {record.nodeid.removeprefix("suite/"): record.text for record in agent.all(CollectionFailed)}
    assert failed.pop("test_wrong.py") == "importing it calls sys.exit('at import'), so its tests are unknown"
    assert failed.pop("test_status_1.py") == "importing it calls sys.exit(0.0), so its tests are unknown"
    assert "after the definition of TestA: exit above all tests, or only if" in failed.pop("test_unguarded.py")
    assert {place: text.rpartition("/suite/")[2] for place, text in failed.items()} == {
        "test_class.py::TestA": "test_class.py:4 calls sys.exit(0) while the tests are collected",
        "inner": "inner/conftest.py:2 calls sys.exit(0) while the tests are collected",
        "package/test_packed.py": "package/__init__.py:2 calls sys.exit(0) while the tests are collected",
    }
    skipped = agent.cases(0)["suite.test_lacking"]
    assert (skipped.outcome, skipped.message) == ("skipped", "importing it calls sys.exit(0)")
    assert agent.outcomes("test_passes") == ("passed",)


@pytest.mark.thorough
def test_a_file_whose_tests_are_for_absent_devices_is_skipped(run_agent):
    of_devices = """
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase
class Test(TestCase):
    def test_it(self, device): pass
instantiate_device_type_tests(Test, globals(), only_for=DEVICES)
"""
    files = {
        "test_absent.py": of_devices.replace("DEVICES", "('cuda', 'hpu')"),
        "test_present.py": of_devices.replace("DEVICES", "'cpu'"),
        "test_empty.py": "",
    }
    agent = run_agent(files, world_size=1)
    assert not agent.all(CollectionFailed)
    assert agent.outcomes("test_it_cpu") == ("passed",)
    skipped = agent.cases(0)["suite.test_absent"]
    assert skipped.outcome == "skipped"
    assert (
        skipped.message
        == "its tests are for devices that this host lacks (instantiate_device_type_tests generated no test)"
    )


FOLDERS = {
    "a/test_it.py": "from beside import NAME\ndef test_one(): assert NAME == 'a'\n",
    "a/beside.py": "NAME = 'a'",
    "b/__init__.py": "",
    "b/test_it.py": "import beside\ndef test_two(): assert beside.NAME == 'b'\n",
    "b/beside.py": "NAME = 'b'",
    "a/test_other.py": "import unittest\nclass TestFour(unittest.TestCase):\n  def test_four(self): pass\n",
    "e/__init__.py": "",
    "e/test_spawn.py": "def work(): raise RuntimeError('another script')\ndef test_six(): pass\n",
    "a/test_spawn.py": """
import multiprocessing
def work(): pass
def test_five():
    process = multiprocessing.get_context("spawn").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 0
""",
    "d/__init__.py": "",
    "d/test_other.py": PASSING,
    "c/test_it.py": """
import pickle, subprocess, sys
import pytest
class Value: pass
def test_three():
    with pytest.raises(ImportError):
        import beside
        assert beside.NAME in "ab"
        raise ImportError
    assert isinstance(pickle.loads(pickle.dumps(Value())), Value)
    find = f"import sys; sys.path[:] = {sys.path}; import test_it; print(test_it.__file__)"
    assert subprocess.check_output([sys.executable, "-c", find], text=True).strip() == __file__
""",
}


@pytest.mark.thorough
def test_each_file_imports_the_modules_of_its_own_folder(run_agent):
    agent = run_agent(FOLDERS, world_size=1)
    assert not agent.all(CollectionFailed)
    tests = ("test_five", "test_one", "test_two", "test_three", "test_four", "test_passes")
    assert [agent.outcomes(test) for test in tests] == [("passed",)] * 6


@pytest.mark.thorough
def test_collected_tests_run_with_continue_on_collection_errors(run_agent):
    files = {"test_import.py": "import there_is_no_such_module", "test_fine.py": PASSING}
    agent = run_agent(files, pytest_args=("--continue-on-collection-errors",))
    assert [failed.nodeid for failed in agent.all(CollectionFailed)] == ["suite/test_import.py"]
    assert agent.outcomes("test_passes") == ("passed", "passed")


SEVERAL = {"a/test_a.py": PASSING, "b/test_b.py": PASSING, "c/test_[c].py": PASSING, "c/test_d.py": "1 / 0"}


def test_a_suite_of_several_paths_runs_them_in_order(run_agent):
    agent = run_agent(SEVERAL, paths=("suite/b/test_b.py", "suite/a"), world_size=1)
    nodeids = ["suite/b/test_b.py::test_passes", "suite/a/test_a.py::test_passes"]
    assert [nodeid for part in agent.all(Collected) for nodeid in part.tests] == nodeids
    assert not agent.all(CollectionFailed)


@pytest.mark.thorough
def test_a_path_is_not_a_pattern(start_agent):
    agent = start_agent({"ab/test_a.py": PASSING, "a[b]/test_a.py": PASSING}, paths=("suite/a[b]",), world_size=1).go()
    assert agent.wait() == 1
    assert "suite/a[b]" in agent.all(AgentFailed)[0].message  # pytest takes the bracket for a parameter
    assert not agent.all(GangStarted)


@pytest.mark.thorough
def test_excluded_paths_are_not_collected(run_agent):
    agent = run_agent(SEVERAL, ignored=("suite/c/test_d.py", "suite/b"), world_size=1)
    nodeids = ["suite/a/test_a.py::test_passes", "suite/c/test_[c].py::test_passes"]
    assert [nodeid for part in agent.all(Collected) for nodeid in part.tests] == nodeids
    assert not agent.all(CollectionFailed)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("paths", "name"), [(("suite/a", "suite/b"), "found_it"), (("suite/a/in", "suite/a"), "own_it")]
)
def test_the_configuration_is_from_the_common_folder_of_all_paths(run_agent, paths, name):
    files = {
        "pytest.ini": "[pytest]\npython_functions = found_*",
        "a/pytest.ini": "[pytest]\npython_functions = own_*",
        "a/test_a.py": "def found_it(): pass\ndef own_it(): pass",
        "a/in/test_c.py": "",
        "b/test_b.py": "",
    }
    agent = run_agent(files, paths=paths, world_size=1)
    assert list(agent.all(Collected)[0].tests) == [f"suite/a/test_a.py::{name}"]


@pytest.mark.thorough
def test_an_absent_suite_is_a_failed_collection(run_agent):
    agent = run_agent({"test_a.py": PASSING}, paths=("suite", "elsewhere"))
    assert "elsewhere" in agent.all(CollectionFailed)[0].text


@pytest.mark.thorough
def test_an_empty_suite_passes(run_agent):
    agent = run_agent({"helper.py": ""})
    assert list(agent.all(Collected)[0].tests) == []
    assert not agent.all(CollectionFailed)
    assert agent.cases(0) == {}


THREE = {"test_three.py": "def test_red(): pass\ndef test_green(): pass\ndef test_dark_green(): pass\n"}


@pytest.mark.thorough
@pytest.mark.parametrize(("expression", "kept"), [("green", ["test_green", "test_dark_green"]), ("blue", [])])
def test_deselected_tests_are_counted_and_not_run(run_agent, expression, kept):
    agent = run_agent(THREE, pytest_args=("-k", expression), world_size=1)
    [collected] = agent.all(Collected)
    assert list(collected.tests) == [f"suite/test_three.py::{name}" for name in kept]
    assert collected.deselected == 3 - len(kept)
    assert list(agent.cases(0)) == kept


def test_a_module_that_skips_itself_is_skipped_on_every_rank(run_agent):
    files = {"test_module.py": "import pytest\npytest.importorskip('no_such_module')\n" + PASSING, "test_b.py": PASSING}
    agent = run_agent(files)
    assert agent.outcomes("suite.test_module") == ("skipped", "skipped")
    case = agent.cases(1)["suite.test_module"]
    assert "could not import 'no_such_module'" in case.message
    assert case.properties["skip_kind"] == "plain"
    assert "suite/test_module.py" in agent.all(Collected)[0].tests
    assert agent.outcomes("test_passes") == ("passed", "passed")


def test_ranks_wait_for_the_start_of_the_job(start_agent):
    agent = start_agent({"test_a.py": PASSING}, world_size=1)
    agent.wait_for(Collected)
    assert not agent.all(GangStarted)
    agent.go()
    assert agent.wait() == 0
    assert agent.all(GangStarted)


TWO = {"test_a.py": "def test_one(): pass\ndef test_two(): pass\n", "test_b.py": PASSING}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ["suite/test_a.py::test_one", "suite/test_a.py::test_two", "suite/test_b.py::test_passes"]),
        (("suite/test_b.py",), ["suite/test_b.py::test_passes"]),
        (("suite/test_a.py::test_two", "-q"), ["suite/test_a.py::test_two"]),
        (("--ignore=suite/test_a.py",), ["suite/test_b.py::test_passes"]),
    ],
)
def test_paths_and_node_ids_of_the_report_choose_tests(run_agent, arguments, expected):
    agent = run_agent(TWO, pytest_args=arguments, world_size=1)
    assert list(agent.all(Collected)[0].tests) == expected


@pytest.mark.thorough
def test_the_working_directory_of_tests_is_the_shared_folder(run_agent):
    agent = run_agent({"test_a.py": "import os\ndef test_place(): assert os.path.basename(os.getcwd()) == 'shared'\n"})
    assert agent.outcomes("test_place") == ("passed", "passed")


@pytest.mark.thorough
def test_collected_tests_are_reported_as_not_run(run_agent):
    agent = run_agent(TWO, pytest_args=("--collect-only",), world_size=1)
    assert agent.all(NotRun)[0].reason == "--collect-only"
    assert len(agent.all(NotRun)[0].tests) == 3


@pytest.mark.thorough
def test_a_hook_that_raises_when_the_session_ends_is_named(start_agent):
    conftest = """
        def pytest_sessionfinish():
            raise LookupError("no such store")
    """
    agent = start_agent({"conftest.py": conftest, "test_one.py": "def test_one():\n    pass\n"}).go()
    assert agent.wait() == 1
    [failed] = agent.all(AgentFailed)
    assert failed.message == "internal error in pytest or in one of the suite's hooks: LookupError: no such store"
    assert failed.kind is FailureKind.SUITE
    assert "conftest.py" in failed.text
    assert [case.outcome for case in agent.cases(0).values()] == ["passed"]


@pytest.mark.thorough
@pytest.mark.parametrize("optimization", ["1", "2"])
def test_an_interpreter_that_ignores_assert_statements_is_reported(start_command, optimization):
    """pytest still rewrites and checks the assertions of test modules."""
    files = {"test_small.py": "def test_fails(rank):\n    assert rank == 0, 'only the second'"}
    job = start_command(files, environment={"PYTHONOPTIMIZE": optimization}).go()
    job.wait()
    assert job.outcomes("test_fails") == ("passed", "failed")
    [warning] = [warning for warning in job.all(SuiteWarning) if "assert" in warning.text]
    assert warning.category == "PytestConfigWarning"
    assert warning.text.startswith("assertions not in test modules or plugins will be ignored")


@pytest.mark.parametrize("arguments", quick(1, map(pytest.param, [(), ("-W", "ignore::pytest.PytestConfigWarning")])))
def test_a_warning_about_the_configuration_is_reported_unless_it_is_ignored(run_agent, arguments):
    files = {"pytest.ini": "[pytest]\nno_such_option = 1", "test_small.py": "def test_passes(): pass"}
    job = run_agent(files, pytest_args=arguments)
    expected = [] if arguments else ["Unknown config option: no_such_option"]
    assert [warning.text for warning in job.all(SuiteWarning)] == expected
