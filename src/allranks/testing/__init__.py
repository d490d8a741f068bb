"""What the author of a distributed suite imports: skips that say what the surroundings lack, and types.

The names are looked up on first use, so that the orchestrator can read :mod:`allranks.testing.skips.skipcodes` where
there is no torch, and pytest can rewrite :mod:`allranks.testing.fixtures` before anything imports it.
"""

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allranks.testing.barrier import FileBarrier, PeerTimeoutError
    from allranks.testing.blocking_wait import with_nccl_blocking_wait
    from allranks.testing.captured import captured_output
    from allranks.testing.ddp import verify_ddp_error_logged
    from allranks.testing.debug_level import dist_debug_level, with_dist_debug_levels
    from allranks.testing.environment import RankEnvironment
    from allranks.testing.equality import TensorEquality
    from allranks.testing.fixtures import SubgroupMaker
    from allranks.testing.processes.case import MultiProcessTestCase
    from allranks.testing.processes.continuous import MultiProcContinuousTest
    from allranks.testing.rank_gpus import rank_to_gpus
    from allranks.testing.rpc.agents import (
        FaultyTensorPipe,
        RpcAgent,
        TensorPipe,
        get_shutdown_error_regex,
        get_timeout_error_regex,
    )
    from allranks.testing.rpc.events import get_function_event
    from allranks.testing.rpc.fixtures import FaultyRpcAgentTestFixture, TensorPipeRpcAgentTestFixture
    from allranks.testing.rpc.meeting import NoMeetingPointError
    from allranks.testing.rpc.names import worker_name
    from allranks.testing.rpc.process_group import initialize_pg
    from allranks.testing.rpc.waits import (
        OwnersAndForks,
        get_num_owners_and_forks,
        wait_until_node_failure,
        wait_until_owners_and_forks_on_rank,
        wait_until_pending_futures_and_users_flushed,
    )
    from allranks.testing.rpc.world import with_rpc
    from allranks.testing.skips.backends import (
        require_backend_available,
        require_backend_in,
        require_gloo,
        require_mpi,
        require_nccl,
        require_nccl_version,
        require_ucc,
        skip_nccl_versions,
        skip_unsupported,
    )
    from allranks.testing.skips.gpus import (
        require_accelerator,
        require_accelerators,
        require_compute_capability,
        require_gpu,
        require_gpu_per_rank,
        require_gpus,
        require_gpus_or_none,
        require_peer_access,
        skip_if_rocm,
        skip_if_rocm_arch,
        skip_if_rocm_older,
    )
    from allranks.testing.skips.platforms import require_imports, skip_because, skip_if_windows, skip_when
    from allranks.testing.skips.requirement import EnvironmentSkip, Requirement, skip
    from allranks.testing.skips.skipcodes import (
        SkipCode,
        kind,
        kind_of_exit,
        multi_gpu,
        reason,
        reason_of_exit,
        sandcastle_reason,
    )
    from allranks.testing.skips.worlds import (
        require_exact_world_size,
        require_world_size,
        skip_if_odd_world_size,
        skip_if_small_world_size,
    )
    from allranks.testing.sparse import SparseReduction, sparse_reduction_cases
    from allranks.testing.subtests import run_subtests
    from allranks.testing.tcp_store import create_tcp_store, reserved_port
    from allranks.testing.tensorpipe import has_efa, tensorpipe_transports
    from allranks.testing.threads.case import MultiThreadedTestCase, spawn_threads_and_init_comms
    from allranks.testing.threads.report import RankThreadError
    from allranks.testing.threads.world import ThreadedWorldError
    from allranks.testing.variables import changed_variables

