"""The public API for suite authors: requirements and skips, test cases, RPC worlds, stores, and helpers.

Each name is imported on first use. This lets programs without torch use the skip codes, and lets pytest rewrite the
assertions of :mod:`allranks.testing.fixtures` before anything imports that module.
"""

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allranks.agent.environment_skips import EnvironmentSkip as EnvironmentSkip
    from allranks.protocol.skip_codes import SkipCode as SkipCode
    from allranks.protocol.skip_codes import kind as kind
    from allranks.protocol.skip_codes import kind_of_exit as kind_of_exit
    from allranks.protocol.skip_codes import multi_gpu as multi_gpu
    from allranks.protocol.skip_codes import reason as reason
    from allranks.protocol.skip_codes import reason_of_exit as reason_of_exit
    from allranks.protocol.skip_codes import sandcastle_reason as sandcastle_reason
    from allranks.testing.environment import RankEnvironment as RankEnvironment
    from allranks.testing.environment import rank_to_gpus as rank_to_gpus
    from allranks.testing.fixtures import SubgroupMaker as SubgroupMaker
    from allranks.testing.gloo_devices import gloo_device as gloo_device
    from allranks.testing.observed import captured_output as captured_output
    from allranks.testing.observed import get_function_event as get_function_event
    from allranks.testing.observed import verify_ddp_error_logged as verify_ddp_error_logged
    from allranks.testing.process_cases import DistributedTestBase as DistributedTestBase
    from allranks.testing.process_cases import (
        DynamoDistributedMultiProcTestCase as DynamoDistributedMultiProcTestCase,
    )
    from allranks.testing.process_cases import (
        DynamoDistributedSingleProcTestCase as DynamoDistributedSingleProcTestCase,
    )
    from allranks.testing.process_cases import MultiProcContinuousTest as MultiProcContinuousTest
    from allranks.testing.process_cases import MultiProcessTestCase as MultiProcessTestCase
    from allranks.testing.rpc import FaultyRpcAgentTestFixture as FaultyRpcAgentTestFixture
    from allranks.testing.rpc import FaultyTensorPipe as FaultyTensorPipe
    from allranks.testing.rpc import NoMeetingPointError as NoMeetingPointError
    from allranks.testing.rpc import OwnersAndForks as OwnersAndForks
    from allranks.testing.rpc import RpcAgent as RpcAgent
    from allranks.testing.rpc import RpcWorld as RpcWorld
    from allranks.testing.rpc import TensorPipe as TensorPipe
    from allranks.testing.rpc import TensorPipeRpcAgentTestFixture as TensorPipeRpcAgentTestFixture
    from allranks.testing.rpc import get_num_owners_and_forks as get_num_owners_and_forks
    from allranks.testing.rpc import get_shutdown_error_regex as get_shutdown_error_regex
    from allranks.testing.rpc import get_timeout_error_regex as get_timeout_error_regex
    from allranks.testing.rpc import has_efa as has_efa
    from allranks.testing.rpc import initialize_pg as initialize_pg
    from allranks.testing.rpc import rpc_world as rpc_world
    from allranks.testing.rpc import tensorpipe_transports as tensorpipe_transports
    from allranks.testing.rpc import wait_until_node_failure as wait_until_node_failure
    from allranks.testing.rpc import wait_until_owners_and_forks_on_rank as wait_until_owners_and_forks_on_rank
    from allranks.testing.rpc import (
        wait_until_pending_futures_and_users_flushed as wait_until_pending_futures_and_users_flushed,
    )
    from allranks.testing.rpc import with_rpc as with_rpc
    from allranks.testing.rpc import worker_name as worker_name
    from allranks.testing.settings import changed_variables as changed_variables
    from allranks.testing.settings import dist_debug_level as dist_debug_level
    from allranks.testing.settings import fresh_dynamo as fresh_dynamo
    from allranks.testing.settings import with_dist_debug_levels as with_dist_debug_levels
    from allranks.testing.settings import with_nccl_blocking_wait as with_nccl_blocking_wait
    from allranks.testing.shared_files import FileBarrier as FileBarrier
    from allranks.testing.shared_files import PeerTimeoutError as PeerTimeoutError
    from allranks.testing.skips import Requirement as Requirement
    from allranks.testing.skips import register_unsupported as register_unsupported
    from allranks.testing.skips import require_accelerator as require_accelerator
    from allranks.testing.skips import require_accelerators as require_accelerators
    from allranks.testing.skips import require_backend_available as require_backend_available
    from allranks.testing.skips import require_backend_in as require_backend_in
    from allranks.testing.skips import require_compute_capability as require_compute_capability
    from allranks.testing.skips import require_exact_world_size as require_exact_world_size
    from allranks.testing.skips import require_gloo as require_gloo
    from allranks.testing.skips import require_gpu as require_gpu
    from allranks.testing.skips import require_gpu_per_rank as require_gpu_per_rank
    from allranks.testing.skips import require_gpus as require_gpus
    from allranks.testing.skips import require_gpus_or_none as require_gpus_or_none
    from allranks.testing.skips import require_imports as require_imports
    from allranks.testing.skips import require_mpi as require_mpi
    from allranks.testing.skips import require_nccl as require_nccl
    from allranks.testing.skips import require_nccl_version as require_nccl_version
    from allranks.testing.skips import require_peer_access as require_peer_access
    from allranks.testing.skips import require_ucc as require_ucc
    from allranks.testing.skips import require_world_size as require_world_size
    from allranks.testing.skips import skip as skip
    from allranks.testing.skips import skip_because as skip_because
    from allranks.testing.skips import skip_if_odd_world_size as skip_if_odd_world_size
    from allranks.testing.skips import skip_if_rocm as skip_if_rocm
    from allranks.testing.skips import skip_if_rocm_arch as skip_if_rocm_arch
    from allranks.testing.skips import skip_if_rocm_older as skip_if_rocm_older
    from allranks.testing.skips import skip_if_small_world_size as skip_if_small_world_size
    from allranks.testing.skips import skip_if_windows as skip_if_windows
    from allranks.testing.skips import skip_nccl_versions as skip_nccl_versions
    from allranks.testing.skips import skip_unsupported as skip_unsupported
    from allranks.testing.skips import skip_when as skip_when
    from allranks.testing.skips import unsupported_operations as unsupported_operations
    from allranks.testing.stores import create_tcp_store as create_tcp_store
    from allranks.testing.stores import reserved_port as reserved_port
    from allranks.testing.subtests import run_subtests as run_subtests
    from allranks.testing.tensors import SaveForwardInputsModel as SaveForwardInputsModel
    from allranks.testing.tensors import SaveForwardInputsModule as SaveForwardInputsModule
    from allranks.testing.tensors import SparseReduction as SparseReduction
    from allranks.testing.tensors import TensorEquality as TensorEquality
    from allranks.testing.tensors import saved_dtypes as saved_dtypes
    from allranks.testing.tensors import sparse_reduction_cases as sparse_reduction_cases
    from allranks.testing.threads import MultiThreadedTestCase as MultiThreadedTestCase
    from allranks.testing.threads import RankThreadError as RankThreadError
    from allranks.testing.threads import ThreadedWorldError as ThreadedWorldError
    from allranks.testing.threads import spawn_threads_and_init_comms as spawn_threads_and_init_comms


def _read_modules() -> dict[str, str]:
    """The module of each public name, read from the imports above, which only type checkers execute."""
    imports = (node for node in ast.walk(ast.parse(Path(__file__).read_bytes())) if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names if alias.asname}


_MODULES = _read_modules()
__all__ = sorted(_MODULES)  # noqa: PLE0605 - type checkers read the names from the imports


def __dir__() -> list[str]:
    """All names, including public names that have not been imported yet."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value: object = getattr(importlib.import_module(_MODULES[name]), name)
    return value
