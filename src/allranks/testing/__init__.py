"""The imports of a distributed suite: skips, test cases, stores and types.

Names are imported on first use, so that the orchestrator can read :mod:`allranks.skip_codes` without torch, and pytest
can rewrite :mod:`allranks.testing.fixtures` before any module imports it.
"""

import ast
import importlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allranks.harness.environment_skips import EnvironmentSkip
    from allranks.skip_codes import SkipCode, kind, kind_of_exit, multi_gpu, reason, reason_of_exit, sandcastle_reason
    from allranks.testing.environment import RankEnvironment, rank_to_gpus
    from allranks.testing.fixtures import SubgroupMaker
    from allranks.testing.forward_inputs import SaveForwardInputsModel, SaveForwardInputsModule, saved_dtypes
    from allranks.testing.gloo_devices import gloo_device
    from allranks.testing.observed import captured_output, get_function_event, verify_ddp_error_logged
    from allranks.testing.process_cases import MultiProcContinuousTest, MultiProcessTestCase
    from allranks.testing.processes.device_cases import (
        DistributedTestBase,
        DynamoDistributedMultiProcTestCase,
        DynamoDistributedSingleProcTestCase,
    )
    from allranks.testing.rpc.kept_world import RpcWorld, rpc_world
    from allranks.testing.rpc.rpc_agents import (
        FaultyRpcAgentTestFixture,
        FaultyTensorPipe,
        RpcAgent,
        TensorPipe,
        TensorPipeRpcAgentTestFixture,
        get_shutdown_error_regex,
        get_timeout_error_regex,
        has_efa,
        tensorpipe_transports,
    )
    from allranks.testing.rpc.rpc_world import NoMeetingPointError, initialize_pg, with_rpc, worker_name
    from allranks.testing.rpc.waits import (
        OwnersAndForks,
        get_num_owners_and_forks,
        wait_until_node_failure,
        wait_until_owners_and_forks_on_rank,
        wait_until_pending_futures_and_users_flushed,
    )
    from allranks.testing.settings import (
        changed_variables,
        dist_debug_level,
        fresh_dynamo,
        with_dist_debug_levels,
        with_nccl_blocking_wait,
    )
    from allranks.testing.shared_files import FileBarrier, PeerTimeoutError
    from allranks.testing.skips.backend_gaps import register_unsupported, unsupported_operations
    from allranks.testing.skips.hardware import (
        require_accelerator,
        require_accelerators,
        require_compute_capability,
        require_exact_world_size,
        require_gpu,
        require_gpu_per_rank,
        require_gpus,
        require_gpus_or_none,
        require_peer_access,
        require_world_size,
        skip_if_odd_world_size,
        skip_if_rocm,
        skip_if_rocm_arch,
        skip_if_rocm_older,
        skip_if_small_world_size,
    )
    from allranks.testing.skips.requirement import Requirement, skip
    from allranks.testing.skips.software import (
        require_backend_available,
        require_backend_in,
        require_gloo,
        require_imports,
        require_mpi,
        require_nccl,
        require_nccl_version,
        require_ucc,
        skip_because,
        skip_if_windows,
        skip_nccl_versions,
        skip_unsupported,
        skip_when,
    )
    from allranks.testing.stores import create_tcp_store, reserved_port
    from allranks.testing.subtests import run_subtests
    from allranks.testing.tensors import SparseReduction, TensorEquality, sparse_reduction_cases
    from allranks.testing.threads.report import RankThreadError
    from allranks.testing.threads.thread_cases import MultiThreadedTestCase, spawn_threads_and_init_comms
    from allranks.testing.threads.thread_world import ThreadedWorldError

__all__ = [
    "DistributedTestBase",
    "DynamoDistributedMultiProcTestCase",
    "DynamoDistributedSingleProcTestCase",
    "EnvironmentSkip",
    "FaultyRpcAgentTestFixture",
    "FaultyTensorPipe",
    "FileBarrier",
    "MultiProcContinuousTest",
    "MultiProcessTestCase",
    "MultiThreadedTestCase",
    "NoMeetingPointError",
    "OwnersAndForks",
    "PeerTimeoutError",
    "RankEnvironment",
    "RankThreadError",
    "Requirement",
    "RpcAgent",
    "RpcWorld",
    "SaveForwardInputsModel",
    "SaveForwardInputsModule",
    "SkipCode",
    "SparseReduction",
    "SubgroupMaker",
    "TensorEquality",
    "TensorPipe",
    "TensorPipeRpcAgentTestFixture",
    "ThreadedWorldError",
    "captured_output",
    "changed_variables",
    "create_tcp_store",
    "dist_debug_level",
    "fresh_dynamo",
    "get_function_event",
    "get_num_owners_and_forks",
    "get_shutdown_error_regex",
    "get_timeout_error_regex",
    "gloo_device",
    "has_efa",
    "initialize_pg",
    "kind",
    "kind_of_exit",
    "multi_gpu",
    "rank_to_gpus",
    "reason",
    "reason_of_exit",
    "register_unsupported",
    "require_accelerator",
    "require_accelerators",
    "require_backend_available",
    "require_backend_in",
    "require_compute_capability",
    "require_exact_world_size",
    "require_gloo",
    "require_gpu",
    "require_gpu_per_rank",
    "require_gpus",
    "require_gpus_or_none",
    "require_imports",
    "require_mpi",
    "require_nccl",
    "require_nccl_version",
    "require_peer_access",
    "require_ucc",
    "require_world_size",
    "reserved_port",
    "rpc_world",
    "run_subtests",
    "sandcastle_reason",
    "saved_dtypes",
    "skip",
    "skip_because",
    "skip_if_odd_world_size",
    "skip_if_rocm",
    "skip_if_rocm_arch",
    "skip_if_rocm_older",
    "skip_if_small_world_size",
    "skip_if_windows",
    "skip_nccl_versions",
    "skip_unsupported",
    "skip_when",
    "sparse_reduction_cases",
    "spawn_threads_and_init_comms",
    "tensorpipe_transports",
    "unsupported_operations",
    "verify_ddp_error_logged",
    "wait_until_node_failure",
    "wait_until_owners_and_forks_on_rank",
    "wait_until_pending_futures_and_users_flushed",
    "with_dist_debug_levels",
    "with_nccl_blocking_wait",
    "with_rpc",
    "worker_name",
]


@cache
def _homes() -> dict[str, str]:
    """The module of each name: the imports above say it to type checkers, and here."""
    nodes = ast.walk(ast.parse(Path(__file__).read_bytes()))
    imports = (node for node in nodes if isinstance(node, ast.ImportFrom) and node.module)
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __dir__() -> list[str]:
    """The public names too, for editors and interactive shells: none is imported before its first use."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value: object = getattr(importlib.import_module(_homes()[name]), name)
    return value
