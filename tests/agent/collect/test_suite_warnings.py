"""Warnings during the collection of a suite are reported."""

import pytest

from allranks.protocol.records import CollectionFailed, Notice, SuiteWarning

FILES = {
    "conftest.py": """
        import warnings
        warnings.warn("from a conftest file")
    """,
    "test_it.py": """
        import warnings
        import pytest
        from json import decoder

        for _ in range(3):
            warnings.warn("three times")
        warnings.warn("two\\n  lines", DeprecationWarning)
        warnings.warn("not shown", ResourceWarning)
        warnings.warn_explicit("from elsewhere", FutureWarning, "/opt/elsewhere.py", 5)

        class TestThings:
            def __init__(self): pass
            def test_inside(self): pass

        @pytest.mark.misspelled
        def test_warns():
            warnings.warn("from a test")
    """,
    "pytest.ini": "[pytest]\nno_such_option = 1\nfilterwarnings = ignore:not shown\n",
}


@pytest.fixture(scope="module")
def suite(run_once):
    return run_once("suite_warnings", FILES)


@pytest.mark.parametrize(
    ("file", "line", "category", "start"),
    [
        ("suite/conftest.py", 3, "UserWarning", "from a conftest file"),
        ("suite/test_it.py", 7, "UserWarning", "three times"),
        ("suite/test_it.py", 8, "DeprecationWarning", "two lines"),
        ("/opt/elsewhere.py", 5, "FutureWarning", "from elsewhere"),
        ("suite/test_it.py", 12, "PytestCollectionWarning", "cannot collect test class 'TestThings' because it has"),
        ("suite/test_it.py", 16, "PytestUnknownMarkWarning", "Unknown pytest.mark.misspelled"),
    ],
)
def test_a_warning_is_reported_once_with_file_and_line(suite, file, line, category, start):
    of_category = [record for record in suite.all(SuiteWarning) if (record.file, record.category) == (file, category)]
    assert [record.line for record in of_category if record.text.startswith(start)] == [line]


def test_a_warning_about_the_configuration_is_reported(suite):
    [found] = [record for record in suite.all(SuiteWarning) if record.category == "PytestConfigWarning"]
    assert found.text == "Unknown config option: no_such_option"


@pytest.mark.parametrize("text", ["from a test", "not shown"])
def test_warnings_of_tests_and_filtered_ones_are_not_reported(suite, text):
    assert text not in [record.text for record in suite.all(SuiteWarning)]


def test_disable_warnings_omits_warnings(run_agent):
    agent = run_agent(FILES, pytest_args=("--disable-warnings",))
    assert agent.all(SuiteWarning) == []


def test_the_warnings_of_a_suite_that_cannot_be_collected_are_reported(run_agent):
    agent = run_agent({"test_it.py": "import warnings\nwarnings.warn('first')\nraise LookupError('then')\n"})
    assert [record.text for record in agent.all(SuiteWarning)] == ["first"]
    assert len(agent.all(CollectionFailed)) == 1


LIMITED = "import pytest\n@pytest.mark.timeout(8)\ndef test_a(): pass\n@pytest.mark.timeout(9)\ndef test_b(): pass\n"
ADDS = "def pytest_configure(config):\n    config.addinivalue_line('markers', 'timeout(seconds): a limit')\n"
INI = "[pytest]\nmarkers =\n    timeout(seconds): a limit\n"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("more", "arguments", "is_ignored"),
    [
        ({}, (), True),
        ({"pytest.ini": INI}, (), True),
        ({"conftest.py": ADDS}, (), False),
        ({"conftest.py": ADDS, "pytest.ini": INI}, (), False),
        ({}, ("-p", "pytest_timeout"), False),
        ({"pytest.ini": INI}, ("-p", "pytest_timeout"), False),
    ],
)
def test_a_time_limit_that_nothing_enforces_is_a_notice(run_agent, more, arguments, is_ignored):
    agent = run_agent({"test_it.py": LIMITED, **more}, pytest_args=arguments)
    notices = [(record.nodeid, record.text) for record in agent.all(Notice)]
    if not is_ignored:
        assert notices == []
        return
    [(nodeid, text)] = notices
    assert nodeid == "suite/test_it.py::test_a"
    assert text.startswith("The marker timeout of this test and 1 more has no effect")
    assert "pytest-timeout is not installed" in text
    assert "limits.test" in text


def test_ranks_add_no_warnings_to_a_suite_that_turns_them_into_errors(run_agent):
    agent = run_agent({"pytest.ini": "[pytest]\nfilterwarnings = error\n", "test_it.py": "def test_it(): pass\n"})
    assert agent.outcomes("test_it") == ("passed", "passed")