__all__ = [
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
    "get_function_event",
    "get_num_owners_and_forks",
    "get_shutdown_error_regex",
    "get_timeout_error_regex",
    "has_efa",
    "initialize_pg",
    "kind",
    "kind_of_exit",
    "multi_gpu",
    "rank_to_gpus",
    "reason",
    "reason_of_exit",
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
    "run_subtests",
    "sandcastle_reason",
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
    "verify_ddp_error_logged",
    "wait_until_node_failure",
    "wait_until_owners_and_forks_on_rank",
    "wait_until_pending_futures_and_users_flushed",
    "with_dist_debug_levels",
    "with_nccl_blocking_wait",
    "with_rpc",
    "worker_name",
]

_NAMES_BY_MODULE = MappingProxyType(
    {
        "skips.backends": (
            "require_backend_available",
            "require_backend_in",
            "require_gloo",
            "require_mpi",
            "require_nccl",
            "require_nccl_version",
            "require_ucc",
            "skip_nccl_versions",
            "skip_unsupported",
        ),
        "barrier": ("FileBarrier", "PeerTimeoutError"),
        "environment": ("RankEnvironment",),
        "fixtures": ("SubgroupMaker",),
        "skips.gpus": (
            "require_accelerator",
            "require_accelerators",
            "require_compute_capability",
            "require_gpu",
            "require_gpu_per_rank",
            "require_gpus",
            "require_gpus_or_none",
            "require_peer_access",
            "skip_if_rocm",
            "skip_if_rocm_arch",
            "skip_if_rocm_older",
        ),
        "skips.platforms": ("require_imports", "skip_because", "skip_if_windows", "skip_when"),
        "processes.case": ("MultiProcessTestCase",),
        "processes.continuous": ("MultiProcContinuousTest",),
        "skips.skipcodes": (
            "SkipCode",
            "kind",
            "kind_of_exit",
            "multi_gpu",
            "reason",
            "reason_of_exit",
            "sandcastle_reason",
        ),
        "skips.requirement": ("EnvironmentSkip", "Requirement", "skip"),
        "skips.worlds": (
            "require_exact_world_size",
            "require_world_size",
            "skip_if_odd_world_size",
            "skip_if_small_world_size",
        ),
        "blocking_wait": ("with_nccl_blocking_wait",),
        "captured": ("captured_output",),
        "ddp": ("verify_ddp_error_logged",),
        "debug_level": (
            "dist_debug_level",
            "with_dist_debug_levels",
        ),
        "equality": ("TensorEquality",),
        "rank_gpus": ("rank_to_gpus",),
        "rpc.agents": (
            "FaultyTensorPipe",
            "RpcAgent",
            "TensorPipe",
            "get_shutdown_error_regex",
            "get_timeout_error_regex",
        ),
        "rpc.events": ("get_function_event",),
        "rpc.fixtures": (
            "FaultyRpcAgentTestFixture",
            "TensorPipeRpcAgentTestFixture",
        ),
        "rpc.meeting": ("NoMeetingPointError",),
        "rpc.names": ("worker_name",),
        "rpc.process_group": ("initialize_pg",),
        "rpc.waits": (
            "OwnersAndForks",
            "get_num_owners_and_forks",
            "wait_until_node_failure",
            "wait_until_owners_and_forks_on_rank",
            "wait_until_pending_futures_and_users_flushed",
        ),
        "rpc.world": ("with_rpc",),
        "sparse": (
            "SparseReduction",
            "sparse_reduction_cases",
        ),
        "subtests": ("run_subtests",),
        "tcp_store": (
            "create_tcp_store",
            "reserved_port",
        ),
        "tensorpipe": (
            "has_efa",
            "tensorpipe_transports",
        ),
        "threads.case": (
            "MultiThreadedTestCase",
            "spawn_threads_and_init_comms",
        ),
        "threads.report": ("RankThreadError",),
        "threads.world": ("ThreadedWorldError",),
        "variables": ("changed_variables",),
    }
)
_HOME = MappingProxyType({name: module for module, names in _NAMES_BY_MODULE.items() for name in names})


def __getattr__(name: str) -> object:
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    return value
