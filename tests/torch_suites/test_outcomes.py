"""A small part of torch's own suites under allranks: each outcome, and each skip's reason, as torch's runner has them.

``nox -s torch_outcomes`` compares all of it.
"""

import pytest
from allranks_run import one_job, run
from compare import GOOD
from differences import compare, read_known
from torch_record import installed_torch, read_record

PART = {
    "torch-c10d": (
        "TestDistributed::test_Backend_enum_class",
        "TestDistributed::test_get_rank",
        "TestDistributed::test_all_reduce_sum",
        "TestDistributed::test_all_gather_object_default_pg",
        # skipped before a rank starts: by the backend, by the world size, by a condition of torch's own
        "TestDistributed::test_all_to_all_cuda",
        "TestDistributed::test_nccl_backend_bool_allgather",
        "TestDistributed::test_3_level_hierarchical_model_averager",
        "TestDistributed::test_new_subgroups",
        # skipped by the ranks, through their exit status
        "TestDistributed::test_broadcast_cuda",
        "TestDistributed::test_all_gather_group",
        "TestDistributed::test_1_level_hierarchical_model_averager_equivalent_to_periodic_model_averager",
        "TestDistributed::test_post_localSGD_optimizer_parity_with_hierarchical_sgd",
    ),
    "torch-rpc": (
        "TensorPipeRpcTest::test_add",
        "TensorPipeRpcTest::test_dist_init_decorator",
        "TensorPipeRpcTest::test_profiler_rpc_key_names",
        "TensorPipeJitRpcTest::test_add_done_callback",
        "TensorPipeRemoteModuleTest::test_bad_module",
    ),
    "torch-dist-autograd": (
        "TensorPipeDistAutogradTest::test_async_dist_autograd",
        "TensorPipeJitDistAutogradTest::test_get_gradients",
    ),
    "torch-dist-optimizer": ("TensorPipeDistOptimizerTest::test_dist_optim_exception_on_constructor",),
    "torch-ddp-rpc": ("TensorPipeDdpComparisonTest::test_ddp_dist_autograd_sparse_grads",),
    "torch-rpc-faulty": ("FaultyFaultyAgentRpcTest::test_custom_messages_to_delay",),
}
OF_C10D = {"torch-c10d": PART["torch-c10d"]}
OF_RPC = {suite: tests for suite, tests in PART.items() if suite not in OF_C10D}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """One run, whose two agents import torch side by side."""
    return run([one_job("c10d", OF_C10D), one_job("rpc", OF_RPC)], tmp_path_factory.mktemp("torch") / "repository")


@pytest.mark.thorough
def test_every_job_goes_well(ran):
    assert ran.troubles == (), ran.output


@pytest.mark.thorough
@pytest.mark.parametrize(("suite", "test"), [(suite, test) for suite, tests in PART.items() for test in tests])
def test_a_test_of_torchs_ends_as_under_torchs_own_runner(ran, suite, test):
    record = read_record(installed_torch())
    assert record.seen(suite, test), f"{suite}::{test} is not on record"
    [compared] = compare(record, {suite: {test: ran.suites[suite][test]}}, {suite: (test,)}, read_known())
    assert compared.relation in GOOD, f"{compared}\n{ran.output}"
