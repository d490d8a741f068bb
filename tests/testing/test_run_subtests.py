import sys
import types
import unittest

import pytest
import torch.distributed

from allranks.testing import run_subtests

pytest_plugins = ["pytester"]


class Case(unittest.TestCase):
    pass


def test_the_body_runs_for_each_combination_in_order():
    seen = []
    run_subtests(Case(), {"a": [1, 2], "b": ["x", "y"]}, lambda *args, **kwargs: seen.append((args, kwargs)), 0, c=9)
    assert seen == [((0,), {"a": a, "b": b, "c": 9}) for a in (1, 2) for b in ("x", "y")]


def test_no_settings_are_one_run():
    seen = []
    run_subtests(Case(), {}, lambda: seen.append(1))
    assert seen == [1]


def test_a_setting_without_values_is_an_error():
    with pytest.raises(ValueError, match="'b' has no values"):
        run_subtests(Case(), {"a": [1], "b": []}, lambda **_: None)


def test_a_setting_that_is_also_a_keyword_argument_is_an_error():
    with pytest.raises(ValueError, match="'a' is both a setting and a keyword argument"):
        run_subtests(Case(), {"a": [1]}, lambda **_: None, a=2)


def test_an_object_without_subtests_is_an_error():
    with pytest.raises(TypeError, match="cannot run subtests"):
        run_subtests(object(), {}, lambda: None)


def test_the_error_states_the_settings_that_failed():
    def body(a, b):
        assert a * b != 6

    with pytest.raises(AssertionError) as caught:
        run_subtests(Case(), {"a": [1, 2], "b": [3, 4]}, body)
    assert caught.value.__notes__ == ["subtest 3: a=2, b=3"]


def test_other_subtests_run_after_a_failure_and_every_failure_is_reported():
    seen = []

    class Failing(unittest.TestCase):
        def test_it(self):
            def body(a):
                seen.append(a)
                assert a == 2

            run_subtests(self, {"a": [1, 2, 3]}, body)

    result = unittest.TestResult()
    Failing("test_it").run(result)
    assert seen == [1, 2, 3]
    assert [str(case).rpartition(" ")[2] for case, _ in result.failures] == ["(a=1)", "(a=3)"]


def test_compilations_are_dropped_before_and_after_each_subtest(monkeypatch):
    log = []

    def body(a):
        log.append(a)

    monkeypatch.setitem(sys.modules, "torch._dynamo", types.SimpleNamespace(reset=lambda: log.append("reset")))
    run_subtests(Case(), {"a": [1, 2]}, body)
    assert log == ["reset", 1, "reset", "reset", 2, "reset"]


def test_pytests_fixture_is_accepted(pytester):
    pytester.makepyfile(
        """
        from allranks.testing import run_subtests

        def test_it(subtests):
            def body(a):
                assert a == 1
            run_subtests(subtests, {"a": [1, 2]}, body)
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:hypothesispytest")
    result.stdout.fnmatch_lines(["*a=2*"])
    assert result.ret == 1


def test_a_barrier_follows_each_subtest_even_if_it_fails(monkeypatch):
    log = []
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: log.append("barrier"))

    class Failing(unittest.TestCase):
        def test_it(self):
            def body(a):
                log.append(a)
                assert a == 2

            run_subtests(self, {"a": [1, 2]}, body)

    Failing("test_it").run(unittest.TestResult())
    assert log == [1, "barrier", 2, "barrier"]


def test_collectives_of_ranks_work_in_each(run_gang):
    agent = run_gang(
        {
            "test_it.py": """
                import torch, unittest
                import torch.distributed as dist
                from allranks.testing import RankEnvironment, run_subtests

                class TestIt(unittest.TestCase):
                    def test_good(self):
                        sums = []
                        def body(n, *, twice):
                            tensor = torch.tensor([n * (2 if twice else 1)])
                            dist.broadcast(tensor, src=n % 2)
                            sums.append(tensor.item())
                        run_subtests(self, {"n": [1, 2], "twice": [False, True]}, body)
                        assert sums == [1, 2, 2, 4]

                    def test_bad(self):
                        def body(n):
                            assert n != 2
                        run_subtests(self, {"n": [1, 2]}, body)
            """
        }
    )
    assert agent.outcomes("test_good") == ("passed", "passed")
    assert "subtest 2: n=2" in agent.cases(0)["test_bad"].text
