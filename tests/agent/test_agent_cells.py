"""Cells: init methods, and skips on hosts that lack the hardware."""

import pytest
import torch
from long_lists import quick
from torch import distributed

COLLECTIVE = """
    import os
    import torch
    import torch.distributed as dist

    def test_meets(rank, init_method):
        total = torch.tensor([rank + 1])
        dist.all_reduce(total)
        assert total.item() == 3
        assert os.environ["INIT_METHOD"] == init_method
        assert os.environ["LOCAL_RANK"] == str(rank)
        assert ("MASTER_PORT" in os.environ) == (init_method != "file")
"""


@pytest.mark.parametrize("init_method", quick(1, ["env", "tcp", "file"]))
def test_ranks_meet_by_every_init_method(run_agent, init_method):
    agent = run_agent({"test_meets.py": COLLECTIVE}, init_method=init_method)
    assert agent.outcomes("test_meets") == ("passed", "passed"), agent.cases(0)["test_meets"].text


SKIPPED = """
    import pytest
    import torch.distributed as dist

    @pytest.fixture(scope="session", autouse=True)
    def needs_the_group():
        assert dist.is_initialized()

    def test_one(): pass

    @pytest.mark.skip(reason="by its author")
    def test_two(): pass
"""


@pytest.mark.skipif(distributed.is_nccl_available(), reason="this torch has NCCL")
def test_a_cell_whose_backend_is_absent_skips_every_test_before_its_fixtures(run_agent):
    agent = run_agent({"test_skipped.py": SKIPPED}, backend="nccl")
    for rank in (0, 1):
        for case in agent.cases(rank).values():
            assert (case.outcome, case.properties["skip_code"]) == ("skipped", "72")
            assert case.properties["skip_kind"] == "environment"
            assert case.message.count("nccl") == 1
    assert len(agent.gangs()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
def test_a_cell_whose_gpus_are_absent_skips_every_test_with_kind_hardware(run_agent):
    agent = run_agent({"test_skipped.py": SKIPPED}, gpu_count=1, world_size=1)
    for case in agent.cases(0).values():
        assert (case.outcome, case.properties["skip_code"]) == ("skipped", "74")
        assert case.properties["skip_kind"] == "hardware"
