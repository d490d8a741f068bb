"""Skips of torch's sandcastle decorators; test_processes.py uses the real decorators in an agent."""

import sys
import types
import unittest

import pytest

from allranks.agent.environment_skips import MODULE, SandcastleReason, watch_for_sandcastle_skips


def skip_if(condition, reason):
    """Like torch's, outside of sandcastle."""
    return unittest.skipIf(condition, reason)


@pytest.fixture
def decorators(monkeypatch):
    """A module that replaces torch's, imported before the watch started."""
    module = types.ModuleType(MODULE)
    module.skip_but_pass_in_sandcastle = unittest.skip
    module.skip_but_pass_in_sandcastle_if = skip_if
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


def reason_of(decorator):
    @decorator
    class Test(unittest.TestCase): ...

    return getattr(Test, "__unittest_skip_why__", None)


def test_the_reason_of_a_skip_starts_with_its_mark(decorators):
    with watch_for_sandcastle_skips():
        reasons = [
            reason_of(decorators.skip_but_pass_in_sandcastle("no NCCL")),
            reason_of(decorators.skip_but_pass_in_sandcastle(reason="no NCCL")),
            reason_of(decorators.skip_but_pass_in_sandcastle_if(True, "no NCCL")),
            reason_of(decorators.skip_but_pass_in_sandcastle_if(True, reason="no NCCL")),
            reason_of(decorators.skip_but_pass_in_sandcastle_if(condition=True, reason="no NCCL")),
        ]
    assert reasons == ["no NCCL"] * 5
    assert {type(reason) for reason in reasons} == {SandcastleReason}


def test_tests_that_were_not_skipped_still_run(decorators):
    with watch_for_sandcastle_skips():
        assert reason_of(decorators.skip_but_pass_in_sandcastle_if(False, "no NCCL")) is None


def test_decorators_are_wrapped_once(decorators):
    with watch_for_sandcastle_skips():
        ours = decorators.skip_but_pass_in_sandcastle
        with watch_for_sandcastle_skips():
            assert decorators.skip_but_pass_in_sandcastle is ours


def test_a_torch_without_these_names_is_supported(decorators):
    del decorators.skip_but_pass_in_sandcastle
    with watch_for_sandcastle_skips():
        assert not hasattr(decorators, "skip_but_pass_in_sandcastle")


def test_nothing_watches_afterwards():
    before = list(sys.meta_path)
    with watch_for_sandcastle_skips():
        assert sys.meta_path != before
    assert sys.meta_path == before
