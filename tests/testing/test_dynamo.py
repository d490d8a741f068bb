"""Test cases and a fixture for torch.compile: in this process, under plain pytest, and in ranks."""

import subprocess
import sys
import textwrap
import unittest

import pytest
import torch
import torch.distributed as dist

from allranks.testing import DynamoDistributedSingleProcTestCase, fresh_dynamo


def double(x):
    return x * 2


def compile_it():
    assert torch.compile(double, backend="eager")(torch.ones(1)).item() == 2


@pytest.fixture
def counters():
    from torch._dynamo.utils import counters

    yield counters
    torch.compiler.reset()
    counters.clear()


def test_code_that_was_compiled_before_is_compiled_again(counters):
    compiled, one = torch.compile(double, backend="eager"), torch.ones(1)
    for _ in range(2):
        compiled(one)
        assert counters["stats"]["unique_graphs"] == 1
        with fresh_dynamo() as fresh:
            assert not fresh
            for _ in range(2):
                assert compiled(one).item() == 2
            assert fresh["stats"]["unique_graphs"] == 1
        assert not counters


def test_a_failed_test_leaves_no_folder(counters):
    from torch._dynamo import config

    def fail():
        compile_it()
        config.optimize_ddp = not config.optimize_ddp
        torch.set_grad_enabled(not torch.is_grad_enabled())
        raise ZeroDivisionError

    before = config.optimize_ddp, torch.is_grad_enabled()
    with pytest.raises(ZeroDivisionError), fresh_dynamo():
        fail()
    assert not counters
    assert (config.optimize_ddp, torch.is_grad_enabled()) == before


@pytest.mark.usefixtures("counters")
def test_a_compiler_s_error_is_not_suppressed(monkeypatch):
    from torch._dynamo import config

    def broken(_graph, _inputs):
        raise ZeroDivisionError

    monkeypatch.setattr(config, "suppress_errors", True)
    with fresh_dynamo(), pytest.raises(Exception, match="ZeroDivisionError"):
        torch.compile(double, backend=broken)(torch.ones(1))
    assert config.suppress_errors


def run(case):
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return [(case.id().rpartition(".")[2], text) for case, text in [*result.failures, *result.errors]]


def test_each_test_of_a_class_has_an_empty_dynamo_and_a_group(counters):
    class Case(DynamoDistributedSingleProcTestCase):
        def test_1(self):
            assert not counters
            assert dist.get_world_size() == 1
            compile_it()
            dist.all_reduce(torch.ones(1, device=self.device))

        def test_2_destroys(self):
            assert not counters
            dist.destroy_process_group()
            raise ZeroDivisionError

        def test_3(self):
            assert dist.is_initialized()

    [(name, text)] = run(Case)
    assert name == "test_2_destroys"
    assert "ZeroDivisionError" in text
    assert not counters
    assert not dist.is_initialized()


def test_a_class_that_fails_in_setup_leaves_no_ranks(counters):
    class Case(DynamoDistributedSingleProcTestCase):
        def setUp(self):
            super().setUp()
            compile_it()
            raise ZeroDivisionError

        def test_it(self): ...

    class Sooner(Case):
        @classmethod
        def setUpClass(cls):
            super().setUpClass()
            raise ZeroDivisionError

    for case in (Case, Sooner):
        assert len(run(case)) == 1
        assert not counters
        assert not dist.is_initialized()


SUITE = """
    import sys
    import pytest, torch
    import torch.distributed as dist
    from allranks.testing import (
        DistributedTestBase, DynamoDistributedMultiProcTestCase, DynamoDistributedSingleProcTestCase
    )

    def summed(x):
        dist.all_reduce(x)
        return x * 2

    def compile_it(rank):
        return torch.compile(summed, backend="eager", fullgraph=True)(torch.ones(1) + rank).item()

    class TestMany(DynamoDistributedMultiProcTestCase):
        world_size = 2

        def test_ranks(self):
            from torch._dynamo.utils import counters

            assert not counters
            self.assertEqual(compile_it(self.rank), 6)
            assert counters["stats"]["unique_graphs"] == 1

        def test_that_fails(self):
            assert compile_it(self.rank) == 5

    class TestOwnGroup(DynamoDistributedMultiProcTestCase):
        init_pg = False
        world_size = 2

        def test_without(self):
            assert not dist.is_initialized()
            self.create_pg("cpu")

    class TestBase(DistributedTestBase):
        world_size = 2

        def test_group(self):
            group = self.create_pg("cpu")
            assert (self.backend("cuda"), dist.get_backend(group)) == ("nccl", "gloo")
            assert (group.size(), group.rank()) == (2, self.rank)
            assert self.rank_to_device("cpu") == {0: [0], 1: [0]}

    class TestOne(DynamoDistributedSingleProcTestCase):
        def test_alone(self):
            assert (dist.get_world_size(), compile_it(2)) == (1, 6)
"""


@pytest.mark.thorough
def test_under_plain_pytest_ranks_drop_the_launching_process_s_compilations(tmp_path, environment_without_ranks):
    test = tmp_path / "test_compiled.py"
    check = """
    assert "torch._dynamo" not in sys.modules, "imported before a test needs it"

    class TestFirst(TestOne):
        def tearDown(self):
            super().tearDown()
            self.addClassCleanup(torch.compile(lambda x: x + 1, backend="eager"), torch.ones(1))
    """
    test.write_text(textwrap.dedent(SUITE) + textwrap.dedent(check))
    order = ["TestFirst", "TestMany", "TestOwnGroup", "TestBase"]
    plain = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    done = subprocess.run(
        [*plain, *(f"{test}::{name}" for name in order)],
        cwd=tmp_path,
        env=environment_without_ranks,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "1 failed, 4 passed" in done.stdout, done.stdout
    assert "assert 6.0 == 5" in done.stdout


@pytest.mark.thorough
def test_in_ranks_of_an_agent(run_gang):
    functions = """
    def test_function(dynamo, process_group, rank):
        assert compile_it(rank) == 6
        assert dynamo["stats"]["unique_graphs"] == 1

    def test_function_again(dynamo, process_group, rank):
        assert not dynamo
        assert compile_it(rank) == 6
        assert dynamo["stats"]["unique_graphs"] == 1
    """
    once_for_all_ranks = "import torch._dynamo\n"
    files = {"test_it.py": once_for_all_ranks + textwrap.dedent(SUITE) + textwrap.dedent(functions)}
    agent = run_gang(files, limits={"test": 80})
    good = ("test_ranks", "test_without", "test_group", "test_alone", "test_function", "test_function_again")
    assert {name: agent.outcomes(name) for name in good} == dict.fromkeys(good, ("passed", "passed"))
    assert agent.outcomes("test_that_fails") == ("failed", "failed")
