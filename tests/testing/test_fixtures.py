import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from allranks.testing.environment import RankEnvironment

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("no_cell")

# Each pytest that these tests start would import Hypothesis' plugin, which takes a second.
PLUGIN = ("-p", "allranks.testing.fixtures", "-p", "no:hypothesispytest")


@pytest.fixture
def group_of_one(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_environment_is_read_from_the_agents_variables():
    variables = {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "BACKEND": "NCCL",
        "INIT_METHOD": "tcp",
        "ALLRANKS_GPU_COUNT": "8",
        "ALLRANKS_GANG": "3",
        "ALLRANKS_SHARED": "/somewhere/gang-3",
    }
    assert RankEnvironment.read(variables) == RankEnvironment(
        rank=5,
        world_size=8,
        local_rank=1,
        local_world_size=4,
        backend="nccl",
        init_method="tcp",
        gpu_count=8,
        gang=3,
        shared=Path("/somewhere/gang-3"),
    )


def test_an_empty_environment_is_a_world_of_one_over_gloo():
    assert RankEnvironment.read({}) == RankEnvironment(
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        backend="gloo",
        init_method="env",
        gpu_count=0,
        gang=0,
        shared=None,
    )


def test_without_local_variables_all_ranks_are_on_one_node():
    read = RankEnvironment.read({"RANK": "2", "WORLD_SIZE": "4"})
    assert (read.local_rank, read.local_world_size) == (2, 4)


def test_the_fixtures_are_the_ranks_environment(pytester, monkeypatch):
    for name, value in {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "BACKEND": "gloo",
        "INIT_METHOD": "file",
    }.items():
        monkeypatch.setenv(name, value)
    pytester.makepyfile(
        """
        import torch

        def test_it(rank, world_size, local_rank, backend, init_method, device):
            assert (rank, world_size, local_rank, backend, init_method) == (3, 4, 1, "gloo", "file")
            assert device == torch.device("cpu")
        """
    )
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)


@pytest.mark.parametrize("variables", [{"BACKEND": "nccl"}, {"BACKEND": "gloo", "ALLRANKS_GPU_COUNT": "2"}], ids=str)
def test_in_a_gpu_cell_the_device_is_that_of_the_local_rank(pytester, monkeypatch, variables):
    for name, value in {**variables, "RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    pytester.makepyfile(
        """
        def test_it(device):
            assert (device.type, device.index) == ("cuda", 1)
        """
    )
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)


def test_device_skips_in_a_gpu_cell_on_a_host_without_gpus(pytester, monkeypatch):
    monkeypatch.setenv("BACKEND", "nccl")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    pytester.makepyfile("def test_it(device): raise AssertionError")
    result = pytester.runpytest_inprocess(*PLUGIN, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*no CUDA device is visible*"])


@pytest.mark.usefixtures("group_of_one")
def test_the_process_group_is_the_default_one(pytester):
    pytester.makepyfile(
        """
        import torch.distributed as dist

        def test_it(process_group):
            assert process_group is dist.group.WORLD
        """
    )
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)


def test_without_a_default_group_the_error_explains_what_to_do(pytester, monkeypatch):
    monkeypatch.setenv("ALLRANKS_GANG", "1")
    pytester.makepyfile("def test_it(process_group): pass")
    result = pytester.runpytest_inprocess(*PLUGIN)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*there is no default process group*", "*no_process_group*"])


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(("ending", "outcomes"), [("pass", {"passed": 2}), ("assert 0", {"passed": 1, "failed": 1})])
def test_subgroups_end_with_their_test_whether_it_passes_or_fails(pytester, ending, outcomes):
    pytester.makepyfile(
        f"""
        from datetime import timedelta
        import pytest
        import torch.distributed as dist

        made = []

        def test_that_makes_them(subgroup):
            made.append(subgroup([0], timeout=timedelta(seconds=7)))
            made.append(subgroup(range(1)))
            assert [dist.get_process_group_ranks(group) for group in made] == [[0], [0]]
            {ending}

        def test_that_runs_next():
            for group in made:
                with pytest.raises(KeyError):
                    dist.get_process_group_ranks(group)
            assert dist.is_initialized()
        """
    )
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(**outcomes)


def test_the_marker_for_tests_without_a_group_is_registered(pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.no_process_group
        def test_it(): pass
        """
    )
    pytester.runpytest_inprocess(*PLUGIN, "--strict-markers").assert_outcomes(passed=1)


def test_a_session_without_our_features_does_not_load_the_agent():
    loaded = "import sys, allranks.pytest_plugin, allranks.testing.fixtures; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert {"allranks.protocol.records", "allranks.agent.program", "allranks.protocol.config"}.isdisjoint(
        done.stdout.split()
    )
