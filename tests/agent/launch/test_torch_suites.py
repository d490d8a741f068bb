"""torch's own suites, which suites/torch runs in a cell: a few tests of each in a real agent."""

from pathlib import Path

import pytest
from long_lists import quick

TORCH = Path(__file__).parents[3] / "suites/torch"
SUITE = TORCH / "c10d/test_distributed.py"
SAMPLE = (
    "test_all_reduce_sum",
    "test_barrier_timeout_global",
    "test_get_rank",
    "test_all_reduce_group_sum",
    "test_send_recv_nccl",
)
RPC_SAMPLE = (
    "RpcTest::test_worker_id",
    # These need torch's own enumeration of agents, unchanged, and an environment without RANK.
    "TensorPipeAgentRpcTest::test_infer_backend_from_options",
    "TensorPipeAgentRpcTest::test_dynamic_rpc_init_rpc_without_rank",
)


@pytest.fixture(scope="module", params=quick(1, ["env", "tcp", "file"]))
def sample(request, run_once):
    nodeids = [f"suite/test_distributed.py::TestDistributed::{name}" for name in SAMPLE]
    files = {"test_distributed.py": SUITE.read_text(encoding="utf-8")}
    return run_once(f"c10d-{request.param}", files, init_method=request.param, pytest_args=nodeids)


def test_torchs_tests_pass_on_all_ranks(sample):
    for name in ("test_all_reduce_sum", "test_get_rank"):
        assert sample.outcomes(name) == ("passed", "passed")


def test_tests_that_an_init_method_does_not_support_are_omitted(sample):
    outcome = "passed" if sample.config.init_method == "file" else "skipped"
    assert sample.outcomes("test_barrier_timeout_global") == (outcome, outcome)


def test_skips_in_a_world_of_two_have_torchs_reason(sample):
    case = sample.cases(1)["test_all_reduce_group_sum"]
    assert (case.outcome, case.message) == ("skipped", "Skipped due to small world size.")


def test_tests_that_gloo_does_not_support_are_an_environment_skip(sample):
    case = sample.cases(1)["test_send_recv_nccl"]
    assert (case.properties["skip_kind"], case.message) == ("environment", "NCCL Send Recv Only")


@pytest.mark.thorough
def test_each_of_the_ranks_that_torchs_rpc_starts_has_its_outcome(run_agent):
    names = ("__init__.py", "meet_by_tcp.py", "torch_lists.py", "test_rpc.py")
    files = {name: (TORCH / "rpc" / name).read_text(encoding="utf-8") for name in names}
    tests = [f"suite/test_rpc.py::TensorPipe{name}" for name in RPC_SAMPLE]
    run = run_agent(files, init_method="file", pytest_args=tests)
    for rank in range(4):
        cases = run.cases(rank)
        assert {name: case.outcome for name, case in cases.items()} == {
            name.rpartition(":")[2]: "passed" for name in RPC_SAMPLE
        }


LAST = """
    from pathlib import Path

    import torch.distributed as dist
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    from .meet_by_tcp import MeetByTcp

    class TestLast(MeetByTcp, MultiProcessTestCase):
        world_size = property(lambda self: 2)

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def run_test(self, test_name, parent_pipe):
            super().run_test(test_name, parent_pipe)
            if self.rank == 0:
                assert Path(f"{self.file_name}.end").exists(), "rank 0 did not wait"

        def test_rank_1_goes_on(self):
            store = dist.FileStore(f"{self.file_name}.store", 2)
            if self.rank == 0:
                store.wait(["rank 1 is there"])
                store.set("rank 0 is done", "")
            else:
                store.set("rank 1 is there", "")
                store.wait(["rank 0 is done"])
                Path(f"{self.file_name}.end").touch()
"""


@pytest.mark.thorough
def test_rank_0_which_has_the_store_of_rpc_over_tcp_leaves_last(run_agent):
    meeting = (TORCH / "rpc/meet_by_tcp.py").read_text(encoding="utf-8")
    run = run_agent({"__init__.py": "", "meet_by_tcp.py": meeting, "test_last.py": LAST}, init_method="tcp")
    assert run.outcomes("test_rank_1_goes_on") == ("passed", "passed")
