"""Adapting torch's classes in different versions of torch."""

import sys
import types

import pytest
import torch

from allranks.agent.launch import torch_continuous, torch_processes
from allranks.agent.launch.adapt import adapt_torch_cases
from allranks.agent.rank.marker_options import TORCHS_TEST_CASES as MODULE
from allranks.agent.rank.marker_options import torch_time_limit


def make_class(name, hooks):
    methods = {hook: lambda _self: "torch's" for hook in hooks}
    if "_spawn_processes" in methods and hooks == torch_continuous.HOOKS:
        methods["_spawn_processes"] = classmethod(methods["_spawn_processes"])
    return type(name, (), {"__module__": MODULE, **methods})


@pytest.fixture
def torch_module(monkeypatch):
    """``torch_module(MultiProcessTestCase=("_run", ...))``: a module like torch's, with these classes and methods."""

    def make(**classes):
        module = types.ModuleType(MODULE)
        for name, hooks in classes.items():
            setattr(module, name, make_class(name, hooks))
        monkeypatch.setitem(sys.modules, MODULE, module)
        return module

    return make


def test_nothing_is_imported_for_it(monkeypatch):
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    assert list(adapt_torch_cases()) == []
    assert MODULE not in sys.modules


def test_the_hooks_are_replaced_once(torch_module):
    case = torch_module(MultiProcessTestCase=torch_processes.HOOKS).MultiProcessTestCase
    theirs = case._start_processes
    assert list(adapt_torch_cases()) == []
    ours = case._start_processes
    assert ours is not theirs
    assert list(adapt_torch_cases()) == []
    assert case._start_processes is ours


def test_what_ranks_do_stays_torchs(torch_module):
    case = torch_module(MultiProcessTestCase=torch_processes.HOOKS).MultiProcessTestCase
    theirs = {name: getattr(case, name) for name in ("_run", "run_test", "_check_return_codes")}
    list(adapt_torch_cases())
    assert {name: getattr(case, name) for name in theirs} == theirs


KINDS = [
    ("MultiProcessTestCase", torch_processes.HOOKS),
    ("MultiProcContinuousTest", torch_continuous.HOOKS),
    ("MultiProcContinousTest", torch_continuous.HOOKS),  # torch 2.7
    ("MultiProcContinousTest", torch_continuous.SCRIPT_HOOKS),  # torch 2.6
]


@pytest.mark.parametrize(("name", "hooks"), KINDS)
def test_a_class_is_adapted_by_its_name(torch_module, name, hooks):
    case = getattr(torch_module(**{name: hooks}), name)
    before = dict(vars(case))
    assert list(adapt_torch_cases()) == []
    assert any(vars(case).get(hook) is not before.get(hook) for hook in (*hooks, "__init__"))


def test_a_class_with_two_names_is_adapted_once(torch_module):
    module = torch_module(MultiProcContinuousTest=torch_continuous.HOOKS)
    module.MultiProcContinousTest = type("Older", (module.MultiProcContinuousTest,), {})
    assert list(adapt_torch_cases()) == []
    assert "allranks_launcher" not in vars(module.MultiProcContinousTest)


@pytest.mark.parametrize(("name", "hooks"), KINDS)
def test_an_unsupported_class_is_not_changed_and_gets_one_notice(torch_module, name, hooks):
    case = getattr(torch_module(**{name: hooks[1:]}), name)
    before = {hook: vars(case)[hook] for hook in hooks[1:]}
    [notice] = adapt_torch_cases()
    assert notice.startswith(f"allranks does not support {name} of this version of torch")
    assert f"which has no {hooks[0]}. " in notice
    assert {hook: vars(case)[hook] for hook in before} == before
    assert list(adapt_torch_cases()) == []


def test_an_unsupported_class_still_runs_in_a_launching_process(torch_module):
    case = torch_module(MultiProcessTestCase=()).MultiProcessTestCase
    list(adapt_torch_cases())
    assert case.allranks_launcher


def test_torch_starts_the_ranks_if_the_process_uses_cuda(torch_module, monkeypatch):
    case = torch_module(MultiProcessTestCase=torch_processes.HOOKS).MultiProcessTestCase
    started = []
    case._start_processes = lambda _self, proc: started.append(proc)
    case._join_processes = lambda self, _fn: self.processes.clear()
    case.id = lambda _self: "test_mine"
    list(adapt_torch_cases())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    test = case()
    with pytest.warns(RuntimeWarning, match="torch starts the ranks of test_mine itself"):
        test._start_processes("a process")
    assert started == ["a process"]
    test.processes = started
    test._join_processes(None)
    assert test.processes == []


@pytest.fixture
def continuous_class(torch_module):
    """torch's continuous class after it was adapted, and the world sizes of the ranks that torch has started."""
    case = torch_module(MultiProcContinuousTest=torch_continuous.HOOKS).MultiProcContinuousTest
    case.started = []
    case._spawn_processes = classmethod(lambda cls, size: cls.started.append(size))
    list(adapt_torch_cases())
    return case


def test_a_class_does_not_start_ranks_before_its_first_test(continuous_class):
    continuous_class._spawn_processes(2)
    assert continuous_class.started == continuous_class.processes == continuous_class.task_queues == []


def test_torch_starts_the_ranks_of_a_class_if_the_process_uses_cuda(continuous_class, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.warns(RuntimeWarning, match="torch starts the ranks of MultiProcContinuousTest itself"):
        continuous_class._spawn_processes(2)
    assert continuous_class.started == [2]


def test_torch_starts_the_ranks_of_a_class_with_its_own_worker_loop(continuous_class):
    class Mine(continuous_class):
        @classmethod
        def _worker_loop(cls): ...

    Mine._spawn_processes(2)
    assert Mine.started == [2]


def test_torchs_tests_get_the_init_method_as_a_url(monkeypatch):
    tests = types.ModuleType("distributed_test")
    tests.INIT_METHOD = "env"
    monkeypatch.setitem(sys.modules, "torch.testing._internal.distributed.distributed_test", tests)
    list(adapt_torch_cases())
    assert tests.INIT_METHOD == "env://"


def test_torchs_longer_limits_are_read(torch_module):
    assert torch_time_limit("test_of_no_torch") == 0
    torch_module().TIMEOUT_OVERRIDE = {"test_slow": 500}
    assert (torch_time_limit("test_slow"), torch_time_limit("test_other")) == (500.0, 0.0)


def test_torch_judges_threads_of_an_unsupported_class(torch_module):
    case = torch_module(MultiThreadedTestCase=("_spawn_threads",)).MultiThreadedTestCase
    theirs = case._spawn_threads
    [notice] = adapt_torch_cases()
    assert "which has no _run and no _join_threads and no _check_return_codes. " in notice
    assert case._spawn_threads is theirs
    assert case.allranks_launcher
    assert case.allranks_has_thread_ranks
