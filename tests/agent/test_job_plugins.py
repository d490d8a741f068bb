"""Plug-ins in jobs: which ones are loaded, and their settings."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from allranks.agent.job_plugins import JobPluginError, check_plugins, functions
from allranks.protocol.records import AgentFailed, Finished, Passed

FILES = {"test_a.py": "def test_a(): pass"}


def named(**plugins):
    """The description of a job."""
    return SimpleNamespace(plugins=plugins)


@pytest.fixture
def plug_in(monkeypatch):
    """``plug_in(name, function=...)``: a plug-in whose part for jobs has these functions."""

    def add(name, **functions):
        for part in ("", ".agent", ".agent.hooks"):
            monkeypatch.setitem(sys.modules, f"allranks.plugins.{name}{part}", ModuleType(part))
        vars(sys.modules[f"allranks.plugins.{name}.agent.hooks"]).update(functions)

    return add


def test_each_plug_in_of_a_job_gets_its_own_settings(plug_in):
    plug_in("one", configure=lambda settings, session: (1, settings, session))
    plug_in("two", configure=lambda settings, session: (2, settings, session))
    plug_in("three", run_tests=lambda: None)
    config = named(two={"x": 1}, one={}, three={})
    check_plugins(config)
    assert [configure("s") for configure in functions(config, "configure")] == [(2, {"x": 1}, "s"), (1, {}, "s")]


def test_a_plug_in_that_is_not_in_the_job_is_not_loaded(plug_in):
    plug_in("one", configure=lambda *_: None)
    assert not list(functions(named(), "configure"))


def test_two_plug_ins_that_run_tests_are_rejected(plug_in):
    for name in ("one", "two"):
        plug_in(name, run_tests=lambda *_: None)
    check_plugins(named(one={}))
    with pytest.raises(JobPluginError, match=r"Only one plug-in of a job can run its tests, but one and two do\."):
        check_plugins(named(one={}, two={}))


@pytest.mark.parametrize("name", ["nope", "history", "", "..", "history.compare", "x y"])
def test_a_plug_in_that_cannot_be_imported_is_an_error_that_names_it(name):
    with pytest.raises(JobPluginError, match=rf"The plug-in {name} cannot run in this job: \w+Error: "):
        check_plugins(named(**{name: {}}))


@pytest.mark.parametrize("name", ["nope", "history"])
def test_a_job_with_an_absent_plug_in_fails_before_any_test(start_agent, name):
    agent = start_agent(FILES, plugins={name: {}}).go()
    assert agent.wait() == 1
    [failed] = agent.all(AgentFailed)
    assert failed.message.startswith(f"The plug-in {name} cannot run in this job: ModuleNotFoundError: ")
    assert not failed.text
    assert [ended.status for ended in agent.all(Finished)] == [1]
    assert not agent.all(Passed)
